//! Finds the key that a shard is asked for most. A key lives on one shard, so the load of a hot key
//! cannot be spread. Pure: time is an argument.

use std::collections::VecDeque;
use std::time::Duration;

use ratelease_rules::key::Key;

use crate::sketch::Sketch;
use crate::time::Time;

/// A key becomes hot with a larger share of its shard's asks of the last [`SPAN`] than this,
const SHARE_BEGINS: f64 = 0.05;

/// and stays hot until its share is no more than this, so that a share near the limit does not
/// toggle.
const SHARE_ENDS: f64 = 0.04;

/// A key with fewer asks in [`SPAN`] than this (ten a second) is not hot: the load is negligible.
const ASKS_MIN: u32 = 100;

/// Another key becomes the hot key once it has half as many asks again as the present one.
const TAKES_OVER: f64 = 1.5;

/// A key that becomes hot is reported unless it was hot within this time: relief takes a flagged
/// key below its share, so that under a steady load the flag comes and goes.
const COOL: Duration = Duration::from_secs(600);

/// The largest number of keys whose last hot time is kept.
const KNOWN_MAX: usize = 16;

/// How far back asks count: ten seconds, less the rest of the present interval.
const SPAN: Duration = Duration::from_secs(10);

/// The number of intervals of the span.
const INTERVALS: usize = 5;

/// The length of one interval.
const INTERVAL: Duration = Duration::from_secs(SPAN.as_secs() / INTERVALS as u64);

/// Sets of each interval's sketch: 64 counters. The count of a key may be too low by an eighth of
/// the asks that its set has seen. A set sees some 1 / 64 of all asks except those for the hottest
/// keys.
const SETS: usize = 8;

/// A key that makes up a large share of a shard's asks.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct HotKey {
    /// The key.
    pub key: Key,
    /// The key's share of the shard's asks of the last ten seconds, 0 to 1.
    pub share: f64,
    /// Number of asks for the key since it was flagged, whose replies say that the key is hot.
    pub relieved: u64,
}

/// Counts the asks of one shard.
#[derive(Debug)]
pub(super) struct HotKeyDetector {
    intervals: [Interval; INTERVALS],
    flagged: Option<Key>,
    /// Asks for the hot key since it was flagged.
    relieved: u64,
    /// When keys were hot last, the most recent last: at most [`KNOWN_MAX`].
    last_hot: VecDeque<(Key, Time)>,
}

/// The asks of one interval of the span.
#[derive(Debug)]
struct Interval {
    /// The number of the interval, counted from the clock's start.
    number: u64,
    asks: Sketch,
}

// === impl HotKeyDetector ===

impl HotKeyDetector {
    /// Notes an ask. Returns whether its key is hot and, if the key has become hot with this ask
    /// after it was cool for [`COOL`], the key.
    pub(super) fn note(&mut self, key: Key, now: Time) -> (bool, Option<HotKey>) {
        let flagged = self.hot_key(now);
        self.flagged = flagged.map(|flagged| flagged.key);
        self.interval(now).asks.note(key);
        let becomes_hot = self.share_of(key, now).filter(|hot| {
            hot.share > SHARE_BEGINS
                && flagged.is_none_or(|flagged| {
                    flagged.key != key && hot.share > TAKES_OVER * flagged.share
                })
        });
        if becomes_hot.is_some() {
            (self.flagged, self.relieved) = (Some(key), 0);
        }
        let is_hot = self.flagged == Some(key);
        self.relieved += u64::from(is_hot);
        let was_hot = is_hot && self.was_hot_recently(key, now);
        (is_hot, becomes_hot.filter(|_| !was_hot))
    }

    /// Whether `key`, which is hot, was hot within [`COOL`] before.
    fn was_hot_recently(&mut self, key: Key, now: Time) -> bool {
        let known = self.last_hot.iter().position(|(known, _)| *known == key);
        let before = known.and_then(|at| self.last_hot.remove(at));
        if self.last_hot.len() >= KNOWN_MAX {
            self.last_hot.pop_front();
        }
        self.last_hot.push_back((key, now));
        before.is_some_and(|(_, before)| now.since(before) < COOL)
    }

    /// Whether `key` is the hot key.
    pub(super) fn is_hot(&self, key: Key, now: Time) -> bool {
        self.flagged == Some(key) && self.hot_key(now).is_some()
    }

    /// The present interval, cleared of the older interval that it replaces.
    fn interval(&mut self, now: Time) -> &mut Interval {
        let number = number(now);
        // The remainder is less than a length, so it fits a `usize`.
        let at = usize::try_from(number % INTERVALS as u64).unwrap_or_default();
        let interval = &mut self.intervals[at];
        if interval.number != number {
            interval.asks.clear();
            interval.number = number;
        }
        interval
    }

    /// The hot key, if there is one.
    pub(super) fn hot_key(&self, now: Time) -> Option<HotKey> {
        self.share_of(self.flagged?, now).filter(|hot| hot.share > SHARE_ENDS)
    }

    /// The share of `key`, if there are enough asks for it.
    fn share_of(&self, key: Key, now: Time) -> Option<HotKey> {
        let recent = || self.intervals.iter().filter(|interval| interval.is_recent(now));
        let asks: u32 = recent().map(|interval| interval.asks.at_least(key)).sum();
        let all: u64 = recent().map(|interval| interval.asks.noted()).sum();
        let share = f64::from(asks) / all.max(1) as f64;
        let relieved = if self.flagged == Some(key) { self.relieved } else { 0 };
        (asks >= ASKS_MIN).then_some(HotKey { key, share, relieved })
    }
}

impl Default for HotKeyDetector {
    fn default() -> Self {
        let interval = || Interval { number: 0, asks: Sketch::new(SETS) };
        Self {
            intervals: std::array::from_fn(|_| interval()),
            flagged: None,
            relieved: 0,
            last_hot: VecDeque::new(),
        }
    }
}

// === impl Interval ===

impl Interval {
    fn is_recent(&self, now: Time) -> bool {
        self.number + INTERVALS as u64 > number(now)
    }
}

/// The number of the interval of the span that contains `now`.
fn number(now: Time) -> u64 {
    now.nanos() / (INTERVAL.as_secs() * 1_000_000_000)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: u64) -> Time {
        Time::from_nanos(millis * 1_000_000)
    }

    /// Notes asks for keys that are asked for once each.
    fn others(hot_keys: &mut HotKeyDetector, asks: u64, millis: u64) {
        let key = Key::for_test(1_000_000 + millis);
        for n in 0..asks {
            let pool = u8::try_from(n % 128).unwrap();
            hot_keys.note(key.of_pool(pool), at(millis));
        }
    }

    /// Notes `asks` asks in a row. Returns the keys that have become hot with one of them.
    fn ask(hot_keys: &mut HotKeyDetector, key: Key, asks: u32, millis: u64) -> Vec<HotKey> {
        (0..asks).filter_map(|_| hot_keys.note(key, at(millis)).1).collect()
    }

    #[test]
    fn a_key_with_more_than_its_share_is_reported_once_and_flagged_until_it_cools_down() {
        let (mut hot_keys, key) = (HotKeyDetector::default(), Key::for_test(1));
        others(&mut hot_keys, 1_000, 0);
        let became_hot = ask(&mut hot_keys, key, 300, 100);
        assert_eq!(became_hot.len(), 1, "{became_hot:?}");
        assert_eq!(became_hot[0].key, key);
        assert!((became_hot[0].share - 100.0 / 1_100.0).abs() < 1e-9, "{became_hot:?}");
        let flagged = hot_keys.hot_key(at(9_999)).unwrap();
        assert!((flagged.share - 300.0 / 1_300.0).abs() < 1e-9, "{flagged:?}");
        assert_eq!(hot_keys.hot_key(at(10_000)), None, "no ask for ten seconds");
        assert_eq!(ask(&mut hot_keys, key, 300, 10_000), [], "it was hot ten seconds ago");
        assert!(hot_keys.hot_key(at(10_000)).is_some(), "but is flagged");
        assert_eq!(ask(&mut hot_keys, key, 300, 610_000).len(), 1, "again");
    }

    /// Relief and a changing load make flags come and go, as random sequences do here.
    #[test]
    fn a_key_is_reported_again_only_after_it_was_cool_for_ten_minutes() {
        let seed = 15;
        let mut state: u64 = seed;
        let mut next = |below: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 33) % below
        };
        let (mut flags, mut reports) = (0, 0);
        for round in 0..20 {
            let (mut detector, mut millis) = (HotKeyDetector::default(), 0);
            let mut last_hot: [Option<u64>; 3] = [None; 3];
            for _ in 0..400 {
                let steps = [100, 2_000, 9_000, 11_000, 30_000];
                let step = steps[usize::try_from(next(5)).unwrap()];
                millis += if next(150) == 0 { 700_000 } else { step };
                let chosen = usize::try_from(next(3)).unwrap();
                let key = Key::for_test(chosen as u64 + 1);
                for _ in 0..next(200) {
                    let was_flagged = detector.flagged;
                    let (is_hot, report) = detector.note(key, at(millis));
                    flags += u32::from(is_hot && was_flagged != Some(key));
                    if let Some(report) = report {
                        reports += 1;
                        assert_eq!(report.key, key);
                        let cool = last_hot[chosen].is_none_or(|last| millis - last >= 600_000);
                        assert!(cool, "seed {seed}, round {round}: reported at {millis} ms");
                    }
                    if is_hot {
                        last_hot[chosen] = Some(millis);
                    }
                }
                others(&mut detector, next(1_500), millis);
            }
        }
        assert!(reports > 60 && flags > 2 * reports, "{flags} flags, {reports} reports");
    }

    #[test]
    fn a_key_is_not_hot_on_a_quiet_shard_nor_among_many() {
        let (mut hot_keys, key) = (HotKeyDetector::default(), Key::for_test(1));
        assert_eq!(ask(&mut hot_keys, key, ASKS_MIN - 1, 0), []);
        assert_eq!(hot_keys.hot_key(at(0)), None);
        let mut hot_keys = HotKeyDetector::default();
        others(&mut hot_keys, 5_000, 0);
        assert_eq!(ask(&mut hot_keys, key, 250, 1), []);
        assert_eq!(ask(&mut hot_keys, key, 50, 1).len(), 1, "over 5 % at the 264th");
    }

    #[test]
    fn a_share_on_the_edge_does_not_come_and_go() {
        let (mut hot_keys, key) = (HotKeyDetector::default(), Key::for_test(1));
        others(&mut hot_keys, 2_000, 0);
        assert_eq!(ask(&mut hot_keys, key, 120, 0).len(), 1);
        others(&mut hot_keys, 600, 1);
        let share = hot_keys.hot_key(at(1)).unwrap().share;
        assert!((0.04..0.05).contains(&share), "{share}");
        assert_eq!(ask(&mut hot_keys, key, 100, 2), []);
        others(&mut hot_keys, 4_000, 3);
        assert_eq!(hot_keys.hot_key(at(3)), None, "below 4 %");
    }

    #[test]
    fn a_hotter_key_takes_over_and_one_as_hot_does_not() {
        let (mut hot_keys, keys) = (HotKeyDetector::default(), [1, 2].map(Key::for_test));
        assert_eq!(ask(&mut hot_keys, keys[0], 200, 0).len(), 1);
        assert_eq!(ask(&mut hot_keys, keys[1], 300, 0), []);
        assert_eq!(hot_keys.hot_key(at(0)).unwrap().key, keys[0]);
        assert_eq!(ask(&mut hot_keys, keys[1], 1, 0).len(), 1, "half as many again");
        assert_eq!(hot_keys.hot_key(at(0)).unwrap().key, keys[1]);
    }

    #[test]
    fn asks_of_the_hot_key_are_hot_from_the_one_that_flags_it_until_it_cools() {
        let (mut hot_keys, key) = (HotKeyDetector::default(), Key::for_test(1));
        others(&mut hot_keys, 1_000, 0);
        let is_hot = |hot_keys: &mut HotKeyDetector, key, millis| hot_keys.note(key, at(millis)).0;
        let asks: Vec<_> = (0..150).map(|_| is_hot(&mut hot_keys, key, 100)).collect();
        assert_eq!(asks.iter().position(|hot| *hot), Some(99));
        assert!(asks[99..].iter().all(|hot| *hot));
        assert_eq!(hot_keys.hot_key(at(100)).unwrap().relieved, 51);
        assert!(!is_hot(&mut hot_keys, Key::for_test(2), 100), "another key");
        assert!(hot_keys.is_hot(key, at(9_999)) && !hot_keys.is_hot(Key::for_test(2), at(9_999)));
        assert!(!hot_keys.is_hot(key, at(10_000)) && !is_hot(&mut hot_keys, key, 10_000), "cooled");
    }

    #[test]
    fn asks_count_for_ten_seconds_less_a_part() {
        let (mut hot_keys, key) = (HotKeyDetector::default(), Key::for_test(1));
        for second in 0..10 {
            ask(&mut hot_keys, key, 20, 1_000 * second);
        }
        let asks = |now: u64| {
            let hot_keys = hot_keys.share_of(key, at(now));
            hot_keys.is_some()
        };
        assert!(asks(9_999), "200 asks");
        assert!(asks(12_000), "40 and 40 are gone, 120 are left");
        assert!(!asks(16_000), "80 are left");
    }
}
