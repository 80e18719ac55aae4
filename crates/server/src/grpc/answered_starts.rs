//! The starts of one connection whose answers its client may not have read yet. A client that resets
//! the stream of such an answer will never read it, so that nothing would end the start: it is undone.
//!
//! ```text
//! answered ─▶ queued ──its last frame is written──▶ written ──a later PING is acknowledged──▶ read
//!               └───────────────── RST_STREAM ─────────┴─▶ undone
//! ```
//! A client acknowledges a PING once it has read everything that was written before, and resets of
//! unread answers come before the acknowledgement. So a PING is sent for the answers that were written,
//! at most one each [`PING_PAUSE`], and plain calls cause none.
//!
//! When the connection breaks, an answer that was written may have been read: its start stays, until
//! its end or until its Envoy is gone. The start of an answer that was not written is undone.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use foldhash::fast::RandomState;
use parking_lot::Mutex;
use ratelease_engine::limiter::owners::StartId;
use ratelease_listener::StreamObserver;
use tokio::sync::Notify;
use tokio::time::timeout;

use crate::starts::Starts;

/// Pause between two PINGs for answers, unless many wait: a client handles some ten a second.
const PING_PAUSE: Duration = Duration::from_millis(100);

/// Number of written answers that are many.
const MANY: usize = 256;

/// Maximum number of answers of one connection: twice as many as it may have calls under way. A start
/// beyond it is not watched, and lives until its end, or until its Envoy is gone.
const OF_CONNECTION_MAX: usize = 2048;

/// Maximum number of answers of all connections. An answer takes some 50 bytes.
const IN_ALL_MAX: usize = 65_536;

/// Number of answers that a connection may have even when all together have the maximum.
const FEW: usize = 64;

/// The answers of a connection that are watched: of starts alone.
pub(super) struct AnsweredStarts {
    starts: Starts,
    /// Whether any answer is watched: most connections have none, ever.
    is_watching: AtomicBool,
    answers: Mutex<Answers<StartId>>,
    /// Notified when an answer was written while none was, or when they have become many.
    written: Notify,
}

/// Answers whose client may not have read them, by their streams.
#[derive(Debug)]
struct Answers<T> {
    by_stream: HashMap<u32, Answer<T>, RandomState>,
    /// Number of those that were written.
    written: usize,
    /// Number of PINGs that were begun.
    pings: u64,
}

#[derive(Debug)]
struct Answer<T> {
    start: T,
    /// The number of PINGs begun before its last frame was written; `None` if it was not written.
    written_after: Option<u64>,
}

/// A PING that was begun, by its number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct BegunPing(u64);

// === impl AnsweredStarts ===

impl AnsweredStarts {
    pub(super) fn new(starts: Starts) -> Self {
        Self {
            starts,
            is_watching: AtomicBool::new(false),
            answers: Mutex::new(Answers::new()),
            written: Notify::new(),
        }
    }

    /// Watches the answer on `stream`, which has been queued to be written.
    pub(super) fn watch(&self, stream: u32, start: StartId) {
        let mut answers = self.answers.lock();
        let is_one_of_few = answers.by_stream.len() < FEW;
        if (is_one_of_few || self.starts.watched() < IN_ALL_MAX) && answers.push(stream, start) {
            self.starts.add_watched(1);
            self.is_watching.store(true, Ordering::Relaxed);
        }
    }

    /// Resolves when a PING is due.
    pub(super) async fn ping_due(&self) {
        while self.answers.lock().written == 0 {
            self.written.notified().await;
        }
        if self.answers.lock().written < MANY {
            let _ = timeout(PING_PAUSE, self.written.notified()).await;
        }
    }

    /// Begins a PING, which is to be sent from now on.
    pub(super) fn begin_ping(&self) -> BegunPing {
        self.answers.lock().begin_ping()
    }

    /// Forgets the answers that were read, since this PING was acknowledged.
    pub(super) fn acknowledge(&self, ping: BegunPing) {
        let mut answers = self.answers.lock();
        self.starts.remove_watched(answers.acknowledge(ping));
        self.is_watching.store(!answers.by_stream.is_empty(), Ordering::Relaxed);
    }
}

impl StreamObserver for AnsweredStarts {
    fn is_watching(&self) -> bool {
        self.is_watching.load(Ordering::Relaxed)
    }

    fn note_reset(&self, stream: u32) {
        let unread = self.answers.lock().remove(stream);
        if let Some(start) = unread {
            self.starts.remove_watched(1);
            self.starts.undo(start);
        }
    }

    fn note_answered(&self, stream: u32) {
        let written = self.answers.lock().note_written(stream);
        if matches!(written, Some(1 | MANY)) {
            self.written.notify_one();
        }
    }
}

impl Drop for AnsweredStarts {
    fn drop(&mut self) {
        let answers = self.answers.get_mut();
        self.starts.remove_watched(answers.by_stream.len());
        answers.unwritten().for_each(|start| self.starts.undo(start));
    }
}

// === impl Answers ===

impl<T: Copy> Answers<T> {
    fn new() -> Self {
        Self { by_stream: HashMap::default(), written: 0, pings: 0 }
    }

    /// Adds an answer that has been queued. Returns false if there are too many.
    fn push(&mut self, stream: u32, start: T) -> bool {
        let has_room = self.by_stream.len() < OF_CONNECTION_MAX;
        if has_room {
            self.by_stream.insert(stream, Answer { start, written_after: None });
        }
        has_room
    }

    /// Notes that the last frame of an answer was written. Returns the number of those that were, if
    /// it is one of these.
    fn note_written(&mut self, stream: u32) -> Option<usize> {
        self.by_stream.get_mut(&stream)?.written_after = Some(self.pings);
        self.written += 1;
        Some(self.written)
    }

    /// Removes an answer.
    fn remove(&mut self, stream: u32) -> Option<T> {
        let answer = self.by_stream.remove(&stream)?;
        self.written -= usize::from(answer.written_after.is_some());
        Some(answer.start)
    }

    fn begin_ping(&mut self) -> BegunPing {
        self.pings += 1;
        BegunPing(self.pings)
    }

    /// Removes the answers that were written before `ping` was begun. Returns their number.
    fn acknowledge(&mut self, ping: BegunPing) -> usize {
        let before = self.by_stream.len();
        let is_read = |answer: &Answer<T>| answer.written_after.is_some_and(|it| it < ping.0);
        self.by_stream.retain(|_, answer| !is_read(answer));
        self.written = self.by_stream.values().filter(|it| it.written_after.is_some()).count();
        if self.by_stream.is_empty() {
            self.by_stream.shrink_to(MANY);
        }
        before - self.by_stream.len()
    }

    /// The starts of the answers that were not written.
    fn unwritten(&self) -> impl Iterator<Item = T> {
        self.by_stream.values().filter(|it| it.written_after.is_none()).map(|it| it.start)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Answers on streams 1, 3, 5, each of the start ten times as large.
    fn three() -> Answers<u32> {
        let mut answers = Answers::new();
        for stream in [1, 3, 5] {
            assert!(answers.push(stream, 10 * stream));
        }
        answers
    }

    #[test]
    fn a_reset_before_an_acknowledged_ping_names_the_start() {
        let mut answers = three();
        assert_eq!(answers.remove(1), Some(10), "before it was written");
        assert_eq!(answers.note_written(3), Some(1));
        assert_eq!(answers.remove(3), Some(30), "after it was written");
        assert_eq!((answers.remove(3), answers.remove(7)), (None, None), "once");
        assert_eq!((answers.written, answers.by_stream.len()), (0, 1));
    }

    #[test]
    fn a_ping_acknowledges_only_what_was_written_before_it() {
        let mut answers = three();
        answers.note_written(1);
        let first = answers.begin_ping();
        answers.note_written(3);
        assert_eq!(answers.acknowledge(first), 1);
        assert_eq!(answers.remove(1), None, "it was read");
        assert_eq!(answers.remove(3), Some(30), "it was written after the ping");
        let second = answers.begin_ping();
        assert_eq!(answers.acknowledge(second), 0);
        assert_eq!(answers.remove(5), Some(50), "it was not written at all");
    }

    #[test]
    fn a_connection_that_breaks_undoes_only_what_was_not_written() {
        let mut answers = three();
        answers.note_written(3);
        let mut unwritten: Vec<_> = answers.unwritten().collect();
        unwritten.sort_unstable();
        assert_eq!(unwritten, [10, 50]);
    }

    #[test]
    fn answers_are_bounded() {
        let mut answers = Answers::new();
        let streams = (0..).map(|nth| 2 * nth + 1);
        let kept = streams.take(2 * OF_CONNECTION_MAX).filter(|stream| answers.push(*stream, ()));
        assert_eq!(kept.count(), OF_CONNECTION_MAX);
        assert_eq!(answers.note_written(u32::MAX), None, "of another call");
    }
}
