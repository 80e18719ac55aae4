//! What is Redis's own: expiry, memory, scripts, logins.

use ratelease::rules::Unit;
use ratelease::settings::Secret;
use ratelease::store::redis::RedisStore;
use ratelease::store::{Ask, Store, StoreError};

use super::{ask, connected, connected_under, granted, one};
use crate::support::redis::{Cluster, Server, Single, tcp};

/// What a key may cost, its name of 27 bytes and the table's entry included.
const KEY_BYTES_MAX: u64 = 100;

#[tokio::test(flavor = "multi_thread")]
async fn every_key_expires_a_second_after_its_window() {
    let single = Single::start();
    let store = connected(single.config()).await;
    for unit in Unit::ALL {
        let mut ask = ask(10, 1, 0);
        ask.limit.unit = unit;
        let grant = granted(&*store, ask).await;
        let key = ask.key.in_store("");
        let expires: u64 = single.server.command(&["PEXPIRETIME", &key]);
        assert_eq!(expires, ((grant.epoch + 1) * unit.seconds() + 1) * 1_000, "{unit:?}");
    }
    for key in single.server.keys() {
        assert!(single.server.command::<i64>(&["PTTL", &key]) > 0, "{key}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_costs_no_more_than_it_may() {
    let cluster = Cluster::shared();
    let store = connected(cluster.config()).await;
    let ask = ask(u32::MAX, u64::MAX, 0);
    granted(&*store, ask).await;
    granted(&*store, Ask { need: 1, ..ask }).await;
    let bytes = cluster.memory_usage(&ask.key.in_store(""));
    println!("a key costs {bytes} bytes");
    assert!(bytes <= KEY_BYTES_MAX, "{bytes} bytes");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_look_makes_no_key_and_writes_nothing() {
    let single = Single::start();
    let store = connected(single.config()).await;
    let ask = ask(10, 0, 0);
    granted(&*store, ask).await;
    granted(&*store, Ask { need: 11, charge_denied: false, ..ask }).await;
    assert_eq!(single.server.keys(), [""; 0]);
    granted(&*store, Ask { want: 1, ..ask }).await;
    granted(&*store, ask).await;
    assert_eq!(single.server.calls("set"), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_ask_is_one_call_of_three_commands() {
    let single = Single::start();
    let store = connected(single.config()).await;
    let ask = ask(1_000, 1, 0);
    granted(&*store, ask).await;
    single.server.command::<()>(&["CONFIG", "RESETSTAT"]);
    for _ in 0..10 {
        granted(&*store, ask).await;
    }
    let mut calls = single.server.command_calls();
    calls.retain(|name, _| !["info", "config|resetstat", "client|setinfo"].contains(&&**name));
    let mut calls: Vec<_> = calls.into_iter().collect();
    calls.sort();
    let expected = [("evalsha", 10), ("get", 10), ("set", 10), ("time", 10)];
    assert_eq!(calls, expected.map(|(name, calls)| (name.to_owned(), calls)));
}

#[tokio::test(flavor = "multi_thread")]
async fn asks_right_after_a_script_flush_all_succeed() {
    // One of its own: whoever else asks a node brings the script back.
    let cluster = Cluster::start(3, 0);
    let store = connected(cluster.config()).await;
    for node in &cluster.nodes {
        node.command::<()>(&["SCRIPT", "FLUSH"]);
    }
    let asks: Vec<_> = (0..300).map(|_| ask(10, 2, 0)).collect();
    for reply in store.exchange(&asks).await {
        assert_eq!(reply.unwrap().tokens, 2);
    }
    assert!(store.counts().noscripts > 0, "the scripts were there: {:?}", store.counts());
    assert_eq!(store.counts().errors, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_prefix_names_the_keys() {
    let single = Single::start();
    let store = connected_under(single.config(), "shop:").await;
    let ask = ask(10, 1, 0);
    granted(&*store, ask).await;
    assert_eq!(single.server.keys(), [ask.key.in_store("shop:")]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_foreign_value_under_the_key_is_refused_and_kept() {
    let single = Single::start();
    let store = connected(single.config()).await;
    let ask = ask(10, 1, 0);
    let key = ask.key.in_store("");
    single.server.command::<()>(&["SET", &key, "mine"]);
    let refused = one(&*store, ask).await;
    assert!(matches!(refused, Err(StoreError::Refused(_))), "{refused:?}");
    assert_eq!(single.server.command::<String>(&["GET", &key]), "mine");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_server_refuses_the_ask() {
    let single = Single::start();
    let store = connected(single.config()).await;
    granted(&*store, ask(10, 1, 0)).await;
    single.server.command::<()>(&["CONFIG", "SET", "maxmemory", "1"]);
    let refused = one(&*store, ask(10, 1, 0)).await;
    assert!(
        matches!(&refused, Err(StoreError::Refused(why)) if why.contains("OOM")),
        "{refused:?}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_password_opens_the_door_and_a_wrong_one_does_not() {
    let server = Server::start_protected(&[], "sesame");
    let mut config = Single::start().config();
    config.addresses = vec![tcp(server.port())];
    for (password, code) in [(Some("barley"), "WRONGPASS"), (None, "NOAUTH")] {
        config.password = password.map(Secret::from);
        let refused = one(&*RedisStore::spawn(config.clone(), ""), ask(10, 1, 0)).await;
        let Err(StoreError::Unreachable(why)) = refused else { panic!("{refused:?}") };
        assert!(why.contains(code), "{why}");
        assert!(!why.contains("barley"), "{why}");
    }
    config.password = Some(Secret::from("sesame"));
    granted(&*connected(config).await, ask(10, 1, 0)).await;
}

/// With these rights and no others it must work. A cluster needs `+cluster|slots +asking` as well.
#[tokio::test(flavor = "multi_thread")]
async fn a_user_with_the_fewest_rights_suffices() {
    let single = Single::start();
    let rights = "on >pw ~rl:* resetchannels -@all +hello +auth +evalsha +eval +time +get +set";
    let mut words = vec!["ACL", "SETUSER", "ratelease", "reset"];
    words.extend(rights.split(' '));
    single.server.command::<()>(&words);
    let mut config = single.config();
    config.username = Some("ratelease".into());
    // A user without a password is somebody else, never the default user.
    let refused = one(&*RedisStore::spawn(config.clone(), ""), ask(10, 1, 0)).await;
    assert!(matches!(refused, Err(StoreError::Unreachable(_))), "{refused:?}");
    config.password = Some(Secret::from("pw"));
    let store = connected(config).await;
    granted(&*store, ask(10, 1, 0)).await;
    single.server.command::<()>(&["ACL", "SETUSER", "ratelease", "-set"]);
    let refused = one(&*store, ask(10, 1, 0)).await;
    assert!(matches!(refused, Err(StoreError::Refused(_))), "{refused:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cluster_taken_for_one_server_is_called_so() {
    let cluster = Cluster::shared();
    let mut config = Single::start().config();
    config.addresses = vec![cluster.addresses().remove(0)];
    let store = connected(config).await;
    let asks: Vec<_> = (0..30).map(|_| ask(10, 1, 0)).collect();
    let refused: Vec<_> = store.exchange(&asks).await.into_iter().filter_map(Result::err).collect();
    assert!(!refused.is_empty());
    for why in refused {
        assert!(why.to_string().contains("REDIS_TYPE=cluster"), "{why}");
    }
}
