//! Limits how often one pod connects, however many connections were lost and however many nodes a
//! server names.

use std::time::Duration;

use tokio::sync::Mutex;

use crate::time::{Clock, Time};

/// The rate limits for connections to one kind of address.
#[derive(Debug)]
pub(super) struct ConnectLimiters {
    /// For connections that are opened again.
    pub(super) again: ConnectLimiter,
    /// For the first connection to a node.
    pub(super) first: ConnectLimiter,
}

/// Lets a number of callers through at once and then one in each gap, in the order of their
/// arrival.
///
/// A waiting caller has reserved nothing: if it gives up, it leaves the queue, and the callers
/// behind it move up.
#[derive(Debug)]
pub(super) struct ConnectLimiter {
    /// Held by the first in the queue until it is through. Tokio's lock is fair and may be held
    /// across a wait.
    turn: Mutex<Turn>,
}

#[derive(Debug)]
struct Turn {
    at_once: u32,
    gap: Duration,
    /// When the limiter is in its initial state again.
    idle_at: Time,
}

/// For connections that are opened again: at most ten within a second. A pod that lost a hundred
/// masters at once retries each of them every twenty seconds.
const AGAIN: (u32, Duration) = (5, Duration::from_millis(200));
const _: () = assert!(AGAIN.0 as u128 + 1_000 / AGAIN.1.as_millis() <= 10);

/// For the first connections to nodes that a server named: a cluster of 64 masters is connected at
/// once, and one of 500, the largest that is offered as a service, within five seconds.
const FIRST: (u32, Duration) = (64, Duration::from_millis(10));

// === impl ConnectLimiters ===

impl ConnectLimiters {
    pub(super) fn new() -> Self {
        Self { again: ConnectLimiter::new(AGAIN), first: ConnectLimiter::new(FIRST) }
    }
}

// === impl ConnectLimiter ===

impl ConnectLimiter {
    fn new((at_once, gap): (u32, Duration)) -> Self {
        Self { turn: Mutex::new(Turn { at_once, gap, idle_at: Time::default() }) }
    }

    /// Waits for its turn.
    pub(super) async fn pass(&self, clock: &Clock) {
        let mut turn = self.turn.lock().await;
        let wait = turn.wait(clock.now());
        if !wait.is_zero() {
            tokio::time::sleep(wait).await;
        }
        turn.take(clock.now());
    }
}

// === impl Turn ===

impl Turn {
    /// How long the first in the queue has to wait at `now`.
    fn wait(&self, now: Time) -> Duration {
        self.idle_at.since(now).saturating_sub(self.gap * (self.at_once - 1))
    }

    /// Notes that one is through at `now`.
    fn take(&mut self, now: Time) {
        self.idle_at = now + self.idle_at.since(now) + self.gap;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// When each of `count` callers that wait at once is through.
    fn through(limits: (u32, Duration), count: usize) -> Vec<Time> {
        let mut turn = ConnectLimiter::new(limits).turn.into_inner();
        let mut now = Time::default() + Duration::from_secs(9);
        let pass = |_| {
            now = now + turn.wait(now);
            turn.take(now);
            now
        };
        (0..count).map(pass).collect()
    }

    #[test]
    fn never_more_than_ten_are_let_through_again_within_a_second() {
        let through = through(AGAIN, 400);
        assert_eq!(through[4], through[0], "five at once");
        for pair in through.windows(11) {
            let within = pair[10].since(pair[0]);
            assert!(within >= Duration::from_secs(1), "eleven within {within:?}");
        }
    }

    #[test]
    fn sixty_four_are_connected_to_at_once_and_then_a_hundred_a_second() {
        let through = through(FIRST, 2_000);
        assert_eq!(through[63], through[0], "64 at once");
        for pair in through.windows(165) {
            let within = pair[164].since(pair[0]);
            assert!(within >= Duration::from_secs(1), "165 within {within:?}");
        }
    }

    #[tokio::test]
    async fn those_who_gave_up_waiting_have_taken_no_turn() {
        let (limiter, clock) =
            (ConnectLimiter::new((1, Duration::from_secs(3_600))), Clock::start());
        limiter.pass(&clock).await;
        let mut waiting: Vec<_> = (0..1_000).map(|_| Box::pin(limiter.pass(&clock))).collect();
        for pass in &mut waiting {
            assert!(futures_util::poll!(pass).is_pending());
        }
        drop(waiting);
        let wait = limiter.turn.lock().await.wait(clock.now());
        assert!(wait <= Duration::from_secs(3_600), "{wait:?}");
    }
}
