//! Tells the limiter what the connections of Envoys show of the starts of requests: the owner of each,
//! the starts to be undone, and the entries of access logs. Counts all of it.
//!
//! The module may use the limiter, and knows no protocol: `grpc` calls it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use ratelease_engine::limiter::Limiter;
use ratelease_engine::limiter::owners::{ClosedBy, Node, Origin, Owner, StartId};
use tracing::warn;

use crate::metrics::counter::{Count, Counter};

/// Tells the limiter of starts. A cheap handle: clones share all state.
#[derive(Clone)]
pub struct Starts {
    limiter: Limiter,
    counts: Arc<Counts>,
}

/// The meaning of an entry of an access log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogEntry {
    /// The end of a request that a start is open of.
    End,
    /// The end of a request that no start is open of: it may come before its start.
    UnknownEnd,
    /// A sign of life of a request that a start is open of.
    Alive,
    /// A sign of life of a request that no start is open of.
    UnknownAlive,
    /// Ignored: the request was denied, so that it has taken nothing.
    Denied,
    /// Ignored: the entry has no id.
    WithoutId,
    /// Ignored: the id is no text, or is too long.
    BadId,
    /// Ignored: the entry is neither an end nor a sign of life.
    OtherType,
    /// Ignored: the log has another name.
    OtherLog,
    /// Ignored: the entry is of a TCP connection.
    Tcp,
}

#[derive(Debug, Default)]
struct Counts {
    /// Answers that are watched.
    watched: AtomicUsize,
    /// Whether a log with another name was sent.
    has_other_log: AtomicBool,
    undone: AtomicU64,
    entries: [AtomicU64; ENTRIES.len()],
    logs_open: AtomicU64,
    logs_refused: AtomicU64,
    logs_malformed: AtomicU64,
}

/// The counter of each kind of entry, in the order of [`LogEntry`].
const ENTRIES: [Counter; 10] = [
    Counter::LogEnds,
    Counter::LogEndsUnknown,
    Counter::LogSigns,
    Counter::LogSignsUnknown,
    Counter::LogEntriesDenied,
    Counter::LogEntriesWithoutId,
    Counter::LogEntriesBadId,
    Counter::LogEntriesOtherType,
    Counter::LogEntriesOtherLog,
    Counter::LogEntriesTcp,
];

/// The access log of an Envoy on one stream, until it is dropped.
pub struct OpenLog {
    starts: Starts,
    node: Node,
    /// The end that has closed the stream, if it is closed.
    pub closed_by: ClosedBy,
}

// === impl Starts ===

impl Starts {
    pub(crate) fn new(limiter: Limiter) -> Self {
        Self { limiter, counts: Arc::default() }
    }

    /// Notes that an Envoy has a connection open from `origin`; returns who owns what its calls
    /// start.
    pub fn connect(&self, origin: Origin) -> Owner {
        self.limiter.connect(origin)
    }

    /// Notes that a connection of `owner` is closed.
    pub fn disconnect(&self, owner: Owner, by: ClosedBy) {
        self.limiter.disconnect(owner, by);
    }

    /// Undoes a start whose answer its Envoy has not read.
    pub fn undo(&self, start: StartId) {
        self.counts.undone.fetch_add(1, Ordering::Relaxed);
        self.limiter.undo_start(start);
    }

    /// Number of answers that are watched for a reset, over all connections.
    pub(crate) fn watched(&self) -> usize {
        self.counts.watched.load(Ordering::Relaxed)
    }

    pub(crate) fn add_watched(&self, count: usize) {
        self.counts.watched.fetch_add(count, Ordering::Relaxed);
    }

    pub(crate) fn remove_watched(&self, count: usize) {
        self.counts.watched.fetch_sub(count, Ordering::Relaxed);
    }

    /// Notes that the Envoy of this `node.id` has a stream of its access log open.
    pub fn open_log(&self, node: &str) -> OpenLog {
        self.counts.logs_open.fetch_add(1, Ordering::Relaxed);
        let node = self.limiter.connect_node(node);
        OpenLog { starts: self.clone(), node, closed_by: ClosedBy::Server }
    }

    /// Notes that an access log has another name than that which is read; logs this once.
    pub fn note_other_log(&self) {
        if !self.counts.has_other_log.swap(true, Ordering::Relaxed) {
            warn!(
                "an access log is sent here whose log_name is not `ratelease`: its entries are \
                 ignored; this is logged once"
            );
        }
    }

    /// Counts a stream of an access log that was refused.
    pub fn note_refused_log(&self) {
        self.counts.logs_refused.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a stream of an access log that ended because it could not be read.
    pub fn note_malformed_log(&self) {
        self.counts.logs_malformed.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts an entry of an access log.
    pub fn note_entry(&self, entry: LogEntry) {
        if let Some(count) = self.counts.entries.get(entry as usize) {
            count.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Event counts since the process began, and present levels.
    pub(crate) fn counts(&self) -> Vec<Count> {
        let Counts { undone, entries, logs_open, logs_refused, logs_malformed, .. } = &*self.counts;
        let entries = ENTRIES.iter().copied().zip(entries);
        let others = [
            (Counter::StartsUndone, undone),
            (Counter::LogStreams, logs_open),
            (Counter::LogStreamsRefused, logs_refused),
            (Counter::LogStreamsMalformed, logs_malformed),
        ];
        let all = entries.chain(others);
        all.map(|(counter, count)| (counter, count.load(Ordering::Relaxed))).collect()
    }
}

// === impl OpenLog ===

impl OpenLog {
    /// Ends the request of this id, which has cost `cost` hits; `None` if that is not known.
    pub fn end(&self, id: &str, cost: Option<u64>) {
        let is_open = self.starts.limiter.end_start(id, cost, self.node);
        self.starts.note_entry(if is_open { LogEntry::End } else { LogEntry::UnknownEnd });
    }

    /// Notes that the request of this id was denied: what other filters have started for it ends.
    pub fn end_denied(&self, id: &str) {
        self.starts.limiter.end_denied(id, self.node);
        self.starts.note_entry(LogEntry::Denied);
    }

    /// Notes that the request of this id runs.
    pub fn note_alive(&self, id: &str) {
        let is_open = self.starts.limiter.note_alive(id, self.node);
        self.starts.note_entry(if is_open { LogEntry::Alive } else { LogEntry::UnknownAlive });
    }
}

impl Drop for OpenLog {
    fn drop(&mut self) {
        self.starts.counts.logs_open.fetch_sub(1, Ordering::Relaxed);
        self.starts.limiter.disconnect_node(self.node, self.closed_by);
    }
}
