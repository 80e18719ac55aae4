//! One connection to one server, maintained by a task of its own: asks never connect, they only use
//! the present connection.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::AbortHandle;

use super::adaptive_timeout::AdaptiveTimeout;
use super::connection::Connection;
use super::connector::Connector;
use super::fault::{Fault, Kind};
use super::log_once::LogOnce;
use crate::backoff::Backoff;

/// A connection that reconnects on its own. Dropping it ends its task.
#[derive(Debug)]
pub(super) struct Reconnecting {
    state: watch::Receiver<State>,
    timeout: Arc<AdaptiveTimeout>,
    task: AbortHandle,
}

/// ```text
///              open                      broken, silent for long, or denied
/// Connecting ───────▶ Up(Connection) ──────────────────────────────────────▶ Down
///     └──fails──▶ Down ──opens, after a wait──▶ Up
/// ```
#[derive(Debug, Clone)]
enum State {
    /// The first attempt is in progress.
    Connecting,
    Up(Arc<Connection>),
    /// The reason why there is no connection.
    Down(Arc<str>),
}

/// Waits between attempts to connect.
const RETRY_FIRST: Duration = Duration::from_millis(100);
const RETRY_LAST: Duration = Duration::from_secs(2);

/// Some proxies close a connection on which SCRIPT is sent. After so many connections in a row that
/// ended at the scripts, the next one sends none: a single one may have ended for another reason.
const ENDS_AT_SCRIPTS_MAX: u32 = 2;

// === impl Reconnecting ===

impl Reconnecting {
    /// Starts to connect to the server of `connector`.
    pub(super) fn spawn(connector: Connector) -> Arc<Self> {
        let (publish, state) = watch::channel(State::Connecting);
        let timeout = connector.context().timeout();
        let task = tokio::spawn(keep_up(connector, Arc::clone(&timeout), publish)).abort_handle();
        Arc::new(Self { state, timeout, task })
    }

    /// The open connection, or at once the reason why there is none.
    pub(super) fn connection(&self) -> Result<Arc<Connection>, Fault> {
        match &*self.state.borrow() {
            State::Up(connection) => Ok(Arc::clone(connection)),
            State::Connecting => Err(Fault::new(Kind::NotSent, "still connecting")),
            State::Down(why) => Err(Fault::new(Kind::NotSent, &**why)),
        }
    }

    /// As [`Reconnecting::connection`], but first waits for the outcome of the first attempt.
    pub(super) async fn first_connection(&self) -> Result<Arc<Connection>, Fault> {
        let mut state = self.state.clone();
        // It fails only once the task has ended, and then the last state is final.
        let _ = state.wait_for(|state| !matches!(state, State::Connecting)).await;
        self.connection()
    }

    /// How long a reply may take at present.
    pub(super) fn timeout(&self) -> Duration {
        self.timeout.for_command()
    }

    /// How long the server has owed replies and sent nothing; `None` until the first attempt to
    /// connect has ended, which asks wait for.
    pub(super) fn silence(&self) -> Option<Duration> {
        match &*self.state.borrow() {
            State::Connecting => None,
            State::Up(connection) => Some(connection.silence()),
            State::Down(_) => Some(Duration::ZERO),
        }
    }

    /// Waits until there is a connection.
    pub(super) async fn up(&self) {
        let mut state = self.state.clone();
        let _ = state.wait_for(|state| matches!(state, State::Up(_))).await;
    }
}

impl Drop for Reconnecting {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn keep_up(
    connector: Connector,
    timeout: Arc<AdaptiveTimeout>,
    publish: watch::Sender<State>,
) {
    let context = connector.context();
    let mut backoff = Backoff::new(RETRY_FIRST, RETRY_LAST);
    let mut outage = LogOnce::default();
    // Connections in a row that ended at the scripts, before any reply to them.
    let mut ended_at_scripts = 0;
    connector.limiters().first.pass(&context.clock).await;
    loop {
        let began = context.clock.now();
        let (why, spent) = match connector.open(&timeout).await {
            Ok(connection) => {
                let connection = Arc::new(connection);
                let sends_scripts = ended_at_scripts < ENDS_AT_SCRIPTS_MAX;
                // Before the first ask, so that the server reads it after the scripts.
                if sends_scripts {
                    connection.load_scripts().await;
                }
                publish.send_replace(State::Up(Arc::clone(&connection)));
                if connection.proves_itself().await {
                    if outage.ends() {
                        tracing::info!(redis = %connection.address, "connected to Redis again");
                    }
                    backoff.reset();
                }
                let why = connection.ends().await;
                let ends_at_scripts = why.kind == Kind::Lost && !connection.has_replied();
                ended_at_scripts = match (sends_scripts, ends_at_scripts) {
                    (true, true) => ended_at_scripts + 1,
                    (true, false) => 0,
                    // The next one tries the scripts once more.
                    (false, _) => ENDS_AT_SCRIPTS_MAX - 1,
                };
                (why, Duration::ZERO)
            }
            Err(fault) => (fault, context.clock.now().since(began)),
        };
        if outage.begins() {
            let (why, hint) = (&why.text, connector.advice(&why));
            tracing::error!(redis = %connector, "no connection to Redis: {why}; {hint}");
        }
        publish.send_replace(State::Down(format!("{connector}: {}", why.text).into()));
        // The time that a failed attempt waited for an answer counts towards this wait.
        tokio::time::sleep(backoff.next_wait().saturating_sub(spent)).await;
        connector.limiters().again.pass(&context.clock).await;
    }
}
