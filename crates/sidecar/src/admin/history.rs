//! The last minutes, second by second, so that a newly opened page has data to draw.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use ratelease_engine::latency::Buckets;
use serde_json::{Value, json};

use ratelease_server::metrics::Calls;

/// Number of entries kept: five minutes, or more if some are longer than a second, in some 100 KiB.
pub const SECONDS_MAX: usize = 300;

/// Minimum length of an entry. A page that is opened makes the totals be read at any time, and an
/// entry of microseconds without a decision would look like an outage.
pub const LENGTH_MIN: Duration = Duration::from_millis(500);

/// The time that [`History::recently`] covers.
const RECENT: Duration = Duration::from_secs(60);

/// The decisions in each of the last seconds. A cheap handle: clones share it.
#[derive(Debug, Clone, Default)]
pub struct History(Arc<Mutex<Ring>>);

#[derive(Debug, Default)]
struct Ring {
    /// The time and the totals at the end of the last entry.
    last: Option<(Duration, Calls)>,
    /// At most [`SECONDS_MAX`], the newest last.
    seconds: VecDeque<Second>,
}

/// The decisions between the ends of two entries.
#[derive(Debug)]
struct Second {
    /// The end of this second, since the start of the process.
    end: Duration,
    /// Its length: about a second.
    length: Duration,
    ok: u64,
    over_limit: u64,
    errors: u64,
    took: Buckets,
}

// === impl History ===

impl History {
    /// Records the totals since the start of the process; `at` is the time since then. Totals less
    /// than [`LENGTH_MIN`] after the last entry are left to the next one. Returns whether the
    /// totals have changed since that entry.
    pub fn note(&self, at: Duration, calls: Calls) -> bool {
        let ring = &mut *self.0.lock();
        let mut is_new = true;
        if let Some((before, earlier)) = &ring.last {
            is_new = *earlier != calls;
            let length = at.saturating_sub(*before);
            if length < LENGTH_MIN {
                return is_new;
            }
            if ring.seconds.len() >= SECONDS_MAX {
                ring.seconds.pop_front();
            }
            ring.seconds.push_back(Second::between(at, length, earlier, &calls));
        }
        ring.last = Some((at, calls));
        is_new
    }

    /// All seconds, the oldest first.
    pub fn json(&self) -> Value {
        self.0.lock().seconds.iter().map(Second::json).collect()
    }

    /// The last second; `None` before there is one.
    pub fn newest(&self) -> Option<Value> {
        self.0.lock().seconds.back().map(Second::json)
    }

    /// How long the decisions of the last minute took; `None` before the first second is over.
    pub fn recently(&self) -> Option<Buckets> {
        let ring = self.0.lock();
        let newest = ring.seconds.back()?.end;
        let is_recent = |second: &&Second| newest.saturating_sub(second.end) < RECENT;
        let mut recent = ring.seconds.iter().rev().take_while(is_recent).map(|second| &second.took);
        let mut sum = recent.next()?.clone();
        for took in recent {
            combine(&mut sum, took, u64::saturating_add, Duration::saturating_add);
        }
        Some(sum)
    }
}

// === impl Second ===

impl Second {
    fn between(end: Duration, length: Duration, earlier: &Calls, later: &Calls) -> Self {
        Self {
            end,
            length,
            ok: later.ok.saturating_sub(earlier.ok),
            over_limit: later.over_limit.saturating_sub(earlier.over_limit),
            errors: later.errors.saturating_sub(earlier.errors),
            took: since(&later.took, &earlier.took),
        }
    }

    fn json(&self) -> Value {
        json!({
            "at": self.end.as_secs_f64(),
            "seconds": self.length.as_secs_f64(),
            "ok": self.ok,
            "over_limit": self.over_limit,
            "errors": self.errors,
            "p50_us": micros(&self.took, 0.5),
            "p99_us": micros(&self.took, 0.99),
        })
    }
}

/// The duration in microseconds that a `share` of them, 0 to 1, did not exceed; `None` if there
/// were none.
pub fn micros(took: &Buckets, share: f64) -> Option<f64> {
    took.quantile(share).map(|took| took.as_secs_f64() * 1e6)
}

/// The counts added to `earlier` to reach `later`; both have the same bounds.
fn since(later: &Buckets, earlier: &Buckets) -> Buckets {
    let mut difference = later.clone();
    combine(&mut difference, earlier, u64::saturating_sub, Duration::saturating_sub);
    difference
}

fn combine(
    all: &mut Buckets,
    other: &Buckets,
    counts: fn(u64, u64) -> u64,
    sums: fn(Duration, Duration) -> Duration,
) {
    for (count, other) in all.counts.iter_mut().zip(&other.counts) {
        *count = counts(*count, *other);
    }
    all.sum = sums(all.sum, other.sum);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Totals after ten requests a second: nine are allowed, one is denied, all within 20 µs.
    fn after(second: u64) -> Calls {
        Calls { ok: 9 * second, over_limit: second, errors: 0, took: took(10 * second) }
    }

    fn took(count: u64) -> Buckets {
        let bounds = vec![Duration::from_micros(20)];
        Buckets { bounds, counts: vec![count, 0], sum: Duration::from_micros(10 * count) }
    }

    #[test]
    fn each_second_has_what_came_since_the_one_before_it() {
        let history = History::default();
        assert_eq!((history.json(), history.newest()), (json!([]), None));
        for second in 3..6 {
            history.note(Duration::from_secs(second), after(second));
        }
        let newest = json!({
            "at": 5.0, "seconds": 1.0, "ok": 9, "over_limit": 1, "errors": 0, "p50_us": 10.0,
            "p99_us": 19.8,
        });
        assert_eq!(history.newest(), Some(newest));
        let all = history.json();
        assert_eq!(all.as_array().map(Vec::len), Some(2), "the first look begins");
        assert_eq!(all[0]["at"], 4.0);
    }

    /// At any sequence of times each entry has its minimum length, and no decision is lost.
    #[test]
    fn no_entry_is_shorter_than_half_a_second_and_none_loses_decisions() {
        let seed = 7;
        let mut state: u64 = seed;
        let mut next = |below: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 33) % below
        };
        for round in 0..50 {
            let (history, mut at, mut second) = (History::default(), Duration::ZERO, 0);
            let mut begin = None;
            for _ in 0..200 {
                // Ticks of a second, and pages that open at any time between them.
                let micros = [1, 4, 20_000, 499_999, 500_000, 1_000_000, 4_000_000];
                at += Duration::from_micros(micros[usize::try_from(next(7)).unwrap()]);
                second += next(3);
                history.note(at, after(second));
                begin.get_or_insert((at, second));
            }
            let entries = history.json();
            let entries = entries.as_array().unwrap();
            let sum =
                |field: &str| entries.iter().map(|it| it[field].as_f64().unwrap()).sum::<f64>();
            let lengths = entries.iter().map(|it| it["seconds"].as_f64().unwrap());
            let shortest = lengths.fold(f64::INFINITY, f64::min);
            assert!(shortest >= 0.5, "seed {seed}, round {round}: {shortest}");
            let (begin, first) = begin.unwrap();
            let end = entries.last().unwrap()["at"].as_f64().unwrap();
            assert!((sum("seconds") - (end - begin.as_secs_f64())).abs() < 1e-6, "round {round}");
            // What is not in an entry yet comes with the next one.
            history.note(at + LENGTH_MIN, after(second));
            let entries = history.json();
            let counted: u64 = entries
                .as_array()
                .unwrap()
                .iter()
                .map(|it| it["over_limit"].as_u64().unwrap())
                .sum();
            assert_eq!(counted, second - first, "seed {seed}, round {round}");
        }
    }

    #[test]
    fn no_more_is_kept_than_five_minutes() {
        let history = History::default();
        for second in 0..1000 {
            history.note(Duration::from_secs(second), after(second));
        }
        let all = history.json();
        assert_eq!(all.as_array().map(Vec::len), Some(SECONDS_MAX));
        assert_eq!(all[0]["at"], 700.0);
        assert_eq!(history.recently(), Some(took(600)));
    }

    #[test]
    fn a_second_without_decisions_has_no_latency() {
        let history = History::default();
        for second in 0..3 {
            history.note(Duration::from_secs(second), after(1));
        }
        let newest = history.newest().unwrap();
        assert_eq!((&newest["ok"], &newest["p99_us"]), (&json!(0), &Value::Null));
        assert_eq!(history.recently().and_then(|took| micros(&took, 0.99)), None);
    }
}
