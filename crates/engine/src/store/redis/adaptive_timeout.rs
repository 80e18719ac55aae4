//! How long a server may be silent, based on measured round trips.

use std::time::Duration;

use parking_lot::Mutex;

/// The timeouts for one server, kept from one connection to the next.
///
/// The timeout of a command is the smoothed round trip plus four times its deviation, as in TCP's
/// retransmission timer (RFC 6298), but at least `REDIS_TIMEOUT`. It doubles with each timeout
/// until an answer comes (Karn's rule), so that it adapts to a server that became slow within a few
/// connections.
#[derive(Debug)]
pub(super) struct AdaptiveTimeout {
    least: Duration,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// The round trip of the present connection; `None` before the first one.
    measured: Option<RoundTrip>,
    /// Connections given up since the last reply to a command.
    silences: u32,
    /// Attempts to connect without an answer since the last one that was answered.
    dials: u32,
}

#[derive(Debug, Clone, Copy)]
struct RoundTrip {
    smoothed: Duration,
    deviation: Duration,
}

/// Upper bound, whatever was measured: with a second of latency each way, TCP's handshake and the
/// login take four seconds together.
const PATIENCE_MAX: Duration = Duration::from_secs(4);
/// Upper bound of `REDIS_TIMEOUT`. It is below the time allowed for an ask, which must not end
/// before the silence of its connection is noticed.
pub(super) const LEAST_MAX: Duration = Duration::from_secs(8);

// === impl AdaptiveTimeout ===

impl AdaptiveTimeout {
    /// The timeout is never less than `least`, which is at most [`LEAST_MAX`].
    pub(super) fn new(least: Duration) -> Self {
        Self { least: least.min(LEAST_MAX), state: Mutex::default() }
    }

    /// The time for a command, counted from when data last arrived.
    pub(super) fn for_command(&self) -> Duration {
        let state = self.state.lock();
        self.doubled(&state, state.silences)
    }

    /// The time for connecting and logging in, together.
    pub(super) fn for_connect(&self) -> Duration {
        let state = self.state.lock();
        self.doubled(&state, state.silences.saturating_add(state.dials))
    }

    /// Records that a connection was opened in this time: earlier measurements may no longer hold.
    pub(super) fn connected(&self, took: Duration) {
        let mut state = self.state.lock();
        state.dials = 0;
        state.measured = Some(RoundTrip { smoothed: took, deviation: took / 2 });
    }

    /// Records that a command was answered in this time.
    pub(super) fn answered(&self, took: Duration) {
        let mut state = self.state.lock();
        state.silences = 0;
        let first = RoundTrip { smoothed: took, deviation: took / 2 };
        state.measured = Some(state.measured.map_or(first, |before| before.smooth(took)));
    }

    /// Records that a connection fell silent and was given up.
    pub(super) fn given_up(&self) {
        let mut state = self.state.lock();
        state.silences = state.silences.saturating_add(1);
    }

    /// Records that an attempt to connect got no answer.
    pub(super) fn note_failed_connect(&self) {
        let mut state = self.state.lock();
        state.dials = state.dials.saturating_add(1);
    }

    fn doubled(&self, state: &State, times: u32) -> Duration {
        let measured = state.measured.map_or(Duration::ZERO, |it| it.smoothed + it.deviation * 4);
        let factor = 1_u32.checked_shl(times).unwrap_or(u32::MAX);
        let most = PATIENCE_MAX.max(self.least);
        measured.max(self.least).saturating_mul(factor).min(most)
    }
}

// === impl RoundTrip ===

impl RoundTrip {
    /// Weights the new value by an eighth and a quarter, as in RFC 6298.
    fn smooth(self, took: Duration) -> Self {
        let off = self.smoothed.abs_diff(took);
        Self { smoothed: (self.smoothed * 7 + took) / 8, deviation: (self.deviation * 3 + off) / 4 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEAST: Duration = Duration::from_millis(250);

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    #[test]
    fn a_fast_server_gets_the_least() {
        let timeout = AdaptiveTimeout::new(LEAST);
        assert_eq!(timeout.for_command(), LEAST);
        timeout.connected(ms(1));
        (0..100).for_each(|_| timeout.answered(ms(2)));
        assert_eq!((timeout.for_command(), timeout.for_connect()), (LEAST, LEAST));
    }

    #[test]
    fn a_server_that_is_slow_from_the_start_is_connected_to_at_the_third_attempt() {
        let timeout = AdaptiveTimeout::new(LEAST);
        let mut dials = 0;
        while timeout.for_connect() <= ms(500) {
            timeout.note_failed_connect();
            dials += 1;
        }
        assert_eq!(dials, 2);
        timeout.connected(ms(500));
        assert_eq!(timeout.for_command(), ms(1_500));
        (0..100).for_each(|_| timeout.answered(ms(500)));
        assert!((ms(500)..ms(550)).contains(&timeout.for_command()), "{timeout:?}");
    }

    #[test]
    fn a_silence_doubles_until_a_command_is_answered_not_just_a_handshake() {
        let timeout = AdaptiveTimeout::new(LEAST);
        timeout.connected(ms(1));
        timeout.given_up();
        timeout.connected(ms(1));
        assert_eq!(timeout.for_command(), LEAST * 2);
        timeout.given_up();
        timeout.connected(ms(1));
        assert_eq!(timeout.for_command(), LEAST * 4);
        timeout.answered(ms(1));
        assert_eq!(timeout.for_command(), LEAST);
    }

    #[test]
    fn attempts_to_connect_in_vain_are_no_reason_to_be_patient_with_the_connection() {
        let timeout = AdaptiveTimeout::new(LEAST);
        (0..100).for_each(|_| timeout.note_failed_connect());
        assert_eq!(timeout.for_connect(), PATIENCE_MAX);
        timeout.connected(ms(1));
        assert_eq!((timeout.for_command(), timeout.for_connect()), (LEAST, LEAST));
    }

    #[test]
    fn no_patience_is_without_end_and_none_is_below_what_was_set() {
        for (set, most) in [(1, 4_000), (250, 4_000), (5_000, 5_000), (60_000, 8_000)] {
            let timeout = AdaptiveTimeout::new(ms(set));
            assert_eq!(timeout.for_command(), ms(set).min(LEAST_MAX));
            timeout.connected(Duration::MAX / 8);
            (0..40).for_each(|_| timeout.given_up());
            assert_eq!(timeout.for_command(), ms(most), "set to {set} ms");
        }
    }
}
