//! Limits repeated log lines to a number per second from each place in the code. Suppressed lines
//! are counted, and the count is logged as a line of its own, once a second.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use parking_lot::Mutex;
use ratelease_engine::time::Clock;
use tracing::callsite::Identifier;
use tracing::{Event, Level, Metadata, Subscriber, error, warn};
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::registry::LookupSpan;

use super::samples;

/// Maximum number of places tracked. A place is a line of source, so their number is limited; lines
/// from further places would be logged without a limit.
const PLACES_MAX: usize = 4096;

/// Suppresses lines. A cheap handle: clones share all state.
#[derive(Debug, Clone)]
pub(super) struct LogLimiter {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    /// 0 for no limit.
    lines_per_second: u32,
    places: Mutex<HashMap<Identifier, Place>>,
    clock: Clock,
}

/// A formatter that returns an error for suppressed lines, so that they are not written. It is not
/// a filter of tracing-subscriber: version 0.3.23 fails to reset the decision of an event filter,
/// and the next event is affected.
#[derive(Debug)]
pub(super) struct Calmed<F> {
    pub(super) inner: F,
    pub(super) calm: LogLimiter,
}

/// The lines from one place.
#[derive(Debug)]
struct Place {
    meta: &'static Metadata<'static>,
    /// The present second, since the clock was started.
    second: u64,
    /// Lines written in that second.
    lines: u32,
    /// Lines suppressed and not yet reported.
    left_out: u64,
}

// === impl LogLimiter ===

impl LogLimiter {
    pub(super) fn new(lines_per_second: u32, clock: Clock) -> Self {
        let shared = Shared { lines_per_second, places: Mutex::default(), clock };
        Self { shared: Arc::new(shared) }
    }

    /// Logs how many lines were suppressed since the last call, one line for each place.
    pub(super) fn tell(&self) {
        for (place, lines) in self.untold() {
            let at = format_args!("{}:{}", place.file().unwrap_or("?"), place.line().unwrap_or(0));
            let level = place.level();
            // At the level of the suppressed lines, so that the report appears wherever they would.
            if *level == Level::ERROR {
                error!(lines, %level, %at, "lines like those before were left out");
            } else {
                warn!(lines, %level, %at, "lines like those before were left out");
            }
        }
    }

    fn untold(&self) -> Vec<(&'static Metadata<'static>, u64)> {
        let mut places = self.shared.places.lock();
        let left_out = places.values_mut().filter(|place| place.left_out > 0);
        left_out.map(|place| (place.meta, std::mem::take(&mut place.left_out))).collect()
    }

    fn admits(&self, meta: &'static Metadata<'static>) -> bool {
        let Shared { lines_per_second, places, clock } = &*self.shared;
        // Samples have a limit of their own.
        if *lines_per_second == 0 || [module_path!(), samples::TARGET].contains(&meta.target()) {
            return true;
        }
        let second = clock.now().nanos() / 1_000_000_000;
        let mut places = places.lock();
        if places.len() >= PLACES_MAX && !places.contains_key(&meta.callsite()) {
            return true;
        }
        let place = places.entry(meta.callsite()).or_insert_with(|| Place::new(meta, second));
        place.admit(second, *lines_per_second)
    }
}

// === impl Calmed ===

impl<S, N, F> FormatEvent<S, N> for Calmed<F>
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
        if self.calm.admits(event.metadata()) {
            self.inner.format_event(context, writer, event)
        } else {
            Err(fmt::Error)
        }
    }
}

// === impl Place ===

impl Place {
    fn new(meta: &'static Metadata<'static>, second: u64) -> Self {
        Self { meta, second, lines: 0, left_out: 0 }
    }

    fn admit(&mut self, second: u64, lines_max: u32) -> bool {
        if second != self.second {
            (self.second, self.lines) = (second, 0);
        }
        let admitted = self.lines < lines_max;
        self.lines += u32::from(admitted);
        self.left_out += u64::from(!admitted);
        admitted
    }
}
