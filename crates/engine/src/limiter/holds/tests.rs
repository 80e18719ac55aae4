use std::collections::HashSet;
use std::sync::LazyLock;

use proptest::prelude::*;
use ratelease_rules::key::KeyHasher;
use ratelease_rules::{Algorithm, Unit};

use super::*;

const LASTS: Duration = Duration::from_secs(120);

fn at(seconds: u64) -> Time {
    Time::from_nanos(seconds * 1_000_000_000)
}

static HASHER: LazyLock<KeyHasher> = LazyLock::new(|| KeyHasher::new("test"));

fn id(n: u64) -> HoldId {
    HASHER.hold_id(Key::for_test(0), &n.to_string())
}

fn leased(tokens: u64, epoch: u64) -> LeasedTokens {
    LeasedTokens { tokens, epoch, starts: Time::default(), ends: at(60) }
}

/// So many hits of key 1, which were leased in window 7, from second 0 on.
fn hold(hits: u64) -> Hold {
    Hold {
        key: Key::for_test(1),
        limit: Limit::fixed_window(1_000, Unit::Minute),
        hits,
        taken: leased(hits, 7),
        alone: 0,
        ends: at(0) + LASTS,
        releases: false,
        carry_debt: false,
        starts: 1,
    }
}

fn count(holds: &Holds, of: HoldCounter) -> u64 {
    let counts = holds.counts();
    counts.iter().find(|(counter, _)| *counter == Counter::Holds(of)).unwrap().1
}

fn expire_all(holds: &Holds, now: Time) -> (Vec<Unspent>, bool) {
    let all = holds.parts().map(|part| holds.expire(part, now));
    all.fold((Vec::new(), false), |(mut sum, any), (given, more)| {
        sum.extend(given);
        (sum, any || more)
    })
}

#[test]
fn a_settlement_gives_back_what_was_not_used_or_charges_the_rest() {
    let holds = Holds::default();
    let cases: [(u64, u64, u64); 6] = [
        (0, 100, 0),
        (30, 70, 0),
        (100, 0, 0),
        (101, 0, 1),
        (1 << 63, 0, (1 << 63) - 100),
        (99, 1, 0),
    ];
    for (hits, back, due) in cases {
        assert!(holds.take(id(1), hold(100)).is_some());
        let settled = holds.settle(id(1), hits).unwrap();
        assert_eq!((settled.unspent.tokens, settled.due), (leased(back, 7), due), "{hits}");
        assert_eq!(settled.unspent.key, Key::for_test(1));
    }
    assert_eq!(count(&holds, HoldCounter::Settled), 6);
    assert_eq!(count(&holds, HoldCounter::OverEstimated), 171);
    assert_eq!(count(&holds, HoldCounter::UnderEstimated), 1 + (1 << 63) - 100);
    assert_eq!(count(&holds, HoldCounter::InForce), 0);
    assert_eq!(count(&holds, HoldCounter::Hits), 0);
}

#[test]
fn only_the_first_settlement_of_an_id_settles() {
    let holds = Holds::default();
    assert_eq!(holds.settle(id(1), 5), None, "never started");
    holds.take(id(1), hold(100));
    assert_eq!(holds.settle(id(2), 5), None, "another id");
    assert!(holds.settle(id(1), 5).is_some());
    assert_eq!(holds.settle(id(1), 5), None, "twice");
    assert_eq!(count(&holds, HoldCounter::WithoutHold), 3);
}

#[test]
fn a_second_start_of_an_id_adds_to_what_it_holds() {
    let holds = Holds::default();
    holds.take(id(1), hold(100));
    holds.take(id(1), Hold { ends: at(300), ..hold(50) });
    assert_eq!(count(&holds, HoldCounter::InForce), 1);
    assert_eq!(count(&holds, HoldCounter::Hits), 150);
    assert_eq!(expire_all(&holds, at(299)), (Vec::new(), true), "it ends with the later one");
    // Each end settles its share.
    assert_eq!(holds.settle(id(1), 30).unwrap().unspent.tokens, leased(45, 7));
    assert_eq!(holds.settle(id(1), 100).unwrap().due, 25);
    assert_eq!(holds.settle(id(1), 1), None);
}

/// Tokens of a window that is over come back to none, but their hits need not be charged again.
#[test]
fn starts_in_two_windows_give_back_those_of_the_later_one() {
    let holds = Holds::default();
    holds.take(id(1), hold(100));
    holds.take(id(1), Hold { taken: leased(50, 8), ..hold(50) });
    let settled = holds.settle(id(1), 30).unwrap();
    assert_eq!((settled.unspent.tokens, settled.due), (leased(25, 8), 0));
    assert_eq!(holds.settle(id(1), 200).unwrap().due, 125);
}

#[test]
fn what_a_pod_admitted_by_itself_comes_back_after_the_tokens() {
    let holds = Holds::default();
    let alone = Hold { taken: LeasedTokens::default(), alone: 40, ..hold(40) };
    for (hits, tokens, back) in [(0, 100, 40), (40, 100, 0), (20, 100, 20), (60, 80, 0)] {
        holds.take(id(1), Hold { hits: 140, alone: 40, ..hold(100) });
        let unspent = holds.settle(id(1), hits).unwrap().unspent;
        assert_eq!((unspent.tokens.tokens, unspent.alone), (tokens, back), "{hits}");
    }
    holds.take(id(1), Hold { alone: 0, ..alone });
    let unspent = holds.settle(id(1), 0).unwrap().unspent;
    assert_eq!((unspent.tokens.tokens, unspent.alone), (0, 0), "counted elsewhere, and stays so");
}

#[test]
fn holds_end_in_order_and_only_those_that_release_give_back() {
    let holds = Holds::default();
    for n in 0..1_000 {
        let ends = at(1 + n * 7 % 1_000);
        holds.take(id(n), Hold { ends, releases: n % 2 == 0, ..hold(n) });
    }
    assert_eq!(expire_all(&holds, at(0)), (Vec::new(), true));
    let (given, more) = expire_all(&holds, at(500));
    assert!(more);
    assert_eq!(count(&holds, HoldCounter::InForce), 500);
    assert!(given.iter().all(|unspent| unspent.tokens.tokens % 2 == 0));
    let of_part = |part| holds.expire(part, at(1_000)).0;
    for given in holds.parts().map(of_part) {
        let ends = |unspent: &Unspent| 1 + unspent.tokens.tokens * 7 % 1_000;
        assert!(given.iter().map(ends).is_sorted(), "soonest first");
    }
    assert_eq!(count(&holds, HoldCounter::Expired), 1_000);
    assert_eq!(count(&holds, HoldCounter::Hits), 0);
}

#[test]
fn nothing_takes_memory_once_nothing_is_held() {
    let holds = Holds::default();
    for n in 0..10_000 {
        holds.take(id(n), Hold { key: Key::for_test(n), ..hold(1) });
    }
    assert!(count(&holds, HoldCounter::Bytes) > 10_000 * size_of::<Hold>() as u64);
    expire_all(&holds, at(0) + LASTS);
    assert!(!expire_all(&holds, at(0) + LASTS).1);
    assert_eq!(count(&holds, HoldCounter::Bytes), 0);
}

/// A million ids of one client fill three quarters of the table, and no more.
#[test]
fn a_client_with_a_million_ids_leaves_room_for_others() {
    let holds = Holds::default();
    let kept = (0..1_000_000).filter(|n| holds.take(id(*n), hold(1)).is_some()).count();
    assert!(kept >= 80_000 && kept <= HOLDS_MAX / 4 * 3 + PARTS * FEW as usize, "{kept}");
    assert_eq!(count(&holds, HoldCounter::NotKept), 1_000_000 - kept as u64);
    let of_others = (0..4_000).filter(|n| {
        let key = Key::for_test(100 + n / 20);
        holds.take(id(2_000_000 + n), Hold { key, ..hold(1) }).is_some()
    });
    let of_others = of_others.count();
    assert!(of_others > 3_950, "{of_others} of 4000, 20 of each client");
    assert!(holds.take(id(3), hold(1)).is_some(), "what is held may grow");
    // A million clients fill the rest.
    for n in 0..1_000_000 {
        holds.take(id(10_000_000 + n), Hold { key: Key::for_test(1_000 + n), ..hold(1) });
    }
    let all = count(&holds, HoldCounter::InForce);
    let most = HOLDS_MAX as u64 / 8 * 7;
    assert!(all <= most && all > most / 100 * 95, "{all}");
    let limit = Limit { algorithm: Algorithm::Concurrency, ..Limit::fixed_window(9, Unit::Second) };
    let slots = Hold { key: Key::for_test(9), limit, ..hold(1) };
    assert!(holds.take(id(4), slots).is_some(), "slots have room of their own");
    assert!(count(&holds, HoldCounter::Bytes) <= 19 << 20);
    expire_all(&holds, at(0) + LASTS);
    expire_all(&holds, at(0) + LASTS);
    assert_eq!(count(&holds, HoldCounter::Bytes), 0);
}

/// The sums of a model that keeps each start and settlement.
#[derive(Default)]
struct Model {
    /// Hits, and starts that have not ended, of each id.
    held: HashMap<u64, (u64, u64)>,
    taken: u64,
    given: u64,
    due: u64,
    costs: u64,
}

impl Model {
    /// Ends one start of an id; returns whether there was one.
    fn end_one(&mut self, id: u64) -> Option<()> {
        let (hits, starts) = self.held.get_mut(&id)?;
        (*hits, *starts) = (*hits - *hits / *starts, *starts - 1);
        if *starts == 0 {
            self.held.remove(&id);
        }
        Some(())
    }
}

proptest! {
    /// Whatever the order of starts and settlements: what is charged in the end is the cost of each
    /// settlement, and of a hold that ends what it kept.
    #[test]
    fn what_is_charged_is_what_was_used(
        steps in prop::collection::vec((0..3_u8, 0..8_u64, 0..1_000_u64), 1..200),
    ) {
        let holds = Holds::default();
        let mut model = Model::default();
        for (step, n, hits) in steps {
            match step {
                0 => {
                    holds.take(id(n), hold(hits));
                    let (held, starts) = model.held.entry(n).or_default();
                    (*held, *starts) = (*held + hits, *starts + 1);
                    model.taken += hits;
                }
                _ => {
                    let before = model.end_one(n);
                    let settled = holds.settle(id(n), hits);
                    prop_assert_eq!(settled.is_some(), before.is_some());
                    model.costs += hits;
                    match settled {
                        Some(Settled { unspent, due }) => {
                            model.given += unspent.tokens.tokens;
                            model.due += due;
                        }
                        None => model.due += hits,
                    }
                }
            }
            let in_force: u64 = model.held.values().map(|(hits, _)| hits).sum();
            prop_assert_eq!(count(&holds, HoldCounter::Hits), in_force);
            prop_assert_eq!(model.taken + model.due - model.given, model.costs + in_force);
        }
        let ids: HashSet<_> = model.held.keys().map(|n| id(*n)).collect();
        prop_assert_eq!(count(&holds, HoldCounter::InForce), ids.len() as u64);
    }
}

#[test]
fn tokens_of_a_bucket_come_back_as_those_of_its_first_lease() {
    let holds = Holds::default();
    let algorithm = Algorithm::token_bucket(10);
    let limit = Limit { algorithm, ..Limit::fixed_window(10, Unit::Second) };
    holds.take(id(1), Hold { limit, taken: leased(3, 900), ..hold(3) });
    holds.take(id(1), Hold { limit, taken: leased(4, 700), ..hold(4) });
    assert_eq!(holds.settle(id(1), 2).unwrap().unspent.tokens, leased(1, 700));
    assert_eq!(holds.settle(id(1), 0).unwrap().unspent.tokens, leased(4, 700));
}
