//! Tests the states of a buffer one by one.

use super::*;
use std::hash::{BuildHasher, RandomState};
use std::time::Duration;

const SECOND: u64 = 1_000_000_000;

fn at(millis: u64) -> Time {
    Time::from_nanos(millis * 1_000_000)
}

fn refill(tokens: u64, left: u64) -> Refill {
    let ends = Time::from_nanos(10 * SECOND);
    let lease = LeasedTokens { tokens, epoch: 5, starts: at(0), ends };
    let (overdrawn, is_sure, fresh_until) = (false, true, at(100));
    Refill { lease, left, overdrawn, is_sure, known_until: ends, resets: ends, fresh_until }
}

const W: LeaseKind = LeaseKind::Windowed;
/// Time between slots.
const SLOT: Duration = Duration::from_millis(10);

/// The tokens that remain after a charge that was paid; `None` if it was not.
fn pays(buffer: &mut Buffer, hits: u64, charge_denied: bool, now: Time) -> Option<u64> {
    let taken = matches!(buffer.take(hits, charge_denied, W, now), Take::Taken(_));
    taken.then(|| buffer.remaining(now))
}

fn live(tokens: u64, left: u64) -> Buffer {
    let mut buffer = Buffer::default();
    buffer.refill(refill(tokens, left), W, at(0));
    buffer
}

#[test]
fn a_cold_buffer_cannot_tell() {
    let mut buffer = Buffer::default();
    assert_eq!(buffer.take(3, true, W, at(0)), Take::Short);
    assert_eq!(buffer.take(0, true, W, at(0)), Take::Short);
}

#[test]
fn pays_from_its_tokens_and_counts_what_the_store_has_as_remaining() {
    let mut buffer = live(5, 10);
    assert_eq!(pays(&mut buffer, 2, true, at(1)), Some(13));
    assert_eq!(pays(&mut buffer, 3, true, at(1)), Some(10));
    assert_eq!(buffer.take(1, true, W, at(1)), Take::Short);
}

#[test]
fn asks_only_for_what_is_missing() {
    assert_eq!(live(5, 10).take(9, true, W, at(1)), Take::Short);
}

#[test]
fn no_token_outlives_its_window() {
    let mut buffer = live(5, 10);
    assert_eq!(pays(&mut buffer, 1, true, at(9_999)), Some(14));
    assert_eq!(buffer.take(1, true, W, at(10_000)), Take::Short);
    assert_eq!(buffer.drain(at(10_000)), [None; 2]);
}

#[test]
fn the_first_denial_goes_to_the_store_and_the_next_is_local_while_its_word_is_fresh() {
    let mut buffer = live(0, 0);
    assert_eq!(buffer.take(1, true, W, at(1)), Take::Short);
    buffer.refill(Refill { overdrawn: true, ..refill(0, 0) }, W, at(2));
    assert_eq!(buffer.take(1, true, W, at(3)), Take::Denied);
    assert_eq!(buffer.take(1, true, W, at(100)), Take::Short);
}

#[test]
fn a_denied_charge_spends_what_is_left_of_its_key() {
    let mut buffer = live(3, 0);
    buffer.refill(Refill { overdrawn: true, ..refill(0, 0) }, W, at(1));
    assert_eq!(buffer.take(4, true, W, at(2)), Take::Denied);
    assert_eq!(buffer.take(1, true, W, at(3)), Take::Denied);
}

#[test]
fn a_denied_charge_spends_nothing_where_the_rule_says_so() {
    let mut buffer = live(3, 0);
    assert_eq!(buffer.take(4, false, W, at(2)), Take::Denied);
    assert_eq!(pays(&mut buffer, 3, false, at(3)), Some(0));
}

#[test]
fn a_look_passes_at_the_limit_and_not_beyond_it() {
    assert_eq!(pays(&mut live(0, 0), 0, true, at(1)), Some(0));
    let mut buffer = live(0, 0);
    buffer.refill(Refill { overdrawn: true, ..refill(0, 0) }, W, at(1));
    assert_eq!(buffer.take(0, true, W, at(2)), Take::Denied);
    assert_eq!(buffer.take(0, true, W, at(100)), Take::Short);
}

#[test]
fn a_grant_of_another_window_replaces_what_was_held() {
    let mut buffer = live(5, 10);
    let next = Refill {
        lease: LeasedTokens { tokens: 2, epoch: 6, starts: at(0), ends: at(20_000) },
        known_until: at(20_000),
        fresh_until: at(10_100),
        ..refill(2, 90)
    };
    buffer.refill(next, W, at(10_001));
    assert_eq!(pays(&mut buffer, 1, true, at(10_002)), Some(91));
}

#[test]
fn a_late_grant_of_an_older_window_is_void() {
    let mut buffer = live(5, 10);
    let lease = LeasedTokens { epoch: 4, ends: at(1), ..refill(100, 0).lease };
    buffer.refill(Refill { lease, known_until: at(1), ..refill(100, 0) }, W, at(1));
    assert_eq!(buffer.tokens(at(2)), 5);
    assert_eq!(buffer.left(at(1)), Some(10));
}

#[test]
fn an_older_window_that_still_lasts_is_the_present_one() {
    let mut buffer = live(5, 10);
    let lease = LeasedTokens { epoch: 4, ..refill(2, 0).lease };
    buffer.refill(Refill { lease, ..refill(2, 90) }, W, at(1));
    assert_eq!(buffer.remaining(at(1)), 92);
}

#[test]
fn grants_of_one_window_add_up() {
    let mut buffer = live(5, 10);
    buffer.refill(refill(4, 6), W, at(1));
    assert_eq!(buffer.remaining(at(1)), 15);
}

#[test]
fn tokens_come_back_to_their_own_window_only() {
    let mut buffer = live(5, 10);
    buffer.take(5, true, W, at(1));
    buffer.put_back(LeasedTokens { tokens: 3, epoch: 4, ..refill(0, 0).lease }, W, at(2));
    assert_eq!(buffer.tokens(at(2)), 0);
    buffer.put_back(LeasedTokens { tokens: 3, epoch: 5, ..refill(0, 0).lease }, W, at(2));
    assert_eq!(buffer.tokens(at(2)), 3);
    buffer.put_back(LeasedTokens { tokens: 3, epoch: 5, ..refill(0, 0).lease }, W, at(10_000));
    assert_eq!(buffer.tokens(at(10_000)), 0, "the window has ended");
}

#[test]
fn a_refund_never_lifts_a_key_above_its_limit() {
    let mut buffer = live(5, 10);
    assert!(buffer.refund(3, 20, W, at(1)));
    assert_eq!(buffer.remaining(at(1)), 18);
    assert!(buffer.refund(u64::MAX, 20, W, at(1)));
    assert_eq!(buffer.remaining(at(1)), 20);
    assert!(!buffer.refund(1, 20, W, at(10_000)));
}

#[test]
fn draining_takes_every_token_once() {
    let mut buffer = live(5, 10);
    assert_eq!(buffer.drain(at(1)), [None, Some(refill(5, 0).lease)]);
    assert_eq!(buffer.drain(at(1)), [None; 2]);
}

fn lease(tokens: u64, starts: u64, ends: u64) -> Refill {
    let lease = LeasedTokens { tokens, epoch: starts, starts: at(starts), ends: at(ends) };
    Refill { lease, known_until: at(ends), ..refill(0, 100) }
}

#[test]
fn each_lease_without_a_window_ends_by_itself_and_the_elder_is_spent_first() {
    let mut buffer = Buffer::default();
    buffer.refill(lease(5, 0, 2_000), LeaseKind::Timed, at(0));
    buffer.refill(lease(7, 1_500, 3_500), LeaseKind::Timed, at(1_500));
    assert_eq!(buffer.tokens(at(1_600)), 12);
    let Take::Taken(spent) = buffer.take(2, true, LeaseKind::Timed, at(1_700)) else { panic!() };
    assert_eq!((spent.epoch, spent.ends), (0, at(2_000)));
    assert_eq!(buffer.tokens(at(1_999)), 10);
    assert_eq!(buffer.tokens(at(2_000)), 7);
    buffer.put_back(spent, LeaseKind::Timed, at(2_000));
    assert_eq!(buffer.tokens(at(2_000)), 7, "the lease they were of has ended");
    assert_eq!(buffer.take(8, true, LeaseKind::Timed, at(2_001)), Take::Short);
}

#[test]
fn a_charge_across_two_leases_comes_back_with_the_end_of_the_elder() {
    let mut buffer = Buffer::default();
    buffer.refill(lease(5, 0, 2_000), LeaseKind::Timed, at(0));
    buffer.refill(lease(7, 1_500, 3_500), LeaseKind::Timed, at(1_500));
    let Take::Taken(spent) = buffer.take(8, true, LeaseKind::Timed, at(1_700)) else { panic!() };
    assert_eq!((spent.tokens, spent.ends), (8, at(2_000)));
    buffer.put_back(spent, LeaseKind::Timed, at(1_700));
    assert_eq!(buffer.tokens(at(1_700)), 12);
    assert_eq!(buffer.tokens(at(2_000)), 4);
}

#[test]
fn a_third_lease_joins_the_two_that_end_first() {
    let mut buffer = Buffer::default();
    for lent in [0, 100, 200] {
        buffer.refill(lease(5, lent, lent + 2_000), LeaseKind::Timed, at(lent));
    }
    assert_eq!(buffer.tokens(at(1_999)), 15);
    assert_eq!(buffer.tokens(at(2_000)), 5, "never later than their own end");
    let [older, newest] = buffer.drain(at(300));
    assert_eq!(older.map(|lease| (lease.tokens, lease.epoch)), Some((10, 0)));
    assert_eq!(newest.map(|lease| (lease.tokens, lease.epoch)), Some((5, 200)));
}

/// Any of the leases that end together may have the lowest epoch: of asks that leave together, the
/// store may take the last one first. Where a token returns under a later epoch than its own, the
/// store credits it although time has paid for it already.
#[test]
fn no_token_returns_under_a_later_epoch_than_its_own() {
    let mut rng = rng();
    for round in 0..2_000 {
        let (mut buffer, mut lent) = (Buffer::<()>::default(), Vec::new());
        for _ in 0..2 + rng(2) {
            let refill = lease(1 + rng(9), 0, 100 + rng(2));
            let refill = Refill { lease: LeasedTokens { epoch: rng(5), ..refill.lease }, ..refill };
            lent.push(refill.lease);
            buffer.refill(refill, LeaseKind::Timed, at(0));
            let hits = 1 + rng(buffer.tokens(at(0)));
            if let Take::Taken(taken) = buffer.take(hits, false, LeaseKind::Timed, at(0)) {
                buffer.put_back(taken, LeaseKind::Timed, at(0));
            }
        }
        let excess = buffer.take_excess(rng(5), LeaseKind::Timed, at(0));
        let returned: Vec<_> =
            excess.into_iter().chain(buffer.drain(at(0)).into_iter().flatten()).collect();
        let since = |leases: &[LeasedTokens], epoch| -> u64 {
            leases.iter().filter(|it| it.epoch >= epoch).map(|it| it.tokens).sum()
        };
        assert_eq!(since(&returned, 0), since(&lent, 0), "round {round}: {lent:?}");
        for epoch in 1..5 {
            let (back, out) = (since(&returned, epoch), since(&lent, epoch));
            assert!(
                back <= out,
                "round {round}, epoch {epoch}: {lent:?} came back as {returned:?}"
            );
        }
    }
}

#[test]
fn slots_that_are_put_back_are_those_that_were_leased() {
    let mut rng = rng();
    let kind = LeaseKind::Spaced { every: SLOT, grace: SLOT };
    for round in 0..2_000 {
        let (mut buffer, mut slots) = (Buffer::<()>::default(), Vec::new());
        let mut starts = 0;
        for _ in 0..2 {
            starts += rng(30);
            let tokens = 1 + rng(4);
            slots.extend((0..tokens).map(|nth| at(starts + 10 * nth)));
            buffer.refill(lease(tokens, starts, 1_000), kind, at(0));
            starts += 10 * tokens;
        }
        if let Take::Taken(taken) = buffer.take(1 + rng(6), false, kind, at(0)) {
            buffer.put_back(taken, kind, at(0));
        }
        while let Take::Taken(taken) = buffer.take(1, false, kind, at(0)) {
            let slot = slots.iter().position(|slot| *slot == taken.starts);
            assert!(slot.is_some(), "round {round}: {:?} is none of {slots:?}", taken.starts);
            slots.remove(slot.unwrap());
        }
    }
}

#[test]
fn slots_come_one_after_the_other_and_go_by_unused() {
    let kind = LeaseKind::Spaced { every: SLOT, grace: SLOT };
    let mut buffer = Buffer::default();
    buffer.refill(lease(4, 100, 200), kind, at(90));
    let mut slot = |now| match buffer.take(1, true, kind, at(now)) {
        Take::Taken(lease) => Some(lease.starts),
        _ => None,
    };
    assert_eq!(slot(90), Some(at(100)));
    assert_eq!(slot(90), Some(at(110)));
    assert_eq!(slot(131), Some(at(130)), "that of 120 has gone by at 130");
    assert_eq!(slot(131), None);
}

#[test]
fn the_last_slot_taken_can_be_put_back() {
    let kind = LeaseKind::Spaced { every: SLOT, grace: SLOT };
    let mut buffer = Buffer::default();
    buffer.refill(lease(4, 100, 200), kind, at(90));
    let Take::Taken(first) = buffer.take(1, true, kind, at(90)) else { panic!() };
    buffer.put_back(first, kind, at(90));
    assert_eq!(buffer.take(1, true, kind, at(90)), Take::Taken(first));
}

#[test]
fn an_ask_has_no_age_for_a_clock_read_before_it() {
    let mut buffer = live(0, 10);
    for asked in [0, 5, 40_000, 68_000, 100_000_000] {
        buffer.note_ask(at(asked));
        for before in [0, 1, 10, 30_000] {
            assert_eq!(buffer.ask_age(at(asked.saturating_sub(before))), Duration::ZERO);
        }
        let later = buffer.ask_age(at(asked + 20_000));
        assert!(later.as_millis().abs_diff(20_000) < 5, "{later:?} after {asked} ms");
    }
}

/// A random number generator (splitmix64) with a new seed each time, unless `RATELEASE_TEST_SEED`
/// is set.
pub(super) fn rng() -> impl FnMut(u64) -> u64 {
    let seed = std::env::var("RATELEASE_TEST_SEED").ok().and_then(|seed| seed.parse().ok());
    let mut state: u64 = seed.unwrap_or_else(|| RandomState::new().hash_one(()));
    println!("run again with RATELEASE_TEST_SEED={state}");
    move |end| {
        state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let z = (state ^ (state >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (z ^ (z >> 31)) % end
    }
}

/// Compares the packed form with the leases that it stores.
mod packed {
    use super::*;

    fn at(micros: u64) -> Time {
        Time::from_nanos(micros * 1_000)
    }

    /// The parts of a payment that matter later.
    fn observed(lease: Option<LeasedTokens>, kind: LeaseKind) -> Option<(u64, u64, Time)> {
        let of =
            |lease: LeasedTokens| if kind.is_spaced() { lease.starts.nanos() } else { lease.epoch };
        lease.map(|lease| (lease.tokens, of(lease), lease.ends))
    }

    /// Times are whole microseconds, in the range that a span stores exactly.
    #[test]
    fn it_lends_and_takes_back_what_plain_lots_do() {
        let spaced =
            LeaseKind::Spaced { every: Duration::from_micros(7), grace: Duration::from_micros(9) };
        let mut rng = rng();
        for (round, kind) in (0..400).flat_map(|round| [(round, LeaseKind::Timed), (round, spaced)])
        {
            let (mut packed, mut leases) = (PackedLeases::<()>::empty(), LeasePair::default());
            let (mut now, mut taken) = (rng(100_000), Vec::new());
            for step in 0..60 {
                now += rng(40);
                match rng(4) {
                    0 => {
                        let starts = at(now + rng(30));
                        let (tokens, ends) = (rng(12), starts + Duration::from_micros(rng(200)));
                        let lease = LeasedTokens { tokens, epoch: now, starts, ends };
                        packed.refill(lease, kind, at(now));
                        leases.insert(lease, kind, at(now));
                    }
                    1 | 2 => {
                        let hits = 1 + rng(4);
                        let spent = packed.spend(hits, kind, at(now));
                        let plain = leases.spend(hits, kind, at(now));
                        assert_eq!(
                            observed(spent, kind),
                            observed(plain, kind),
                            "round {round}, step {step}"
                        );
                        taken.extend(spent.zip(plain));
                    }
                    _ => {
                        if let Some((spent, plain)) = taken.pop() {
                            packed.put_back(spent, kind, at(now));
                            leases.insert(plain, kind, at(now));
                        }
                    }
                }
                let whole = leases.older.live(at(now)) + leases.newest.live(at(now));
                assert_eq!(packed.tokens(at(now)), whole, "round {round}, step {step}, {kind:?}");
            }
            let held = |leases: [Option<LeasedTokens>; 2]| {
                leases.map(|lease| lease.map(|lease| (lease.tokens, lease.ends)))
            };
            assert_eq!(held(packed.drain(at(now))), held(leases.drain(at(now))));
            assert!(packed.cold().is_none(), "an older lease alone keeps the box");
        }
    }

    #[test]
    fn two_lots_that_must_be_one_end_with_the_first() {
        let lease = |epoch| LeasedTokens { tokens: 5, epoch, starts: at(0), ends: at(100 * epoch) };
        let mut packed = PackedLeases::<()>::empty();
        packed.refill(lease(1), LeaseKind::Timed, at(0));
        packed.refill(lease(2), LeaseKind::Timed, at(1));
        assert!(packed.cold().is_some());
        packed.join(LeaseKind::Timed);
        assert!(packed.cold().is_none());
        assert_eq!(observed(packed.drain(at(2))[1], LeaseKind::Timed), Some((10, 1, at(100))));
    }

    #[test]
    fn more_than_can_be_counted_is_cut_and_never_wraps() {
        let lease = LeasedTokens { tokens: u64::MAX, epoch: 1, starts: at(0), ends: at(1_000) };
        let most = u64::MAX;
        let mut packed = PackedLeases::<()>::empty();
        packed.refill(lease, LeaseKind::Windowed, at(0));
        assert_eq!(packed.tokens(at(1)), most);
        packed.put_back(lease, LeaseKind::Windowed, at(1));
        assert!(packed.top_up(u64::MAX, at(1)));
        assert_eq!(packed.tokens(at(1)), most);
        assert!(packed.spend(most, LeaseKind::Windowed, at(1)).is_some());
        assert_eq!(packed.tokens(at(1)), 0);
    }
}
