//! Properties of Redis alone: expiry, memory, scripts, logins.

use ratelease_engine::algorithm::counting;
use ratelease_engine::counter::{RedisCounter, RedisFailure};
use ratelease_engine::secret::Secret;
use ratelease_engine::store::redis::RedisStore;
use ratelease_engine::store::{Ask, Heartbeat, Return, Store, StoreError};
use ratelease_rules::{AMOUNT_MAX, Algorithm, Limit, Unit};

use std::num::NonZeroU32;
use std::time::Duration;

use super::{
    ALGORITHMS, algorithms, ask, ask_by, connected, connected_under, count, exchange, granted, one,
    patient, until, until_granted,
};
use crate::support::redis::{Cluster, Server, Single, tcp};

/// Maximum memory of a key, including its name of 27 bytes and the table's entry. A bucket's value
/// takes an object of 48 bytes, a number one of 16.
const KEY_BYTES_MAX: u64 = 120;
const LARGE_KEY_BYTES_MAX: u64 = 136;

#[tokio::test(flavor = "multi_thread")]
async fn every_key_expires_a_second_after_its_window() {
    let single = Single::start();
    let store = connected(patient(single.config())).await;
    for unit in Unit::ALL {
        for (algorithm, windows) in [(Algorithm::FixedWindow, 1), (Algorithm::SlidingWindow, 2)] {
            let ask = ask_by((algorithm, unit), 1, 0);
            let grant = granted(&*store, ask).await;
            let expires = expires_ms(&single, &ask);
            let expected = ((grant.epoch + windows) * unit.seconds() + 1) * 1_000;
            assert_eq!(expires, expected, "{algorithm:?} {unit:?}");
        }
    }
    for key in single.server.keys() {
        assert!(single.server.command::<i64>(&["PTTL", &key]) > 0, "{key}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_other_key_expires_a_second_after_its_debt_or_its_last_entry() {
    let single = Single::start();
    let store = connected(patient(single.config())).await;
    for by in ALGORITHMS {
        // A second step must move the expiry.
        let ask = ask_by(by, 1, 0);
        if counting(ask.limit).is_windowed {
            continue;
        }
        for _ in 0..2 {
            let grant = granted(&*store, ask).await;
            let reset_us = u64::try_from(grant.reset_after.as_nanos().div_ceil(1_000)).unwrap();
            let expected = (grant.epoch + reset_us).div_ceil(1_000) + 1_000;
            assert_eq!(expires_ms(&single, &ask), expected, "{by:?}");
        }
    }
}

/// A look, as `ratectl explain` sends it, also under a limit that was changed meanwhile.
#[tokio::test(flavor = "multi_thread")]
async fn a_look_leaves_the_bytes_of_a_key_and_its_expiry_as_they_are() {
    let single = Single::start();
    let store = connected(patient(single.config())).await;
    for by in ALGORITHMS {
        let ask = ask_by(by, 3, 0);
        granted(&*store, ask).await;
        let key = ask.counter().in_store("");
        let state = || {
            let bytes: Vec<u8> = single.server.command(&["DUMP", &key]);
            (bytes, expires_ms(&single, &ask))
        };
        let before = state();
        let raised = Limit { requests_per_unit: 20, ..ask.limit };
        for limit in [ask.limit, raised] {
            let look = granted(&*store, Ask { limit, ..Ask::look(ask.key, limit) }).await;
            assert_eq!(look.tokens, 0, "{by:?}");
            assert_eq!(state(), before, "{by:?} by {limit:?}");
        }
        let absent = Ask { limit: ask.limit, ..ask_by(by, 0, 0) };
        granted(&*store, absent).await;
        let made: u64 = single.server.command(&["EXISTS", &absent.counter().in_store("")]);
        assert_eq!(made, 0, "{by:?}: a look made a key");
    }
}

fn expires_ms(single: &Single, ask: &Ask) -> u64 {
    single.server.command(&["PEXPIRETIME", &ask.key.in_store("")])
}

/// Except for the log, which has one entry per token; with the largest possible numbers.
#[tokio::test(flavor = "multi_thread")]
async fn a_key_costs_no_more_than_it_may() {
    let cluster = Cluster::shared();
    let store = connected(patient(cluster.config())).await;
    for (algorithm, unit) in ALGORITHMS {
        let algorithm = match algorithm {
            Algorithm::SlidingLog => continue,
            Algorithm::TokenBucket { .. } => Algorithm::token_bucket(u32::MAX.into()),
            Algorithm::LeakyBucket { .. } => Algorithm::LeakyBucket { max_delay_us: u32::MAX },
            other => other,
        };
        for requests_per_unit in [1, 10, u64::from(u32::MAX), AMOUNT_MAX] {
            let mut ask = ask_by((algorithm, unit), u64::MAX, 0);
            ask.limit.requests_per_unit = requests_per_unit;
            granted(&*store, ask).await;
            granted(&*store, Ask { need: 1, ..ask }).await;
            let bytes = cluster.memory_usage(&ask.key.in_store(""));
            println!("{algorithm:?}: a key costs {bytes} bytes");
            // Numbers of more than 32 bits have a longer form.
            let is_large = requests_per_unit > u64::from(u32::MAX);
            let most = if is_large { LARGE_KEY_BYTES_MAX } else { KEY_BYTES_MAX };
            assert!(bytes <= most, "{algorithm:?}: {bytes} bytes");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_look_makes_no_key_and_writes_nothing() {
    let single = Single::start();
    let store = connected(patient(single.config())).await;
    for by in ALGORITHMS {
        let ask = ask_by(by, 0, 0);
        single.server.command::<()>(&["CONFIG", "RESETSTAT"]);
        granted(&*store, ask).await;
        granted(&*store, Ask { need: 11, charge_denied: false, ..ask }).await;
        let back = Some(Return { tokens: 3, epoch: None });
        granted(&*store, Ask { back, ..ask }).await;
        assert_eq!(single.server.keys(), [""; 0], "{by:?}");
        granted(&*store, Ask { want: 1, ..ask }).await;
        granted(&*store, ask).await;
        let writes = single.server.calls("set") + single.server.calls("rpush");
        assert_eq!(writes, 1, "{by:?}");
        single.server.command::<()>(&["FLUSHALL"]);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_ask_is_one_call_of_three_commands() {
    let single = Single::start();
    let store = connected(patient(single.config())).await;
    for by in ALGORITHMS.into_iter().filter(|by| by.0 != Algorithm::SlidingLog) {
        let ask = ask_by(by, 1, 0);
        granted(&*store, ask).await;
        single.server.command::<()>(&["CONFIG", "RESETSTAT"]);
        for _ in 0..9 {
            granted(&*store, ask).await;
        }
        let mut calls = single.server.command_calls();
        calls.retain(|name, _| !["info", "config|resetstat", "client|setinfo"].contains(&&**name));
        let mut calls: Vec<_> = calls.into_iter().collect();
        calls.sort();
        let expected = [("evalsha", 9), ("get", 9), ("set", 9), ("time", 9)];
        assert_eq!(calls, expected.map(|(name, calls)| (name.to_owned(), calls)), "{by:?}");
    }
}

/// The script finds expired entries by bisection and removes them with the next write: a log never
/// holds more than its limit, and no ask reads all of it.
#[tokio::test(flavor = "multi_thread")]
async fn a_log_of_ten_thousand_is_searched_by_halving() {
    let single = Single::start();
    let store = connected(patient(single.config())).await;
    let mut ask = ask_by((Algorithm::SlidingLog, Unit::Second), 5_000, 0);
    ask.limit.requests_per_unit = 10_000;
    ask.limit.unit_multiplier = NonZeroU32::new(2).unwrap();
    let first = granted(&*store, ask).await;
    let look = Ask { want: 0, ..ask };
    until(10, "half of the window passes", async || {
        granted(&*store, look).await.epoch >= first.epoch + 1_000_000
    })
    .await;
    assert_eq!(granted(&*store, ask).await.left, 0);
    until(10, "the first half expires", async || granted(&*store, look).await.left >= 5_000).await;
    single.server.command::<()>(&["CONFIG", "RESETSTAT"]);
    assert_eq!(granted(&*store, Ask { want: 1, ..ask }).await.tokens, 1);
    assert!(single.server.calls("lindex") <= 20, "{}", single.server.calls("lindex"));
    let key = ask.key.in_store("");
    assert!(single.server.command::<u64>(&["LLEN", &key]) <= 5_001);
    assert_ne!(single.server.command::<u64>(&["LINDEX", &key, "0"]), first.epoch);
    let bytes: u64 = single.server.command(&["MEMORY", "USAGE", &key, "SAMPLES", "0"]);
    println!("a log of half its 10 000 entries costs {bytes} bytes");
}

#[tokio::test(flavor = "multi_thread")]
async fn asks_right_after_a_script_flush_all_succeed() {
    // A cluster of its own: other tests that ask a node would load the script again.
    let cluster = Cluster::start(3, 0);
    let store = connected(patient(cluster.config())).await;
    for node in &cluster.nodes {
        node.command::<()>(&["SCRIPT", "FLUSH"]);
    }
    let asks: Vec<_> = (0..300).map(|_| ask(10, 2, 0)).collect();
    for reply in exchange(&*store, &asks).await {
        assert_eq!(reply.unwrap().tokens, 2);
    }
    assert!(
        count(&*store, RedisFailure::NoScript) > 0,
        "the scripts were there: {:?}",
        store.counts()
    );
    assert_eq!(count(&*store, RedisCounter::Errors), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_prefix_names_the_keys() {
    let single = Single::start();
    let store = connected_under(patient(single.config()), "shop:").await;
    let ask = ask(10, 1, 0);
    granted(&*store, ask).await;
    assert_eq!(single.server.keys(), [ask.key.in_store("shop:")]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_foreign_value_under_the_key_is_refused_and_kept() {
    let single = Single::start();
    let store = connected(patient(single.config())).await;
    for by in ALGORITHMS {
        let ask = ask_by(by, 1, 0);
        let key = ask.key.in_store("");
        for foreign in ["mine", "17"] {
            single.server.command::<()>(&["SET", &key, foreign]);
            assert_eq!(one(&*store, ask).await, Err(StoreError::ForeignValue), "{by:?}");
            assert_eq!(single.server.command::<String>(&["GET", &key]), foreign);
        }
        single.server.command::<()>(&["DEL", &key]);
        single.server.command::<()>(&["RPUSH", &key, "mine"]);
        assert_eq!(one(&*store, ask).await, Err(StoreError::ForeignValue), "{by:?}");
        assert_eq!(single.server.command::<Vec<String>>(&["LRANGE", &key, "0", "-1"]), ["mine"]);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_server_refuses_the_ask() {
    let single = Single::start();
    let store = connected(patient(single.config())).await;
    for by in ALGORITHMS {
        let ask = ask_by(by, 1, 0);
        granted(&*store, ask).await;
        single.server.command::<()>(&["CONFIG", "SET", "maxmemory", "1"]);
        let refused = one(&*store, ask).await;
        let why = refused.expect_err("there is no memory").to_string();
        assert!(why.contains("refused") && why.contains("OOM"), "{by:?}: {why}");
        single.server.command::<()>(&["CONFIG", "SET", "maxmemory", "0"]);
        assert_eq!(granted(&*store, Ask { want: 0, ..ask }).await.left, 9, "{by:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_password_opens_the_door_and_a_wrong_one_does_not() {
    let server = Server::start_protected(&[], "sesame");
    let mut config = patient(Single::start().config());
    config.addresses = vec![tcp(server.port())];
    for (password, code) in [(Some("barley"), "WRONGPASS"), (None, "NOAUTH")] {
        config.login.auth.password = password.map(Secret::from);
        let refused = one(&*RedisStore::spawn(config.clone(), ""), ask(10, 1, 0)).await;
        let Err(StoreError::Unreachable(why)) = refused else { panic!("{refused:?}") };
        assert!(why.contains(code), "{why}");
        assert!(!why.contains("barley"), "{why}");
    }
    config.login.auth.password = Some(Secret::from("sesame"));
    granted(&*connected(config).await, ask(10, 1, 0)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn counts_are_kept_in_the_database_that_is_named_after_a_reconnection_too() {
    let single = Single::start();
    let mut config = patient(single.config());
    config.database = 11;
    let store = connected(config).await;
    let keys_in = |database: &str| {
        let mut connection = single.server.connect();
        let _: () = redis::cmd("SELECT").arg(database).query(&mut connection).unwrap();
        redis::cmd("DBSIZE").query::<u64>(&mut connection).unwrap()
    };
    granted(&*store, ask(10, 1, 0)).await;
    assert_eq!((keys_in("11"), keys_in("0")), (1, 0));
    single.server.command::<u64>(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]);
    until_granted(&*store, ask(10, 1, 0), 10).await;
    assert_eq!(keys_in("0"), 0);
    assert!(keys_in("11") >= 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_database_that_does_not_exist_is_named_in_the_error() {
    let single = Single::start();
    let mut config = patient(single.config());
    config.database = 16;
    let refused = one(&*RedisStore::spawn(config, ""), ask(10, 1, 0)).await;
    let Err(StoreError::Unreachable(why)) = refused else { panic!("{refused:?}") };
    assert!(why.contains("database 16 of REDIS_URL: ERR DB index is out of range"), "{why}");
}

/// With these permissions and no others it must work. A cluster needs `+cluster|slots +asking` as
/// well, and `+cluster|nodes` for redirects to nodes without slots. Without `+script|load` each
/// script is loaded by its first call.
pub(super) const RIGHTS: &str =
    "on >pw ~rl:* resetchannels -@all +auth +evalsha +eval +time +get +set";
/// Permissions for the sliding log.
pub(super) const RIGHTS_LOG: &str = "+llen +lindex +lpop +rpop +lrem +rpush +pexpireat";
/// Permissions for the heartbeat.
const RIGHTS_BEAT: &str = "+zremrangebyscore +zcard +zscore +zadd +zrem +zrange +pexpireat";

#[tokio::test(flavor = "multi_thread")]
async fn a_user_with_the_fewest_rights_suffices() {
    let single = Single::start();
    let set_user = |rights: &str| {
        let words = ["ACL", "SETUSER", "ratelease"].into_iter().chain(rights.split(' '));
        single.server.command::<()>(&words.collect::<Vec<_>>());
    };
    set_user(&format!("reset {RIGHTS}"));
    let mut config = single.config();
    config.login.auth.username = Some("ratelease".into());
    // A user without a password must not fall back to the default user.
    let refused = one(&*RedisStore::spawn(config.clone(), ""), ask(10, 1, 0)).await;
    assert!(matches!(refused, Err(StoreError::Unreachable(_))), "{refused:?}");
    config.login.auth.password = Some(Secret::from("pw"));
    let store = connected(patient(config)).await;
    for by in ALGORITHMS.into_iter().filter(|by| by.0 != Algorithm::SlidingLog) {
        granted(&*store, ask_by(by, 1, 0)).await;
    }
    set_user(RIGHTS_LOG);
    algorithms::keeps_the_contract(&*store, (Algorithm::SlidingLog, Unit::Year)).await;
    set_user(RIGHTS_BEAT);
    for leaves in [false, true] {
        store
            .beat(Heartbeat { pod: 1, lasts: Duration::from_secs(9), leaves, domain: None })
            .await
            .unwrap();
    }
    set_user("-set");
    let refused = one(&*store, ask(10, 1, 0)).await;
    assert!(matches!(refused, Err(StoreError::Refused(_))), "{refused:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cluster_taken_for_one_server_is_called_so() {
    let cluster = Cluster::shared();
    let mut config = Single::start().config();
    config.addresses = vec![cluster.addresses().remove(0)];
    let store = connected(patient(config)).await;
    let asks: Vec<_> = (0..30).map(|_| ask(10, 1, 0)).collect();
    let refused: Vec<_> =
        exchange(&*store, &asks).await.into_iter().filter_map(Result::err).collect();
    assert!(!refused.is_empty());
    for why in refused {
        assert!(why.to_string().contains("REDIS_TYPE=cluster"), "{why}");
    }
}
