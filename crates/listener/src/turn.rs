//! Limits how much is read from one connection before other connections get their turn, so that a
//! client that sends much delays the others only a little.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};

/// Maximum cost of one turn: a byte costs one, so a turn is hundreds of calls. tokio lets a task go
/// on for 128 reads, which is a mebibyte of frames. With that, a client whose frames cause the most
/// work possible (a new window for all its streams) delayed another connection by 2.5 s, and with
/// this limit by 0.4 s (a debug build).
pub(super) const COST_MAX: usize = 32 * 1024;

/// Cost of a byte of a header block. It may refer to a whole field, which takes some 100 ns to
/// decode: with this cost, one read by `h2` (8 KiB) that is full of references ends the turn, and
/// the hundred calls of an Envoy that fit into a read do not.
pub(super) const HEADER_BYTE_COST: usize = 4;

/// Cost of a frame of content after which more is to come. `h2` keeps some 200 bytes for each that
/// has not been read, and flow control counts only its content: a client that sends its content
/// byte by byte would have a turn of thousands. The content of a call is one frame, which costs
/// nothing.
const PART_COST: usize = 128;

/// Tells the reader of a connection whether all requests have been accepted since its last read,
/// and their cost besides their bytes. A cheap handle: clones belong to the same connection.
#[derive(Debug, Clone, Default)]
pub struct TurnHandle(Arc<Handled>);

#[derive(Debug, Default)]
struct Handled {
    is_handled: AtomicBool,
    has_resets: AtomicBool,
    cost: AtomicUsize,
    newest_stream: AtomicU32,
}

/// The current turn.
#[derive(Debug, Default)]
pub(super) struct Turn {
    cost: usize,
    /// Whether the next turn begins only after [`TurnHandle::note_handled`].
    waits: bool,
    /// Whether the last read found nothing.
    is_idle: bool,
    handle: TurnHandle,
}

// === impl TurnHandle ===

impl TurnHandle {
    /// Signals that every request read so far has been accepted.
    pub fn note_handled(&self) {
        self.0.is_handled.store(true, Ordering::Relaxed);
        self.0.has_resets.store(false, Ordering::Relaxed);
    }

    /// Whether the client has reset any stream since all requests were accepted last.
    pub fn has_resets(&self) -> bool {
        self.0.has_resets.load(Ordering::Relaxed)
    }

    /// The identifier of the newest stream of which anything was read.
    pub fn newest_stream(&self) -> u32 {
        self.0.newest_stream.load(Ordering::Relaxed)
    }

    /// Records work that the turn has caused besides reading: `cost` bytes would take as long.
    pub fn note_work(&self, cost: usize) {
        // Only the thread of the connection writes it.
        let before = self.0.cost.load(Ordering::Relaxed);
        self.0.cost.store(before.saturating_add(cost), Ordering::Relaxed);
    }
}

// === impl Turn ===

impl Turn {
    /// From now on a new turn begins only after [`TurnHandle::note_handled`]. Without this `h2`
    /// would read on before each call that it hands out, and calls that their client resets in the
    /// meantime would accumulate beyond the limit.
    pub(super) fn require_turns(&mut self) -> TurnHandle {
        self.waits = true;
        self.handle.clone()
    }

    /// Whether the turn is over, so that nothing may be read now. The connection has to be polled
    /// again after others.
    pub(super) fn is_over(&mut self) -> bool {
        if self.waits {
            let Handled { is_handled, cost, .. } = &*self.handle.0;
            if is_handled.load(Ordering::Relaxed) {
                is_handled.store(false, Ordering::Relaxed);
                cost.store(0, Ordering::Relaxed);
                self.cost = 0;
            }
            return self.cost.saturating_add(cost.load(Ordering::Relaxed)) >= COST_MAX;
        }
        let is_spent = self.cost >= COST_MAX;
        if is_spent {
            self.cost = 0;
        }
        is_spent
    }

    /// Records that this many bytes were read, and how many bytes of header blocks have begun.
    pub(super) fn note_read(&mut self, bytes: usize, header_bytes: usize) {
        self.cost += bytes + header_bytes * HEADER_BYTE_COST;
        self.is_idle = false;
    }

    /// Records frames of content after which more is to come.
    pub(super) fn note_parts(&mut self, frames: usize) {
        self.cost += frames * PART_COST;
    }

    /// Records the newest stream of which anything was read.
    pub(super) fn note_stream(&mut self, newest: u32) {
        self.handle.0.newest_stream.store(newest, Ordering::Relaxed);
    }

    /// Records that the client has reset a stream.
    pub(super) fn note_reset(&mut self) {
        self.handle.0.has_resets.store(true, Ordering::Relaxed);
    }

    /// Records that there was nothing to read. This ends a turn, except one that waits: more may
    /// arrive while the bytes read before are being handled.
    pub(super) fn note_idle(&mut self) {
        if !self.waits {
            self.cost = 0;
        }
        self.is_idle = true;
    }

    /// Whether the last read found nothing.
    pub(super) fn is_idle(&self) -> bool {
        self.is_idle
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_turn_is_over_after_its_budget_of_bytes() {
        let mut turn = Turn::default();
        for _ in 0..4 {
            assert!(!turn.is_over());
            turn.note_read(COST_MAX / 4, 0);
        }
        assert!(turn.is_over());
        assert!(!turn.is_over(), "the next turn begins");
    }

    #[test]
    fn header_bytes_cost_more_of_a_turn() {
        let mut turn = Turn::default();
        turn.note_read(COST_MAX / HEADER_BYTE_COST, COST_MAX / HEADER_BYTE_COST);
        assert!(turn.is_over());
    }

    #[test]
    fn content_in_many_frames_ends_a_turn() {
        let mut turn = Turn::default();
        turn.note_parts(COST_MAX / PART_COST - 1);
        assert!(!turn.is_over());
        turn.note_parts(1);
        assert!(turn.is_over());
    }

    #[test]
    fn work_that_was_caused_ends_a_turn_until_all_is_handled() {
        let mut turn = Turn::default();
        let handle = turn.require_turns();
        turn.note_read(COST_MAX / 2, 0);
        handle.note_work(COST_MAX / 4);
        assert!(!turn.is_over());
        handle.note_work(COST_MAX / 4);
        assert!(turn.is_over());
        handle.note_handled();
        assert!(!turn.is_over());
        turn.note_read(COST_MAX / 2, 0);
        assert!(!turn.is_over(), "the work of the former turn is over too");
    }

    #[test]
    fn a_reset_is_remembered_until_all_requests_are_handled() {
        let mut turn = Turn::default();
        let handle = turn.require_turns();
        assert!(!handle.has_resets());
        turn.note_reset();
        assert!(handle.has_resets());
        handle.note_handled();
        assert!(!handle.has_resets());
    }

    #[test]
    fn an_idle_read_starts_a_new_turn() {
        let mut turn = Turn::default();
        turn.note_read(COST_MAX, 0);
        turn.note_idle();
        assert!(!turn.is_over());
    }

    #[test]
    fn the_next_turn_waits_until_all_requests_are_handled() {
        let mut turn = Turn::default();
        let handle = turn.require_turns();
        assert!(!turn.is_over());
        turn.note_read(COST_MAX, 0);
        assert!(turn.is_over());
        assert!(turn.is_over(), "what was read has not been handled");
        handle.note_handled();
        assert!(!turn.is_over());
        turn.note_read(COST_MAX, 0);
        assert!(turn.is_over(), "this was not handled yet");
    }
}
