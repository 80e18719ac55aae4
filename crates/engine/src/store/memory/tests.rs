//! The embedded store's limit on keys and its sweep.

use super::*;
use crate::store::{Deposit, Return};
use ratelease_rules::{Algorithm, Limit, Unit};
use std::sync::atomic::{AtomicU64, Ordering};

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
        (Algorithm::token_bucket(5), 30),
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
    ask.limit.algorithm = Algorithm::token_bucket(5);
    store.take(&ask).unwrap();
    let back = Some(Return { tokens: 1, epoch: None });
    assert_eq!(store.take(&Ask { want: 0, back, ..ask }).unwrap().left, 5);
    seconds.fetch_add(6 + KEPT_SECONDS, Ordering::Relaxed);
    store.take(&Ask { want: 0, ..Ask::look(Key::for_test(1), ask.limit) }).unwrap();
    assert_eq!(store.keys(), 0);
}

#[test]
fn a_store_that_gives_way_evicts_the_key_that_expires_soonest() {
    let (store, seconds) = store(3);
    let store = store.giving_way();
    // An hour begins with this second.
    seconds.store(1_699_999_200, Ordering::Relaxed);
    for (key, unit) in [(0, Unit::Hour), (1, Unit::Minute), (2, Unit::Day), (3, Unit::Second)] {
        store.take(&ask(key, unit)).unwrap();
    }
    let left = |key, unit| store.take(&Ask { want: 0, ..ask(key, unit) }).unwrap().left;
    assert_eq!((store.keys(), left(1, Unit::Minute)), (3, 10), "the minute's was the soonest");
    assert_eq!([left(0, Unit::Hour), left(2, Unit::Day), left(3, Unit::Second)], [9, 9, 9]);
    store.take(&ask(1, Unit::Minute)).unwrap();
    assert_eq!((left(3, Unit::Second), left(1, Unit::Minute)), (10, 9));
}

#[test]
fn a_key_that_was_put_off_is_not_taken_for_the_soonest() {
    let (store, _) = store(2);
    let store = store.giving_way();
    let bucket = |key, want| {
        let mut ask = Ask { want, ..ask(key, Unit::Minute) };
        ask.limit.algorithm = Algorithm::token_bucket(10);
        ask
    };
    store.take(&bucket(0, 1)).unwrap();
    store.take(&bucket(1, 3)).unwrap();
    store.take(&bucket(0, 8)).unwrap();
    store.take(&bucket(2, 1)).unwrap();
    assert_eq!(store.take(&bucket(0, 0)).unwrap().left, 1);
    assert_eq!(store.take(&bucket(1, 0)).unwrap().left, 10, "evicted");
}

#[test]
fn keys_that_give_way_never_exceed_the_ceiling() {
    let (store, _) = store(64);
    let store = store.giving_way();
    for key in 0..10_000 {
        let unit = Unit::ALL[usize::try_from(key % 7).unwrap()];
        assert_eq!(store.take(&ask(key, unit)).unwrap().tokens, 1);
        assert!(store.keys() <= 64);
    }
    let part = store.parts[0].lock();
    assert_eq!((part.entries.len(), part.queue.len()), (64, 64));
}

/// Each server has its own clock: two servers whose clocks differ by hours do not reset each
/// other's counts.
#[test]
fn keys_go_by_the_time_that_they_are_given_and_expire_by_the_stores() {
    let (store, seconds) = store(10);
    let (behind, ahead) = (Duration::from_secs(1_600_000_020), Duration::from_secs(1_800_000_000));
    let take = |key, now| store.take_at(&ask(key, Unit::Minute), now).unwrap();
    for (passed, left) in [(0, 9), (10, 8), (20, 7)] {
        let passed = Duration::from_secs(passed);
        assert_eq!((take(0, behind + passed).left, take(1, ahead + passed).left), (left, left));
    }
    assert_eq!(take(0, behind).epoch, behind.as_secs() / 60);
    assert_eq!(take(1, ahead).epoch, ahead.as_secs() / 60);
    // By their own clocks, both windows last at most 60 s more.
    seconds.fetch_add(60 + KEPT_SECONDS, Ordering::Relaxed);
    store.take(&Ask { want: 0, ..ask(2, Unit::Minute) }).unwrap();
    assert_eq!(store.keys(), 0);
}

#[test]
fn a_pool_goes_with_its_lease() {
    let (store, seconds) = store(10);
    let deposit = Some(Deposit { tokens: 5, epoch: 7, lasts: Duration::from_secs(2) });
    let pool = Ask { want: 0, pool: Some(3), ..ask(0, Unit::Hour) };
    assert_eq!(store.take(&Ask { deposit, ..pool }).unwrap().left, 5);
    store.take(&ask(0, Unit::Hour)).unwrap();
    assert_eq!(store.keys(), 2, "a pool is no step of the count");
    seconds.fetch_add(2, Ordering::Relaxed);
    assert_eq!(store.take(&pool).unwrap().left, 0);
    seconds.fetch_add(KEPT_SECONDS, Ordering::Relaxed);
    store.take(&ask(0, Unit::Hour)).unwrap();
    assert_eq!(store.keys(), 1);
}

fn beat(pods: &mut Pods, pod: u64, domain: u64, now: u64) -> u32 {
    let domain = Some(Key::for_test(domain));
    let beat = Heartbeat { pod, lasts: Duration::from_secs(3), leaves: false, domain };
    pods.beat(beat, Duration::from_secs(now))
}

#[test]
fn domains_are_bounded_and_lapsed_ones_make_room() {
    let mut pods = Pods::default();
    let all = Heartbeat { pod: 1, lasts: Duration::MAX, leaves: false, domain: None };
    pods.beat(all, Duration::ZERO);
    for domain in 0..2 * DOMAINS_MAX as u64 {
        assert_eq!(beat(&mut pods, 1, domain, 0), 1);
    }
    assert_eq!(pods.of.len(), 1 + DOMAINS_MAX);
    assert_eq!(beat(&mut pods, 2, 5_000, 2), 1, "a domain too many counts the pod alone");
    assert_eq!(beat(&mut pods, 2, 0, 2), 2, "one of those that are counted goes on");
    assert_eq!(beat(&mut pods, 2, 5_000, 3), 1);
    assert_eq!(beat(&mut pods, 3, 5_000, 3), 2, "the others have lapsed");
    assert_eq!(pods.of.len(), 3);
}

#[test]
fn a_domain_that_its_last_pod_leaves_is_forgotten() {
    let mut pods = Pods::default();
    beat(&mut pods, 1, 0, 0);
    let domain = Some(Key::for_test(0));
    let leaves = Heartbeat { pod: 1, lasts: Duration::ZERO, leaves: true, domain };
    assert_eq!(pods.beat(leaves, Duration::ZERO), 0);
    assert!(pods.of.is_empty());
}
