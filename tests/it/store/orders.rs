//! Orders for single keys on a real Redis: what a follower hears, also after it was not connected.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ratelease_engine::counter::RedisCounter;
use ratelease_engine::order::{Action, BY_BYTES_MAX, ORDERS_MAX, Order, Ordered};
use ratelease_engine::store::redis::{RedisKind, RedisSettings, RedisStore, SLOTS, slot_of};
use ratelease_engine::store::{Ask, Heartbeat, Store, StoreError};
use ratelease_rules::key::Key;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

use super::{ask, connected, count, fresh_key, granted, patient, until, within};
use crate::support::faketime::FakeClock;
use crate::support::now;
use crate::support::redis::{Cluster, Server, Single, tcp};
use crate::support::redis_cluster::ClusterOptions;
use crate::support::windows::wall_clock;

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
    keys.into_iter().map(|blocked| (blocked.key, in_minutes(blocked.lasts))).collect()
}

fn in_minutes(lasts: Duration) -> u64 {
    lasts.as_secs().next_multiple_of(60)
}

const BY: &str = "alice of ops";

fn order(action: Action) -> Order {
    Order::new(action, BY)
}

/// The order that a follower heard, if one was given just now; by [`BY`].
fn given(ordered: &Ordered) -> Option<(Key, Action)> {
    let Ordered::Now(key, Order { action, note }) = ordered else { return None };
    assert_eq!(&*note.by, BY);
    Some((*key, *action))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_follower_hears_each_order_and_what_it_missed_when_it_connects_again() {
    let single = Single::start();
    let store = connected(patient(single.config())).await;
    let [a, b] = [ask(5, 0, 0), ask(5, 0, 0)];
    store.order(&a, order(Action::Block(2 * HOUR))).await.unwrap();
    let mut orders = followed(&store);
    assert_eq!(blocked(next(&mut orders).await), [(a.key, 7_200)]);

    store.order(&b, order(Action::Reset)).await.unwrap();
    assert_eq!(given(&next(&mut orders).await), Some((b.key, Action::Reset)));
    store.order(&b, order(Action::Block(HOUR))).await.unwrap();
    let heard = given(&next(&mut orders).await);
    let Some((key, Action::Block(lasts))) = heard else { panic!("{heard:?}") };
    assert_eq!((key, in_minutes(lasts)), (b.key, 3_600));
    store.order(&a, order(Action::Lift)).await.unwrap();
    assert_eq!(given(&next(&mut orders).await), Some((a.key, Action::Lift)));

    // Every connection breaks, and an order comes before the follower is back.
    single.server.command::<i64>(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]);
    let other = connected(patient(single.config())).await;
    other.order(&a, order(Action::Reset)).await.unwrap();
    // In one of two orders: the follower may be back before it.
    let heard = [next(&mut orders).await, next(&mut orders).await];
    let resets = heard.iter().filter(|it| given(it) == Some((a.key, Action::Reset))).count();
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
        store.order(&first, order(Action::Block(HOUR))).await.unwrap();
        store.order(&first, order(Action::Lift)).await.unwrap();
    }
    let entries = || single.server.command::<usize>(&["XLEN", "rl:orders"]);
    assert_eq!(entries(), 1);
    for _ in 1..ORDERS_MAX {
        store.order(&ask(5, 0, 0), order(Action::Block(HOUR))).await.unwrap();
    }
    let refused = store.order(&ask(5, 0, 0), order(Action::Reset)).await;
    assert!(matches!(&refused, Err(StoreError::Full(_) | StoreError::Refused(_))), "{refused:?}");
    assert!(refused.unwrap_err().to_string().contains("256 orders"), "what is full");
    store.order(&first, order(Action::Lift)).await.expect("one of the same key");
    let mut orders = followed(&store);
    assert_eq!(blocked(next(&mut orders).await).len(), ORDERS_MAX - 1);
    // Nothing is left of them two hours after the last one has ended.
    let expires = single.server.command::<u64>(&["PTTL", "rl:orders"]);
    let least = (HOUR + 2 * HOUR - Duration::from_secs(60)).as_millis();
    assert!((least..=least + 60_000).contains(&u128::from(expires)), "{expires}");
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
    let refused = store.order(&ask(5, 0, 0), order(Action::Reset)).await;
    assert_eq!(refused, Err(StoreError::ForeignValue));
    assert_eq!(single.server.command::<usize>(&["XLEN", "rl:orders"]), 1);
}

fn hex(key: Key) -> String {
    key.words().iter().map(|word| format!("{word:08x}")).collect()
}

/// Writes an entry into the stream, as any client of Redis may.
fn put(server: &Server, field: &str, value: &str) {
    server.command::<String>(&["XADD", "rl:orders", "*", field, value]);
}

#[tokio::test(flavor = "multi_thread")]
async fn entries_that_are_no_orders_are_skipped_and_counted() {
    let single = Single::start();
    let store = connected(patient(single.config())).await;
    let mut orders = followed(&store);
    assert_eq!(blocked(next(&mut orders).await), []);
    let ask = ask(5, 0, 0);
    let block = format!("{} block", hex(ask.key));
    // The last is larger than a reply may be.
    let (endless, large) = (format!("{block} {} 1 x", u64::MAX), "x".repeat(5 << 20));
    // One of a kind that a newer version knows comes first.
    let burn = format!("{} burn 61000 1 b", hex(fresh_key()));
    for value in [&burn, "", &endless, &large] {
        put(&single.server, "order", value);
    }
    put(&single.server, "temperature", "21");
    store.order(&ask, order(Action::Block(HOUR))).await.unwrap();
    let is_blocked = |ordered: Ordered| match ordered {
        Ordered::Blocked(keys) => keys.iter().any(|it| it.key == ask.key),
        Ordered::Now(key, _) => key == ask.key,
    };
    while !is_blocked(next(&mut orders).await) {}
    assert!(count(&*store, RedisCounter::OrdersSkipped) >= 5);
    let read = store.read_orders(None).await.unwrap();
    assert_eq!(read[0].blocked.iter().map(|it| it.key).collect::<Vec<_>>(), [ask.key]);

    let other = connected(patient(single.config())).await;
    assert_eq!(blocked(next(&mut followed(&other)).await), [(ask.key, 3_600)]);
    assert_eq!(count(&*other, RedisCounter::OrdersSkipped), 5);
    // And they do not keep the stream.
    let expires = single.server.command::<i64>(&["PTTL", "rl:orders"]);
    assert!((1..=3 * 3_600_000).contains(&expires), "{expires}");
}

#[tokio::test(flavor = "multi_thread")]
async fn thousands_of_entries_make_room_for_an_order() {
    let single = Single::start();
    let store = connected(patient(single.config())).await;
    let (of_key, of_another) = (ask(5, 0, 0), ask(5, 0, 0));
    let many = "for _ = 1, 9000 do redis.call('XADD', KEYS[1], '*', 'order', ARGV[1]) end";
    for (given, of) in [(&of_key, of_key.key), (&of_another, fresh_key())] {
        let text = format!("{} block 1000 1 x", hex(of));
        single.server.command::<()>(&["EVAL", many, "1", "rl:orders", &text]);
        store.order(given, order(Action::Block(HOUR))).await.unwrap();
        let length = single.server.command::<usize>(&["XLEN", "rl:orders"]);
        assert!(length <= ORDERS_MAX, "{length}");
    }
    let heard = blocked(next(&mut followed(&store)).await);
    assert_eq!(heard, [(of_key.key, 3_600), (of_another.key, 3_600)]);
}

#[tokio::test(flavor = "multi_thread")]
async fn as_many_blocks_with_long_names_are_heard_as_there_may_be() {
    let single = Single::start();
    let store = connected(patient(single.config())).await;
    let mut before = followed(&store);
    assert_eq!(blocked(next(&mut before).await), []);
    // While the follower waits, so that one reply has many.
    single.server.command::<String>(&["CLIENT", "PAUSE", "1000", "ALL"]);
    let by = "x".repeat(BY_BYTES_MAX);
    let blocks = (0..ORDERS_MAX).map(|_| async {
        let ask = ask(5, 0, 0);
        store.order(&ask, Order::new(Action::Block(HOUR), &by)).await.map(|()| ask.key)
    });
    let given: Vec<_> = futures_util::future::join_all(blocks).await;
    let given = given.into_iter().filter_map(Result::ok).collect::<HashSet<_>>();
    assert!(given.len() > ORDERS_MAX / 2, "{}", given.len());
    let mut heard = HashSet::new();
    while !given.is_subset(&heard) {
        match next(&mut before).await {
            Ordered::Now(key, _) => drop(heard.insert(key)),
            Ordered::Blocked(keys) => heard.extend(keys.into_iter().map(|it| it.key)),
        }
    }
    let other = connected(patient(single.config())).await;
    let read: HashSet<_> =
        blocked(next(&mut followed(&other)).await).into_iter().map(|(key, _)| key).collect();
    assert!(given.is_subset(&read), "{} of {}", read.len(), given.len());
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
    let taken = until_given(config, ask).await;
    let is_it = |ordered: &Ordered| match ordered {
        Ordered::Now(..) => {
            matches!(given(ordered), Some((key, Action::Block(_))) if key == ask.key)
        }
        Ordered::Blocked(keys) => keys.iter().any(|blocked| blocked.key == ask.key),
    };
    while !is_it(&next(orders).await) {}
    taken.elapsed()
}

/// Ends a server, or stops it as it is.
fn halt(server: &Server, is_killed: bool) {
    match is_killed {
        true => server.kill(),
        false => server.stop(),
    }
}

async fn until_given(config: &RedisSettings, ask: &Ask) -> Instant {
    within(40, "an order is taken", async {
        loop {
            let store = RedisStore::spawn(config.clone(), "");
            if store.order(ask, order(Action::Block(HOUR))).await.is_ok() {
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
        halt(master, is_killed);
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
        halt(&single.server, is_killed);
        // Heartbeats find out, as in a pod.
        let beats = async {
            loop {
                let _ = store.beat(BEAT).await;
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
        };
        let _ = tokio::time::timeout(Duration::from_secs(12), beats).await;
        match is_killed {
            true => single.server.start_again(),
            false => single.server.cont(),
        }
        within(10, "the store connects", async { while store.beat(BEAT).await.is_err() {} }).await;
        let took = heard_after(&single.config(), &ask(5, 0, 0), &mut orders).await;
        println!("after an outage, killed {is_killed}: {took:?}");
        late.extend((took > SOON).then_some(took));
    }
    assert!(late.is_empty(), "{late:?}");
}

const BEAT: Heartbeat =
    Heartbeat { pod: 1, lasts: Duration::from_secs(3), leaves: false, domain: None };

/// By how much the clock of a server is set in tests, in seconds.
const STEPS: [f64; 2] = [-1_200.0, 1_200.0];

/// By how much the ends of a block may differ: a second by the clocks, and a busy machine.
const AGREED: Duration = Duration::from_secs(3);

/// When the blocks of these keys end that a new follower learns of; `None` of one that is not
/// blocked.
async fn ends_for_a_new_pod(config: &RedisSettings, keys: [Key; 2]) -> [Option<Instant>; 2] {
    // Not `connected`: the slot map may still name a master that is gone.
    let store = RedisStore::spawn(config.clone(), "");
    let mut orders = followed(&store);
    let heard = tokio::time::timeout(Duration::from_secs(2), orders.recv()).await;
    let Ok(Some(Ordered::Blocked(blocked))) = heard else { return [None; 2] };
    let learnt = now();
    keys.map(|key| blocked.iter().find(|it| it.key == key).map(|it| learnt + it.lasts))
}

/// Whether a new pod learns that the block of each of these keys ends then.
async fn agrees(config: &RedisSettings, keys: [Key; 2], ends: [Instant; 2]) -> bool {
    let by_new_pod = ends_for_a_new_pod(config, keys).await;
    let is_close = |(ends, by_new_pod): (Instant, Option<Instant>)| {
        by_new_pod.is_some_and(|it| it.duration_since(ends).max(ends.duration_since(it)) < AGREED)
    };
    ends.into_iter().zip(by_new_pod).all(is_close)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_step_of_the_servers_clock_leaves_blocks_as_they_are() {
    for step in STEPS {
        let clock = FakeClock::new();
        let server = Server::start_with_env(&[], &clock.env());
        let settings = RedisSettings::new(RedisKind::Single, vec![tcp(server.port())]);
        let config = patient(settings);
        let store = connected(config.clone()).await;
        let asks = [ask(5, 0, 0), ask(5, 0, 0)];
        let lasts = Duration::from_secs(600);
        let mut orders = followed(&store);
        assert_eq!(blocked(next(&mut orders).await), []);
        store.order(&asks[0], order(Action::Block(lasts))).await.unwrap();
        let mut ends = [now() + lasts; 2];
        assert_eq!(given(&next(&mut orders).await).map(|(key, _)| key), Some(asks[0].key));

        clock.set(step);
        let is_set = async || {
            let (seconds, _): (u64, u64) = server.command(&["TIME"]);
            let apart = wall_clock().as_secs().abs_diff(seconds);
            apart > 1_000
        };
        until(10, "the clock is set", is_set).await;
        store.order(&asks[1], order(Action::Block(lasts))).await.unwrap();
        ends[1] = now() + lasts;
        // The follower may have connected again by now: then it has heard of all blocks.
        let left = async |orders: &mut UnboundedReceiver<Ordered>| match next(orders).await {
            Ordered::Now(key, Order { action: Action::Block(left), .. }) => vec![(key, left)],
            Ordered::Blocked(keys) => keys.into_iter().map(|it| (it.key, it.lasts)).collect(),
            other => panic!("{other:?}"),
        };
        for (key, left) in left(&mut orders).await {
            assert!(left > lasts - AGREED && left <= lasts, "{step}: {key} {left:?}");
        }
        let keys = asks.map(|ask| ask.key);
        let agree = async || agrees(&config, keys, ends).await;
        until(20, "pods that connect later agree", agree).await;
        // The statements leave both blocks of the first follower as they are.
        while let Ok(heard) = orders.try_recv() {
            let Ordered::Blocked(heard) = heard else { panic!("{step}: {heard:?}") };
            assert_eq!(heard.len(), 2, "{step}: {heard:?}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_replica_with_another_clock_leaves_blocks_as_they_are() {
    let clock = FakeClock::new();
    clock.set(-1_200.0);
    let at = slot_of(b"rl:orders") * 3 / SLOTS;
    let env_of = Some((at + 3, clock.env()));
    let cluster = Cluster::start_with(&ClusterOptions { env_of, ..ClusterOptions::new(3, 1) });
    assert_eq!(cluster.slot_owner(0, "rl:orders"), at);
    let store = connected(cluster.config()).await;
    let (kept, other) = (ask(5, 0, 0), ask(5, 0, 0));
    let lasts = Duration::from_secs(600);
    for ask in [&kept, &other] {
        store.order(ask, order(Action::Block(lasts))).await.unwrap();
    }
    let ends = [now() + lasts; 2];
    let mut orders = followed(&store);
    assert_eq!(blocked(next(&mut orders).await).len(), 2);
    let (master, replica) = (&cluster.nodes[at], &cluster.nodes[at + 3]);
    let mut writer = master.connect();
    redis::cmd("SET").arg("{rl:orders}marker").arg(1).exec(&mut writer).unwrap();
    let acked: u64 = redis::cmd("WAIT").arg(1).arg(10_000).query(&mut writer).unwrap();
    assert_eq!(acked, 1, "the replica has the blocks");
    master.kill();
    let took_over = async || replica.info("replication")["role"] == "master";
    until(30, "the replica takes over", took_over).await;
    let agree = async || agrees(&cluster.config(), [kept.key, other.key], ends).await;
    until(30, "pods that connect later agree", agree).await;
}
