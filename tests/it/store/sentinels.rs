//! The checks that a server must pass before the client considers it a master.

use ratelease_engine::store::redis::RedisStore;
use ratelease_engine::store::redis::{RedisKind, RedisSettings};
use tokio::net::TcpListener;

use super::hostile::sentinel_of;
use super::{ask, connected, granted, one, patient, until};
use crate::support::redis::{Sentinel, Server, tcp};

async fn under_a_sentinel(master: u16) -> RedisSettings {
    let kind = RedisKind::Sentinel { master: "counts".into() };
    RedisSettings::new(kind, vec![tcp(sentinel_of(master).await)])
}

#[tokio::test(flavor = "multi_thread")]
async fn a_master_whose_user_may_not_ask_its_role_is_found() {
    let server = Server::start(&[]);
    server.command::<()>(&["ACL", "SETUSER", "default", "-role"]);
    let store = connected(patient(under_a_sentinel(server.port()).await)).await;
    granted(&*store, ask(10, 1, 0)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_replica_whose_user_may_not_ask_its_role_is_no_master() {
    let master = Server::start(&[]);
    let replica = Server::start(&["--replicaof", &format!("127.0.0.1 {}", master.port())]);
    replica.command::<()>(&["ACL", "SETUSER", "default", "-role"]);
    let store = RedisStore::spawn(patient(under_a_sentinel(replica.port()).await), "");
    let failed = one(&*store, ask(10, 1, 0)).await.unwrap_err().to_string();
    assert!(failed.contains("is called the master and is none yet"), "{failed}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_master_that_does_not_answer_is_named() {
    let hole = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = hole.local_addr().unwrap().port();
    let store = RedisStore::spawn(under_a_sentinel(port).await, "");
    let mut reported = String::new();
    until(20, "the attempt ends", async || {
        reported = one(&*store, ask(10, 1, 0)).await.unwrap_err().to_string();
        !reported.contains("still connecting")
    })
    .await;
    assert!(
        reported.contains(&format!("master counts: 127.0.0.1:{port}: no answer")),
        "{reported}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn the_database_is_selected_at_the_master_and_not_at_the_sentinel() {
    let sentinel = Sentinel::start();
    let mut config = patient(sentinel.config());
    config.database = 3;
    granted(&*connected(config).await, ask(10, 1, 0)).await;
    let keyspace = sentinel.master.info("keyspace");
    assert_eq!(keyspace.keys().collect::<Vec<_>>(), ["db3"]);
}
