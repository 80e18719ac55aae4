//! The contract of a count of slots, and what such a key is in Redis.

use ratelease_engine::algorithm::concurrency::{Holder, RETRY_AFTER, SLOTS_TTL};
use ratelease_engine::store::{Ask, Grant, Return, Slots, Store, StoreError};
use ratelease_rules::{Algorithm, Limit, Unit};

use std::time::Duration;

use super::{connected, fresh_key, granted, one, patient, until};
use crate::support::redis::Single;

/// An ask that looks at a fresh key of ten slots.
pub(super) fn look() -> Ask {
    let limit = Limit::fixed_window(10, Unit::Second);
    let ttl = Duration::from_secs(60);
    let limit = Limit { algorithm: Algorithm::Concurrency, ..limit };
    Ask { ttl, ..Ask::look(fresh_key(), limit) }
}

/// An ask of a pod that holds `held` slots and wants more.
fn of_pod(look: Ask, pod: u64, held: u64, want: u64) -> Ask {
    Ask { want, slots: Some(Slots { pod, held, order: 0, since: 0, received: 0 }), ..look }
}

fn counts(grant: &Grant) -> (u64, u64, bool) {
    (grant.tokens, grant.left, grant.overdrawn)
}

pub async fn keep_the_contract(store: &dyn Store) {
    lends_to_each_pod_what_it_wants_or_what_is_left(store).await;
    grants_a_need_whole_or_not_at_all(store).await;
    a_statement_replaces_the_last_one_of_its_pod(store).await;
    only_statements_give_slots_back(store).await;
    an_ask_that_a_later_one_has_overtaken_changes_nothing(store).await;
    an_ask_without_a_pod_only_looks(store).await;
    takes_the_largest_numbers(store).await;
}

async fn lends_to_each_pod_what_it_wants_or_what_is_left(store: &dyn Store) {
    let key = look();
    let mut lent = Vec::new();
    for (pod, want) in [(1, 4), (2, 100), (3, 4)] {
        lent.push(counts(&granted(store, of_pod(key, pod, 0, want)).await));
    }
    assert_eq!(lent, [(4, 6, false), (6, 0, false), (0, 0, false)]);
    let full = granted(store, key).await;
    assert_eq!((full.retry_after, full.reset_after), (RETRY_AFTER, Duration::ZERO));
    assert_eq!((full.starts_after, full.ends_after), (Duration::ZERO, SLOTS_TTL));
    let soon = Ask { ttl: Duration::from_secs(2), ..key };
    assert_eq!(granted(store, soon).await.ends_after, Duration::from_secs(2));
}

async fn grants_a_need_whole_or_not_at_all(store: &dyn Store) {
    let ask = Ask { charge_denied: true, ..of_pod(look(), 1, 0, 0) };
    assert_eq!(counts(&granted(store, Ask { need: 11, ..ask }).await), (0, 10, false));
    assert_eq!(granted(store, Ask { need: 7, want: 2, ..ask }).await.tokens, 7);
    let other = of_pod(ask, 2, 0, 0);
    assert_eq!(counts(&granted(store, Ask { need: 4, ..other }).await), (0, 3, false));
    assert_eq!(granted(store, Ask { need: 3, want: 5, ..other }).await.tokens, 3);
}

async fn a_statement_replaces_the_last_one_of_its_pod(store: &dyn Store) {
    let key = look();
    for _ in 0..3 {
        assert_eq!(granted(store, of_pod(key, 1, 0, 4)).await.left, 6, "no reply arrives");
    }
    assert_eq!(granted(store, of_pod(key, 1, 4, 1)).await.left, 5);
    assert_eq!(granted(store, of_pod(key, 1, 2, 0)).await.left, 8);
    assert_eq!(counts(&granted(store, of_pod(key, 2, 12, 3)).await), (0, 0, true), "they run");
    assert_eq!(counts(&granted(store, of_pod(key, 1, 2, 1)).await), (0, 0, true));
    assert_eq!(granted(store, of_pod(key, 2, 7, 0)).await.left, 1);
    for (pod, left) in [(1, 3), (2, 10)] {
        assert_eq!(granted(store, of_pod(key, pod, 0, 0)).await.left, left);
    }
}

async fn only_statements_give_slots_back(store: &dyn Store) {
    let key = look();
    let lent = granted(store, of_pod(key, 1, 0, 8)).await;
    for epoch in [None, Some(lent.epoch)] {
        let back = Some(Return { tokens: 5, epoch });
        assert_eq!(granted(store, Ask { back, ..key }).await.left, 2, "{epoch:?}");
        let stated = Ask { back, ..of_pod(key, 1, 8, 0) };
        assert_eq!(granted(store, stated).await.left, 2, "{epoch:?}");
    }
}

async fn an_ask_that_a_later_one_has_overtaken_changes_nothing(store: &dyn Store) {
    let key = look();
    let numbered = |held, want, order| {
        let slots = Some(Slots { pod: u64::MAX, held, order, since: order, received: 0 });
        Ask { want, slots, ..key }
    };
    assert_eq!(counts(&granted(store, numbered(0, 4, u32::MAX)).await), (4, 6, false));
    assert_eq!(counts(&granted(store, numbered(4, 2, 0)).await), (2, 4, false));
    for late in [u32::MAX, u32::MAX - 9, 1 << 31 | 1] {
        assert_eq!(counts(&granted(store, numbered(4, 1, late)).await), (0, 4, false), "{late}");
    }
    assert_eq!(counts(&granted(store, numbered(6, 1, 0)).await), (1, 3, false));
}

async fn an_ask_without_a_pod_only_looks(store: &dyn Store) {
    let key = look();
    granted(store, of_pod(key, 1, 0, 3)).await;
    for _ in 0..3 {
        let look = granted(store, Ask { want: 4, need: 2, ..key }).await;
        assert_eq!(counts(&look), (0, 7, false));
    }
}

async fn takes_the_largest_numbers(store: &dyn Store) {
    let mut key = look();
    key.limit.requests_per_unit = u32::MAX.into();
    let all = granted(store, of_pod(key, u64::MAX, 0, u64::MAX)).await;
    assert_eq!(counts(&all), (u32::MAX.into(), 0, false));
    let stated = of_pod(Ask { need: u64::MAX, ..key }, u64::MAX - 1, u64::MAX, u64::MAX);
    assert_eq!(counts(&granted(store, stated).await), (0, 0, true));
    assert_eq!(granted(store, of_pod(key, u64::MAX, 0, 0)).await.left, 0);
    assert_eq!(granted(store, of_pod(key, u64::MAX - 1, 1, 1)).await.left, u64::from(u32::MAX) - 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn slots_of_a_pod_that_falls_silent_come_back_after_the_term() {
    let single = Single::start();
    let store = connected(patient(single.config())).await;
    let key = look();
    let first = granted(&*store, of_pod(key, 1, 0, 9)).await;
    let mut second = granted(&*store, of_pod(key, 2, 0, 1)).await;
    until(20, "the slots of the first pod come back", async || {
        second = granted(&*store, of_pod(key, 2, 1, 0)).await;
        second.left == 9
    })
    .await;
    let silent = Duration::from_micros(second.epoch - first.epoch);
    let least = SLOTS_TTL - Duration::from_millis(2);
    assert!(silent >= least && silent < SLOTS_TTL + Duration::from_secs(3), "{silent:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_of_slots_goes_with_the_last_slot_and_a_minute_after_the_last_ask() {
    let single = Single::start();
    let store = connected(patient(single.config())).await;
    let ask = look();
    let key = ask.key.in_store("");
    for pod in 0..100 {
        let grant = granted(&*store, of_pod(ask, pod, 1, 0)).await;
        let expires: u64 = single.server.command(&["PEXPIRETIME", &key]);
        assert_eq!(expires, grant.epoch / 1_000 + 61_000, "{pod}");
    }
    // The text is long now, so that each pod's part is written in its place.
    for pod in [0, 50, 99] {
        let grant = granted(&*store, of_pod(ask, pod, 2, 0)).await;
        let expires: u64 = single.server.command(&["PEXPIRETIME", &key]);
        assert_eq!(expires, grant.epoch / 1_000 + 61_000, "{pod}");
    }
    for pod in 0..100 {
        assert_eq!(single.server.command::<u64>(&["EXISTS", &key]), 1, "{pod}");
        granted(&*store, of_pod(ask, pod, 0, 0)).await;
    }
    assert_eq!(single.server.command::<u64>(&["EXISTS", &key]), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_look_at_slots_and_a_pod_without_any_write_nothing() {
    let single = Single::start();
    let store = connected(patient(single.config())).await;
    let ask = look();
    let key = ask.key.in_store("");
    granted(&*store, ask).await;
    granted(&*store, of_pod(ask, 1, 0, 0)).await;
    granted(&*store, Ask { need: 11, ..of_pod(ask, 1, 0, 0) }).await;
    assert_eq!(single.server.keys(), [""; 0]);
    granted(&*store, of_pod(ask, 1, 0, 1)).await;
    let bytes = || single.server.command::<Vec<u8>>(&["DUMP", &key]);
    let before = bytes();
    granted(&*store, Ask { want: 1, need: 1, ..ask }).await;
    assert_eq!(bytes(), before);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_foreign_value_under_a_key_of_slots_is_refused_and_kept() {
    let single = Single::start();
    let store = connected(patient(single.config())).await;
    let ask = of_pod(look(), 1, 0, 1);
    let key = ask.key.in_store("");
    for foreign in ["mine", "17", "slots2", "slots1", "slots2 and more"] {
        single.server.command::<()>(&["SET", &key, foreign]);
        assert_eq!(one(&*store, ask).await, Err(StoreError::ForeignValue), "{foreign}");
        assert_eq!(single.server.command::<String>(&["GET", &key]), foreign);
    }
    single.server.command::<()>(&["DEL", &key]);
    single.server.command::<()>(&["RPUSH", &key, "mine"]);
    assert_eq!(one(&*store, ask).await, Err(StoreError::ForeignValue));
    assert_eq!(single.server.command::<Vec<String>>(&["LRANGE", &key, "0", "-1"]), ["mine"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_server_refuses_to_lend_slots_and_keeps_what_it_knows() {
    let single = Single::start();
    let store = connected(patient(single.config())).await;
    for pods in [1, 100] {
        let mut key = look();
        key.limit.requests_per_unit = 200;
        for pod in 0..pods {
            granted(&*store, of_pod(key, pod, 0, 1)).await;
        }
        single.server.command::<()>(&["CONFIG", "SET", "maxmemory", "1"]);
        let why = one(&*store, of_pod(key, 0, 1, 1)).await.expect_err("no memory").to_string();
        assert!(why.contains("refused") && why.contains("OOM"), "{pods}: {why}");
        single.server.command::<()>(&["CONFIG", "SET", "maxmemory", "0"]);
        assert_eq!(granted(&*store, key).await.left, 200 - pods);
    }
}

/// With the same figures for a hash in place of the text the choice was made: see the script.
#[tokio::test(flavor = "multi_thread")]
async fn a_pod_that_holds_slots_costs_26_bytes() {
    let single = Single::start();
    let store = connected(patient(single.config())).await;
    let mut key = look();
    key.limit.requests_per_unit = u32::MAX.into();
    let name = key.key.in_store("");
    for (pods, most) in [(1, 140), (100, 3_200), (1_000, 29_000)] {
        for pod in 0..pods {
            granted(&*store, of_pod(key, pod, 1, 0)).await;
        }
        let bytes: u64 = single.server.command(&["MEMORY", "USAGE", &name, "SAMPLES", "0"]);
        println!("a key whose slots {pods} pods hold costs {bytes} bytes");
        assert!(bytes <= most, "{pods}: {bytes}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_pods_that_hold_slots_are_read_with_what_they_hold() {
    let single = Single::start();
    let store = connected(patient(single.config())).await;
    let key = look();
    assert_eq!(store.holders(&key).await.unwrap(), []);
    for (pod, want) in [(1, 2), (u64::MAX, 4), (3, 1)] {
        granted(&*store, of_pod(key, pod, 0, want)).await;
    }
    let of = |holders: &[Holder]| holders.iter().map(|it| (it.pod, it.slots)).collect::<Vec<_>>();
    let holders = store.holders(&key).await.unwrap();
    assert_eq!(of(&holders), [(u64::MAX, 4), (1, 2), (3, 1)]);
    assert!(holders.iter().all(|it| it.silent < SLOTS_TTL), "{holders:?}");
    // Two that say nothing more are forgotten.
    let is_alone = async || {
        granted(&*store, of_pod(key, 1, 2, 0)).await;
        of(&store.holders(&key).await.unwrap()) == [(1, 2)]
    };
    until(10, "the others are forgotten", is_alone).await;
    let name = key.counter().in_store("");
    single.server.command::<()>(&["SET", &name, "mine"]);
    assert!(store.holders(&key).await.is_err(), "another program's");
}
