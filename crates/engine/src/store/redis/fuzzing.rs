//! Feeds any reply to this store's parsers. For `tests/fuzz`.

use std::time::Duration;

use ratelease_rules::key::KeyHasher;
use ratelease_rules::{Algorithm, Limit, Unit};

use super::script;
use super::slots::{SLOTS, Slots};
use crate::store::Ask;
use crate::store::redis::settings::Address;

/// Tokens that the asks in this module want and need.
const WANT: u64 = 10;
const NEED: u64 = 3;

/// Reads a reply to CLUSTER SLOTS twice, as two successive maps. Returns `None` if it is not a
/// reply or lists no slots; otherwise the number of slots that have an owner, each of which is a
/// master.
pub fn cluster_slots(bytes: &[u8]) -> Option<usize> {
    let reply = redis::parse_redis_value(bytes).ok()?;
    let from = Address::Tcp("10.0.0.1".to_owned(), 6379);
    let slots = Slots::parse(&reply, &from, None).ok()?;
    let again = Slots::parse(&reply, &from, Some(&slots)).ok()?;
    let owners = |slots: &Slots| -> Vec<Option<Address>> {
        let owner = |slot| slots.owner(slot).and_then(|at| slots.masters().get(at).cloned()?);
        (0..SLOTS).map(owner).collect()
    };
    let (owners, owners_again) = (owners(&slots), owners(&again));
    assert_eq!(owners, owners_again, "a map that has not changed redirects to another node");
    Some(owners.iter().flatten().count())
}

/// Reads a reply to an ask of each algorithm. Returns `None` if it is not a reply; otherwise the
/// most tokens that any of the algorithms reads from it, which is never more than was asked for.
pub fn script_reply(bytes: &[u8]) -> Option<u64> {
    let reply = redis::parse_redis_value(bytes).ok()?;
    let key = KeyHasher::new("").key("d", 0, std::iter::empty());
    let algorithms = [
        Algorithm::FixedWindow,
        Algorithm::TokenBucket { burst: 20 },
        Algorithm::SlidingWindow,
        Algorithm::SlidingLog,
        Algorithm::LeakyBucket { max_delay_us: 1_000_000 },
    ];
    let read = algorithms.into_iter().flat_map(|algorithm| {
        let limit = Limit { algorithm, ..Limit::fixed_window(20, Unit::Minute) };
        let look = Ask::look(key, limit);
        let ask = Ask { want: WANT, need: NEED, ttl: Duration::from_secs(2), ..look };
        let ahead = Ask { next_window: true, ..ask };
        let pool = Ask { pool: Some(1), ..ask };
        [ask, ahead, pool].map(|ask| script::grant(&ask, &reply).map_or(0, |grant| grant.tokens))
    });
    let most = read.max();
    assert!(most <= Some(WANT.max(NEED)), "{most:?} tokens of a reply that grants fewer");
    most
}
