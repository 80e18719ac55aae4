//! The state of the stream, for the pages and the metrics.

use std::sync::Arc;

use parking_lot::Mutex;
use ratelease_engine::time::{Clock, Time};
use ratelease_rules::excerpt;
use ratelease_server::metrics::counter::{Count, Counter};
use serde_json::{Value, json};

/// Maximum bytes of the text of a refusal that are kept.
const REFUSAL_BYTES_MAX: usize = 2048;

/// Maximum number of different reasons that are logged until a set is accepted.
const LOGGED_MAX: usize = 8;

/// The state of the stream. A cheap handle: clones share it.
#[derive(Debug, Clone)]
pub struct XdsStatus {
    clock: Clock,
    server: Arc<str>,
    state: Arc<Mutex<State>>,
}

#[derive(Debug, Default)]
struct State {
    is_connected: bool,
    streams: u64,
    failures: u64,
    last_failure: Option<String>,
    /// The reasons that were logged since a set was accepted.
    logged: Vec<String>,
    version: String,
    accepted: u64,
    accepted_at: Option<Time>,
    /// The types of which no set was accepted yet.
    missing: Vec<&'static str>,
    refused: u64,
    refused_at: Option<Time>,
    last_refusal: Option<String>,
}

// === impl XdsStatus ===

impl XdsStatus {
    pub(super) fn new(server: &str, clock: Clock) -> Self {
        Self { clock, server: server.into(), state: Arc::default() }
    }

    pub(super) fn note_stream(&self) {
        let mut state = self.state.lock();
        state.is_connected = true;
        state.streams += 1;
    }

    /// Records the end of a stream, or an attempt that failed. Returns whether the reason is
    /// another one than the last.
    pub(super) fn note_failure(&self, why: &str) -> bool {
        let mut state = self.state.lock();
        state.is_connected = false;
        state.failures += 1;
        state.last_failure = Some(why.to_owned());
        let is_new = state.logged.len() < LOGGED_MAX && !state.logged.iter().any(|it| it == why);
        if is_new {
            state.logged.push(why.to_owned());
        }
        is_new
    }

    pub(super) fn note_accepted(&self, version: &str) {
        let mut state = self.state.lock();
        state.accepted += 1;
        state.accepted_at = Some(self.clock.now());
        state.version = excerpt(version);
        state.last_failure = None;
        state.logged.clear();
    }

    /// Records the types of which no set was accepted yet.
    pub(super) fn note_missing(&self, types: Vec<&'static str>) {
        self.state.lock().missing = types;
    }

    pub(super) fn note_refused(&self, faults: &[String]) {
        let mut text = faults.join("\n");
        text.truncate(text.floor_char_boundary(REFUSAL_BYTES_MAX));
        let mut state = self.state.lock();
        state.refused += 1;
        state.refused_at = Some(self.clock.now());
        state.last_refusal = Some(text);
    }

    /// The state as JSON, for `/status`.
    pub fn json(&self) -> Value {
        let state = self.state.lock();
        let age = |at: Option<Time>| at.map(|at| self.clock.now().since(at).as_secs_f64());
        json!({
            "server": *self.server,
            "connected": state.is_connected,
            "streams": state.streams,
            "failures": state.failures,
            "last_failure": state.last_failure,
            "version": state.version,
            "accepted": state.accepted,
            "missing": state.missing,
            "accepted_seconds_ago": age(state.accepted_at),
            "refused": state.refused,
            "refused_seconds_ago": age(state.refused_at),
            "last_refusal": state.last_refusal,
        })
    }

    /// Event counts since the process began, and present levels.
    pub fn counts(&self) -> Vec<Count> {
        let state = self.state.lock();
        vec![
            (Counter::XdsConnected, u64::from(state.is_connected)),
            (Counter::XdsStreams, state.streams),
            (Counter::XdsFailures, state.failures),
            (Counter::XdsAccepted, state.accepted),
            (Counter::XdsRefused, state.refused),
        ]
    }
}
