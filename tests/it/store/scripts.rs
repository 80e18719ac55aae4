//! No ask waits for a script to be loaded: a connection begins by loading all of them.

use std::time::Duration;

use ratelease_engine::algorithm;
use ratelease_engine::counter::{RedisCounter, RedisFailure};
use ratelease_engine::secret::Secret;
use ratelease_engine::store::{Ask, Heartbeat, Store};

use super::{
    ALGORITHMS, ask_by, connected, connected_under, count, granted, patient, slots, until, within,
};
use crate::support::redis::{Cluster, Single};

/// The number of scripts: those of counts, and that of heartbeats.
fn scripts() -> u64 {
    algorithm::scripts().len() as u64 + 1
}

/// Calls every script, one after the other.
async fn call_every_script(store: &dyn Store) {
    for by in ALGORITHMS {
        granted(store, ask_by(by, 1, 0)).await;
    }
    granted(store, Ask { pool: Some(0), ..ask_by(ALGORITHMS[0], 1, 0) }).await;
    granted(store, slots::look()).await;
    let beat = Heartbeat { pod: 1, lasts: Duration::from_secs(9), leaves: false, domain: None };
    store.beat(beat).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn the_first_call_of_a_script_on_a_connection_finds_it() {
    let single = Single::start();
    let store = connected(patient(single.config())).await;
    call_every_script(&*store).await;
    assert_eq!((count(&*store, RedisFailure::NoScript), single.server.calls("eval")), (0, 0));

    // The state after a restart: the scripts are gone, and so is the connection.
    single.server.command::<()>(&["SCRIPT", "FLUSH"]);
    single.server.command::<()>(&["CLIENT", "KILL", "TYPE", "NORMAL"]);
    within(10, "the store reconnects", async {
        while count(&*store, RedisCounter::Connects) < 2 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        store.ready().await;
    })
    .await;
    call_every_script(&*store).await;
    assert_eq!((count(&*store, RedisFailure::NoScript), single.server.calls("eval")), (0, 0));
}

/// Such an end is not that of a proxy that refuses SCRIPT, whatever came before it.
#[tokio::test(flavor = "multi_thread")]
async fn a_connection_that_ends_before_any_ask_is_followed_by_one_with_the_scripts() {
    let single = Single::start();
    let store = connected(patient(single.config())).await;
    let number = scripts().to_string();
    let has_scripts = async || single.server.info("memory")["number_of_cached_scripts"] == number;
    until(10, "the first connection loads the scripts", has_scripts).await;
    for _ in 0..3 {
        single.server.command::<()>(&["SCRIPT", "FLUSH"]);
        single.server.command::<()>(&["CLIENT", "KILL", "TYPE", "NORMAL"]);
        until(10, "the next connection loads the scripts", has_scripts).await;
    }
    within(10, "the store reconnects", store.ready()).await;
    call_every_script(&*store).await;
    assert_eq!((count(&*store, RedisFailure::NoScript), single.server.calls("eval")), (0, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn after_a_script_flush_one_ask_meets_noscript_and_none_after_it() {
    let single = Single::start();
    let store = connected(patient(single.config())).await;
    // Its reply comes after the scripts were loaded: the flush does not come before that.
    granted(&*store, ask_by(ALGORITHMS[0], 1, 0)).await;
    single.server.command::<()>(&["SCRIPT", "FLUSH"]);
    call_every_script(&*store).await;
    assert_eq!((count(&*store, RedisFailure::NoScript), single.server.calls("eval")), (1, 1));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_a_redirect_names_has_the_scripts() {
    // A cluster of its own: other tests that ask a node would load the scripts.
    let cluster = Cluster::start(3, 0);
    let store = connected_under(patient(cluster.config()), "{on the move}").await;
    let slot = cluster.slot("{on the move}");
    let from = cluster.slot_owner(0, "{on the move}");
    let to = (from + 1) % 3;
    cluster.begin_move(slot, from, to);
    let asking = cluster.nodes[to].calls("asking");
    call_every_script(&*store).await;
    assert!(cluster.nodes[to].calls("asking") > asking, "the way by ASK was not taken");
    assert_eq!(count(&*store, RedisFailure::NoScript), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_user_who_may_not_load_scripts_teaches_them_by_calls() {
    let single = Single::start();
    let words = ["ACL", "SETUSER", "pod", "on", ">pw", "~*", "+@all", "-script"];
    single.server.command::<()>(&words);
    let mut config = single.config();
    (config.login.auth.username, config.login.auth.password) =
        (Some("pod".into()), Some(Secret::from("pw")));
    let store = connected(patient(config)).await;
    call_every_script(&*store).await;
    call_every_script(&*store).await;
    let met = |counter: RedisCounter| count(&*store, counter);
    assert_eq!(
        (
            met(RedisFailure::NoScript.into()),
            met(RedisFailure::Denied.into()),
            met(RedisCounter::Connects)
        ),
        (scripts(), 0, 1)
    );
    assert_eq!((single.server.calls("eval"), met(RedisCounter::Errors)), (scripts(), 0));
}
