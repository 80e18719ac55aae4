//! Orders for single keys on a real Redis: what a follower hears, also after it was not connected.

use std::sync::Arc;
use std::time::Duration;

use ratelease_engine::order::{ORDERS_MAX, Order, Ordered};
use ratelease_engine::store::redis::RedisStore;
use ratelease_engine::store::{Ask, Store, StoreError};
use ratelease_rules::key::Key;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

use super::{ask, connected, granted, patient, within};
use crate::support::redis::Single;

const HOUR: Duration = Duration::from_secs(3_600);

/// Follows the orders of a store in a task of its own, until the test ends.
fn followed(store: &Arc<RedisStore>) -> UnboundedReceiver<Ordered> {
    let (heard, orders) = unbounded_channel();
    let store = Arc::clone(store);
    tokio::spawn(async move {
        let follow = move |_, ordered| {
            // The test may have ended.
            let _ = heard.send(ordered);
        };
        store.follow_orders(&follow).await;
    });
    orders
}

async fn next(orders: &mut UnboundedReceiver<Ordered>) -> Ordered {
    within(10, "an order arrives", orders.recv()).await.expect("an order")
}

/// The keys that are blocked by what was heard, with the seconds that are left of each, in minutes
/// that have begun: a test takes a part of one.
fn blocked(ordered: Ordered) -> Vec<(Key, u64)> {
    let Ordered::Blocked(keys) = ordered else { panic!("{ordered:?}") };
    let seconds = |lasts: Duration| lasts.as_secs().next_multiple_of(60);
    keys.into_iter().map(|(key, lasts)| (key, seconds(lasts))).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_follower_hears_each_order_and_what_it_missed_when_it_connects_again() {
    let single = Single::start();
    let store = connected(patient(single.config())).await;
    let [a, b] = [ask(5, 0, 0), ask(5, 0, 0)];
    store.order(&a, Order::Block(2 * HOUR)).await.unwrap();
    let mut orders = followed(&store);
    assert_eq!(blocked(next(&mut orders).await), [(a.key, 7_200)]);

    store.order(&b, Order::Reset).await.unwrap();
    assert_eq!(next(&mut orders).await, Ordered::Now(b.key, Order::Reset));
    store.order(&b, Order::Block(HOUR)).await.unwrap();
    let Ordered::Now(key, Order::Block(lasts)) = next(&mut orders).await else { panic!() };
    assert!(key == b.key && lasts.as_secs().next_multiple_of(60) == 3_600, "{lasts:?}");
    store.order(&a, Order::Lift).await.unwrap();
    assert_eq!(next(&mut orders).await, Ordered::Now(a.key, Order::Lift));

    // Every connection breaks, and an order comes before the follower is back.
    single.server.command::<i64>(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]);
    let other = connected(patient(single.config())).await;
    other.order(&a, Order::Reset).await.unwrap();
    // In one of two orders: the follower may be back before it.
    let heard = [next(&mut orders).await, next(&mut orders).await];
    let resets = heard.iter().filter(|it| **it == Ordered::Now(a.key, Order::Reset)).count();
    assert_eq!(resets, 1, "{heard:?}");
    let keys = heard.into_iter().find(|it| matches!(it, Ordered::Blocked(_))).expect("the blocks");
    assert_eq!(blocked(keys), [(b.key, 3_600)], "the lifted one is gone, the other is in force");
}

#[tokio::test(flavor = "multi_thread")]
async fn orders_that_have_not_ended_are_bounded_and_the_newest_of_a_key_replaces_the_others() {
    let single = Single::start();
    let store = connected(patient(single.config())).await;
    let first = ask(5, 0, 0);
    for _ in 0..3 {
        store.order(&first, Order::Block(HOUR)).await.unwrap();
        store.order(&first, Order::Lift).await.unwrap();
    }
    let entries = || single.server.command::<usize>(&["XLEN", "rl:orders"]);
    assert_eq!(entries(), 1);
    for _ in 1..ORDERS_MAX {
        store.order(&ask(5, 0, 0), Order::Block(HOUR)).await.unwrap();
    }
    let refused = store.order(&ask(5, 0, 0), Order::Reset).await;
    assert!(matches!(&refused, Err(StoreError::Full(_) | StoreError::Refused(_))), "{refused:?}");
    assert!(refused.unwrap_err().to_string().contains("256 orders"), "what is full");
    store.order(&first, Order::Lift).await.expect("one of the same key");
    let mut orders = followed(&store);
    assert_eq!(blocked(next(&mut orders).await).len(), ORDERS_MAX - 1);
    // Nothing is left of them when the last one has ended.
    let expires = single.server.command::<i64>(&["PTTL", "rl:orders"]);
    assert!((3_590_000..=3_601_000).contains(&expires), "{expires}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cleared_count_is_as_if_nothing_had_been_charged() {
    let single = Single::start();
    let store = connected(patient(single.config())).await;
    let spent = ask(5, 5, 1);
    assert_eq!(granted(&*store, spent).await.tokens, 5);
    let look = Ask::look(spent.key, spent.limit);
    assert_eq!(granted(&*store, look).await.left, 0);
    store.clear(&spent).await.unwrap();
    store.clear(&spent).await.expect("one that is not there");
    assert_eq!(granted(&*store, look).await.left, 5);
}

#[tokio::test(flavor = "multi_thread")]
async fn another_programs_stream_is_left_as_it_is() {
    let single = Single::start();
    let store = connected(patient(single.config())).await;
    single.server.command::<String>(&["XADD", "rl:orders", "*", "temperature", "21"]);
    let refused = store.order(&ask(5, 0, 0), Order::Reset).await;
    assert_eq!(refused, Err(StoreError::ForeignValue));
    assert_eq!(single.server.command::<usize>(&["XLEN", "rl:orders"]), 1);
}
