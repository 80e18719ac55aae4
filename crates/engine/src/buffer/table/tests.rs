//! Compares the table with a plain map, with hundreds of thousands of keys.

use std::cell::Cell;
use std::collections::HashSet;

use super::*;
use crate::buffer::table::SCAN_MAX;
use crate::buffer::tests::rng;

/// As large as the limiter's state of a key.
struct Thing {
    n: u64,
    touched: Time,
    busy: bool,
    live: bool,
    heap: usize,
    next: Link,
    _state: [u64; 20],
}

thread_local! {
    /// Number of entries that evictions of this thread have checked.
    static LOOKS: Cell<usize> = const { Cell::new(0) };
}

impl Entry for Thing {
    fn idle_for(&self, now: Time) -> Duration {
        now.since(self.touched)
    }

    fn is_busy(&self) -> bool {
        LOOKS.set(LOOKS.get() + 1);
        self.busy
    }

    fn is_live(&self, _now: Time) -> bool {
        self.live
    }

    fn heap(&self) -> usize {
        self.heap
    }

    fn shed(&mut self) {
        self.heap = 0;
    }

    fn chain_link(&self) -> Link {
        self.next
    }

    fn set_chain_link(&mut self, next: Link) {
        self.next = next;
    }
}

/// The budget of one partition.
const SMALL: usize = 64 << 10;
/// A budget of more than one partition.
const LARGE: usize = 1 << 20;

fn table(budget: usize) -> Table<Thing> {
    Table::new(budget, 1_000)
}

fn thing(n: u64) -> Thing {
    let touched = Time::from_nanos(n);
    let next = Link::default();
    Thing { n, touched, busy: false, live: true, heap: 0, next, _state: [0; 20] }
}

/// Uses the entry of `n` at the given time and returns the entry that was evicted for it.
fn insert(table: &Table<Thing>, n: u64) -> Result<Option<u64>, TableFull> {
    insert_as(table, n, || thing(n))
}

fn insert_as(
    table: &Table<Thing>,
    n: u64,
    make: impl FnOnce() -> Thing,
) -> Result<Option<u64>, TableFull> {
    let region = (Region::Evictable, Key::for_test(n));
    let used = table.with(region, Time::from_nanos(n), 0, make, |_| ());
    used.map(|((), evicted)| evicted.map(|(_, thing)| thing.n))
}

fn holds(table: &Table<Thing>, n: u64) -> bool {
    table.with_existing(Key::for_test(n), |thing| assert_eq!(thing.n, n)).is_some()
}

#[test]
fn bytes_never_exceed_the_budget_and_fill_most_of_it() {
    for budget in [SMALL, LARGE, LARGE + 12_345, 4 * LARGE] {
        let table = table(budget);
        let mut most = table.bytes();
        for n in 0..40_000 {
            insert(&table, n).unwrap();
            if n % 16 == 0 {
                most = most.max(table.bytes());
            }
        }
        assert!(most <= budget, "{most} of {budget}");
        assert!(most > budget * 9 / 10, "{most} of {budget}, but for the reserved sixteenth");
        assert!(table.evictions() > 0);
        assert_eq!(table.len() as u64 + table.evictions(), 40_000);
    }
}

#[test]
fn an_empty_table_takes_next_to_nothing() {
    assert!(table(64 << 20).bytes() < 64 << 10, "{}", table(64 << 20).bytes());
}

/// Keys are added, used again, become busy and idle, and are removed, as in a plain map.
#[test]
fn it_holds_what_came_and_was_neither_evicted_nor_removed() {
    let mut rng = rng();
    for budget in [SMALL, LARGE] {
        let table = table(budget);
        let mut model = HashSet::new();
        for now in 0..60_000 {
            let n = rng(8_000);
            let held = model.contains(&n);
            assert_eq!(holds(&table, n), held, "{n} at {now}");
            let busy = rng(10) == 0;
            let visit =
                |thing: &mut Thing| (thing.busy, thing.touched) = (busy, Time::from_nanos(now));
            let region = (Region::Evictable, Key::for_test(n));
            match table.with(region, Time::from_nanos(now), 0, || thing(n), visit) {
                Ok(((), evicted)) => {
                    if let Some((key, evicted)) = evicted {
                        assert!(!held && !evicted.busy, "{} went for {n}", evicted.n);
                        assert_eq!(key, Key::for_test(evicted.n));
                        assert!(model.remove(&evicted.n), "{} was not there", evicted.n);
                    }
                    model.insert(n);
                }
                Err(TableFull) => assert!(!held),
            }
            if rng(10_000) == 0 {
                let gone = rng(3);
                table
                    .partitions()
                    .for_each(|partition| table.retain(partition, |_, thing| thing.n % 3 != gone));
                model.retain(|n| n % 3 != gone);
                assert!(table.bytes() <= budget);
            }
            assert_eq!(table.len(), model.len());
        }
        assert!(model.iter().all(|n| holds(&table, *n)));
    }
}

#[test]
fn memory_goes_back_with_the_entries() {
    let table = table(LARGE);
    (0..10_000).for_each(|n| assert!(insert(&table, n).is_ok()));
    let full = table.bytes();
    table.partitions().for_each(|partition| table.retain(partition, |_, thing| thing.n % 16 == 0));
    assert!(table.bytes() < full / 4, "{} of {full}", table.bytes());
}

#[test]
fn an_entry_in_use_stays_whatever_floods_the_table() {
    let table = table(LARGE);
    let hot = |now: u64| {
        let make = || panic!("it was evicted by {now}");
        let visit = |thing: &mut Thing| thing.touched = Time::from_nanos(now);
        let region = (Region::Evictable, Key::for_test(0));
        assert!(table.with(region, Time::from_nanos(now), 0, make, visit).is_ok());
    };
    insert(&table, 0).unwrap();
    // One round of the hand through its partition.
    let round = table.len_max() as u64 / 16;
    for n in 1..200_000 {
        insert(&table, n).unwrap();
        if n % round == 0 {
            hot(n);
        }
    }
    assert!(table.evictions() > 190_000);
}

#[test]
fn entries_that_say_nothing_any_more_go_first() {
    let table = table(SMALL);
    let full = (0..).find(|n| {
        let make = || Thing { live: n % 4 != 0, ..thing(1_000_000 - n) };
        insert_as(&table, *n, make).unwrap().is_some()
    });
    let full = full.unwrap();
    assert!(full > 100);
    // At most the next round of the hand: it checks eight entries each time.
    for n in 0..full / 8 - 1 {
        let evicted = insert(&table, 2_000_000 + n).unwrap();
        let evicted = evicted.map(|touched| 1_000_000 - touched);
        assert!(evicted.is_some_and(|n| n % 4 == 0), "{evicted:?} went");
    }
}

#[test]
fn a_key_is_refused_rather_than_a_busy_one_evicted_and_after_a_bounded_search() {
    let table = table(LARGE);
    let busy = |n| insert_as(&table, n, || Thing { busy: true, ..thing(n) });
    let refused = (0..20_000).filter(|n| busy(*n) == Err(TableFull)).count();
    assert_eq!(refused + table.len(), 20_000);
    assert_eq!(table.evictions(), 0);
    LOOKS.set(0);
    assert_eq!(busy(30_000), Err(TableFull));
    assert!(LOOKS.get() <= SCAN_MAX, "{} entries were looked at", LOOKS.get());
    // An entry that becomes idle is found, though not by each search.
    assert!(table.with_existing(Key::for_test(0), |thing| thing.busy = false).is_some());
    let evicted = (40_000..50_000).find_map(|n| insert(&table, n).ok());
    assert_eq!(evicted, Some(Some(0)));
}

#[test]
fn entries_aside_are_few_and_stay() {
    let table = table(SMALL);
    let reserved = |n| {
        let region = (Region::Reserved, Key::for_test(n));
        table.with(region, Time::from_nanos(n), 0, || thing(n), |_| ()).map(drop)
    };
    let taken = (0..1_000).take_while(|n| reserved(*n).is_ok()).count() as u64;
    assert!((5..SMALL as u64 / 16 / 200).contains(&taken), "{taken}");
    (10_000..20_000).for_each(|n| assert!(insert(&table, n).is_ok()));
    assert!((0..taken).all(|n| holds(&table, n)));
    assert!(table.bytes() <= SMALL);
    table.partitions().for_each(|partition| table.retain(partition, |_, thing| thing.n >= 3));
    assert_eq!((1_000..2_000).take_while(|n| reserved(*n).is_ok()).count(), 3);
}

#[test]
fn what_entries_hold_on_the_heap_has_its_own_ceiling() {
    let table = table(SMALL);
    let grow = |n, room: usize, by: usize| {
        let region = (Region::Evictable, Key::for_test(n));
        let visit = |thing: &mut Thing| thing.heap += by;
        table.with(region, Time::from_nanos(n), room, || thing(n), visit).map(drop)
    };
    assert_eq!(grow(1, 600, 600), Ok(()));
    assert_eq!(grow(2, 600, 600), Err(TableFull));
    assert!(!holds(&table, 2));
    assert_eq!(grow(2, 400, 0), Ok(()), "what is not taken");
    assert_eq!(grow(2, 400, 400), Ok(()), "is there for the next");
    assert_eq!(table.heap_bytes(), 1_000);
    assert!(table.with_existing(Key::for_test(1), |thing| thing.heap = 100).is_some());
    assert_eq!(table.heap_bytes(), 500);
    table.partitions().for_each(|partition| table.retain(partition, |_, thing| thing.n == 1));
    assert_eq!(table.heap_bytes(), 100);
}

#[test]
fn what_is_added_without_room_is_shed_above_half_the_ceiling() {
    let table = table(SMALL);
    let add = |n, bytes: usize| {
        let region = (Region::Evictable, Key::for_test(n));
        let visit = |thing: &mut Thing| thing.heap += bytes;
        assert!(table.with(region, Time::from_nanos(n), 0, || thing(n), visit).is_ok());
        table.with_existing(Key::for_test(n), |thing| thing.heap)
    };
    assert_eq!(add(1, 300), Some(300));
    assert_eq!(add(2, 300), Some(0));
    assert_eq!(add(3, 200), Some(200));
    assert_eq!(table.heap_bytes(), 500);
}
