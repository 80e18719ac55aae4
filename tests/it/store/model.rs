//! Random asks, each compared with the pure arithmetic.

use ratelease::algorithm::fixed_window::{State, step};
use ratelease::rules::{Limit, Unit};
use ratelease::store::memory::MemoryStore;
use ratelease::store::{Ask, Back, Grant, Store};

use std::collections::BTreeSet;
use std::time::Duration;

use super::{connected, fresh_key};
use crate::support::dice::Dice;
use crate::support::redis::Cluster;

const KEYS: usize = 50;
const ROUNDS: usize = 200;
const LIMITS: [u32; 5] = [0, 1, 7, 100, u32::MAX];
/// Between rounds, so that they last for some windows of a second.
const PAUSE: Duration = Duration::from_millis(15);

#[tokio::test]
async fn memory_agrees_with_the_arithmetic() {
    agrees_with_the_arithmetic(&MemoryStore::system()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cluster_agrees_with_the_arithmetic() {
    let store = connected(Cluster::shared().config()).await;
    agrees_with_the_arithmetic(&*store).await;
}

/// 10 000 asks. A grant names its window and what is left of it, and so the store's time to the
/// microsecond: the arithmetic at that time must give the very same grant.
async fn agrees_with_the_arithmetic(store: &dyn Store) {
    let mut dice = Dice::new();
    let mut keys: Vec<_> = (0..KEYS)
        .map(|_| {
            let unit = if dice.below(2) > 0 { Unit::Second } else { dice.pick(&Unit::ALL) };
            let limit = Limit::fixed_window(dice.pick(&LIMITS), unit);
            (fresh_key(), limit, None::<State>)
        })
        .collect();
    let mut windows = BTreeSet::new();
    for _ in 0..ROUNDS {
        let asks: Vec<_> = keys
            .iter()
            .map(|(key, limit, state)| Ask {
                want: amount(&mut dice),
                need: if dice.below(3) > 0 { 0 } else { amount(&mut dice) },
                charge_denied: dice.below(2) > 0,
                back: back(&mut dice, *state),
                ..Ask::look(*key, sometimes_another(&mut dice, *limit))
            })
            .collect();
        let replies = store.exchange(&asks).await;
        for ((ask, reply), (_, _, state)) in asks.iter().zip(replies).zip(&mut keys) {
            let grant = reply.unwrap();
            if ask.limit.unit == Unit::Second {
                windows.insert(grant.epoch);
            }
            let (after, expected) = step(*state, time_of(&grant, ask), ask);
            assert_eq!(grant, expected, "{ask:?} on {state:?}");
            *state = Some(after);
        }
        tokio::time::sleep(PAUSE).await;
    }
    let windows = windows.len();
    assert!(windows >= 3, "it saw {windows} windows of a second");
}

/// A rule may be changed while its key is in use.
fn sometimes_another(dice: &mut Dice, limit: Limit) -> Limit {
    let requests_per_unit =
        if dice.below(20) > 0 { limit.requests_per_unit } else { dice.pick(&LIMITS) };
    Limit { requests_per_unit, ..limit }
}

fn amount(dice: &mut Dice) -> u64 {
    match dice.below(20) {
        0 => u64::MAX,
        1 => dice.roll(),
        2 => 1 << 32,
        3 => u64::from(u32::MAX),
        _ => dice.below(9),
    }
}

fn back(dice: &mut Dice, state: Option<State>) -> Option<Back> {
    let window = match dice.below(6) {
        0 => None,
        1 => Some(dice.roll()),
        2 | 3 => Some(state?.window),
        _ => return None,
    };
    Some(Back { tokens: amount(dice), epoch: window })
}

fn time_of(grant: &Grant, ask: &Ask) -> u64 {
    let ends = (grant.epoch + 1) * ask.limit.unit.seconds() * 1_000_000;
    ends - u64::try_from(grant.reset_after.as_micros()).unwrap()
}
