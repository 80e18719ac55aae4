//! Slots of several pods in virtual time: how many they are lent, how many they get back, and the
//! effect of clocks that jump.

use proptest::prelude::*;
use ratelease_rules::key::Key;
use ratelease_rules::{Algorithm, Limit, Unit};

use super::*;

const NOON: u64 = 1_700_000_000_250_000;

/// Microseconds in a second.
const SECOND: u64 = 1_000_000;

fn micros(span: Duration) -> u64 {
    u64::try_from(span.as_micros()).unwrap()
}

/// A count of slots, with the time of its server.
struct Count {
    state: State,
    now: u64,
    limit: u64,
}

// === impl Count ===

impl Count {
    fn new(limit: u64) -> Self {
        Self { state: State::default(), now: NOON, limit }
    }

    fn ask(&self) -> Ask {
        let limit = Limit::fixed_window(self.limit, Unit::Second);
        Ask::look(Key::for_test(0), Limit { algorithm: Algorithm::Concurrency, ..limit })
    }

    /// `pod` states that it holds `held`, and wants more.
    fn lent(&mut self, pod: u64, held: u64, want: u64) -> Grant {
        self.step(&Ask {
            want,
            slots: Some(Slots { pod, held, order: 0, since: 0, received: 0 }),
            ..self.ask()
        })
    }

    fn step(&mut self, ask: &Ask) -> Grant {
        step(&mut self.state, self.now, ask)
    }

    fn left(&mut self) -> u64 {
        self.step(&self.ask()).left
    }

    fn pass(&mut self, micros: u64) {
        self.now += micros;
    }
}

#[test]
fn slots_are_lent_up_to_the_limit_and_come_back_when_fewer_are_stated() {
    let mut count = Count::new(10);
    let first = count.lent(1, 0, 4);
    assert_eq!((first.tokens, first.left, first.overdrawn), (4, 6, false));
    assert_eq!(
        (first.epoch, first.ends_after, first.retry_after),
        (NOON, SLOTS_TTL, Duration::ZERO)
    );
    let rest = count.lent(2, 0, 100);
    assert_eq!((rest.tokens, rest.left, rest.overdrawn), (6, 0, false));
    assert_eq!(rest.retry_after, RETRY_AFTER);
    assert_eq!(count.lent(3, 0, 1).tokens, 0);
    assert_eq!(count.lent(1, 1, 0).left, 3, "three of four go back");
    assert_eq!(count.lent(3, 0, 5).tokens, 3);
    for (pod, left) in [(1, 1), (2, 7), (3, 10)] {
        assert_eq!(count.lent(pod, 0, 0).left, left);
    }
    assert_eq!(count.state, State::default(), "nothing is kept of pods without slots");
}

#[test]
fn a_need_is_granted_whole_or_not_at_all_and_a_denial_spends_nothing() {
    let mut count = Count::new(10);
    let needing = |count: &Count, need, pod| Ask {
        need,
        charge_denied: true,
        slots: Some(Slots { pod, held: 0, order: 0, since: 0, received: 0 }),
        ..count.ask()
    };
    assert_eq!(count.step(&needing(&count, 7, 1)).tokens, 7, "a need above the want is granted");
    let denied = count.step(&needing(&count, 7, 2));
    assert_eq!((denied.tokens, denied.left), (0, 3));
    assert_eq!(count.step(&needing(&count, 3, 2)).tokens, 3);
}

#[test]
fn an_ask_that_a_later_one_has_overtaken_changes_nothing() {
    for (order, late) in [(8, 7), (8, 0), (0, u32::MAX), (1 << 30, u32::MAX - 4)] {
        let mut count = Count::new(10);
        let stating = |held, want, order| {
            let slots = Some(Slots { pod: 1, held, order, since: order, received: 0 });
            Ask { want, slots, ..Count::new(10).ask() }
        };
        count.lent(2, 0, 1);
        assert_eq!(count.step(&stating(0, 4, order)).tokens, 4);
        let grant = count.step(&stating(0, 3, late));
        assert_eq!((grant.tokens, grant.left), (0, 5), "{late} after {order}");
        assert_eq!(count.left(), 5, "{late} after {order}");
        assert_eq!(count.step(&stating(4, 1, order.wrapping_add(1))).tokens, 1);
        assert_eq!(count.left(), 4);
        count.pass(4_000_000);
        count.lent(2, 1, 0);
        count.pass(2_000_000);
        assert_eq!(count.step(&stating(2, 0, late)).left, 7, "a pod that is forgotten is new");
    }
}

/// A reset, or a failover to a replica that lacks the count, while asks overlap.
#[test]
fn slots_on_their_way_are_counted_after_a_count_was_lost() {
    let mut count = Count::new(20);
    let mut lent = 0;
    for order in 5..11 {
        // The pod received eight slots of the asks before, which are in use.
        let slots = Some(Slots { pod: 1, held: 8, order, since: 1, received: 8 });
        lent += count.step(&Ask { want: 2, slots, ..Count::new(20).ask() }).tokens;
    }
    let other = count.lent(2, 0, 20).tokens;
    assert!(8 + lent + other <= 20, "8 in use, {lent} on their way, {other} of another pod");
}

#[test]
fn slots_on_their_way_are_counted_by_the_asks_behind_them() {
    let asked = |held, want, order, since, received| {
        let slots = Some(Slots { pod: 1, held, order, since, received });
        Ask { want, slots, ..Count::new(10).ask() }
    };
    for received in [0, 1, 3] {
        let mut count = Count::new(10);
        assert_eq!(count.step(&asked(0, 3, 5, 5, 0)).tokens, 3);
        let behind = count.step(&asked(received, 1, 6, 5, received));
        assert_eq!((behind.tokens, behind.left), (1, 6), "{received}");
        let given_back = count.step(&asked(0, 0, 7, 5, received));
        assert_eq!(given_back.left, 6 + received, "the others are still on their way");
        assert_eq!(count.step(&asked(2, 0, 9, 9, 0)).left, 8, "no reply is out any more");
    }
    let mut count = Count::new(10);
    assert_eq!(count.step(&asked(0, 1, 6, 5, 0)).tokens, 1, "it has overtaken the first one");
    assert_eq!(count.step(&asked(0, 3, 5, 5, 0)).tokens, 0);
    assert_eq!(count.step(&asked(0, 0, 7, 5, 0)).left, 9, "one is still on its way");
    assert_eq!(count.step(&asked(1, 0, 8, 5, 1)).left, 9);
}

#[test]
fn an_ask_that_is_repeated_changes_nothing() {
    let mut count = Count::new(10);
    count.lent(1, 0, 3);
    let first = count.lent(2, 0, 4);
    for _ in 0..5 {
        count.pass(100_000);
        let again = count.lent(2, 0, 4);
        assert_eq!((again.tokens, again.left), (first.tokens, first.left), "the reply was lost");
    }
}

#[test]
fn what_is_stated_stands_even_above_the_limit_and_then_nothing_is_lent() {
    let mut count = Count::new(10);
    assert_eq!(count.lent(1, 8, 0).left, 2);
    let over = count.lent(2, 6, 5);
    assert_eq!((over.tokens, over.left, over.overdrawn), (0, 0, true));
    assert_eq!(count.lent(1, 5, 3).tokens, 0, "eleven are in use");
    assert_eq!(count.lent(1, 3, 3).tokens, 1);
    count.limit = 5;
    assert_eq!(count.lent(1, 2, 1).tokens, 0, "the limit was lowered below what runs");
    count.limit = 20;
    assert_eq!(count.lent(1, 2, 99).tokens, 12);
}

#[test]
fn a_pod_that_falls_silent_is_forgotten_after_the_term_and_not_before() {
    let mut count = Count::new(10);
    count.lent(1, 0, 7);
    count.lent(2, 0, 1);
    for _ in 0..3 {
        count.pass(SECOND);
        assert_eq!(count.lent(2, 1, 0).left, 2);
    }
    count.pass(SECOND - 1_000);
    assert_eq!(count.lent(2, 1, 0).left, 2);
    count.pass(1_000);
    assert_eq!(count.lent(2, 1, 9).tokens, 9);
}

#[test]
fn slots_of_pods_that_all_fell_silent_come_back_half_a_term_after_the_next_ask() {
    let mut count = Count::new(10);
    count.lent(1, 0, 10);
    count.pass(59 * SECOND);
    assert_eq!(count.lent(2, 0, 1).tokens, 0, "the clock may have been set");
    count.pass(micros(SILENCE_MAX) - 1_000);
    assert_eq!(count.lent(2, 0, 1).tokens, 0);
    count.pass(1_000);
    assert_eq!(count.lent(2, 0, 1).tokens, 1);
    count.pass(micros(KEPT));
    assert_eq!(count.lent(3, 0, 10).tokens, 10, "a state that is too old");
}

#[test]
fn a_look_changes_nothing_and_lends_nothing() {
    let mut count = Count::new(10);
    count.lent(1, 0, 4);
    let before = count.state.clone();
    count.pass(3 * SECOND);
    let look = Ask { want: 5, need: 5, ..count.ask() };
    let grant = count.step(&look);
    assert_eq!((grant.tokens, grant.left), (0, 6));
    count.pass(SECOND);
    assert_eq!(count.state, before);
}

#[test]
fn a_pod_for_which_there_is_no_room_is_lent_nothing_until_another_has_gone() {
    let mut count = Count::new(u32::MAX.into());
    for pod in 0..PODS_MAX as u64 {
        assert_eq!(count.lent(pod, 0, 1).tokens, 1);
    }
    let full = count.lent(u64::MAX, 5, 1);
    assert_eq!((full.tokens, full.left, full.overdrawn), (0, 0, false));
    assert_eq!(count.state.pods.len(), PODS_MAX);
    assert_eq!(count.lent(7, 1, 1).tokens, 1, "the others are served");
    count.lent(7, 0, 0);
    assert_eq!(count.lent(u64::MAX, 0, 1).tokens, 1);
}

#[test]
fn a_state_ends_after_the_time_that_it_is_kept() {
    let mut count = Count::new(10);
    assert_eq!(count.state.ends_at(), 0);
    count.lent(1, 0, 1);
    assert_eq!(count.state.ends_at(), (NOON + 60 * SECOND).div_ceil(SECOND));
    count.now = count.state.ends_at() * SECOND;
    assert_eq!(count.left(), 10);
}

#[test]
fn only_what_a_count_of_slots_can_say_is_a_grant() {
    let count = Count::new(10);
    let ask = Ask {
        want: 4,
        slots: Some(Slots { pod: 1, held: 3, order: 0, since: 0, received: 0 }),
        ..count.ask()
    };
    let read = |ask: &Ask, numbers: [u64; 4]| reply(ask, &[&numbers[..], &[0]].concat());
    let grant = read(&ask, [4, NOON, 9, 2]).unwrap();
    assert_eq!(reply(&ask, &[0, NOON, 2, 1, 1]).unwrap().left, 8, "a later one stated less");
    assert_eq!(reply(&ask, &[1, NOON, 9, 2, 1]), None, "a late ask is lent nothing");
    assert_eq!((grant.tokens, grant.left, grant.epoch), (4, 1, NOON));
    assert_eq!(read(&ask, [0, NOON, 25, 3]).unwrap().left, 0, "others state more than the limit");
    for garbled in [
        [4, NOON, 6, 2],  // not debited
        [4, NOON, 11, 2], // more than the limit
        [4, NOON, 9, 0],  // lent to no pod
        [0, NOON, 3, 4],  // pods without slots
        [0, NOON, 20_000, 10_001],
    ] {
        assert_eq!(read(&ask, garbled), None, "{garbled:?}");
    }
    assert_eq!(read(&count.ask(), [4, NOON, 9, 2]), None, "a look is lent nothing");
    assert_eq!(reply(&ask, &[4, NOON, 9, 2]), None);
}

/// A pod of a fleet, which asks every second while it holds slots.
#[derive(Debug, Clone, Copy, Default)]
struct Pod {
    held: u64,
    asks_at: u64,
}

/// The events of a fleet in a tenth of a second.
#[derive(Debug, Clone)]
struct Tick {
    pod: usize,
    wants: u64,
    ends: u64,
    is_lost: bool,
}

fn any_tick(pods: usize) -> impl Strategy<Value = Tick> {
    (0..pods, 0..5u64, 0..4u64, proptest::bool::weighted(0.2))
        .prop_map(|(pod, wants, ends, is_lost)| Tick { pod, wants, ends, is_lost })
}

const TICK: u64 = 100_000;
/// A pod asks after a second, and its ask may take another tick or two.
const RENEWS: u64 = 12 * TICK;

/// The pods of a fleet, whose count is at a server with a clock of its own.
struct Fleet {
    count: Count,
    pods: Vec<Pod>,
    now: u64,
}

// === impl Fleet ===

impl Fleet {
    fn new(limit: u64, pods: usize) -> Self {
        let count = Count::new(limit);
        Self { count, pods: vec![Pod::default(); pods], now: 0 }
    }

    fn held(&self) -> u64 {
        self.pods.iter().map(|pod| pod.held).sum()
    }

    /// A pod's ask; the pod does not use the slots of a reply that `is_lost`.
    fn ask(&mut self, at: usize, want: u64, is_lost: bool) {
        let pod = &mut self.pods[at];
        let grant = self.count.lent(at as u64, pod.held, want);
        pod.held += if is_lost { 0 } else { grant.tokens };
        pod.asks_at = self.now + RENEWS;
    }

    fn tick(&mut self, tick: &Tick) {
        self.now += TICK;
        self.count.pass(TICK);
        let pod = &mut self.pods[tick.pod];
        pod.held -= tick.ends.min(pod.held);
        self.ask(tick.pod, tick.wants, tick.is_lost);
        for at in 0..self.pods.len() {
            if self.pods[at].held > 0 && self.pods[at].asks_at <= self.now {
                self.ask(at, 0, tick.is_lost);
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    /// The clock of the server, or of the one that takes over, jumps by less than a state is kept,
    /// and not again before each pod has asked.
    #[test]
    fn pods_that_ask_in_time_never_hold_more_than_the_limit_whatever_clocks_do(
        limit in 1..20u64,
        ticks in proptest::collection::vec(any_tick(5), 1..150),
        first_jump in 0..50usize,
        jumps in proptest::collection::vec(-100_000_000..59_000_000i64, 3),
    ) {
        let mut fleet = Fleet::new(limit, 5);
        for (at, tick) in ticks.iter().enumerate() {
            if at % 50 == first_jump {
                fleet.count.now = fleet.count.now.saturating_add_signed(jumps[at / 50]);
            }
            fleet.tick(tick);
            prop_assert!(fleet.held() <= limit, "{} of {limit}", fleet.held());
        }
    }

    /// However many pods die at once, and whatever they held.
    #[test]
    fn all_slots_of_dead_pods_are_lent_again_within_the_term(
        limit in 1..20u64,
        ticks in proptest::collection::vec(any_tick(5), 1..60),
        back in -50_000_000..0i64,
    ) {
        let mut fleet = Fleet::new(limit, 5);
        ticks.iter().for_each(|tick| fleet.tick(tick));
        fleet.count.now = fleet.count.now.saturating_add_signed(back);
        let survivor = 9;
        fleet.count.lent(survivor, 0, 0);
        fleet.count.pass(micros(SLOTS_TTL) / 2);
        fleet.count.lent(survivor, 0, 0);
        fleet.count.pass(micros(SLOTS_TTL) / 2);
        prop_assert_eq!(fleet.count.lent(survivor, 0, u64::MAX).tokens, limit);
    }

    /// A replica that lacks the last writes, or all of them, takes over.
    #[test]
    fn after_a_loss_of_state_all_is_known_again_once_each_pod_has_asked(
        limit in 1..20u64,
        before in proptest::collection::vec(any_tick(4), 1..40),
        lost in proptest::collection::vec(any_tick(4), 0..10),
        is_all_lost: bool,
    ) {
        let mut fleet = Fleet::new(limit, 4);
        before.iter().for_each(|tick| fleet.tick(tick));
        let kept = if is_all_lost { State::default() } else { fleet.count.state.clone() };
        lost.iter().for_each(|tick| fleet.tick(tick));
        fleet.count.state = kept;
        for at in 0..fleet.pods.len() {
            fleet.ask(at, 0, false);
        }
        let held = fleet.held();
        prop_assert_eq!(fleet.count.left(), limit - held);
        fleet.ask(0, u64::MAX, false);
        prop_assert_eq!(fleet.held(), limit);
    }
}

#[test]
fn the_text_of_a_state_is_read_and_no_other() {
    let pod = |number: u64, slots: u32, seen: u64| {
        let seen = seen.to_be_bytes();
        // The number of the pod's last ask, and the slots lent since, are not shown.
        [&number.to_be_bytes()[..], &slots.to_be_bytes(), &seen[2..], &[1; 8]].concat()
    };
    let times = [NOON / 1_000, 9_000].map(|time| time.to_be_bytes()[2..].to_vec()).concat();
    let pods = [pod(7, 2, 8_500), pod(u64::MAX, 3, 5_001), pod(9, 4, 5_000)].concat();
    let state = [b"slots2", &times[..], &pods].concat();
    let holder =
        |pod, slots, silent_ms| Holder { pod, slots, silent: Duration::from_millis(silent_ms) };
    assert_eq!(holders(&state), Some(vec![holder(u64::MAX, 3, 3_999), holder(7, 2, 500)]));
    assert_eq!(holders(b"moved 00 0 text x"), Some(Vec::new()));
    for cut in [0, 5, 6, 17, 19, state.len() - 1] {
        assert_eq!(holders(&state[..cut]), None, "{cut} bytes");
    }
}
