//! Tests of the way that each ask takes.

use std::time::Duration;

use super::*;
use crate::store::memory::MemoryStore;
use crate::store::{Grant, Slots, StoreError};
use ratelease_rules::key::Key;
use ratelease_rules::{Algorithm, Unit};

fn ask(key: u64, unit: Unit, want: u64) -> Ask {
    let limit = Limit::fixed_window(100, unit);
    Ask { want, charge_denied: true, ..Ask::look(Key::for_test(key), limit) }
}

/// The ask, under a limit that the store of this number counts.
fn of_store(number: usize, ask: Ask) -> Ask {
    let limit = Limit { store: StoreId::from_number(number).unwrap(), ..ask.limit };
    Ask { limit, ..ask }
}

fn memory() -> Arc<MemoryStore> {
    Arc::new(MemoryStore::new(Arc::new(|| Duration::from_secs(90)), 100))
}

fn named(name: &str, store: &Arc<MemoryStore>) -> NamedStore {
    NamedStore { name: name.into(), store: Arc::clone(store) as Arc<dyn Store> }
}

#[tokio::test]
async fn each_ask_reaches_its_store_and_replies_keep_their_order() {
    let (main, second) = (memory(), memory());
    let both = Stores::new(main.clone(), Some(second.clone()), Vec::new());
    let asks = [
        ask(1, Unit::Second, 1),
        ask(2, Unit::Hour, 2),
        ask(3, Unit::Second, 3),
        ask(4, Unit::Day, 4),
    ];
    let tokens = |replies: Vec<Result<Grant, StoreError>>| {
        replies.into_iter().map(|reply| reply.unwrap().tokens).collect::<Vec<_>>()
    };
    let exchange = async |asks: &[Ask]| join_all(asks.iter().map(|ask| both.lend(ask))).await;
    assert_eq!(tokens(exchange(&asks).await), [1, 2, 3, 4]);
    assert_eq!((main.keys(), second.keys()), (2, 2));
    assert_eq!(tokens(exchange(&asks[..1]).await), [1]);
    assert_eq!(tokens(exchange(&asks[1..2]).await), [2]);
    for (ask, expected) in asks.iter().zip(1..) {
        assert_eq!(both.lend(ask).await.unwrap().tokens, expected);
    }
    assert_eq!((main.keys(), second.keys()), (2, 2));
    let mut slots = Ask {
        slots: Some(Slots { pod: 1, held: 1, order: 0, since: 0, received: 0 }),
        ..ask(5, Unit::Second, 0)
    };
    slots.limit.algorithm = Algorithm::Concurrency;
    both.lend(&slots).await.unwrap();
    assert_eq!((main.keys(), second.keys()), (3, 2), "slots have no window");
}

#[tokio::test]
async fn a_limit_that_names_a_store_is_counted_there_even_by_the_second() {
    let (main, second, premium, batch) = (memory(), memory(), memory(), memory());
    let stores = vec![named("premium", &premium), named("batch", &batch)];
    let all = Stores::new(main.clone(), Some(second.clone()), stores);
    for (key, number) in [(1, 1), (2, 2), (3, 2)] {
        for unit in [Unit::Second, Unit::Day] {
            all.lend(&of_store(number, ask(key, unit, 5))).await.unwrap();
        }
    }
    let keys = [&main, &second, &premium, &batch].map(|store| store.keys());
    assert_eq!(keys, [0, 0, 1, 2], "a key that two windows share has one state");
}

#[test]
fn no_two_stores_share_a_shard() {
    let stores = vec![named("premium", &memory()), named("batch", &memory())];
    let all = Stores::new(memory(), Some(memory()), stores);
    let mut shards = std::collections::BTreeMap::new();
    for (unit, number) in [(Unit::Second, 0), (Unit::Hour, 0), (Unit::Second, 1), (Unit::Hour, 2)] {
        let shard = all.shard(&of_store(number, ask(1, unit, 1)));
        assert!(shard < SHARDS_OF_ALL_MAX);
        shards.insert(shard, all.store_name(shard));
    }
    let names: Vec<_> = shards.into_values().collect();
    assert_eq!(names, ["default", "premium", "batch", "persecond"]);
}
