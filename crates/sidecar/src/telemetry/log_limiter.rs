//! Limits repeated log lines to a number per second from each call site. Suppressed lines
//! are counted, and the count is logged as a line of its own, once a second.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use parking_lot::Mutex;
use ratelease_engine::time::Clock;
use ratelease_server::samples;
use tracing::callsite::Identifier;
use tracing::{Event, Level, Metadata, Subscriber, error, warn};
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::registry::LookupSpan;

/// Maximum number of call sites tracked. A call site is a line of source, so their number is
/// limited; lines from further ones would be logged without a limit.
const CALLSITES_MAX: usize = 4096;

/// Suppresses lines. A cheap handle: clones share all state.
#[derive(Debug, Clone)]
pub(super) struct LogLimiter {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    /// 0 for no limit.
    lines_per_second: u32,
    callsites: Mutex<HashMap<Identifier, Callsite>>,
    clock: Clock,
}

/// A formatter that returns an error for suppressed lines, so that they are not written. It is not
/// a filter of tracing-subscriber: version 0.3.23 fails to reset the decision of an event filter,
/// and the next event is affected.
#[derive(Debug)]
pub(super) struct Limited<F> {
    pub(super) inner: F,
    pub(super) limiter: LogLimiter,
}

/// The lines from one call site.
#[derive(Debug)]
struct Callsite {
    meta: &'static Metadata<'static>,
    /// The present second, since the clock was started.
    second: u64,
    /// Lines written in that second.
    lines: u32,
    /// Lines suppressed and not yet reported.
    suppressed: u64,
}

// === impl LogLimiter ===

impl LogLimiter {
    pub(super) fn new(lines_per_second: u32, clock: Clock) -> Self {
        let shared = Shared { lines_per_second, callsites: Mutex::default(), clock };
        Self { shared: Arc::new(shared) }
    }

    /// Logs how many lines were suppressed since the last call, one line for each call site.
    pub(super) fn report(&self) {
        for (callsite, lines) in self.take_suppressed() {
            let at =
                format_args!("{}:{}", callsite.file().unwrap_or("?"), callsite.line().unwrap_or(0));
            let level = callsite.level();
            // At the level of the suppressed lines, so that the report appears wherever they would.
            if *level == Level::ERROR {
                error!(lines, %level, %at, "repeated lines were suppressed");
            } else {
                warn!(lines, %level, %at, "repeated lines were suppressed");
            }
        }
    }

    fn take_suppressed(&self) -> Vec<(&'static Metadata<'static>, u64)> {
        let mut callsites = self.shared.callsites.lock();
        let suppressed = callsites.values_mut().filter(|callsite| callsite.suppressed > 0);
        suppressed
            .map(|callsite| (callsite.meta, std::mem::take(&mut callsite.suppressed)))
            .collect()
    }

    fn admit_line(&self, meta: &'static Metadata<'static>) -> bool {
        let Shared { lines_per_second, callsites, clock } = &*self.shared;
        // Samples have a limit of their own.
        if *lines_per_second == 0 || [module_path!(), samples::TARGET].contains(&meta.target()) {
            return true;
        }
        let second = clock.now().nanos() / 1_000_000_000;
        let mut callsites = callsites.lock();
        if callsites.len() >= CALLSITES_MAX && !callsites.contains_key(&meta.callsite()) {
            return true;
        }
        let callsite =
            callsites.entry(meta.callsite()).or_insert_with(|| Callsite::new(meta, second));
        callsite.admit(second, *lines_per_second)
    }
}

// === impl Limited ===

impl<S, N, F> FormatEvent<S, N> for Limited<F>
where
    S: Subscriber + for<'lookup> LookupSpan<'lookup>,
    N: for<'w> FormatFields<'w> + 'static,
    F: FormatEvent<S, N>,
{
    fn format_event(
        &self,
        context: &FmtContext<'_, S, N>,
        writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        if self.limiter.admit_line(event.metadata()) {
            self.inner.format_event(context, writer, event)
        } else {
            Err(fmt::Error)
        }
    }
}

// === impl Callsite ===

impl Callsite {
    fn new(meta: &'static Metadata<'static>, second: u64) -> Self {
        Self { meta, second, lines: 0, suppressed: 0 }
    }

    fn admit(&mut self, second: u64, lines_max: u32) -> bool {
        if second != self.second {
            (self.second, self.lines) = (second, 0);
        }
        let admitted = self.lines < lines_max;
        self.lines += u32::from(admitted);
        self.suppressed += u64::from(!admitted);
        admitted
    }
}
