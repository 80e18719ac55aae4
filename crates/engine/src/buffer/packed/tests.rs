//! Compares the stock with the lots that it stores, which are plain numbers.

use std::time::Duration;

use super::*;
use crate::buffer::tests::rng;

fn at(micros: u64) -> Time {
    Time::from_nanos(micros * 1_000)
}

/// The parts of a payment that matter later.
fn told(lot: Option<Lot>, kind: Kind) -> Option<(u64, u64, Time)> {
    let of = |lot: Lot| if is_spaced(kind) { lot.starts.nanos() } else { lot.epoch };
    lot.map(|lot| (lot.tokens, of(lot), lot.ends))
}

/// Times are whole microseconds, in the range that a span stores exactly.
#[test]
fn it_lends_and_takes_back_what_plain_lots_do() {
    let spaced = Kind::Spaced { every: Duration::from_micros(7), grace: Duration::from_micros(9) };
    let mut rng = rng();
    for (round, kind) in (0..400).flat_map(|round| [(round, Kind::Timed), (round, spaced)]) {
        let (mut stock, mut lots) = (Stock::<()>::empty(), Lots::default());
        let (mut now, mut taken) = (rng(100_000), Vec::new());
        for step in 0..60 {
            now += rng(40);
            match rng(4) {
                0 => {
                    let starts = at(now + rng(30));
                    let (tokens, ends) = (rng(12), starts + Duration::from_micros(rng(200)));
                    let lot = Lot { tokens, epoch: now, starts, ends };
                    stock.refill(lot, kind, at(now));
                    lots.insert(lot, kind, at(now));
                }
                1 | 2 => {
                    let hits = 1 + rng(4);
                    let spent = stock.spend(hits, kind, at(now));
                    let plain = lots.spend(hits, kind, at(now));
                    assert_eq!(told(spent, kind), told(plain, kind), "round {round}, step {step}");
                    taken.extend(spent.zip(plain));
                }
                _ => {
                    if let Some((spent, plain)) = taken.pop() {
                        stock.put_back(spent, kind, at(now));
                        lots.insert(plain, kind, at(now));
                    }
                }
            }
            let whole = lots.older.live(at(now)) + lots.newest.live(at(now));
            assert_eq!(stock.tokens(at(now)), whole, "round {round}, step {step}, {kind:?}");
        }
        let held = |lots: [Option<Lot>; 2]| lots.map(|lot| lot.map(|lot| (lot.tokens, lot.ends)));
        assert_eq!(held(stock.drain(at(now))), held(lots.drain(at(now))));
        assert!(stock.aside().is_none(), "an older lot alone keeps the box");
    }
}

#[test]
fn two_lots_that_must_be_one_end_with_the_first() {
    let lot = |epoch| Lot { tokens: 5, epoch, starts: at(0), ends: at(100 * epoch) };
    let mut stock = Stock::<()>::empty();
    stock.refill(lot(1), Kind::Timed, at(0));
    stock.refill(lot(2), Kind::Timed, at(1));
    assert!(stock.aside().is_some());
    stock.join(Kind::Timed);
    assert!(stock.aside().is_none());
    assert_eq!(told(stock.drain(at(2))[1], Kind::Timed), Some((10, 1, at(100))));
}

#[test]
fn what_is_wider_than_a_limit_is_cut_and_never_wraps() {
    let lot = Lot { tokens: u64::MAX, epoch: 1, starts: at(0), ends: at(1_000) };
    let most = u64::from(u32::MAX);
    let mut stock = Stock::<()>::empty();
    stock.refill(lot, Kind::Windowed, at(0));
    assert_eq!(stock.tokens(at(1)), most);
    assert_eq!(stock.spend(most + 1, Kind::Windowed, at(1)), None);
    stock.put_back(lot, Kind::Windowed, at(1));
    assert!(stock.top_up(u64::MAX, at(1)));
    assert_eq!(stock.tokens(at(1)), most);
    assert!(stock.spend(most, Kind::Windowed, at(1)).is_some());
    assert_eq!(stock.tokens(at(1)), 0);
}
