//! How often one pod connects: whatever is lost, and however many connections that was.

use std::time::Duration;

use parking_lot::Mutex;

use crate::time::Time;

/// Lets [`AT_ONCE`] through and then one in each [`GAP`]: never more than ten within a second. A
/// pod that lost a hundred masters at once comes to each of them every twenty seconds.
#[derive(Debug, Default)]
pub(super) struct Gate {
    /// When it stands as if nobody had come.
    idle_at: Mutex<Time>,
}

const GAP: Duration = Duration::from_millis(200);
const AT_ONCE: u32 = 5;
const _: () = assert!(AT_ONCE as u128 + 1_000 / GAP.as_millis() <= 10);

// === impl Gate ===

impl Gate {
    /// Comes at `now`, and is through after the wait that it returns.
    pub(super) fn enter(&self, now: Time) -> Duration {
        let mut idle_at = self.idle_at.lock();
        let ahead = idle_at.since(now);
        *idle_at = now + ahead + GAP;
        ahead.saturating_sub(GAP * (AT_ONCE - 1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn never_more_than_ten_are_let_through_within_a_second() {
        let gate = Gate::default();
        let start = Time::default() + Duration::from_secs(9);
        // Two hundred at once, and two hundred more as these are through.
        let mut through: Vec<Time> = Vec::new();
        for _ in 0..200 {
            through.push(start + gate.enter(start));
        }
        for at in 0..200 {
            let now = through[at];
            through.push(now + gate.enter(now));
        }
        through.sort();
        assert_eq!(through[4], start, "five at once");
        for pair in through.windows(11) {
            let within = pair[10].since(pair[0]);
            assert!(within >= Duration::from_secs(1), "eleven within {within:?}");
        }
    }
}
