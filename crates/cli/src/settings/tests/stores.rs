//! Tests of the named stores.

use ratelease_engine::store::NamedRedis;
use ratelease_engine::store::redis::RedisKind;

use super::*;

fn named(line: &str, env: Env<'_>) -> Vec<NamedRedis> {
    match good(line, env).store {
        StoreSettings::Redis { named, .. } => named,
        StoreSettings::Memory => panic!("no Redis with {env:?}"),
    }
}

const TWO: [(&str, &str); 4] = [
    ("REDIS_URL", "main:1"),
    ("REDIS_STORES", "premium, batch-2"),
    ("REDIS_STORE_PREMIUM_URL", "gold:2"),
    ("REDIS_STORE_BATCH_2_URL", "slow:3"),
];

#[test]
fn each_named_store_has_the_settings_of_a_redis_under_its_name() {
    let own = [
        ("REDIS_AUTH", "main-pass"),
        ("REDIS_STORE_PREMIUM_AUTH", "user:pass"),
        ("REDIS_STORE_PREMIUM_TLS", "true"),
        ("REDIS_STORE_BATCH_2_TYPE", "cluster"),
        ("REDIS_STORE_BATCH_2_URL", "slow:3,slower:4"),
        ("REDIS_STORE_BATCH_2_TIMEOUT", "2s"),
    ];
    let stores = named("ratelease serve", &[&TWO[..], &own].concat());
    let [premium, batch] = stores.as_slice() else { panic!("{stores:?}") };
    assert_eq!((&*premium.name, &*batch.name), ("premium", "batch-2"));
    assert_eq!(premium.redis.login.auth.username.as_deref(), Some("user"));
    assert!(premium.redis.tls.is_some() && batch.redis.tls.is_none());
    assert_eq!(batch.redis.kind, RedisKind::Cluster);
    let addresses: Vec<_> = batch.redis.addresses.iter().map(ToString::to_string).collect();
    assert_eq!(addresses, ["slow:3", "slower:4"]);
    assert_eq!(
        (&batch.redis.login.auth.password, batch.redis.timeout),
        (&None, Duration::from_secs(2))
    );
}

#[test]
fn flags_of_named_stores_exist_once_their_names_are_known() {
    let line = "ratelease serve --redis-stores=premium --redis-store-premium-url gold:9";
    let stores = named(line, &[("REDIS_URL", "main:1"), ("REDIS_STORES", "other")]);
    let [premium] = stores.as_slice() else { panic!("{stores:?}") };
    assert_eq!(premium.redis.addresses[0].to_string(), "gold:9");
    let parsed = parse("ratelease serve --redis-store-premium-url gold:9", &[]);
    assert!(matches!(parsed, Err(SettingsError::Usage(_))), "{parsed:?}");
}

#[test]
fn the_settings_of_named_stores_show_without_their_secrets() {
    let env = [&TWO[..], &[("REDIS_STORE_PREMIUM_AUTH", "secret")]].concat();
    let summary = good("ratelease serve", &env).summary;
    let value = |name: &str| summary.iter().find(|it| it.name == name).map(|it| &*it.value);
    assert_eq!(value("redis-stores"), Some("premium, batch-2"));
    assert_eq!(value("redis-store-premium-auth"), Some("***"));
    assert_eq!(value("redis-store-batch-2-type"), Some("single"));
}

#[test]
fn every_fault_of_named_stores_is_reported() {
    let found = faults(
        "ratelease serve",
        &[
            ("REDIS_URL", "main:1"),
            ("REDIS_STORES", "premium,batch"),
            ("REDIS_STORE_PREMIUM_TYPE", "clutser"),
            ("REDIS_STORE_PREMIUM_URL", "gold:2"),
            ("STORE_OF_DOMAIN", "acme=gold"),
        ],
    );
    let [domain, kind, url] = found.as_slice() else { panic!("{found:#?}") };
    let expected = "STORE_OF_DOMAIN: 'gold' is none of the stores default, premium, batch, found \
                    \"acme=gold\"; write domain=store";
    assert_eq!(domain, expected);
    assert!(kind.starts_with("REDIS_STORE_PREMIUM_TYPE: expected single, cluster or"), "{kind}");
    let expected = "REDIS_STORE_BATCH_URL: REDIS_STORES names batch, which needs it; set it or \
                    --redis-store-batch-url, as in REDIS_STORE_BATCH_URL=redis:6379";
    assert_eq!(url, expected);
    let refused = fault("REDIS_STORES", "Premium");
    assert!(refused.starts_with("REDIS_STORES: expected names of stores, and 'Premium' is not a"));
    let without_main = &TWO[1..];
    let found = faults("ratelease serve", without_main);
    assert_eq!(found.len(), 2, "{found:#?}");
    assert!(found[0].starts_with("REDIS_STORE_PREMIUM_URL: there is no Redis for limits that"));
}

#[test]
fn the_names_and_the_stores_of_domains_reach_the_rules() {
    let env = [&TWO[..], &[("STORE_OF_DOMAIN", "acme=premium")]].concat();
    let options = good("ratelease serve", &env).rules.reading.options;
    assert_eq!(options.stores.all(), ["default", "premium", "batch-2"]);
    let of_acme = options.domain_stores.find("acme");
    assert_eq!(options.stores.name(of_acme), "premium");
}
