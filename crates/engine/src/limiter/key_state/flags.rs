//! State of a key that fits into a few bits.

use crate::limiter::lease_policy::MISSES_MAX;

/// A byte of flags and a small counter.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Flags(u8);

const WATCHED: u8 = 1 << 7;
const RELIEF: u8 = 1 << 6;
const POOL_EMPTY: u8 = 1 << 5;
const SHED: u8 = 1 << 4;
const NEXT_WINDOW_ASKED: u8 = 1 << 3;
const MISSES: u8 = MISSES_MAX;

const _: () = assert!(
    MISSES & (WATCHED | RELIEF | POOL_EMPTY | SHED | NEXT_WINDOW_ASKED) == 0
        && (MISSES_MAX + 1).is_power_of_two()
);

// === impl Flags ===

impl Flags {
    /// Whether a check of the key is scheduled, since it holds more than its allowance.
    pub(super) fn is_watched(self) -> bool {
        self.0 & WATCHED != 0
    }

    pub(super) fn set_watched(&mut self, on: bool) {
        self.set(WATCHED, on);
    }

    /// Whether the key weighs on its shard, so that it is asked for less often.
    pub(super) fn relief(self) -> bool {
        self.0 & RELIEF != 0
    }

    pub(super) fn set_relief(&mut self, on: bool) {
        self.set(RELIEF, on);
    }

    /// Whether the pool of a split key had too little at the last ask.
    pub(super) fn is_pool_empty(self) -> bool {
        self.0 & POOL_EMPTY != 0
    }

    pub(super) fn set_pool_empty(&mut self, on: bool) {
        self.set(POOL_EMPTY, on);
    }

    /// Whether the last ask was dropped because the budget was spent.
    pub(super) fn is_shed(self) -> bool {
        self.0 & SHED != 0
    }

    pub(super) fn set_shed(&mut self, on: bool) {
        self.set(SHED, on);
    }

    /// Whether a lease of the next window has been asked for.
    pub(super) fn is_next_window_asked(self) -> bool {
        self.0 & NEXT_WINDOW_ASKED != 0
    }

    pub(super) fn set_next_window_asked(&mut self, on: bool) {
        self.set(NEXT_WINDOW_ASKED, on);
    }

    /// Number of asks in a row that found no tokens, up to [`MISSES_MAX`].
    pub(super) fn misses(self) -> u8 {
        self.0 & MISSES
    }

    pub(super) fn note_miss(&mut self, missed: bool) {
        let misses = if missed { (self.misses() + 1).min(MISSES_MAX) } else { 0 };
        self.0 = self.0 & !MISSES | misses;
    }

    fn set(&mut self, flag: u8, on: bool) {
        self.0 = if on { self.0 | flag } else { self.0 & !flag };
    }
}
