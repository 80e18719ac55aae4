//! How long a shard has been silent while asks are out. Pure: time is an argument.

use std::time::Duration;

use crate::time::Time;

/// A timer that is later than this shows that this process was held up, by CPU throttling or a
/// stop. Replies that came meanwhile are read within `GRACE`.
const HELD_UP: Duration = Duration::from_millis(10);
const GRACE: Duration = Duration::from_millis(20);

/// A silence of this length counts as a stall even if this process was held up.
const LONGEST: Duration = super::EXCHANGE_MAX;

/// Distinguishes a stall from congestion: a shard is stalled only while no reply at all arrives.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Silence {
    /// Time of the last reply, or of the first ask sent while no other was out.
    since: Time,
    /// The silence is not checked before this time.
    not_before: Time,
    /// This silence has been found to be a stall.
    is_stall: bool,
    last_reply: Option<Time>,
}

// === impl Silence ===

impl Silence {
    /// Notes that asks were sent; `first` if no other was out. The first ask after a stall is a
    /// probe, which gets the full time to answer.
    pub(super) fn sent(&mut self, first: bool, now: Time) {
        if first || self.is_stall {
            *self = Self { since: now, last_reply: self.last_reply, ..Self::default() };
        }
    }

    /// The shard replied.
    pub(super) fn heard(&mut self, now: Time) {
        *self = Self { since: now, last_reply: Some(now), ..Self::default() };
    }

    /// Whether the shard has replied to any ask since `sent_at`, and less than `span` before `now`.
    pub(super) fn ended_since(&self, sent_at: Time, span: Duration, now: Time) -> bool {
        self.last_reply.is_some_and(|reply| reply > sent_at && now.since(reply) < span)
    }

    /// When to check whether the shard has stalled, which it has after a silence of `stall_after`;
    /// `None` if it is already known to be stalled.
    pub(super) fn due(&self, stall_after: Duration) -> Option<Time> {
        (!self.is_stall).then(|| (self.since + stall_after).max(self.not_before))
    }

    /// Whether a stall begins at `now`. `at_server` returns how long the server itself has owed a
    /// reply, where that is known.
    pub(super) fn stalls(
        &mut self,
        stall_after: Duration,
        now: Time,
        at_server: impl FnOnce() -> Option<Duration>,
    ) -> bool {
        let Some(due) = self.due(stall_after).filter(|due| *due <= now) else { return false };
        if now.since(due) > HELD_UP && now.since(self.since) < LONGEST {
            self.not_before = now + GRACE;
            return false;
        }
        let at_server = at_server().unwrap_or(Duration::MAX);
        if at_server < stall_after {
            self.not_before = now + (stall_after - at_server);
            return false;
        }
        self.is_stall = true;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STALL_AFTER: Duration = Duration::from_millis(50);

    fn at(millis: u64) -> Time {
        Time::from_nanos((1_000 + millis) * 1_000_000)
    }

    fn sent() -> Silence {
        let mut silence = Silence::default();
        silence.sent(true, at(0));
        silence
    }

    fn stalls(silence: &mut Silence, millis: u64) -> bool {
        silence.stalls(STALL_AFTER, at(millis), || None)
    }

    #[test]
    fn a_shard_stalls_once_after_its_time_without_a_reply() {
        let mut silence = sent();
        assert!(!stalls(&mut silence, 49));
        assert!(stalls(&mut silence, 50));
        assert!(!stalls(&mut silence, 55), "it is known");
        assert_eq!(silence.due(STALL_AFTER), None);
    }

    #[test]
    fn each_reply_puts_the_stall_off_and_further_asks_do_not() {
        let mut silence = sent();
        for millis in (40..400).step_by(40) {
            silence.heard(at(millis));
            assert!(!stalls(&mut silence, millis + 39));
        }
        silence.sent(false, at(400));
        assert_eq!(silence.due(STALL_AFTER), Some(at(360 + 50)));
    }

    #[test]
    fn a_probe_after_a_stall_gets_its_own_time() {
        let mut silence = sent();
        assert!(stalls(&mut silence, 50));
        silence.sent(false, at(150));
        assert!(!stalls(&mut silence, 199));
        assert!(stalls(&mut silence, 200));
    }

    #[test]
    fn a_reply_since_an_ask_was_sent_shows_congestion_for_a_while() {
        let mut silence = sent();
        assert!(!silence.ended_since(at(0), STALL_AFTER, at(10)), "none came");
        silence.heard(at(20));
        assert!(silence.ended_since(at(0), STALL_AFTER, at(69)));
        assert!(!silence.ended_since(at(0), STALL_AFTER, at(70)), "too long ago");
        assert!(!silence.ended_since(at(30), STALL_AFTER, at(40)), "before it was sent");
    }

    #[test]
    fn a_process_that_was_held_up_reads_first() {
        let mut silence = sent();
        assert!(!stalls(&mut silence, 61));
        assert_eq!(silence.due(STALL_AFTER), Some(at(81)));
        assert!(stalls(&mut silence, 81));
        let mut silence = sent();
        assert!(stalls(&mut silence, 10_000), "too long for any hold-up");
    }

    #[test]
    fn a_server_that_owes_nothing_or_not_for_long_does_not_stall() {
        let mut silence = sent();
        let owed = |millis| move || Some(Duration::from_millis(millis));
        assert!(!silence.stalls(STALL_AFTER, at(50), owed(0)));
        assert_eq!(silence.due(STALL_AFTER), Some(at(100)));
        assert!(!silence.stalls(STALL_AFTER, at(100), owed(30)));
        assert!(silence.stalls(STALL_AFTER, at(120), owed(50)));
    }
}
