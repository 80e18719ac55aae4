//! Limits repeated log lines to a number per second from each call site, and the length of a line:
//! who sends requests may cause as many as it likes. Suppressed lines are counted, and the count is
//! logged as a line of its own, once a second. All servers log through it.

use std::collections::HashMap;
use std::fmt;
use std::io::{self, Write};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use ratelease_engine::time::Clock;
use tokio::time::sleep;
use tracing::callsite::Identifier;
use tracing::level_filters::LevelFilter;
use tracing::{Event, Level, Metadata, Subscriber, error, warn};
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::util::SubscriberInitExt;

/// Maximum number of call sites tracked. A call site is a line of source, so their number is
/// limited; lines from further ones would be logged without a limit.
const CALLSITES_MAX: usize = 4096;

/// Lines that each call site of the injector and of the control plane may log in a second.
const LINES_PER_SECOND: u32 = 20;

/// Maximum bytes of a line of these; the rest is cut.
const LINE_BYTES_MAX: usize = 8 << 10;

/// Suppresses lines. A cheap handle: clones share all state.
#[derive(Debug, Clone)]
pub struct LogLimiter {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    /// 0 for no limit.
    lines_per_second: u32,
    /// The target of lines that have a limit of their own.
    exempt: &'static str,
    callsites: Mutex<HashMap<Identifier, Callsite>>,
    clock: Clock,
}

/// A formatter that returns an error for suppressed lines, so that they are not written. It is not
/// a filter of tracing-subscriber: version 0.3.23 fails to reset the decision of an event filter,
/// and the next event is affected.
#[derive(Debug)]
pub struct Limited<F> {
    /// Formats the lines that are not suppressed.
    pub inner: F,
    /// Decides which these are.
    pub limiter: LogLimiter,
}

/// Writes each line, cut to [`LINE_BYTES_MAX`].
#[derive(Debug)]
struct ShortLines<W>(W);

/// Sets up the log of the process: text on standard error, within the bounds. Suppressed lines are
/// reported while [`LogLimiter::report_forever`] is awaited.
///
/// # Errors
/// Fails if the process has a log already.
pub fn start() -> Result<LogLimiter, tracing_subscriber::util::TryInitError> {
    let limiter = LogLimiter::new(LINES_PER_SECOND, "", Clock::start());
    let of_lines = limiter.clone();
    let lines = tracing_subscriber::fmt::layer()
        .with_writer(|| ShortLines(io::stderr()))
        .with_ansi(false)
        // Suppressed lines are errors of the format, and must not be reported one by one.
        .log_internal_errors(false)
        .map_event_format(|inner| Limited { inner, limiter: of_lines });
    tracing_subscriber::registry().with(LevelFilter::INFO).with(lines).try_init()?;
    Ok(limiter)
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
    /// Allows so many lines a second of each call site, and 0 for any number. Lines of the target
    /// `exempt` are not limited.
    pub fn new(lines_per_second: u32, exempt: &'static str, clock: Clock) -> Self {
        let shared = Shared { lines_per_second, exempt, callsites: Mutex::default(), clock };
        Self { shared: Arc::new(shared) }
    }

    /// Logs how many lines were suppressed since the last call, one line for each call site.
    pub fn report(&self) {
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

    /// Reports each second. It does not return.
    pub async fn report_forever(self) {
        loop {
            sleep(Duration::from_secs(1)).await;
            self.report();
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
        let Shared { lines_per_second, exempt, callsites, clock } = &*self.shared;
        if *lines_per_second == 0 || [module_path!(), exempt].contains(&meta.target()) {
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

// === impl ShortLines ===

/// Each call writes one line, as tracing-subscriber does.
impl<W: Write> Write for ShortLines<W> {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        match line.get(..LINE_BYTES_MAX) {
            Some(start) if line.len() > LINE_BYTES_MAX => {
                let text = String::from_utf8_lossy(start);
                let whole = text.trim_end_matches(char::REPLACEMENT_CHARACTER);
                self.0.write_all(format!("{whole}…\n").as_bytes())?;
            }
            _ => self.0.write_all(line)?,
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_line_is_cut_between_characters_and_stays_a_line() {
        for (length, is_cut) in [(10, false), (LINE_BYTES_MAX - 1, false), (LINE_BYTES_MAX, true)] {
            let mut written = ShortLines(Vec::new());
            let line = format!("{}\n", "x".repeat(length));
            written.write_all(line.as_bytes()).unwrap();
            assert_eq!(written.0.ends_with("…\n".as_bytes()), is_cut, "{length}");
            assert!(written.0.len() <= LINE_BYTES_MAX + 4 && written.0.ends_with(b"\n"));
        }
        let mut written = ShortLines(Vec::new());
        written.write_all("日".repeat(LINE_BYTES_MAX).as_bytes()).unwrap();
        let text = String::from_utf8(written.0).unwrap();
        assert!(text.ends_with("日…\n") && !text.contains(char::REPLACEMENT_CHARACTER));
    }
}
