//! How often one pod connects: however many connections were lost, and however many nodes a server
//! names.

use std::time::Duration;

use parking_lot::Mutex;

use crate::time::Time;

/// Lets some through at once and then one in each `gap`.
#[derive(Debug)]
pub(super) struct Gate {
    at_once: u32,
    gap: Duration,
    /// When it stands as if nobody had come.
    idle_at: Mutex<Time>,
}

/// Of connections that are opened again: never more than ten within a second. A pod that lost
/// a hundred masters at once comes to each of them every twenty seconds.
const AGAIN: (u32, Duration) = (5, Duration::from_millis(200));
const _: () = assert!(AGAIN.0 as u128 + 1_000 / AGAIN.1.as_millis() <= 10);

/// Of the first connections to nodes that a server named: a cluster of 64 masters is connected to
/// at once, and one of 500, the largest that is offered as a service, within five seconds.
const FIRST: (u32, Duration) = (64, Duration::from_millis(10));

// === impl Gate ===

impl Gate {
    /// For connections that are opened again.
    pub(super) fn again() -> Self {
        Self::new(AGAIN)
    }

    /// For the first connection to a node.
    pub(super) fn first() -> Self {
        Self::new(FIRST)
    }

    fn new((at_once, gap): (u32, Duration)) -> Self {
        Self { at_once, gap, idle_at: Mutex::default() }
    }

    /// Comes at `now`, and is through after the wait that it returns.
    pub(super) fn enter(&self, now: Time) -> Duration {
        let mut idle_at = self.idle_at.lock();
        let ahead = idle_at.since(now);
        *idle_at = now + ahead + self.gap;
        ahead.saturating_sub(self.gap * (self.at_once - 1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// When each of `count` is through that come at once, and of as many more that come as these
    /// are through.
    fn through(gate: &Gate, count: usize) -> Vec<Time> {
        let start = Time::default() + Duration::from_secs(9);
        let mut through: Vec<Time> = Vec::new();
        for _ in 0..count {
            through.push(start + gate.enter(start));
        }
        for at in 0..count {
            let now = through[at];
            through.push(now + gate.enter(now));
        }
        through.sort();
        assert!(through.iter().all(|at| *at >= start));
        through
    }

    #[test]
    fn never_more_than_ten_are_let_through_again_within_a_second() {
        let through = through(&Gate::again(), 200);
        assert_eq!(through[4], through[0], "five at once");
        for pair in through.windows(11) {
            let within = pair[10].since(pair[0]);
            assert!(within >= Duration::from_secs(1), "eleven within {within:?}");
        }
    }

    #[test]
    fn sixty_four_are_connected_to_at_once_and_then_a_hundred_a_second() {
        let through = through(&Gate::first(), 1_000);
        assert_eq!(through[63], through[0], "64 at once");
        for pair in through.windows(165) {
            let within = pair[164].since(pair[0]);
            assert!(within >= Duration::from_secs(1), "165 within {within:?}");
        }
    }
}
