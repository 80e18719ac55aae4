//! The embedded store's ceiling and its sweep.

use std::sync::atomic::{AtomicU64, Ordering};

use super::*;
use crate::rules::{Algorithm, Limit, Unit};
use crate::store::Back;

fn store(keys_max: usize) -> (MemoryStore, Arc<AtomicU64>) {
    let seconds = Arc::new(AtomicU64::new(1_700_000_000));
    let clock = Arc::clone(&seconds);
    let clock = Arc::new(move || Duration::from_secs(clock.load(Ordering::Relaxed)));
    (MemoryStore::new(clock, keys_max), seconds)
}

fn ask(key: u64, unit: Unit) -> Ask {
    let limit = Limit::fixed_window(10, unit);
    Ask { want: 1, charge_denied: true, ..Ask::look(Key::for_test(key), limit) }
}

#[test]
fn refuses_one_key_more_than_it_may_hold_until_a_window_has_passed() {
    let (store, seconds) = store(3);
    for key in 0..3 {
        store.take(&ask(key, Unit::Second)).unwrap();
    }
    let refused = store.take(&ask(3, Unit::Second)).unwrap_err();
    assert_eq!(refused, StoreError::Full("3 keys".into()));
    store.take(&ask(0, Unit::Second)).expect("a key it holds is served though it is full");
    seconds.fetch_add(1 + KEPT_SECONDS, Ordering::Relaxed);
    store.take(&ask(3, Unit::Second)).unwrap();
    assert_eq!(store.keys(), 1, "the expired keys went first");
}

#[test]
fn a_look_holds_no_key() {
    let (store, _) = store(1);
    let look = Ask { want: 0, ..ask(0, Unit::Hour) };
    assert_eq!(store.take(&look).unwrap().left, 10);
    assert_eq!(store.keys(), 0);
}

#[test]
fn one_ask_clears_a_bounded_number_of_keys() {
    let (store, seconds) = store(100);
    for key in 0..100 {
        store.take(&ask(key, Unit::Second)).unwrap();
    }
    seconds.fetch_add(5, Ordering::Relaxed);
    store.take(&Ask { want: 0, ..ask(0, Unit::Second) }).unwrap();
    assert_eq!(store.keys(), 100 - SWEEP_MAX);
}

#[test]
fn a_key_in_use_survives_the_sweep_of_its_first_window() {
    let (store, seconds) = store(10);
    store.take(&ask(0, Unit::Minute)).unwrap();
    for _ in 0..200 {
        seconds.fetch_add(1, Ordering::Relaxed);
        store.take(&ask(1, Unit::Second)).unwrap();
        let left = store.take(&ask(0, Unit::Minute)).unwrap().left;
        let again = store.take(&ask(0, Unit::Minute)).unwrap().left;
        assert!(again < left || left == 0, "the count was lost: {left} then {again}");
    }
    assert_eq!(store.keys(), 2);
    assert_eq!(store.parts[0].lock().queue.len(), 2);
}

#[test]
fn a_key_whose_unit_changed_still_expires() {
    let (store, seconds) = store(10);
    store.take(&ask(0, Unit::Day)).unwrap();
    store.take(&ask(0, Unit::Second)).unwrap();
    seconds.fetch_add(Unit::Day.seconds() + KEPT_SECONDS, Ordering::Relaxed);
    store.take(&Ask { want: 0, ..ask(1, Unit::Day) }).unwrap();
    assert_eq!(store.keys(), 0);
}

#[test]
fn many_keys_spread_over_parts_up_to_the_ceiling() {
    let keys_max = 64 * PART_KEYS_MIN;
    let (store, _) = store(keys_max);
    let taken =
        (0..keys_max as u64).filter(|key| store.take(&ask(*key, Unit::Day)).is_ok()).count();
    assert!(taken > keys_max * 9 / 10, "{taken} of {keys_max} before a part was full");
    assert!(store.keys() <= keys_max);
}

#[test]
fn a_key_of_every_algorithm_goes_once_it_says_nothing() {
    for (algorithm, lasts) in [
        (Algorithm::FixedWindow, 60),
        (Algorithm::TokenBucket { burst: 5 }, 30),
        (Algorithm::SlidingWindow, 120),
        (Algorithm::SlidingLog, 60),
        (Algorithm::LeakyBucket { max_delay_us: 24_000_000 }, 30),
    ] {
        // The minute begins with this second.
        let (store, seconds) = store(10);
        seconds.store(1_700_000_040, Ordering::Relaxed);
        let mut of_this = ask(0, Unit::Minute);
        of_this.limit.algorithm = algorithm;
        assert_eq!(store.take(&Ask { want: 5, ..of_this }).unwrap().tokens, 5, "{algorithm:?}");
        let other = Ask { want: 0, ..ask(1, Unit::Minute) };
        seconds.fetch_add(lasts + KEPT_SECONDS - 1, Ordering::Relaxed);
        store.take(&other).unwrap();
        assert_eq!(store.keys(), 1, "{algorithm:?}");
        seconds.fetch_add(1, Ordering::Relaxed);
        store.take(&other).unwrap();
        assert_eq!((store.keys(), store.parts[0].lock().queue.len()), (0, 0), "{algorithm:?}");
    }
}

#[test]
fn a_key_that_got_everything_back_goes_when_it_was_to_go() {
    let (store, seconds) = store(10);
    let mut ask = ask(0, Unit::Minute);
    ask.limit.algorithm = Algorithm::TokenBucket { burst: 5 };
    store.take(&ask).unwrap();
    let back = Some(Back { tokens: 1, epoch: None });
    assert_eq!(store.take(&Ask { want: 0, back, ..ask }).unwrap().left, 5);
    seconds.fetch_add(6 + KEPT_SECONDS, Ordering::Relaxed);
    store.take(&Ask { want: 0, ..Ask::look(Key::for_test(1), ask.limit) }).unwrap();
    assert_eq!(store.keys(), 0);
}
