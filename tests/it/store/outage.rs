//! Redis becomes unavailable, and returns.

use ratelease_engine::store::redis::RedisStore;
use ratelease_engine::store::redis::{Address, RedisKind, RedisSettings};
use ratelease_engine::store::{Ask, SHARDS_MAX, Store, StoreError};

use std::time::Duration;

use super::{ask, connected, exchange, granted, one, patient, until, until_granted};
use crate::support::now;
use crate::support::ports::free_port;
use crate::support::redis::{Cluster, Sentinel, Server, Single, tcp};

async fn is_unreachable(store: &dyn Store) -> String {
    let sent = now();
    let reply = one(store, ask(10, 1, 0)).await;
    assert!(sent.elapsed() < Duration::from_secs(1), "{:?}", sent.elapsed());
    match reply {
        Err(StoreError::Unreachable(why)) => why,
        other => panic!("{other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_appears_later_is_used() {
    let port = free_port();
    let settings = RedisSettings::new(RedisKind::Single, vec![tcp(port)]);
    let store = RedisStore::spawn(patient(settings), "");
    let why = is_unreachable(&*store).await;
    assert!(why.contains(&format!("127.0.0.1:{port}")), "{why}");
    let _server = Server::start_on(port, &[]);
    until_granted(&*store, ask(10, 1, 0), 10).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_restarts_is_used_again() {
    let mut single = Single::start();
    let store = connected(single.config()).await;
    granted(&*store, ask(10, 1, 0)).await;
    single.server.kill();
    until(5, "the loss is noticed", async || one(&*store, ask(10, 1, 0)).await.is_err()).await;
    single.server.start_again();
    until_granted(&*store, ask(10, 1, 0), 10).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn whatever_cannot_be_reached_is_no_reason_to_wait_or_to_die() {
    let nowhere = Address::Tcp("no-such-host.invalid".into(), 6379);
    let socket = Address::Unix("/nonexistent/redis.socket".into());
    let sentinel = RedisKind::Sentinel { master: "counts".into() };
    for (kind, addresses) in [
        (RedisKind::Single, vec![nowhere.clone()]),
        (RedisKind::Single, vec![socket]),
        (RedisKind::Single, vec![]),
        (RedisKind::Cluster, vec![nowhere.clone(), tcp(free_port())]),
        (RedisKind::Cluster, vec![]),
        (sentinel, vec![nowhere, tcp(free_port())]),
    ] {
        let store = RedisStore::spawn(RedisSettings::new(kind.clone(), addresses), "");
        let why = is_unreachable(&*store).await;
        println!("{kind:?}: {why}");
        // A cluster's slots then have no known owner, and share no queue with a master's.
        let expected = if kind == RedisKind::Cluster { SHARDS_MAX - 1 } else { 0 };
        assert_eq!(store.shard(&ask(1, 1, 0)), expected);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn one_server_taken_for_a_cluster_is_called_so() {
    let single = Single::start();
    let settings = RedisSettings::new(RedisKind::Cluster, vec![single.address()]);
    let refused = one(&*RedisStore::spawn(patient(settings), ""), ask(10, 1, 0)).await;
    let Err(StoreError::Unreachable(why)) = refused else { panic!("{refused:?}") };
    assert!(why.contains("REDIS_TYPE=single"), "{why}");
}

#[tokio::test(flavor = "multi_thread")]
async fn one_node_of_a_cluster_is_enough_to_find_the_rest() {
    let mut config = Cluster::shared().config();
    config.addresses = vec![tcp(free_port()), config.addresses.remove(4)];
    let store = connected(config).await;
    let asks: Vec<Ask> = (0..50).map(|_| ask(10, 1, 0)).collect();
    assert!(exchange(&*store, &asks).await.iter().all(Result::is_ok));
}

#[tokio::test(flavor = "multi_thread")]
async fn sentinels_lead_to_the_new_master() {
    let sentinel = Sentinel::start();
    let store = connected(sentinel.config()).await;
    let before = ask(10, 4, 0);
    granted(&*store, before).await;
    // Acknowledged by the replica, or it would be lost with the master. WAIT covers the writes of
    // its own connection, and earlier ones.
    let mut master = sentinel.master.connect();
    redis::cmd("SET").arg("marker").arg(1).exec(&mut master).unwrap();
    let acked: u64 = redis::cmd("WAIT").arg(1).arg(5_000).query(&mut master).unwrap();
    assert_eq!(acked, 1);
    sentinel.master.kill();
    let grant = until_granted(&*store, Ask { want: 0, ..before }, 30).await;
    assert_eq!(grant.left, 6, "the new master knows the count");
    assert_eq!(sentinel.replica.info("replication")["role"], "master");
}
