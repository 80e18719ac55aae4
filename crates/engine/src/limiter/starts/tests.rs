use std::collections::{HashMap, VecDeque};
use std::sync::LazyLock;

use proptest::prelude::*;
use ratelease_rules::key::KeyHasher;
use ratelease_rules::request::Entry;
use ratelease_rules::{Algorithm, Limit, Unit};
use smallvec::smallvec;

use super::part::{BLANK_MAX, FEW, STARTS_OF_ID_MAX};
use super::*;
use crate::buffer::LeasedTokens;
use crate::limiter::owners::Silence;

/// The time of the holds in these tests.
const LASTS: Duration = Duration::from_secs(120);

/// A caller that is known.
const ENVOY: Owner = Owner::THIS_PROCESS;

fn of(owner: Owner) -> Sender {
    Sender { owner, remembers: true, is_logging: true }
}

/// The time of most events.
const NOW: Time = at(1);

const fn at(seconds: u64) -> Time {
    Time::from_nanos(seconds * 1_000_000_000)
}

static HASHER: LazyLock<KeyHasher> = LazyLock::new(|| KeyHasher::new("test"));

fn id(n: u64) -> HoldId {
    let value = n.to_string();
    HASHER.hold_id("d", &[Entry { key: "id", value: &value }], 0).unwrap()
}

fn leased(tokens: u64, epoch: u64) -> LeasedTokens {
    LeasedTokens { tokens, epoch, starts: Time::default(), ends: at(60) }
}

/// So many hits of key 1, which were leased in window 7.
fn hold(hits: u64) -> Hold {
    Hold {
        key: Key::for_test(1),
        limit: Limit::fixed_window(1_000, Unit::Minute),
        hits,
        taken: leased(hits, 7),
        alone: 0,
        lasts: LASTS,
        releases: false,
        rule: None,
        rare: None,
    }
}

/// Begins a start of one descriptor, with this hold to come.
fn try_begin(starts: &Starts, id: HoldId, hold: &Hold, is_aside: bool, now: Time) -> Begun {
    let first = (hold.key, hold.is_of_slots());
    let descriptors = &[id.descriptor];
    let start = Beginning { descriptors, first, owner: Owner::UNKNOWN, is_aside };
    starts.begin(id.request, start, now)
}

fn slot() -> Hold {
    let limit = Limit { algorithm: Algorithm::Concurrency, ..Limit::fixed_window(9, Unit::Second) };
    Hold { limit, releases: true, ..hold(1) }
}

fn begin(starts: &Starts, id: HoldId, now: Time) -> StartId {
    match try_begin(starts, id, &hold(1), false, now) {
        Begun::Open(start) => start,
        other => panic!("{other:?}"),
    }
}

/// A start that holds this, and has its verdict. Returns whether there was room.
fn take(starts: &Starts, id: HoldId, hold: Hold, now: Time) -> bool {
    match try_begin(starts, id, &hold, false, now) {
        Begun::Open(start) => {
            let is_held = starts.hold(start, id.descriptor, hold);
            assert_eq!(starts.conclude(start, now), None);
            is_held
        }
        _ => false,
    }
}

/// Returns the tokens that come back, and the hits to be charged, by a settlement of so many hits.
fn settle(starts: &Starts, id: HoldId, hits: u64) -> Option<(LeasedTokens, u64)> {
    match starts.settle(id, of(ENVOY), NOW) {
        Settlement::Of(hold, _) => {
            let (unspent, due) = hold.settled(End::Cost(hits));
            Some((unspent.tokens, due))
        }
        _ => None,
    }
}

fn count(starts: &Starts, of: HoldCounter) -> u64 {
    let counts = starts.counts();
    counts.iter().find(|(counter, _)| *counter == Counter::Holds(of)).unwrap().1
}

fn expire_all(starts: &Starts, now: Time) -> (Vec<Unspent>, bool) {
    let all = starts.parts().map(|part| starts.expire(part, now, |_| None));
    all.fold((Vec::new(), false), |(mut sum, any), (given, more)| {
        sum.extend(given);
        (sum, any || more)
    })
}

#[test]
fn a_settlement_gives_back_what_was_not_used_or_charges_the_rest() {
    let starts = Starts::default();
    let cases: [(u64, u64, u64); 6] = [
        (0, 100, 0),
        (30, 70, 0),
        (100, 0, 0),
        (101, 0, 1),
        (1 << 63, 0, (1 << 63) - 100),
        (99, 1, 0),
    ];
    for (hits, back, due) in cases {
        assert!(take(&starts, id(1), hold(100), NOW));
        assert_eq!(settle(&starts, id(1), hits), Some((leased(back, 7), due)), "{hits}");
    }
    assert_eq!(count(&starts, HoldCounter::InForce), 0);
    assert_eq!(count(&starts, HoldCounter::Hits), 0);
}

#[test]
fn only_the_first_settlement_of_an_id_settles() {
    let starts = Starts::default();
    take(&starts, id(1), hold(100), NOW);
    assert_eq!(settle(&starts, id(2), 5), None, "another id");
    assert!(settle(&starts, id(1), 5).is_some());
    assert_eq!(settle(&starts, id(1), 5), None, "twice");
    assert_eq!(count(&starts, HoldCounter::WithoutHold), 2);
}

#[test]
fn each_end_of_an_id_settles_the_oldest_of_its_starts() {
    let starts = Starts::default();
    take(&starts, id(1), hold(100), NOW);
    take(&starts, id(1), Hold { taken: leased(50, 8), ..hold(50) }, NOW);
    assert_eq!(count(&starts, HoldCounter::InForce), 2);
    assert_eq!(count(&starts, HoldCounter::Hits), 150);
    assert_eq!(settle(&starts, id(1), 30), Some((leased(70, 7), 0)));
    assert_eq!(settle(&starts, id(1), 20), Some((leased(30, 8), 0)));
    assert_eq!(settle(&starts, id(1), 1), None);
}

#[test]
fn what_a_pod_admitted_by_itself_comes_back_after_the_tokens() {
    for (hits, tokens, back) in [(0, 100, 40), (40, 100, 0), (20, 100, 20), (60, 80, 0)] {
        let hold = Hold { hits: 140, alone: 40, ..hold(100) };
        let (unspent, _) = hold.settled(End::Cost(hits));
        assert_eq!((unspent.tokens.tokens, unspent.alone), (tokens, back), "{hits}");
    }
}

#[test]
fn an_end_becomes_what_it_says_of_the_cost() {
    let released = Hold { releases: true, ..hold(100) };
    for (hold, end, back, due) in [
        (hold(100), End::Charged, 100, 0),
        (hold(100), End::Cost(130), 0, 30),
        (hold(100), End::Unknown, 0, 0),
        (released, End::Unknown, 100, 0),
        (slot(), End::Unknown, 1, 0),
        (slot(), End::Cost(700), 1, 0),
    ] {
        let (unspent, charged) = hold.settled(end);
        assert_eq!((unspent.tokens.tokens, charged), (back, due), "{end:?}");
    }
}

#[test]
fn holds_end_in_order_and_only_those_that_release_give_back() {
    let starts = Starts::default();
    for n in 0..1_000 {
        let lasts = Duration::from_secs(1 + n * 7 % 1_000);
        let hold = Hold { lasts, releases: n % 2 == 0, ..hold(n) };
        take(&starts, id(n), hold, at(0));
    }
    assert_eq!(expire_all(&starts, at(0)), (Vec::new(), true));
    let (given, more) = expire_all(&starts, at(500));
    assert!(more);
    // Hits are held as long as there are any: one start has none.
    assert_eq!(count(&starts, HoldCounter::InForce), 500);
    assert!(given.iter().all(|unspent| unspent.tokens.tokens % 2 == 0));
    expire_all(&starts, at(1_000));
    assert_eq!(count(&starts, HoldCounter::Expired), 1_000);
    assert_eq!(count(&starts, HoldCounter::Hits), 0);
}

#[test]
fn a_sign_of_life_renews_the_time_of_a_start() {
    let starts = Starts::default();
    let node = Node::default();
    take(&starts, id(1), slot(), at(0));
    assert_eq!(starts.note_sign(id(1).request, node, at(100)), Some(Owner::UNKNOWN));
    assert_eq!(starts.note_sign(id(2).request, node, at(100)), None);
    assert_eq!(expire_all(&starts, at(219)).0.len(), 0);
    assert_eq!(expire_all(&starts, at(220)).0.len(), 1);
}

#[test]
fn silence_is_known_from_the_interval_of_the_signs() {
    let starts = Starts::default();
    take(&starts, id(1), slot(), at(0));
    let silence = |starts: &Starts| {
        let mut seen = None;
        for part in starts.parts() {
            starts.expire(part, at(0), |start| {
                seen = start.silence;
                None
            });
        }
        seen
    };
    assert_eq!(silence(&starts), None);
    starts.note_sign(id(1).request, Node::default(), at(10));
    assert_eq!(silence(&starts), Some(Silence { sign_due: at(30), over: at(41) }));
}

#[test]
fn signs_of_a_request_with_two_filters_tell_the_interval_of_both() {
    let starts = Starts::default();
    let request = id(1).request;
    for descriptor in [1, 2] {
        take(&starts, HoldId { request, descriptor }, slot(), at(0));
    }
    starts.note_sign(request, Node::default(), at(10));
    let mut silences = Vec::new();
    for part in starts.parts() {
        starts.expire(part, at(10), |start| {
            silences.extend(start.silence);
            None
        });
    }
    assert_eq!(silences, [Silence { sign_due: at(30), over: at(41) }; 2]);
}

#[test]
fn a_start_whose_envoy_is_gone_ends_as_its_rule_says() {
    let starts = Starts::default();
    take(&starts, id(1), slot(), NOW);
    take(&starts, id(2), hold(100), NOW);
    take(&starts, id(3), Hold { releases: true, ..hold(30) }, NOW);
    let gone = |_: &StartView| Some(Cause::OwnerGone);
    let back = starts.parts().flat_map(|part| starts.expire(part, NOW, gone).0);
    assert_eq!(back.map(|unspent| unspent.tokens.tokens).sum::<u64>(), 31);
    assert_eq!(count(&starts, HoldCounter::OwnerGone), 3);
    assert_eq!(count(&starts, HoldCounter::InForce), 0);
}

#[test]
fn a_start_that_is_asked_for_ends_by_its_verdict() {
    let starts = Starts::default();
    let start = begin(&starts, id(1), NOW);
    assert_eq!(starts.settle(id(1), of(Owner::UNKNOWN), NOW), Settlement::OfNothing);
    assert!(starts.hold(start, id(1).descriptor, hold(100)));
    let (held, end) = starts.conclude(start, NOW).expect("its end came meanwhile");
    assert_eq!((held.len(), end), (1, End::Charged));
    assert_eq!(count(&starts, HoldCounter::InForce), 0);
    // An entry of the log tells the cost.
    let start = begin(&starts, id(5), NOW);
    assert_eq!(
        starts.end(id(5).request, End::Cost(7), NOW),
        Some((smallvec![Owner::UNKNOWN], Held::new()))
    );
    assert_eq!(starts.forget(start), Some((Held::new(), Some(End::Cost(7)))));
}

#[test]
fn an_end_before_its_start_leaves_it_nothing_to_take() {
    let starts = Starts::default();
    let soon = NOW + Duration::from_millis(900);
    let begun = |n, now| try_begin(&starts, id(n), &hold(1), false, now);
    assert_eq!(starts.settle(id(1), of(ENVOY), NOW), Settlement::Unknown);
    assert_eq!(begun(1, soon), Begun::Ended(End::Charged));
    assert!(matches!(begun(1, soon), Begun::Open(_)), "once");
    assert_eq!(starts.end(id(2).request, End::Cost(9), NOW), None);
    assert_eq!(begun(2, at(5)), Begun::Ended(End::Cost(9)));
    assert_eq!(starts.end(id(3).request, End::Unknown, NOW), None);
    assert!(matches!(begun(3, at(12)), Begun::Open(_)), "it is forgotten after seconds");
    assert_eq!(starts.settle(id(4), of(ENVOY), at(20)), Settlement::Unknown);
    assert!(matches!(begun(4, at(22)), Begun::Open(_)), "that of a call after a second");
}

#[test]
fn a_cost_told_by_a_call_and_the_log_is_charged_once() {
    let starts = Starts::default();
    assert_eq!(starts.settle(id(1), of(ENVOY), NOW), Settlement::Unknown);
    assert_eq!(starts.end(id(1).request, End::Cost(9), at(3)), None);
    let begun = try_begin(&starts, id(1), &hold(1), false, at(4));
    assert_eq!(begun, Begun::Ended(End::Charged));
}

/// A client of its own ends each start, also one that was denied, and may use its id again.
#[test]
fn an_end_by_an_unknown_caller_refuses_no_later_start() {
    let starts = Starts::default();
    assert_eq!(starts.settle(id(1), of(Owner::UNKNOWN), NOW), Settlement::Unknown);
    let begun = try_begin(&starts, id(1), &hold(1), false, NOW);
    assert!(matches!(begun, Begun::Open(_)));
}

#[test]
fn the_end_of_one_descriptor_refuses_no_start_of_another() {
    let starts = Starts::default();
    let other = HoldId { descriptor: 7, ..id(1) };
    assert_eq!(starts.settle(other, of(ENVOY), NOW), Settlement::Unknown);
    assert!(matches!(try_begin(&starts, id(1), &hold(1), false, NOW), Begun::Open(_)));
}

/// Envoy sends an end for a denied request too. A client that chooses its id sends one for many.
#[test]
fn the_end_of_a_denied_start_frees_no_other_of_its_id() {
    let starts = Starts::default();
    for _ in 0..5 {
        assert!(take(&starts, id(1), slot(), NOW));
    }
    for _ in 0..25 {
        starts.note_denied(id(1), NOW);
    }
    for _ in 0..25 {
        assert_eq!(starts.settle(id(1), of(Owner::UNKNOWN), NOW), Settlement::OfNothing);
    }
    assert_eq!(count(&starts, HoldCounter::InForce), 5);
    assert!(matches!(starts.settle(id(1), of(Owner::UNKNOWN), NOW), Settlement::Of(..)));
}

#[test]
fn an_undone_start_and_its_candidate_hold_nothing() {
    let starts = Starts::default();
    let own = begin(&starts, id(1), NOW);
    starts.hold(own, id(1).descriptor, slot());
    starts.conclude(own, NOW);
    let Begun::Open(aside) = try_begin(&starts, id(1), &slot(), true, NOW) else { panic!() };
    starts.hold(aside, 7, Hold { key: Key::for_test(2), ..slot() });
    starts.conclude(aside, NOW);
    let undone = starts.undo(own, NOW).unwrap();
    assert_eq!((undone.held.len(), undone.next), (2, None));
    assert_eq!(starts.undo(own, NOW), None);
    assert_eq!(count(&starts, HoldCounter::InForce), 0);
}

/// Two filters of Envoy ask about one request, and candidate rules are tried on each of the calls.
#[test]
fn an_undone_start_leaves_the_candidate_of_another_filter() {
    let starts = Starts::default();
    let of = |is_aside, hits| {
        let Begun::Open(start) = try_begin(&starts, id(1), &hold(hits), is_aside, NOW) else {
            panic!("there is room");
        };
        assert!(starts.hold(start, id(1).descriptor, hold(hits)));
        assert_eq!(starts.conclude(start, NOW), None);
        start
    };
    let [_, _, second, _] = [of(false, 1), of(true, 2), of(false, 4), of(true, 8)];
    starts.undo(second, NOW);
    assert_eq!(count(&starts, HoldCounter::Hits), 1 + 2);
}

#[test]
fn an_entry_of_the_log_ends_all_that_its_request_holds() {
    let starts = Starts::default();
    let start = begin(&starts, id(1), NOW);
    starts.hold(start, 1, slot());
    starts.hold(start, 2, Hold { key: Key::for_test(2), ..slot() });
    starts.conclude(start, NOW);
    let (_, held) = starts.end(id(1).request, End::Cost(0), NOW).unwrap();
    assert_eq!(held.len(), 2);
    assert_eq!(starts.end(id(1).request, End::Cost(0), NOW), None, "twice");
}

/// A start of the same request, by another filter: of the descriptor of this hash.
fn take_of(starts: &Starts, request: RequestId, descriptor: u64) {
    assert!(take(starts, HoldId { request, descriptor }, slot(), NOW));
}

#[test]
fn an_entry_of_the_log_ends_what_each_filter_has_started() {
    let starts = Starts::default();
    let request = id(1).request;
    for descriptor in [1, 2, 1] {
        take_of(&starts, request, descriptor);
    }
    let (owners, held) = starts.end(request, End::Unknown, NOW).unwrap();
    assert_eq!((owners.len(), held.len()), (2, 2));
    let (_, held) = starts.end(request, End::Unknown, NOW).unwrap();
    assert_eq!(held.len(), 1, "the other start of descriptor 1 was of another request");
}

/// As a redirect within Envoy does under an id that it keeps.
#[test]
fn the_entry_of_a_start_that_a_call_has_ended_ends_no_later_start() {
    let starts = Starts::default();
    take(&starts, id(1), hold(100), NOW);
    assert!(matches!(starts.settle(id(1), of(ENVOY), NOW), Settlement::Of(..)));
    take(&starts, id(1), hold(100), NOW);
    let ended = starts.end(id(1).request, End::Cost(7), NOW);
    assert_eq!(ended.map(|(owners, held)| (owners.len(), held.len())), Some((0, 0)));
    assert!(matches!(starts.settle(id(1), of(ENVOY), NOW), Settlement::Of(..)), "not counted");
}

#[test]
fn a_cost_that_the_log_did_not_know_is_charged_beyond_the_estimate_alone() {
    let starts = Starts::default();
    take(&starts, id(1), hold(100), NOW);
    take(&starts, id(2), Hold { releases: true, ..hold(100) }, NOW);
    for n in [1, 2] {
        starts.end(id(n).request, End::Unknown, NOW).expect("it is open");
    }
    assert_eq!(starts.settle(id(1), of(ENVOY), NOW), Settlement::Kept(100));
    assert_eq!(starts.settle(id(2), of(ENVOY), NOW), Settlement::Unknown, "all came back");
}

#[test]
fn an_undone_call_undoes_its_other_start_after_the_first_has_ended() {
    let starts = Starts::default();
    let [first, second] = [1, 2].map(|n| {
        let start = begin(&starts, id(n), NOW);
        starts.hold(start, id(n).descriptor, slot());
        starts.conclude(start, NOW);
        start
    });
    starts.link(first, second);
    starts.end(id(1).request, End::Unknown, NOW).expect("it is open");
    let undone = starts.undo(first, NOW).expect("its other start is known");
    assert_eq!((undone.held.len(), undone.next), (0, Some(second)));
    assert_eq!(starts.undo(second, NOW).expect("it is open").held.len(), 1);
}

#[test]
fn a_denial_by_one_filter_ends_what_others_have_started() {
    let starts = Starts::default();
    let request = id(1).request;
    take_of(&starts, request, 1);
    starts.note_denied(HoldId { request, descriptor: 2 }, NOW);
    assert_eq!(starts.end_denied(request, NOW).len(), 1);
    assert_eq!(starts.end_denied(request, NOW).len(), 0);
    assert!(matches!(try_begin(&starts, id(1), &hold(1), false, NOW), Begun::Open(_)));
}

#[test]
fn a_denial_ends_no_start_of_another_request_of_its_id() {
    let starts = Starts::default();
    let request = id(1).request;
    take_of(&starts, request, 1);
    starts.note_denied(HoldId { request, descriptor: 1 }, NOW);
    assert_eq!(starts.end_denied(request, NOW).len(), 0);
    assert_eq!(count(&starts, HoldCounter::InForce), 1);
}

#[test]
fn requests_without_answer_take_a_small_part_of_the_room() {
    let starts = Starts::default();
    let blank = |n| {
        let start = StartId { request: id(n).request, number: 0 };
        let held = smallvec![(id(n).descriptor, hold(0))];
        starts.keep_unanswered(start, ENVOY, held, NOW);
    };
    (0..HOLDS_MAX as u64).for_each(blank);
    let kept = (0..HOLDS_MAX as u64).filter(|n| starts.has(id(*n))).count();
    assert!(kept <= PARTS * BLANK_MAX && kept > PARTS * BLANK_MAX * 9 / 10, "{kept}");
}

#[test]
fn starts_that_wait_leave_room_for_those_of_other_keys() {
    let starts = Starts::default();
    let waits = |n: u64| matches!(try_begin(&starts, id(n), &hold(1), false, NOW), Begun::Open(_));
    let waiting = (0..2 * HOLDS_MAX as u64).filter(|n| waits(*n)).count();
    assert!(waiting <= HOLDS_MAX / 4 * 3 + PARTS * FEW as usize, "{waiting}");
    let of_another = Hold { key: Key::for_test(2), ..hold(1) };
    assert!(take(&starts, id(u64::MAX), of_another, NOW));
}

/// Descriptors that hold nothing take no memory once the verdict is made.
#[test]
fn a_start_keeps_only_the_descriptors_that_hold_something() {
    let starts = Starts::default();
    let many: Vec<u64> = (0..256).collect();
    let first = (Key::for_test(1), false);
    let start = Beginning { descriptors: &many, first, owner: ENVOY, is_aside: false };
    let Begun::Open(start) = starts.begin(id(1).request, start, NOW) else { panic!() };
    assert!(starts.has(HoldId { descriptor: 255, ..id(1) }));
    starts.hold(start, 7, hold(1));
    starts.conclude(start, NOW);
    assert!(starts.has(HoldId { descriptor: 7, ..id(1) }));
    assert!(!starts.has(HoldId { descriptor: 255, ..id(1) }));
}

#[test]
fn an_entry_of_the_log_ends_a_start_of_a_candidate_alone() {
    let starts = Starts::default();
    let Begun::Open(aside) = try_begin(&starts, id(1), &slot(), true, NOW) else { panic!() };
    starts.hold(aside, id(1).descriptor, slot());
    starts.conclude(aside, NOW);
    let (_, held) = starts.end(id(1).request, End::Unknown, NOW).expect("it is open");
    assert_eq!(held.len(), 1);
}

#[test]
fn signs_that_come_together_shorten_no_interval() {
    let starts = Starts::default();
    take(&starts, id(1), slot(), at(0));
    for seconds in [1, 20, 21] {
        starts.note_sign(id(1).request, Node::default(), at(seconds));
    }
    let mut silence = None;
    for part in starts.parts() {
        starts.expire(part, at(21), |start| {
            silence = start.silence;
            None
        });
    }
    assert_eq!(silence, Some(Silence { sign_due: at(21 + 38), over: at(21 + 57 + 1) }));
}

#[test]
fn a_reset_drops_slots_and_what_other_holds_would_give_back() {
    let starts = Starts::default();
    take(&starts, id(1), slot(), NOW);
    take(&starts, id(2), Hold { key: Key::for_test(2), ..slot() }, NOW);
    take(&starts, id(3), hold(100), NOW);
    starts.forget_key(Key::for_test(1));
    assert_eq!(count(&starts, HoldCounter::InForce), 2);
    assert_eq!(settle(&starts, id(1), 0), None);
    assert_eq!(settle(&starts, id(2), 0), Some((leased(1, 7), 0)), "another key");
    assert_eq!(settle(&starts, id(3), 130), Some((leased(0, 7), 30)));
}

#[test]
fn nothing_takes_memory_once_nothing_is_held() {
    let starts = Starts::default();
    for n in 0..10_000 {
        take(&starts, id(n), Hold { key: Key::for_test(n), ..hold(1) }, at(0));
        starts.settle(id(1_000_000 + n), of(Owner::UNKNOWN), at(0));
        starts.note_denied(id(2_000_000 + n), at(0));
    }
    assert!(count(&starts, HoldCounter::Bytes) > 10_000 * size_of::<Hold>() as u64);
    expire_all(&starts, at(0) + LASTS);
    assert!(!expire_all(&starts, at(0) + LASTS).1);
    assert_eq!(count(&starts, HoldCounter::Bytes), 0);
}

/// A million ids of one client fill three quarters of the table, and no more.
#[test]
fn a_client_with_a_million_ids_leaves_room_for_others() {
    let starts = Starts::default();
    let kept = (0..1_000_000).filter(|n| take(&starts, id(*n), hold(1), at(0))).count();
    assert!(kept >= 80_000 && kept <= HOLDS_MAX / 4 * 3 + PARTS * FEW as usize, "{kept}");
    assert_eq!(count(&starts, HoldCounter::NotKept), 1_000_000 - kept as u64);
    let of_others = (0..4_000).filter(|n| {
        let key = Key::for_test(100 + n / 20);
        take(&starts, id(2_000_000 + n), Hold { key, ..hold(1) }, at(0))
    });
    let of_others = of_others.count();
    assert!(of_others > 3_950, "{of_others} of 4000, 20 of each client");
    // A million clients fill the rest.
    for n in 0..1_000_000 {
        let hold = Hold { key: Key::for_test(1_000 + n), ..hold(1) };
        take(&starts, id(10_000_000 + n), hold, at(0));
    }
    let all = count(&starts, HoldCounter::InForce);
    let most = HOLDS_MAX as u64 / 8 * 7;
    assert!(all <= most && all > most / 100 * 95, "{all}");
    let slots = Hold { key: Key::for_test(9), ..slot() };
    assert!(take(&starts, id(4), slots, at(0)), "slots have room of their own");
    assert!(count(&starts, HoldCounter::Bytes) <= BYTES_MAX as u64);
    expire_all(&starts, at(0) + LASTS);
    expire_all(&starts, at(0) + LASTS);
    assert_eq!(count(&starts, HoldCounter::Bytes), 0);
}

/// A value of another entry may be the same text as an id.
#[test]
fn the_end_of_another_descriptor_leaves_a_start_that_is_asked_for() {
    let starts = Starts::default();
    let start = begin(&starts, id(1), NOW);
    let other = HoldId { descriptor: 7, ..id(1) };
    assert!(!starts.has(other) && starts.has(id(1)));
    assert_eq!(starts.settle(other, of(Owner::UNKNOWN), NOW), Settlement::Unknown);
    assert_eq!(starts.conclude(start, NOW), None);
}

#[test]
fn starts_of_one_id_are_bounded() {
    let starts = Starts::default();
    let kept = (0..1_000).filter(|_| take(&starts, id(1), slot(), NOW)).count();
    assert_eq!(kept, STARTS_OF_ID_MAX);
}

/// The sums of a model that keeps each start and settlement.
#[derive(Default)]
struct Model {
    /// Hits of the starts of each id that have not ended, oldest first.
    held: HashMap<u64, VecDeque<u64>>,
    taken: u64,
    given: u64,
    due: u64,
    costs: u64,
}

proptest! {
    /// Whatever the order of starts and settlements: the charge in the end is the cost of each
    /// settlement, and for a hold that ends without one, the hits that it kept.
    #[test]
    fn what_is_charged_is_what_was_used(
        steps in prop::collection::vec((0..3_u8, 0..8_u64, 0..1_000_u64), 1..200),
    ) {
        let starts = Starts::default();
        let mut model = Model::default();
        for (step, n, hits) in steps {
            match step {
                0 => match try_begin(&starts, id(n), &hold(hits), false, NOW) {
                    Begun::Open(start) => {
                        prop_assert!(starts.hold(start, id(n).descriptor, hold(hits)));
                        starts.conclude(start, NOW);
                        model.held.entry(n).or_default().push_back(hits);
                        model.taken += hits;
                    }
                    Begun::Ended(_) => {} // an end came before it
                    Begun::Full => prop_assert!(false, "there is room"),
                },
                _ => {
                    let before = model.held.get_mut(&n).and_then(VecDeque::pop_front);
                    let settled = settle(&starts, id(n), hits);
                    prop_assert_eq!(settled.is_some(), before.is_some());
                    model.costs += hits;
                    let (back, due) = settled.map_or((0, hits), |(back, due)| (back.tokens, due));
                    model.given += back;
                    model.due += due;
                }
            }
            let in_force: u64 = model.held.values().flatten().sum();
            prop_assert_eq!(count(&starts, HoldCounter::Hits), in_force);
            prop_assert_eq!(model.taken + model.due - model.given, model.costs + in_force);
        }
    }
}

#[test]
fn slots_are_held_since_the_oldest_start_began() {
    let starts = Starts::default();
    let of_key = |n, hold: Hold| Hold { key: Key::for_test(n), ..hold };
    for (n, seconds) in [(1, 5), (2, 3), (3, 8)] {
        assert!(take(&starts, id(n), of_key(1, slot()), at(seconds)));
    }
    assert!(take(&starts, id(4), of_key(2, slot()), at(4)));
    assert!(take(&starts, id(5), of_key(3, hold(7)), at(1)));
    starts.note_sign(id(2).request, Node::default(), at(9));
    let since = |key| starts.slots_since().get(&Key::for_test(key)).copied();
    assert_eq!([1, 2, 3].map(since), [Some(at(3)), Some(at(4)), None]);
    settle(&starts, id(2), 0);
    assert_eq!(since(1), Some(at(5)));
}
