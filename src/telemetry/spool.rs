//! Lines on their way out, written by a thread of their own: who logs never waits for who reads.

use std::io::{self, Write};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread;
use std::time::Duration;

use ratelease_engine::store::Count;
use ratelease_engine::time::Clock;

/// Lines that may wait to be written; more are lost, and counted. Lines are a few hundred bytes.
const LINES_MAX: usize = 1024;

/// With nothing left to write, the thread lets lines gather for so long: if it woke for every line
/// of a busy log, it would take the processor from decisions each time. The queue has room for what
/// comes meanwhile, at a hundred lines a millisecond.
const GATHER: Duration = Duration::from_millis(10);

/// Lines that gathered go out in one piece of so many bytes, and up to a line more.
const PIECE_BYTES: usize = 64 * 1024;

/// Before the thread goes on after a panic: what it was made to write may make it panic again.
const PAUSE: Duration = Duration::from_millis(100);

/// From one look at what was left out of the log to the next.
const SECOND: Duration = Duration::from_secs(1);

/// Takes each line at once, or loses it. A handle: clones share everything.
#[derive(Debug, Clone)]
pub struct Spool {
    items: SyncSender<Item>,
    tally: Arc<Tally>,
}

#[derive(Debug, Default)]
struct Tally {
    /// Lost since that was told last.
    untold: AtomicU64,
    /// Lost since the process began.
    lost: AtomicU64,
    panics: AtomicU64,
}

#[derive(Debug)]
enum Item {
    Line(Vec<u8>),
    /// Dropped once everything before it is written.
    Mark(#[allow(dead_code, reason = "its end is the message")] SyncSender<()>),
}

// === impl Spool ===

impl Spool {
    /// Starts the thread that writes to `to`, calls `tell` with the number of lines that were lost
    /// once lines go out again, and `each_second` about once a second.
    ///
    /// # Errors
    /// If there can be no thread.
    pub(super) fn start(
        to: impl Write + Send + 'static,
        tell: fn(u64),
        each_second: impl Fn() + Send + 'static,
    ) -> io::Result<Self> {
        let (items, waiting) = sync_channel(LINES_MAX);
        let tally = Arc::<Tally>::default();
        let counted = Arc::clone(&tally);
        let write = move || keep_writing(to, &waiting, &counted, tell, each_second);
        thread::Builder::new().name("log".to_owned()).spawn(write)?;
        Ok(Self { items, tally })
    }

    /// Waits until what was logged so far is written, at most `within`.
    pub fn flush(&self, within: Duration) {
        // What was left out is told at the first mark, which the second is behind.
        for _ in 0..2 {
            let (mark, written) = sync_channel(1);
            // With the queue full there is nobody who reads.
            if self.items.try_send(Item::Mark(mark)).is_ok() {
                let _ = written.recv_timeout(within / 2);
            }
        }
    }

    /// What has happened here since the process began, by name.
    pub fn counts(&self) -> Vec<Count> {
        let Tally { lost, panics, .. } = &*self.tally;
        vec![
            ("log_lines_lost", lost.load(Ordering::Relaxed)),
            ("task_restarts", panics.load(Ordering::Relaxed)),
        ]
    }
}

/// A call is a line, as tracing-subscriber writes them.
impl Write for Spool {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        if self.items.try_send(Item::Line(line.to_vec())).is_err() {
            self.tally.untold.fetch_add(1, Ordering::Relaxed);
            self.tally.lost.fetch_add(1, Ordering::Relaxed);
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Until nobody is left who logs. A panic costs the lines that went out with it.
fn keep_writing(
    mut to: impl Write,
    items: &Receiver<Item>,
    tally: &Tally,
    tell: fn(u64),
    each_second: impl Fn(),
) {
    let mut write = || write_all(&mut to, items, &tally.untold, tell, &each_second);
    while catch_unwind(AssertUnwindSafe(&mut write)).is_err() {
        tally.panics.fetch_add(1, Ordering::Relaxed);
        thread::sleep(PAUSE);
    }
}

fn write_all(
    to: &mut impl Write,
    items: &Receiver<Item>,
    lost: &AtomicU64,
    tell: fn(u64),
    each_second: &impl Fn(),
) {
    let clock = Clock::start();
    let mut last = clock.now();
    loop {
        let mut piece = Vec::new();
        let end = gather(items, &mut piece);
        if !piece.is_empty() {
            // Lines that cannot be written are lost: there is no other place to tell it.
            let _ = to.write_all(&piece);
            match lost.swap(0, Ordering::Relaxed) {
                0 => {}
                count => tell(count),
            }
        }
        match end {
            Ok(Some(_mark)) => each_second(),
            Ok(None) | Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return,
        }
        let now = clock.now();
        if now.since(last) >= SECOND {
            last = now;
            each_second();
        }
    }
}

/// Puts lines into `piece` until there are no more, or it is full, or a mark comes.
fn gather(
    items: &Receiver<Item>,
    piece: &mut Vec<u8>,
) -> Result<Option<SyncSender<()>>, RecvTimeoutError> {
    let mut item = next(items)?;
    loop {
        match item {
            Item::Line(line) => piece.extend_from_slice(&line),
            Item::Mark(mark) => return Ok(Some(mark)),
        }
        if piece.len() >= PIECE_BYTES {
            return Ok(None);
        }
        let Ok(more) = items.try_recv() else { return Ok(None) };
        item = more;
    }
}

fn next(items: &Receiver<Item>) -> Result<Item, RecvTimeoutError> {
    items.try_recv().or_else(|_| {
        thread::sleep(GATHER);
        items.recv_timeout(SECOND)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Gives each piece to a channel without room.
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
    fn who_logs_never_waits_and_lost_lines_are_counted() {
        static TOLD: AtomicU64 = AtomicU64::new(0);
        const LINES: usize = LINES_MAX * 2;
        let (slow, written) = sync_channel(0);
        let mut spool = Spool::start(
            Slow(slow),
            |lost| {
                TOLD.fetch_add(lost, Ordering::Relaxed);
            },
            || {},
        )
        .expect("a thread");
        for n in 0..LINES {
            spool.write_all(format!("{n}\n").as_bytes()).expect("never fails");
        }
        spool.flush(Duration::from_secs(60)); // returns at once: the queue is full
        let reader = thread::spawn(move || written.iter().collect::<String>());
        while !spool.tally.untold.load(Ordering::Relaxed).eq(&0) {
            thread::yield_now();
        }
        spool.flush(Duration::from_secs(60));
        drop(spool);
        let text = reader.join().expect("no panic");
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(lines.first(), Some(&"0"));
        assert!(lines.len() >= LINES_MAX && lines.is_sorted_by_key(|line| line.len()));
        assert_eq!(lines.len() + usize::try_from(TOLD.load(Ordering::Relaxed)).unwrap(), LINES);
    }

    /// Panics at the line `panic`.
    struct Faulty(SyncSender<Vec<u8>>);

    impl Write for Faulty {
        fn write(&mut self, line: &[u8]) -> io::Result<usize> {
            assert!(line != b"panic", "told to");
            self.0.send(line.to_vec()).map_err(io::Error::other)?;
            Ok(line.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_panic_of_the_writer_costs_what_goes_out_with_it() {
        let (faulty, written) = sync_channel(10);
        let mut spool = Spool::start(Faulty(faulty), |_| {}, || {}).expect("a thread");
        for line in ["a", "panic", "b", "panic", "c"] {
            spool.write_all(line.as_bytes()).expect("never fails");
            spool.flush(Duration::from_secs(60));
        }
        assert!(spool.counts().contains(&("task_restarts", 2)), "{:?}", spool.counts());
        drop(spool);
        assert_eq!(written.iter().collect::<Vec<_>>(), [b"a", b"b", b"c"]);
    }
}
