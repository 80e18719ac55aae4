//! Orders for single keys on a real Redis: what a follower hears, also after it was not connected.

use std::sync::Arc;
use std::time::{Duration, Instant};

use ratelease_engine::order::{ORDERS_MAX, Order, Ordered};
use ratelease_engine::store::redis::{RedisSettings, RedisStore};
use ratelease_engine::store::{Ask, Heartbeat, Store, StoreError};
use ratelease_rules::key::Key;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

use super::{ask, connected, granted, patient, until, within};
use crate::support::now;
use crate::support::redis::{Cluster, Single};
use crate::support::redis_cluster::ClusterOptions;

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

/// How late an order may be once Redis takes orders again: 250 ms are promised, and the rest is for
/// a busy machine.
const SOON: Duration = Duration::from_millis(1_000);

/// Gives an order as soon as Redis takes it, as `ratectl` would that connects now, and returns how
/// long after that the follower hears of it.
async fn heard_after(
    config: &RedisSettings,
    ask: &Ask,
    orders: &mut UnboundedReceiver<Ordered>,
) -> Duration {
    let given = until_given(config, ask).await;
    let is_it = |ordered: &Ordered| match ordered {
        Ordered::Now(key, Order::Block(_)) => *key == ask.key,
        Ordered::Blocked(keys) => keys.iter().any(|(key, _)| *key == ask.key),
        Ordered::Now(..) => false,
    };
    while !is_it(&next(orders).await) {}
    given.elapsed()
}

async fn until_given(config: &RedisSettings, ask: &Ask) -> Instant {
    within(40, "an order is taken", async {
        loop {
            let store = RedisStore::spawn(config.clone(), "");
            if store.order(ask, Order::Block(HOUR)).await.is_ok() {
                return now();
            }
        }
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn orders_are_heard_at_once_after_a_replica_took_over() {
    let options = ClusterOptions { node_timeout_ms: 1_500, ..ClusterOptions::new(3, 1) };
    let mut late = Vec::new();
    for is_killed in [false, true] {
        let cluster = Cluster::start_with(&options);
        let store = connected(cluster.config()).await;
        let mut orders = followed(&store);
        assert_eq!(next(&mut orders).await, Ordered::Blocked(Vec::new()));
        let at = cluster.slot_owner(0, "rl:orders");
        let (master, replica) = (&cluster.nodes[at], &cluster.nodes[at + 3]);
        if is_killed {
            master.kill();
        } else {
            master.stop();
        };
        let took_over = async || replica.info("replication")["role"] == "master";
        until(30, "the replica takes over", took_over).await;
        let took = heard_after(&cluster.config(), &ask(5, 0, 0), &mut orders).await;
        println!("after a failover, killed {is_killed}: {took:?}");
        late.extend((took > SOON).then_some(took));
    }
    assert!(late.is_empty(), "{late:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn orders_are_heard_at_once_after_an_outage() {
    let mut single = Single::start();
    let store = connected(single.config()).await;
    let mut orders = followed(&store);
    assert_eq!(next(&mut orders).await, Ordered::Blocked(Vec::new()));
    let mut late = Vec::new();
    for is_killed in [false, true] {
        if is_killed {
            single.server.kill();
        } else {
            single.server.stop();
        };
        // Heartbeats find out, as in a pod.
        let beats = async {
            loop {
                let _ = store.beat(BEAT).await;
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
        };
        let _ = tokio::time::timeout(Duration::from_secs(12), beats).await;
        if is_killed {
            single.server.start_again();
        } else {
            single.server.cont();
        };
        within(10, "the store connects", async { while store.beat(BEAT).await.is_err() {} }).await;
        let took = heard_after(&single.config(), &ask(5, 0, 0), &mut orders).await;
        println!("after an outage, killed {is_killed}: {took:?}");
        late.extend((took > SOON).then_some(took));
    }
    assert!(late.is_empty(), "{late:?}");
}

const BEAT: Heartbeat =
    Heartbeat { pod: 1, lasts: Duration::from_secs(3), leaves: false, domain: None };
