//! Compares the packed form with the leases that it stores.

use std::time::Duration;

use super::*;
use crate::buffer::tests::rng;

fn at(micros: u64) -> Time {
    Time::from_nanos(micros * 1_000)
}

/// The parts of a payment that matter later.
fn observed(lease: Option<LeasedTokens>, kind: LeaseKind) -> Option<(u64, u64, Time)> {
    let of = |lease: LeasedTokens| if is_spaced(kind) { lease.starts.nanos() } else { lease.epoch };
    lease.map(|lease| (lease.tokens, of(lease), lease.ends))
}

/// Times are whole microseconds, in the range that a span stores exactly.
#[test]
fn it_lends_and_takes_back_what_plain_lots_do() {
    let spaced =
        LeaseKind::Spaced { every: Duration::from_micros(7), grace: Duration::from_micros(9) };
    let mut rng = rng();
    for (round, kind) in (0..400).flat_map(|round| [(round, LeaseKind::Timed), (round, spaced)]) {
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
fn what_is_wider_than_a_limit_is_cut_and_never_wraps() {
    let lease = LeasedTokens { tokens: u64::MAX, epoch: 1, starts: at(0), ends: at(1_000) };
    let most = u64::from(u32::MAX);
    let mut packed = PackedLeases::<()>::empty();
    packed.refill(lease, LeaseKind::Windowed, at(0));
    assert_eq!(packed.tokens(at(1)), most);
    assert_eq!(packed.spend(most + 1, LeaseKind::Windowed, at(1)), None);
    packed.put_back(lease, LeaseKind::Windowed, at(1));
    assert!(packed.top_up(u64::MAX, at(1)));
    assert_eq!(packed.tokens(at(1)), most);
    assert!(packed.spend(most, LeaseKind::Windowed, at(1)).is_some());
    assert_eq!(packed.tokens(at(1)), 0);
}
