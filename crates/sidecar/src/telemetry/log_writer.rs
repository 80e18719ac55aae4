//! Queues log lines for a thread that writes them, so that logging never waits for the reader of
//! the log.

use std::io::{self, Write};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread;
use std::time::Duration;

use ratelease_engine::time::Clock;
use ratelease_server::metrics::counter::{Count, Counter};

/// Maximum number of lines that wait to be written; further ones are dropped, and counted. Lines
/// are a few hundred bytes.
const LINES_MAX: usize = 1024;

/// When nothing is left to write, the thread lets lines collect for this long: if it woke for every
/// line of a busy log, it would take the processor from decisions each time. The queue has room for
/// the lines of that time, at a hundred lines a millisecond.
const COLLECT_TIME: Duration = Duration::from_millis(10);

/// Collected lines are written in batches of this many bytes, and up to a line more.
const BATCH_BYTES_MAX: usize = 64 * 1024;

/// Pause after a panic: the data that the thread writes may cause another panic.
const PANIC_PAUSE: Duration = Duration::from_millis(100);

/// Interval between reports of suppressed lines. A line is suppressed within a second of one that
/// was written, so there is nothing to report once no line has come for this long.
const REPORT_INTERVAL: Duration = Duration::from_secs(1);

/// Accepts each line at once, or drops it. A cheap handle: clones share all state.
#[derive(Debug, Clone)]
pub struct LogWriter {
    items: SyncSender<Item>,
    counters: Arc<Counters>,
}

#[derive(Debug, Default)]
struct Counters {
    /// Lines dropped and not yet reported.
    unreported: AtomicU64,
    /// Lines dropped since the process began.
    lost: AtomicU64,
    panics: AtomicU64,
}

#[derive(Debug)]
enum Item {
    Line(Vec<u8>),
    /// Dropped once every line before it has been written.
    Mark(#[allow(dead_code, reason = "its end is the message")] SyncSender<()>),
}

// === impl LogWriter ===

impl LogWriter {
    /// Starts the thread that writes to `output`. It calls `report_lost` with the number of dropped
    /// lines once lines are written again, and `each_second` about once a second, until a second
    /// has passed without a line.
    ///
    /// # Errors
    /// Fails if the thread cannot be started.
    pub(super) fn start(
        output: impl Write + Send + 'static,
        report_lost: fn(u64),
        each_second: impl Fn() + Send + 'static,
    ) -> io::Result<Self> {
        let (items, queue) = sync_channel(LINES_MAX);
        let counters = Arc::<Counters>::default();
        let counted = Arc::clone(&counters);
        let write = move || run(output, &queue, &counted, report_lost, each_second);
        thread::Builder::new().name("ratelease-log".to_owned()).spawn(write)?;
        Ok(Self { items, counters })
    }

    /// Waits until every line logged so far is written, at most `within`.
    pub fn flush(&self, within: Duration) {
        // Suppressed lines are reported at the first mark; the second mark comes after that report.
        for _ in 0..2 {
            let (mark, written) = sync_channel(1);
            // If the queue is full, the log is not being read.
            if self.items.try_send(Item::Mark(mark)).is_ok() {
                let _ = written.recv_timeout(within / 2);
            }
        }
    }

    /// Event counts since the process began.
    pub fn counts(&self) -> Vec<Count> {
        let Counters { lost, panics, .. } = &*self.counters;
        vec![
            (Counter::LogLinesLost, lost.load(Ordering::Relaxed)),
            (Counter::TaskRestarts, panics.load(Ordering::Relaxed)),
        ]
    }
}

/// Each call writes one line, as tracing-subscriber does.
impl Write for LogWriter {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        if self.items.try_send(Item::Line(line.to_vec())).is_err() {
            self.counters.unreported.fetch_add(1, Ordering::Relaxed);
            self.counters.lost.fetch_add(1, Ordering::Relaxed);
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Writes until the last handle is dropped. A panic loses the lines of the same batch.
fn run(
    mut output: impl Write,
    items: &Receiver<Item>,
    counters: &Counters,
    report_lost: fn(u64),
    each_second: impl Fn(),
) {
    let mut write =
        || write_all(&mut output, items, &counters.unreported, report_lost, &each_second);
    while catch_unwind(AssertUnwindSafe(&mut write)).is_err() {
        counters.panics.fetch_add(1, Ordering::Relaxed);
        thread::sleep(PANIC_PAUSE);
    }
}

fn write_all(
    output: &mut impl Write,
    items: &Receiver<Item>,
    lost: &AtomicU64,
    report_lost: fn(u64),
    each_second: &impl Fn(),
) {
    let clock = Clock::start();
    let mut last = clock.now();
    let mut is_quiet = false;
    loop {
        let mut batch = Vec::new();
        let end = collect(items, &mut batch, is_quiet);
        if !batch.is_empty() {
            // Lines that cannot be written are lost: there is nowhere else to report that.
            let _ = output.write_all(&batch);
            match lost.swap(0, Ordering::Relaxed) {
                0 => {}
                count => report_lost(count),
            }
        }
        is_quiet = matches!(end, Err(RecvTimeoutError::Timeout));
        match end {
            Ok(Some(_mark)) => each_second(),
            Ok(None) | Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return,
        }
        let now = clock.now();
        if is_quiet || now.since(last) >= REPORT_INTERVAL {
            last = now;
            each_second();
        }
    }
}

/// Moves lines into `batch` until there are no more, it is full, or a mark comes. Waits for the
/// first at most as long as the report interval, or without a limit if `is_quiet`.
fn collect(
    items: &Receiver<Item>,
    batch: &mut Vec<u8>,
    is_quiet: bool,
) -> Result<Option<SyncSender<()>>, RecvTimeoutError> {
    let mut item = next(items, is_quiet)?;
    loop {
        match item {
            Item::Line(line) => batch.extend_from_slice(&line),
            Item::Mark(mark) => return Ok(Some(mark)),
        }
        if batch.len() >= BATCH_BYTES_MAX {
            return Ok(None);
        }
        let Ok(more) = items.try_recv() else { return Ok(None) };
        item = more;
    }
}

fn next(items: &Receiver<Item>, is_quiet: bool) -> Result<Item, RecvTimeoutError> {
    items.try_recv().or_else(|_| {
        thread::sleep(COLLECT_TIME);
        if is_quiet {
            items.recv().map_err(|_| RecvTimeoutError::Disconnected)
        } else {
            items.recv_timeout(REPORT_INTERVAL)
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Sends each piece to a channel without capacity.
    struct Slow(SyncSender<String>);

    impl Write for Slow {
        fn write(&mut self, line: &[u8]) -> io::Result<usize> {
            self.0.send(String::from_utf8_lossy(line).into_owned()).map_err(io::Error::other)?;
            Ok(line.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn logging_never_waits_and_lost_lines_are_counted() {
        static REPORTED: AtomicU64 = AtomicU64::new(0);
        const LINES: usize = LINES_MAX * 2;
        let (slow, written) = sync_channel(0);
        let mut log = LogWriter::start(
            Slow(slow),
            |lost| {
                REPORTED.fetch_add(lost, Ordering::Relaxed);
            },
            || {},
        )
        .expect("a thread");
        for n in 0..LINES {
            log.write_all(format!("{n}\n").as_bytes()).expect("never fails");
        }
        log.flush(Duration::from_secs(60)); // returns at once: the queue is full
        let reader = thread::spawn(move || written.iter().collect::<String>());
        while !log.counters.unreported.load(Ordering::Relaxed).eq(&0) {
            thread::yield_now();
        }
        log.flush(Duration::from_secs(60));
        drop(log);
        let text = reader.join().expect("no panic");
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(lines.first(), Some(&"0"));
        assert!(lines.len() >= LINES_MAX && lines.is_sorted_by_key(|line| line.len()));
        assert_eq!(lines.len() + usize::try_from(REPORTED.load(Ordering::Relaxed)).unwrap(), LINES);
    }

    #[test]
    fn a_second_without_a_line_is_reported_once_and_a_further_line_again() {
        let (seconds, reported) = sync_channel(10);
        let each_second = move || seconds.send(()).expect("a test that still runs");
        let mut log = LogWriter::start(io::sink(), |_| {}, each_second).expect("a thread");
        reported.recv_timeout(Duration::from_secs(60)).expect("the first second, without a line");
        let is_more = reported.recv_timeout(3 * REPORT_INTERVAL).is_ok();
        assert!(!is_more, "the thread sleeps while no line comes");
        log.write_all(b"a line\n").expect("never fails");
        for _ in 0..2 {
            reported.recv_timeout(Duration::from_secs(60)).expect("one at once, one after it");
        }
    }

    /// Panics at the line `panic`.
    struct Faulty(SyncSender<Vec<u8>>);

    impl Write for Faulty {
        fn write(&mut self, line: &[u8]) -> io::Result<usize> {
            assert!(line != b"panic", "deliberate");
            self.0.send(line.to_vec()).map_err(io::Error::other)?;
            Ok(line.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_panic_of_the_writer_loses_only_its_batch() {
        let (faulty, written) = sync_channel(10);
        let mut log = LogWriter::start(Faulty(faulty), |_| {}, || {}).expect("a thread");
        for line in ["a", "panic", "b", "panic", "c"] {
            log.write_all(line.as_bytes()).expect("never fails");
            log.flush(Duration::from_secs(60));
        }
        assert!(log.counts().contains(&(Counter::TaskRestarts, 2)), "{:?}", log.counts());
        drop(log);
        assert_eq!(written.iter().collect::<Vec<_>>(), [b"a", b"b", b"c"]);
    }
}
