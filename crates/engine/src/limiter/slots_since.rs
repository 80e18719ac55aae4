//! Since when this pod has had slots of each key, for operators who ask why slots are in use. Pure:
//! `now` is an argument.

use std::time::Duration;

use foldhash::HashMap;
use parking_lot::Mutex;
use ratelease_rules::key::Key;

use super::key::WATCH_EVERY;
use crate::pod::SLOTS_MAX;
use crate::time::Time;

/// The largest number of keys that are noted; a further key is noted once another has no slots.
const KEYS_MAX: usize = 1024;

/// A key that no check has found for so long is no longer watched: it has no slots.
const CHECKED_WITHIN: Duration = Duration::from_secs(2);
const _: () = assert!(CHECKED_WITHIN.as_millis() > 5 * WATCH_EVERY.as_millis());

/// The keys of which this pod has slots, as the checks of watched keys find them.
#[derive(Debug, Default)]
pub(super) struct SlotsSince(Mutex<HashMap<Key, Held>>);

#[derive(Debug, Clone, Copy)]
struct Held {
    since: Time,
    checked: Time,
}

// === impl SlotsSince ===

impl SlotsSince {
    /// Notes that a check at `now` found slots of `key`, or none.
    pub(super) fn note(&self, key: Key, has_slots: bool, now: Time) {
        let mut keys = self.0.lock();
        if !has_slots {
            keys.remove(&key);
            return;
        }
        if keys.len() >= KEYS_MAX && !keys.contains_key(&key) {
            keys.retain(|_, held| now.since(held.checked) < CHECKED_WITHIN);
            if keys.len() >= KEYS_MAX {
                return;
            }
        }
        let held = keys.entry(key).or_insert(Held { since: now, checked: now });
        if now.since(held.checked) >= CHECKED_WITHIN {
            held.since = now;
        }
        held.checked = now;
    }

    /// The keys of which this pod has had slots for longest, and for how long.
    pub(super) fn longest(&self, now: Time) -> Vec<(Key, Duration)> {
        let keys = self.0.lock();
        let watched = keys.iter().filter(|(_, held)| now.since(held.checked) < CHECKED_WITHIN);
        let mut longest: Vec<_> =
            watched.map(|(key, held)| (*key, now.since(held.since))).collect();
        longest.sort_by_key(|(key, has)| (std::cmp::Reverse(*has), *key));
        longest.truncate(SLOTS_MAX);
        longest
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Time = Time::from_nanos(1_000_000_000);
    const SECOND: Duration = Duration::from_secs(1);

    fn key(n: u64) -> Key {
        Key::for_test(n)
    }

    #[test]
    fn slots_are_held_since_the_first_check_that_found_some_without_a_break() {
        let slots = SlotsSince::default();
        for seconds in 0..=10 {
            slots.note(key(1), true, NOW + SECOND * seconds);
            slots.note(key(2), seconds != 5, NOW + SECOND * seconds);
        }
        let at_last = NOW + SECOND * 10;
        assert_eq!(slots.longest(at_last), [(key(1), SECOND * 10), (key(2), SECOND * 4)]);
        slots.note(key(1), true, NOW + SECOND * 20);
        assert_eq!(slots.longest(NOW + SECOND * 20), [(key(1), Duration::ZERO)], "a break");
    }

    #[test]
    fn keys_are_bounded_and_those_without_checks_make_room() {
        let slots = SlotsSince::default();
        for n in 0..2 * KEYS_MAX as u64 {
            slots.note(key(n), true, NOW);
        }
        assert_eq!(slots.0.lock().len(), KEYS_MAX);
        assert_eq!(slots.longest(NOW).len(), SLOTS_MAX);
        slots.note(key(1), false, NOW);
        assert_eq!(slots.0.lock().len(), KEYS_MAX - 1);
        let later = NOW + SECOND * 5;
        slots.note(key(u64::MAX), true, later);
        slots.note(key(u64::MAX - 1), true, later);
        assert_eq!(slots.longest(later).len(), 2);
    }
}
