//! Fixed windows: in each window, the tokens leased and not given back never exceed the limit.

use std::collections::{BTreeMap, BTreeSet};

use ratelease_engine::store::Ask;
use ratelease_engine::time::Time;

use super::{Book, Failover, Step};

#[derive(Debug, Default)]
pub struct FixedWindow {
    windows: BTreeMap<u64, Window>,
    /// The window that the store keeps a count of: the window of its last ask.
    counted: Option<u64>,
    /// Windows whose counts it kept before.
    left: BTreeSet<u64>,
    /// Every step, for failovers.
    log: Vec<Change>,
    excused: u64,
    /// The window's length; 0 before the first step.
    window_us: u64,
    /// Whether the store's clock was ever set back.
    ran_back: bool,
}

/// The accounts of one window.
#[derive(Debug, Default, Clone, Copy)]
struct Window {
    /// Tokens leased and not given back.
    lent: u64,
    /// Number of these tokens that the store has lost track of.
    unknown: u64,
}

#[derive(Debug, Clone, Copy)]
struct Change {
    at: Time,
    /// The window at the time of the step; tokens leased ahead belong to the next one.
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
        let limit = ask.limit.requests_per_unit;
        let present = wall_us / window_us + u64::from(ask.next_window);
        // A key's window never goes back, even if the clock does.
        let number = if self.ran_back { grant.epoch } else { present };
        if grant.epoch != number || number.abs_diff(present) > 1 {
            return Err(format!("window {present} was called {}", grant.epoch));
        }
        let window = self.windows.entry(number).or_default();
        // The store keeps the count of the next window beside the present window's count.
        if !ask.next_window && self.counted != Some(number) {
            self.left.extend(self.counted.replace(number));
            if self.left.contains(&number) {
                // The window was left and became current again, which takes a failover: its count
                // restarts.
                window.unknown = window.lent;
            }
        }

        // The window had passed before a clock was set back; it is ahead again.
        if ask.next_window && self.left.remove(&number) {
            window.unknown = window.lent;
        }
        let of = number - u64::from(ask.next_window);
        self.enter_return(*at, ask, of);
        let window = self.windows.entry(number).or_default();
        // Costs that were owed are counted whole, beyond the limit too.
        let owed = if ask.next_window { 0 } else { ask.owed };
        window.lent += grant.tokens + owed;
        let window = *window;
        let (lent, returned) = (grant.tokens + owed, 0);
        self.log.push(Change { at: *at, present: of, window: number, lent, returned });

        self.excused = self.excused.max(window.lent.saturating_sub(limit).min(window.unknown));
        let (lent, allowed) = (window.lent, limit + window.unknown);
        let until_end_us = u128::from((number + 1) * window_us - wall_us);
        match () {
            // After the limit was lowered, more may be leased already, and the store leases
            // nothing.
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
            // The store has forgotten leased tokens that pods still hold, and counts returned
            // tokens that they no longer hold.
            let window = self.windows.entry(number).or_default();
            window.unknown = (window.unknown + lent).saturating_sub(returned);
        }
        self.left.extend(self.counted);
        self.counted = self.log.last().map(|change| change.present);
        // The store may have removed the count of a window that had ended by the old clock.
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
    /// Enters the tokens that an ask gives back in their own window, if that is `present` or the
    /// next.
    fn enter_return(&mut self, at: Time, ask: &Ask, present: u64) {
        let Some(back) = ask.back else { return };
        let of = back.epoch.unwrap_or(present);
        if of != present && of != present + 1 {
            return;
        }
        let window = self.windows.entry(of).or_default();
        let returned = back.tokens.min(window.lent);
        window.lent -= returned;
        self.log.push(Change { at, present, window: of, lent: 0, returned });
    }
}
