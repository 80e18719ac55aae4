//! Limits the streams that hold memory while they wait for their client, over all connections of a
//! listener.

use std::sync::atomic::{AtomicUsize, Ordering};

/// Number of answers begun and not read by their clients, over all connections, above which
/// connections that have many of them are closed. Each takes some KiB. An Envoy that reads its
/// answers has none, or one that is split in two; one that does not read for a moment has up to
/// 256.
pub(super) const UNREAD_MAX: usize = 320;

/// Of the incomplete requests whose rest may still have to be read, so many times as many as of
/// those whose client has sent nothing more: they last for a few turns.
pub(super) const ARRIVING_FACTOR: usize = 4;

/// Streams of one connection that wait for its client.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct PendingStreams {
    /// Requests that have begun and are incomplete, once everything sent has been read.
    pub(super) unfinished: usize,
    /// Requests that have begun and are incomplete, while there is more to be read.
    pub(super) arriving: usize,
    /// Answers that have begun and are not read.
    pub(super) unread: usize,
}

/// The streams that wait, over all connections.
#[derive(Debug)]
pub(super) struct PendingTotals {
    unfinished: Total,
    arriving: Total,
    unread: Total,
}

#[derive(Debug)]
struct Total {
    max: usize,
    count: AtomicUsize,
}

// === impl PendingTotals ===

impl PendingTotals {
    pub(super) fn new(unfinished_max: usize) -> Self {
        Self {
            unfinished: Total::new(unfinished_max),
            arriving: Total::new(ARRIVING_FACTOR * unfinished_max),
            unread: Total::new(UNREAD_MAX),
        }
    }

    /// Replaces the count of a connection, `before`, with `now`. Returns false if `now` is too many
    /// while all connections together have too many.
    pub(super) fn replace(&self, before: PendingStreams, now: PendingStreams) -> bool {
        let are_few = [
            self.unfinished.replace(before.unfinished, now.unfinished),
            self.arriving.replace(before.arriving, now.arriving),
            self.unread.replace(before.unread, now.unread),
        ];
        are_few == [true; 3]
    }

    #[cfg(test)]
    pub(super) fn count(&self) -> PendingStreams {
        let count = |total: &Total| total.count.load(Ordering::Relaxed);
        PendingStreams {
            unfinished: count(&self.unfinished),
            arriving: count(&self.arriving),
            unread: count(&self.unread),
        }
    }
}

// === impl Total ===

impl Total {
    fn new(max: usize) -> Self {
        Self { max, count: AtomicUsize::new(0) }
    }

    fn replace(&self, before: usize, now: usize) -> bool {
        if now == before {
            // Most connections have none: they must not touch what all of them share.
            return now == 0 || now <= self.one_max(self.count.load(Ordering::Relaxed));
        }
        self.count.fetch_add(now, Ordering::Relaxed);
        let all = self.count.fetch_sub(before, Ordering::Relaxed) - before;
        now <= self.one_max(all)
    }

    /// Maximum for one connection while all connections together have `all`.
    fn one_max(&self, all: usize) -> usize {
        match all / self.max {
            0 => usize::MAX,
            1 => 32,
            2 | 3 => 8,
            _ => 2,
        }
    }
}
