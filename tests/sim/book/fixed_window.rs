//! Fixed windows: of each, no more is lent and not given back than the limit.

use std::collections::{BTreeMap, BTreeSet};

use ratelease_engine::store::Ask;
use ratelease_engine::time::Time;

use super::{Book, Failover, Step};

#[derive(Debug, Default)]
pub struct FixedWindow {
    windows: BTreeMap<u64, Window>,
    /// The window that the store keeps a count of: the last one it was asked in.
    counted: Option<u64>,
    /// Windows that it kept a count of before.
    left: BTreeSet<u64>,
    /// Every step, for failovers.
    log: Vec<Change>,
    excused: u64,
    /// The window's length; 0 before the first step.
    window_us: u64,
    /// Whether the store's clock was set back once.
    ran_back: bool,
}

/// What is known of one window.
#[derive(Debug, Default, Clone, Copy)]
struct Window {
    /// Tokens lent and not given back.
    lent: u64,
    /// Of these, tokens that the store no longer knows of.
    unknown: u64,
    /// The highest limit that it was held to.
    highest: u64,
}

#[derive(Debug, Clone, Copy)]
struct Change {
    at: Time,
    /// The window that it was in; what was lent ahead is of the next one.
    present: u64,
    window: u64,
    lent: u64,
    returned: u64,
}

impl Book for FixedWindow {
    fn enter(&mut self, step: &Step) -> Result<(), String> {
        let Step { at, wall_us, ask, grant } = step;
        let window_us = ask.limit.window_seconds() * 1_000_000;
        self.window_us = window_us;
        let limit = u64::from(ask.limit.requests_per_unit);
        let present = wall_us / window_us + u64::from(ask.ahead);
        // A key's time does not run back, though the clock may.
        let number = if self.ran_back { grant.epoch } else { present };
        if grant.epoch != number || number.abs_diff(present) > 1 {
            return Err(format!("window {present} was called {}", grant.epoch));
        }
        let window = self.windows.entry(number).or_default();
        // A count of the next window is kept beside the present one's.
        if !ask.ahead && self.counted != Some(number) {
            self.left.extend(self.counted.replace(number));
            if self.left.contains(&number) {
                // It was left and came back, which time without failovers does not: counted anew.
                window.unknown = window.lent;
            }
        }

        // After its time, a clock was set back before it.
        if ask.ahead && self.left.remove(&number) {
            window.unknown = window.lent;
        }
        window.highest = window.highest.max(limit);
        let of = number - u64::from(ask.ahead);
        self.enter_return(*at, ask, of);
        let window = self.windows.entry(number).or_default();
        window.lent += grant.tokens;
        let window = *window;
        let (lent, returned) = (grant.tokens, 0);
        self.log.push(Change { at: *at, present: of, window: number, lent, returned });

        self.excused = self.excused.max(window.lent.saturating_sub(limit).min(window.unknown));
        let (lent, allowed) = (window.lent, limit + window.unknown);
        let until_end_us = u128::from((number + 1) * window_us - wall_us);
        match () {
            // A limit that was lowered finds more lent already, and lends none.
            () if grant.tokens > 0 && lent > allowed => {
                Err(format!("window {number}: {lent} tokens lent of {allowed}"))
            }
            () if grant.left > allowed.saturating_sub(lent) => {
                Err(format!("window {number}: {lent} of {allowed} lent, {} left", grant.left))
            }
            () if grant.ends_after.as_micros() > until_end_us => Err(format!(
                "window {number} ends in {until_end_us} us, its lease in {:?}",
                grant.ends_after
            )),
            () => Ok(()),
        }
    }

    fn fail_over(&mut self, failover: &Failover) {
        let kept = self.log.partition_point(|change| change.at <= failover.kept_until);
        let mut lost: BTreeMap<u64, (u64, u64)> = BTreeMap::new();
        for change in self.log.drain(kept..) {
            let (lent, returned) = lost.entry(change.window).or_default();
            (*lent, *returned) = (*lent + change.lent, *returned + change.returned);
        }
        for (number, (lent, returned)) in lost {
            // What was lent is still out there, and the store does not know; what was returned is
            // not, and the store thinks it is.
            let window = self.windows.entry(number).or_default();
            window.unknown = (window.unknown + lent).saturating_sub(returned);
        }
        self.left.extend(self.counted);
        self.counted = self.log.last().map(|change| change.present);
        // The count of a window that had ended by the old clock may have been cleared away.
        let (before, after) = failover.wall_us;
        self.ran_back |= after < before;
        if self.window_us > 0 && after / self.window_us < before / self.window_us {
            self.left.extend(self.counted.take());
        }
    }

    fn excused(&self) -> u64 {
        self.excused
    }
}

// === impl FixedWindow ===

impl FixedWindow {
    /// Enters what an ask gives back: to its own window, if that is the `present` one or the next.
    fn enter_return(&mut self, at: Time, ask: &Ask, present: u64) {
        let Some(back) = ask.back else { return };
        let of = back.epoch.unwrap_or(present);
        if of != present && of != present + 1 {
            return;
        }
        let window = self.windows.entry(of).or_default();
        let returned = back.tokens.min(window.lent);
        // A count of one above a limit that was lowered is taken for the mark of a denial, which a
        // return takes away: one token.
        let limit = u64::from(ask.limit.requests_per_unit);
        window.unknown += u64::from(of == present && limit < window.highest);
        window.lent -= returned;
        self.log.push(Change { at, present, window: of, lent: 0, returned });
    }
}
