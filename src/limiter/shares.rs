//! The shares of a split key (`shards`): which to ask next, and what they say together.

use std::num::NonZeroU8;

use crate::lease::Reply;
use crate::rules::{SHARES_MAX, Share};
use crate::store::{Ask, Grant};

/// Where a pod stands among the shares of one key.
#[derive(Debug, Clone, Copy)]
pub(super) struct Shares {
    /// The one to ask next.
    at: u8,
    /// Those that had nothing left, a bit each.
    dry: u64,
}

/// How a key stands at the store, all shares together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Whole {
    /// Tokens left, an estimate where there are several shares.
    pub(super) left: u64,
    /// Even a look is over the limit.
    pub(super) overdrawn: bool,
    /// Whether a charge above `left` may be denied.
    pub(super) is_sure: bool,
}

const _: () = assert!(SHARES_MAX as u32 == u64::BITS, "a bit for each share");

// === impl Shares ===

impl Shares {
    /// Where it stands: at share `at`, with these that had nothing left.
    pub(super) fn new(at: u8, dry: u64) -> Self {
        Self { at, dry }
    }

    /// What [`Shares::new`] takes to stand here again.
    pub(super) fn parts(self) -> (u8, u64) {
        (self.at, self.dry)
    }

    /// The share to ask when a lease runs low, of a key of `of` shares.
    pub(super) fn next(&self, of: NonZeroU8) -> u8 {
        self.at % of
    }

    /// The shares to ask when requests still wait though one was asked: all that may have tokens,
    /// at once. Where none may, one, which is a probe.
    pub(super) fn others(&self, of: NonZeroU8) -> Vec<u8> {
        let wet: Vec<u8> = (0..of.get()).filter(|at| self.dry & bit(*at) == 0).collect();
        if wet.is_empty() || wet.len() == usize::from(of.get()) {
            return vec![self.next(of)];
        }
        wet
    }

    /// Takes note of a grant; `anew` if it is of a new window.
    pub(super) fn heard(&mut self, ask: &Ask, grant: &Grant, anew: bool) -> Whole {
        let Share { at, of } = ask.share;
        if of.get() == 1 {
            return Whole { left: grant.left, overdrawn: grant.overdrawn, is_sure: true };
        }
        // Where one has tokens again, the others may.
        if anew || (self.all_dry(of) && grant.tokens + grant.left > 0) {
            self.dry = 0;
        }
        if grant.left > 0 {
            self.dry &= !bit(at);
            let left = grant.left.saturating_mul(u64::from(of.get()));
            return Whole { left, overdrawn: false, is_sure: false };
        }
        self.move_on(ask.share);
        let wet = u64::from(of.get()) - u64::from(self.dry.count_ones());
        let left = ask.terms().capacity().max(1).saturating_mul(wet);
        // No share is told of a denial, since none knows that the others are empty.
        Whole { left, overdrawn: left == 0, is_sure: left == 0 }
    }

    /// Takes note of a share that did not answer. Whether there are others to try.
    pub(super) fn failed(&mut self, reply: &Reply) -> bool {
        let share = reply.ask.share;
        self.move_on(share);
        !self.all_dry(share.of)
    }

    fn move_on(&mut self, Share { at, of }: Share) {
        self.dry |= bit(at);
        let after = |nth: u8| (at % of + nth) % of;
        let wet = (1..of.get()).map(after).find(|at| self.dry & bit(*at) == 0);
        self.at = wet.unwrap_or(after(1));
    }

    fn all_dry(&self, of: NonZeroU8) -> bool {
        self.dry.count_ones() >= u32::from(of.get())
    }
}

fn bit(at: u8) -> u64 {
    1_u64.checked_shl(u32::from(at)).unwrap_or(0)
}
