//! Tests of the Redis that a URL and its settings name.

use std::time::Duration;

use ratelease_engine::store::redis::{Address, RedisKind, RedisSettings};

use super::*;

fn store(env: Env<'_>) -> (RedisSettings, Option<RedisSettings>, String) {
    match good("ratelimit", env).store {
        StoreSettings::Redis { main, per_second, key_prefix, .. } => (main, per_second, key_prefix),
        StoreSettings::Memory => panic!("no Redis with {env:?}"),
    }
}

fn addresses(redis: &RedisSettings) -> Vec<String> {
    redis.addresses.iter().map(ToString::to_string).collect()
}

#[test]
fn a_single_server_is_a_host_with_a_port_or_a_socket() {
    for (url, address) in [
        ("redis:6379", Address::Tcp("redis".into(), 6379)),
        ("redis", Address::Tcp("redis".into(), 6379)),
        ("10.0.0.1:7000", Address::Tcp("10.0.0.1".into(), 7000)),
        ("[::1]:7000", Address::Tcp("::1".into(), 7000)),
        ("[::1]", Address::Tcp("::1".into(), 6379)),
        ("redis://redis:7000", Address::Tcp("redis".into(), 7000)),
        ("redis://redis/", Address::Tcp("redis".into(), 6379)),
        ("redis://redis:7000/0", Address::Tcp("redis".into(), 7000)),
        ("/run/redis.sock", Address::Unix("/run/redis.sock".into())),
        ("unix:///run/redis.sock", Address::Unix("/run/redis.sock".into())),
    ] {
        let (main, per_second, prefix) = store(&[("REDIS_URL", url)]);
        assert_eq!((main.kind, main.addresses), (RedisKind::Single, vec![address]), "{url}");
        assert_eq!((main.login.auth.username, main.login.auth.password), (None, None), "{url}");
        assert_eq!((per_second, prefix.as_str()), (None, ""), "{url}");
        assert_eq!(main.timeout, Duration::from_millis(250), "{url}");
    }
}

#[test]
fn a_cluster_is_a_list_whatever_the_socket_type() {
    for socket in ["tcp", "unix", "TCP", ""] {
        let url = "redis-0:7000, redis://redis-1:7001,[::1]:7002";
        let env = [("REDIS_TYPE", "CLUSTER"), ("REDIS_URL", url), ("REDIS_SOCKET_TYPE", socket)];
        let (main, ..) = store(&env);
        assert_eq!(main.kind, RedisKind::Cluster);
        assert_eq!(addresses(&main), ["redis-0:7000", "redis-1:7001", "[::1]:7002"]);
    }
}

#[test]
fn sentinels_are_named_behind_their_master() {
    let env = [
        ("REDIS_TYPE", "sentinel"),
        ("REDIS_URL", "mymaster,s-0,s-1:26380"),
        ("REDIS_AUTH", "servers"),
        ("REDIS_SENTINEL_AUTH", "ops:sentinels"),
    ];
    let (main, ..) = store(&env);
    assert_eq!(main.kind, RedisKind::Sentinel { master: "mymaster".into() });
    assert_eq!(addresses(&main), ["s-0:26379", "s-1:26380"]);
    assert_eq!(
        (main.login.auth.username, main.login.auth.password),
        (None, Some("servers".into()))
    );
    assert_eq!(main.sentinel_login.auth.username.as_deref(), Some("ops"));
    assert_eq!(main.sentinel_login.auth.password, Some("sentinels".into()));
    let url = "mymaster,redis://:sentinels@s-0,s-1";
    let (main, ..) = store(&[("REDIS_TYPE", "sentinel"), ("REDIS_URL", url)]);
    assert_eq!(main.login.auth.password, None, "a sentinel's password is not the servers'");
    assert_eq!(main.sentinel_login.auth.password, Some("sentinels".into()));
}

#[test]
fn user_and_password_come_from_the_setting_else_the_url() {
    let login = |env: Env<'_>| {
        let (main, ..) = store(env);
        (
            main.login.auth.username,
            main.login.auth.password.map(|password| password.reveal().to_owned()),
        )
    };
    let some = |text: &str| Some(text.to_owned());
    let bare = ("REDIS_URL", "redis:6379");
    assert_eq!(login(&[bare, ("REDIS_AUTH", "pass")]), (None, some("pass")));
    assert_eq!(login(&[bare, ("REDIS_AUTH", "user:pa:ss")]), (some("user"), some("pa:ss")));
    assert_eq!(login(&[bare, ("REDIS_AUTH", ":pass")]), (None, some("pass")));
    let url = ("REDIS_URL", "redis://us%40er:p%3A@ss@redis:6379");
    assert_eq!(login(&[url]), (some("us@er"), some("p:@ss")));
    assert_eq!(login(&[url, ("REDIS_AUTH", "pass")]), (None, some("pass")));
    let same = "redis://:pass@a:1,redis://:pass@b:2,c:3";
    assert_eq!(login(&[("REDIS_URL", same), ("REDIS_TYPE", "cluster")]), (None, some("pass")));
}

#[test]
fn a_url_may_name_a_database_and_credentials_behind_it() {
    let found = |kind: &str, url: &str| {
        let (main, ..) = store(&[("REDIS_TYPE", kind), ("REDIS_URL", url)]);
        let addresses = addresses(&main).join(" ");
        let password = main.login.auth.password.map(|password| password.reveal().to_owned());
        (addresses, main.database, main.login.auth.username, password)
    };
    let some = |text: &str| Some(text.to_owned());
    for (kind, url, database) in [
        ("single", "redis:6379", 0),
        ("single", "redis://redis:6379/", 0),
        ("single", "redis://redis:6379/0", 0),
        ("single", "redis://redis:6379/11", 11),
        ("single", "rediss://redis/11", 11),
        ("single", "redis://redis?db=11", 11),
        ("single", "redis://redis/?db=11", 11),
        ("single", "redis://redis:6379/12?db=11", 12),
        ("single", "redis://redis:6379?db=", 0),
        ("single", "redis://redis/2147483647", 2_147_483_647),
        ("cluster", "redis://redis:6379/0,redis", 0),
    ] {
        assert_eq!((found(kind, url).1, found(kind, url).3), (database, None), "{url}");
    }
    let url = "redis://us:pa/ss?word@redis:7000/3";
    assert_eq!(found("single", url), ("redis:7000".into(), 3, some("us"), some("pa/ss?word")));
    let url = "redis://redis:7000?password=p%40ss&db=3&username=us";
    assert_eq!(found("single", url), ("redis:7000".into(), 3, some("us"), some("p@ss")));
    let url = "redis://:first@redis?password=second&username=us";
    assert_eq!(found("single", url), ("redis:6379".into(), 0, some("us"), some("first")));
    let url = "mymaster,redis://s-0/5,s-1";
    assert_eq!(found("sentinel", url).1, 5, "the database is of the master");
    let env = [
        ("REDIS_URL", "main:1"),
        ("REDIS_PERSECOND", "true"),
        ("REDIS_PERSECOND_URL", "redis://fast:2/7"),
    ];
    let (main, per_second, _) = store(&env);
    assert_eq!((main.database, per_second.expect("a second Redis").database), (0, 7));
}

#[test]
fn limits_per_second_may_have_a_redis_of_their_own() {
    let env = [
        ("REDIS_URL", "main:1"),
        ("REDIS_TIMEOUT", "2s"),
        ("CACHE_KEY_PREFIX", "shop:"),
        ("REDIS_PERSECOND", "true"),
        ("REDIS_PERSECOND_TYPE", "Cluster"),
        ("REDIS_PERSECOND_URL", "fast:2"),
        ("REDIS_PERSECOND_AUTH", "pass"),
    ];
    let (main, per_second, prefix) = store(&env);
    let per_second = per_second.expect("a second Redis");
    assert_eq!(main.kind, RedisKind::Single);
    assert_eq!(addresses(&main), ["main:1"]);
    assert_eq!((main.login.auth.password, main.timeout), (None, Duration::from_secs(2)));
    assert_eq!(per_second.kind, RedisKind::Cluster);
    assert_eq!(addresses(&per_second), ["fast:2"]);
    assert_eq!(per_second.login.auth.password, Some("pass".into()));
    assert_eq!(prefix, "shop:");
    let off = [("REDIS_URL", "main:1"), ("REDIS_PERSECOND_URL", "fast:2")];
    assert_eq!(store(&off).1, None);
}

#[test]
fn a_second_redis_needs_its_url_and_a_first_one() {
    let faults = faults("ratelimit", &[("REDIS_PERSECOND", "true")]);
    assert_eq!(faults.len(), 2, "{faults:?}");
    assert!(faults[0].starts_with("REDIS_PERSECOND: there is no Redis for other limits"));
    assert!(faults[1].starts_with("REDIS_PERSECOND_URL: "));
}

#[test]
fn settings_of_redis_without_a_redis_get_a_warning() {
    for (name, value) in [
        ("REDIS_TYPE", "cluster"),
        ("REDIS_SOCKET_TYPE", "tcp"),
        ("REDIS_AUTH", "pass"),
        ("REDIS_SENTINEL_AUTH", "pass"),
    ] {
        let settings = good("ratelimit", &[(name, value)]);
        assert_eq!(settings.store, StoreSettings::Memory);
        let [warning] = settings.warnings.as_slice() else { panic!("{:?}", settings.warnings) };
        assert!(warning.starts_with("REDIS_URL: not set"), "{warning}");
    }
}

#[test]
fn no_redis_gets_a_warning_under_the_name_of_the_reference_alone() {
    let warnings = good("ratelimit", &[]).warnings;
    let [warning] = warnings.as_slice() else { panic!("{warnings:?}") };
    assert!(warning.starts_with("REDIS_URL: not set; counts are kept in the memory"), "{warning}");
    assert!(good("ratelease serve", &[]).warnings.is_empty());
}

#[test]
fn a_faulty_url_is_reported_with_its_problem_and_an_example() {
    let case = |kind: &str, socket: &str, url: &str, problem: &str| {
        let env = [("REDIS_TYPE", kind), ("REDIS_SOCKET_TYPE", socket), ("REDIS_URL", url)];
        let faults = faults("ratelimit", &env);
        let [fault] = faults.as_slice() else { panic!("{url}: {faults:?}") };
        assert!(fault.starts_with(&format!("REDIS_URL: {problem}")), "{url}: {fault}");
        assert!(fault.contains("as in REDIS_URL="), "{url}: {fault}");
    };
    case("single", "", "a:1,b:2", "several addresses need REDIS_TYPE=cluster or sentinel");
    case("single", "unix", "a:1", "REDIS_SOCKET_TYPE=unix needs the path of a socket");
    case("single", "tcp", "/run/a", "REDIS_SOCKET_TYPE=tcp or tls needs host:port");
    case("single", "tls", "/run/a", "REDIS_SOCKET_TYPE=tcp or tls needs host:port");
    case("single", "", "http://a:1", "the scheme is not redis://, rediss:// or unix://");
    case("cluster", "", "rediss://a,redis://b", "address 2: rediss:// is for all of them");
    for database in ["x", "-1", "+1", "1/", "2147483648", "99999999999"] {
        case("single", "", &format!("redis://a:1/{database}"), "the database is not a number");
        case("single", "", &format!("redis://a:1?db={database}"), "the database is not a number");
    }
    case("cluster", "", "redis://a:1/3,b:2", "a cluster has database 0 only");
    case("cluster", "", "a:1,redis://b:2?db=3", "a cluster has database 0 only");
    case("sentinel", "", "m,redis://a:1/3,redis://b:2/4", "address 2: its database differs");
    case("single", "", "redis://a:1?x=y", "of the parameters behind ?, only db");
    case("single", "", "redis://a:1?username=u", "a user needs a password");
    case("single", "", "redis://a:1?password=%4", "a % behind ? needs two hex digits");
    case("single", "", "pass@a:1", "a user or password needs redis:// before it");
    case("single", "", "redis://pass@a:1", "expected user:password or :password before @");
    case("single", "", "redis://:@a:1", "the password before @ is empty");
    case("single", "", "redis://:p%4@a:1", "a % before @ is not followed by two hex digits");
    case("single", "", "a:0", "the port is not a number from 1 to 65535");
    case("single", "", "a:b", "the port is not a number from 1 to 65535");
    case("single", "", "::1", "an IPv6 address must be in brackets");
    case("single", "", "a b:1", "the host is not a name or an IP address");
    case("single", "", ":6379", "the host is not a name or an IP address");
    case("cluster", "", "a:1,,b:2", "address 2: the host is not a name or an IP address");
    case("cluster", "", "a:1,/run/b", "address 2: nodes of a list are host:port, not paths");
    case("cluster", "", "redis://:x@a,redis://:y@b", "address 2: its user or password differs");
    case("cluster", "", &"a,".repeat(256), "more than 256 addresses");
    case("sentinel", "", "mymaster", "expected the name of the master, then host:port");
    case("sentinel", "", "s-0:26379,s-1:26379", "expected the name of the master, then host:port");
}

#[test]
fn redirects_may_be_confined_to_networks() {
    let networks = |text: &str| {
        let env = [("REDIS_URL", "redis:6379"), ("REDIS_REDIRECT_NETWORKS", text)];
        let found = store(&env).0.redirect_networks;
        found.map(|found| found.iter().map(ToString::to_string).collect::<Vec<_>>().join(" "))
    };
    assert_eq!(networks(""), None);
    assert_eq!(networks("10.0.0.0/8, fd00::/8").as_deref(), Some("10.0.0.0/8 fd00::/8"));
    assert_eq!(networks("10.1.2.3,::1").as_deref(), Some("10.1.2.3/32 ::1/128"));
}

#[test]
fn other_faulty_settings_of_redis_are_reported() {
    let with_url = |name, value| {
        let faults = faults("ratelimit", &[("REDIS_URL", "redis:6379"), (name, value)]);
        let [fault] = faults.as_slice() else { panic!("{name}={value}: {faults:?}") };
        fault.clone()
    };
    assert!(with_url("REDIS_TYPE", "ring").contains("single, cluster or sentinel"));
    assert!(with_url("REDIS_SOCKET_TYPE", "udp").contains("tcp, tls or unix"));
    assert!(with_url("REDIS_AUTH", "user:").contains("a password, or user:password"));
    assert!(
        faults("ratelimit", &[("REDIS_TYPE", "ring")]).concat().contains("cluster or sentinel"),
        "without a URL too"
    );
    for networks in ["redis", "10.0.0.0/33", "10.0.0.0/8,,", "10.0.0.0/8 10.1.0.0/16"] {
        let reported = with_url("REDIS_REDIRECT_NETWORKS", networks);
        assert!(reported.contains("networks, or addresses, separated by commas"), "{reported}");
    }
    assert!(with_url("REDIS_TIMEOUT", "0").contains("from 1ms to 60s"));
    for prefix in ["{a}", "a}", "{", &"x".repeat(65)] {
        assert!(with_url("CACHE_KEY_PREFIX", prefix).contains("at most 64 bytes without braces"));
    }
}
