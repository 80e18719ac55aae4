//! A pod's demand for one key, measured from times that are passed as arguments. Pure.

use std::time::Duration;

use crate::time::{CompactU64, Time};

/// Tokens are asked for ahead of demand only if the demand would use a token within this time: a
/// less used key would only strand the tokens that it holds.
const USED_WITHIN: Duration = Duration::from_millis(200);

/// A key is idle after a silence of this many of its mean gaps, within the bounds below. With
/// random arrivals, a continuing demand pauses this long once in e^4 = 55 gaps. With a shorter
/// silence, the tokens of a key of a few requests a second would go back and forth
/// (`docs/decisions`, 0019).
const IDLE_GAPS: f64 = 4.0;

const IDLE_MIN: Duration = USED_WITHIN;

const IDLE_MAX: Duration = Duration::from_secs(2);

/// Added to two round trips, for a batch that is already on its way and for the scheduler.
const ASK_AHEAD_MARGIN: Duration = Duration::from_millis(1);

/// Demand is measured over spans of at least this length.
const SPAN_MIN: Duration = Duration::from_millis(10);

/// Time constants of the two averages. The faster one detects the start of a burst, the slower one
/// remembers demand across a lull.
const FAST: Duration = Duration::from_millis(50);

const SLOW: Duration = Duration::from_secs(1);

/// This pod's demand for one key, in hits a second: two moving averages, of which the higher
/// counts. Twelve bytes, since each key has one.
#[derive(Debug, Clone, Copy, Default)]
pub struct Demand {
    fast: Rate,
    slow: Rate,
    /// Hits since `since`, not yet in the averages.
    hits: CompactU64,
    /// Hits since the key was last idle, up to [`RUN_MAX`].
    run: u8,
    /// The number of pods that draw on the key, estimated from this pod's share of it.
    pods: Peers,
    /// In [`TICK`]s; 0 if nothing was noted yet. It wraps around every 13 days; a wrong measurement
    /// across the wrap is soon averaged away.
    since: u32,
}

/// A run of this many hits or more counts as endless.
const RUN_MAX: u8 = u8::MAX;

/// A number of pods, from 1, as a logarithm in eighths of an octave, plus one; 0 where it is
/// unknown.
#[derive(Debug, Clone, Copy, Default)]
struct Peers(u8);

/// Steps of [`Peers`] in an octave.
const PEERS_STEPS: f64 = 8.0;

/// The weight of the newest observation in the average number of pods that draw on a key: leases of
/// other pods come in bursts.
const PEERS_WEIGHT: f64 = 0.3;

/// 2^18 nanoseconds, about a quarter of a millisecond.
const TICK: Duration = Duration::from_nanos(1 << 18);

/// In [`TICK`]s, some 17 s: no overtaken thread is later than this.
const OVERTAKEN: u32 = 1 << 16;

/// Hits a second, in units of 1/64.
#[derive(Debug, Clone, Copy, Default)]
struct Rate(CompactU64);

const RATE_PARTS: f32 = 64.0;

// === impl Demand ===

impl Demand {
    /// Notes `hits` at `now`.
    pub fn note(&mut self, hits: u64, now: Time) {
        let span = self.span(now);
        let run = u8::try_from(hits).unwrap_or(RUN_MAX);
        let was_idle = span >= IDLE_MIN && self.is_idle(now);
        self.run = if was_idle { run } else { self.run.saturating_add(run) };
        self.hits = CompactU64::floor(self.hits.get().saturating_add(hits));
        if span < SPAN_MIN {
            return;
        }
        // A key's first hits have no span to divide by, since the time before them is not known.
        if self.since > 0 {
            let rate = self.hits.get() as f32 / span.as_secs_f32();
            self.fast.average_in(rate, weight(span, FAST));
            self.slow.average_in(rate, weight(span, SLOW));
        }
        (self.hits, self.since) = (CompactU64::default(), ticks(now));
    }

    /// Time since the last hits were noted: up to 10 ms too long, and never too short.
    pub fn idle_for(&self, now: Time) -> Duration {
        self.span(now) + TICK
    }

    /// Zero for a thread that read the clock before the last note and comes after it: threads
    /// overtake each other on the way to a key.
    fn span(&self, now: Time) -> Duration {
        let span = ticks(now).wrapping_sub(self.since);
        if span > u32::MAX - OVERTAKEN { Duration::ZERO } else { TICK * span }
    }

    /// Notes that the other pods drew `others` tokens in the `span` between two grants of this pod.
    /// The pod's own use in that span follows from its demand.
    pub fn note_draw(&mut self, others: u64, span: Duration) {
        let used = self.steady_rate() * span.as_secs_f64();
        if used > 0.0 {
            self.pods.average_in(1.0 + others as f64 / used);
        }
    }

    /// The number of pods that draw on the key, as if each drew as much as this one; `None` until
    /// that has been observed.
    pub fn pods(&self) -> Option<f64> {
        self.pods.get()
    }

    /// Hits a second: the higher of the two averages.
    pub fn rate(&self) -> f64 {
        self.steady_rate().max(self.burst_rate())
    }

    /// Hits a second over about the last second.
    pub fn steady_rate(&self) -> f64 {
        f64::from(self.slow.get())
    }

    /// Hits a second over the last few hundredths of a second.
    pub fn burst_rate(&self) -> f64 {
        f64::from(self.fast.get())
    }

    /// Hits since the key was last idle; `None` if there were 255 or more.
    pub fn run_length(&self) -> Option<u64> {
        (self.run < RUN_MAX).then_some(self.run.into())
    }

    /// Recent hits a second; demand that has moved to another pod is soon forgotten. A silence of a
    /// few mean gaps does not count yet.
    pub fn recent_rate(&self, now: Time) -> f64 {
        let span = self.span(now).max(SPAN_MIN);
        let rate = self.hits.get() as f32 / span.as_secs_f32();
        let fast = self.fast.get().max(self.slow.get());
        let gap = Duration::from_secs_f32(1.0 / fast.max(1.0));
        f64::from(fast + (rate - fast) * weight(span, FAST.max(2 * gap)))
    }

    /// The silence after which the key is idle.
    pub fn idle_after(&self) -> Duration {
        let gaps = IDLE_GAPS / self.steady_rate().max(f64::from(f32::EPSILON));
        Duration::try_from_secs_f64(gaps).unwrap_or(IDLE_MAX).clamp(IDLE_MIN, IDLE_MAX)
    }

    /// Whether the silence is so long that the tokens held will not be used soon.
    pub fn is_idle(&self, now: Time) -> bool {
        self.idle_for(now) >= self.idle_after()
    }

    /// Whether `tokens` will be used up before a lease asked for now could arrive.
    pub fn outruns(&self, tokens: u64, round_trip: Duration) -> bool {
        let horizon = (2 * round_trip + ASK_AHEAD_MARGIN).as_secs_f64();
        (tokens as f64) < self.rate() * horizon
    }

    /// Whether a token that is held is used soon, within a tenth of `window`. A token that is not
    /// may be missing at another pod.
    pub fn uses_soon(&self, window: Duration) -> bool {
        let within = USED_WITHIN.min(window / 10);
        self.rate() * within.as_secs_f64() >= 1.0
    }
}

#[allow(clippy::cast_possible_truncation, reason = "it is meant to begin again")]
fn ticks(now: Time) -> u32 {
    (now.nanos() / TICK.as_nanos() as u64) as u32
}

// === impl Rate ===

impl Rate {
    fn get(self) -> f32 {
        self.0.get() as f32 / RATE_PARTS
    }

    /// Rounds to the nearest value: an average that only rounded down would stay below the true
    /// rate.
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "saturates")]
    fn average_in(&mut self, rate: f32, weight: f32) {
        let average = self.get() + (rate - self.get()) * weight;
        let parts = (average * RATE_PARTS).round() as u64;
        let half = CompactU64::floor(parts).get() / 8_192;
        self.0 = CompactU64::floor(parts.saturating_add(half));
    }
}

// === impl Peers ===

impl Peers {
    fn get(self) -> Option<f64> {
        let steps = self.0.checked_sub(1)?;
        Some((f64::from(steps) / PEERS_STEPS).exp2())
    }

    /// Averages exponents, so that a pod that draws twice as much as another has the same weight as
    /// one that draws half as much.
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "it is clamped")]
    fn average_in(&mut self, pods: f64) {
        let seen = pods.max(1.0).log2();
        let exponent = self.get().map_or(seen, |known| {
            let known = known.log2();
            known + (seen - known) * PEERS_WEIGHT
        });
        let steps = (exponent * PEERS_STEPS).round().clamp(0.0, f64::from(u8::MAX - 1));
        self.0 = steps as u8 + 1;
    }
}

/// The weight of the newest `span` in an exponential average with this time constant.
fn weight(span: Duration, constant: Duration) -> f32 {
    1.0 - (-span.as_secs_f32() / constant.as_secs_f32()).exp()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn demand(hits_per_second: u64, millis: u64) -> Demand {
        let mut demand = Demand::default();
        for hit in 0..hits_per_second * millis / 1_000 {
            demand.note(1, Time::from_nanos((hit + 1) * 1_000_000_000 / hits_per_second));
        }
        demand
    }

    #[test]
    fn a_steady_demand_is_measured_within_a_tenth() {
        for rate in [20, 1_000, 50_000] {
            let measured = demand(rate, 3_000).rate();
            assert!((measured / rate as f64 - 1.0).abs() < 0.1, "{measured} of {rate}");
        }
    }

    #[test]
    fn a_note_that_was_overtaken_forgets_no_demand() {
        let mut demand = demand(1_000, 3_000);
        let before = demand.rate();
        for millis in [2_999, 2_950, 2_000, 0] {
            demand.note(1, Time::from_nanos(millis * 1_000_000));
            let after = demand.rate();
            assert!((after / before - 1.0).abs() < 0.1, "{after} after {before}, {millis} ms");
            assert!(demand.idle_for(Time::from_nanos(millis * 1_000_000)) <= 2 * SPAN_MIN);
        }
    }

    #[test]
    fn a_burst_is_seen_within_a_tenth_of_a_second() {
        assert!(demand(10_000, 100).rate() > 8_000.0);
    }

    #[test]
    fn pods_are_seen_by_their_part_in_what_is_drawn() {
        let second = Duration::from_secs(1);
        let mut unused = Demand::default();
        unused.note_draw(100, second);
        assert_eq!(unused.pods(), None, "a pod that used nothing has no part to compare with");

        let mut demand = demand(100, 3_000);
        demand.note_draw(300, second);
        let pods = demand.pods().unwrap();
        assert!((3.6..4.4).contains(&pods), "{pods}");
        for _ in 0..20 {
            demand.note_draw(9_990, second / 10);
        }
        let pods = demand.pods().unwrap();
        assert!((850.0..1_150.0).contains(&pods), "{pods}");
        for _ in 0..30 {
            demand.note_draw(0, second);
        }
        assert!(demand.pods().unwrap() < 1.3, "no other pod draws");
    }

    #[test]
    fn a_large_lease_of_its_own_does_not_make_a_pod_think_itself_alone() {
        let mut demand = demand(10, 3_000);
        // The others use 100 times as much as this pod. It asks twice within a hundredth of a
        // second, whatever it was lent in between.
        for _ in 0..20 {
            demand.note_draw(10, Duration::from_millis(10));
        }
        let pods = demand.pods().unwrap();
        assert!((80.0..125.0).contains(&pods), "{pods}");
    }

    #[test]
    fn a_key_is_idle_after_four_of_its_mean_gaps_within_bounds() {
        assert_eq!(demand(1_000, 3_000).idle_after(), IDLE_MIN);
        let lukewarm = demand(3, 20_000).idle_after().as_secs_f64();
        assert!((1.1..1.6).contains(&lukewarm), "{lukewarm}");
        assert_eq!(demand(1, 20_000).idle_after(), IDLE_MAX);
    }

    #[test]
    fn a_rarely_used_key_is_not_asked_ahead_for() {
        assert!(!demand(2, 5_000).uses_soon(Duration::from_secs(60)));
        assert!(!demand(9, 5_000).uses_soon(Duration::from_secs(1)));
        assert!(demand(11, 5_000).uses_soon(Duration::from_secs(1)));
        assert!(demand(1_000, 1_000).outruns(1, Duration::from_millis(1)));
        assert!(!demand(1_000, 1_000).outruns(10, Duration::from_millis(1)));
    }
}
