//! Servers that people have beside Redis itself: proxies, servers without HELLO, and Valkey.

use std::path::{Path, PathBuf};
use std::time::Duration;

use ratelease_engine::counter::RedisCounter;
use ratelease_engine::secret::Secret;
use ratelease_engine::store::StoreError;
use ratelease_engine::store::redis::{RedisKind, RedisSettings, RedisStore};
use tempfile::TempDir;
use tokio::net::TcpStream;

use super::contract::keeps_the_contract;
use super::{ask, connected, count, granted, one, patient, until_granted};
use crate::support::envoy::Envoy;
use crate::support::ports::free_port;
use crate::support::process::{Process, leashed};
use crate::support::redis::{Server, Single, tcp};

const START_MAX: Duration = Duration::from_secs(10);

fn settings_of(port: u16, password: Option<&str>) -> RedisSettings {
    let mut settings = RedisSettings::new(RedisKind::Single, vec![tcp(port)]);
    settings.login.auth.password = password.map(Secret::from);
    settings
}

/// Envoy's redis_proxy in front of servers, which divides the keys among them.
async fn envoy_before(servers: &[&Server], password: Option<&str>) -> Envoy {
    let endpoint = |server: &&Server| {
        let port = server.port();
        format!(
            r#"{{"endpoint": {{"address": {{"socket_address":
               {{"address": "127.0.0.1", "port_value": {port}}}}}}}}}"#
        )
    };
    let endpoints: Vec<_> = servers.iter().map(endpoint).collect();
    let auth = password.map(|password| {
        format!(r#""downstream_auth_passwords": [{{"inline_string": "{password}"}}],"#)
    });
    let bootstrap = format!(
        r#"{{"admin": {{"address": {{"socket_address":
               {{"address": "127.0.0.1", "port_value": 0}}}}}},
            "static_resources": {{
              "listeners": [{{"name": "redis",
                "address": {{"socket_address": {{"address": "127.0.0.1", "port_value": 0}}}},
                "filter_chains": [{{"filters": [{{"name": "redis",
                  "typed_config": {{
                    "@type": "type.googleapis.com/{filter}.v3.RedisProxy",
                    "stat_prefix": "redis", {auth}
                    "settings": {{"op_timeout": "5s", "enable_hashtagging": true}},
                    "prefix_routes": {{"catch_all_route": {{"cluster": "redis"}}}}}}}}]}}]}}],
              "clusters": [{{"name": "redis", "type": "STATIC", "connect_timeout": "1s",
                "lb_policy": "MAGLEV",
                "load_assignment": {{"cluster_name": "redis",
                  "endpoints": [{{"lb_endpoints": [{endpoints}]}}]}}}}]}}}}"#,
        filter = "envoy.extensions.filters.network.redis_proxy",
        auth = auth.unwrap_or_default(),
        endpoints = endpoints.join(","),
    );
    let files = TempDir::new().expect("a temporary directory");
    Envoy::run(files, &bootstrap, 1, "redis").await
}

/// twemproxy in front of servers. It closes a connection on which SCRIPT is sent.
struct Twemproxy {
    port: u16,
    _process: Process,
    _files: TempDir,
}

impl Twemproxy {
    async fn before(servers: &[&Server], password: Option<&str>) -> Self {
        let (port, stats) = (free_port(), free_port());
        let address = |server: &&Server| format!("   - 127.0.0.1:{}:1\n", server.port());
        let servers: String = servers.iter().map(address).collect();
        let auth = password.map(|password| format!("  redis_auth: {password}\n"));
        let auth = auth.unwrap_or_default();
        let config = format!(
            "counts:\n  listen: 127.0.0.1:{port}\n  hash: fnv1a_64\n  hash_tag: \"{{}}\"\n  \
             distribution: ketama\n  redis: true\n{auth}  servers:\n{servers}"
        );
        let files = TempDir::new().expect("a temporary directory");
        let path = files.path().join("nutcracker.yml");
        std::fs::write(&path, config).expect("a written configuration");
        // Debian's directory for it is on the PATH of root alone.
        let installed = Path::new("/usr/sbin/nutcracker");
        let program = if installed.is_file() { installed } else { Path::new("nutcracker") };
        let mut command = leashed(program);
        command.arg("-c").arg(path).args(["-a", "127.0.0.1", "-s", &stats.to_string()]);
        let process =
            Process::spawn("nutcracker: run scripts/test once, which installs it", command);
        let listens = async || TcpStream::connect(("127.0.0.1", port)).await.is_ok();
        process.until("listening", START_MAX, listens).await;
        Self { port, _process: process, _files: files }
    }
}

/// Valkey's binary: `VALKEY_BIN`, or the path where `scripts/test` installs it.
fn valkey() -> PathBuf {
    let installed = || Path::new(env!("CARGO_MANIFEST_DIR")).join("target/tools/bin/valkey-server");
    let path = std::env::var_os("VALKEY_BIN").map_or_else(installed, PathBuf::from);
    let path_text = path.display();
    assert!(path.is_file(), "no Valkey at {path_text}: run scripts/test once: it installs Valkey");
    path
}

#[tokio::test(flavor = "multi_thread")]
async fn two_shards_behind_envoys_redis_proxy_keep_the_contract() {
    let servers = [Server::start(&[]), Server::start(&[])];
    let envoy = envoy_before(&[&servers[0], &servers[1]], None).await;
    let settings = settings_of(envoy.ingress.port(), None);
    keeps_the_contract(&*connected(patient(settings)).await).await;
    for server in &servers {
        assert!(!server.keys().is_empty(), "a shard has no count");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn two_shards_behind_twemproxy_keep_the_contract() {
    let servers = [Server::start(&[]), Server::start(&[])];
    let proxy = Twemproxy::before(&[&servers[0], &servers[1]], None).await;
    let store = RedisStore::spawn(patient(settings_of(proxy.port, None)), "");
    // It closes the first two connections, at the first script that is to be loaded.
    until_granted(&*store, ask(10, 1, 0), 10).await;
    let connects = count(&*store, RedisCounter::Connects);
    keeps_the_contract(&*store).await;
    assert_eq!(count(&*store, RedisCounter::Connects), connects, "it was closed again");
    for server in &servers {
        assert!(!server.keys().is_empty(), "a shard has no count");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn valkey_keeps_the_contract() {
    let server = Server::start_program(&valkey(), &[]);
    assert_eq!(server.info("server").get("server_name").map(String::as_str), Some("valkey"));
    keeps_the_contract(&*connected(patient(settings_of(server.port(), None))).await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_without_hello_keeps_the_contract() {
    let file = "rename-command HELLO \"\"\nuser pod on >pw ~* +@all\nuser default off";
    let server = Server::start_as(&[], file, ("pod", "pw"));
    let mut settings = settings_of(server.port(), Some("pw"));
    settings.login.auth.username = Some("pod".into());
    keeps_the_contract(&*connected(patient(settings)).await).await;
}

/// On such a server a pod that fell back to the default user would be let in.
#[tokio::test(flavor = "multi_thread")]
async fn a_refused_user_is_never_the_default_user_instead() {
    let file = "rename-command HELLO \"\"\nuser pod on >pw ~* +@all";
    let server = Server::start_with_file(&[], file);
    for (user, password) in [("pod", Some("wrong")), ("pod", None), ("nobody", Some("pw"))] {
        let mut settings = settings_of(server.port(), password);
        settings.login.auth.username = Some(user.into());
        let refused = one(&*RedisStore::spawn(patient(settings), ""), ask(10, 1, 0)).await;
        let Err(StoreError::Unreachable(why)) = refused else { panic!("{refused:?}") };
        assert!(why.contains("WRONGPASS"), "{user}: {why}");
    }
    assert_eq!(server.keys(), [""; 0]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_without_scripts_is_refused_with_the_setting_to_change() {
    let file = ["EVALSHA", "EVAL", "SCRIPT"].map(|it| format!("rename-command {it} \"\"\n"));
    let server = Server::start_with_file(&[], &file.concat());
    let store = connected(patient(settings_of(server.port(), None))).await;
    let refused = one(&*store, ask(10, 1, 0)).await;
    let Err(StoreError::Refused(why)) = refused else { panic!("{refused:?}") };
    assert!(why.contains("set REDIS_URL to a Redis 6.2 or later"), "{why}");
    assert!(why.ends_with("that has EVALSHA and EVAL"), "{why}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_password_that_the_default_user_does_not_need_is_accepted() {
    let single = Single::start();
    let mut settings = single.config();
    settings.login.auth.password = Some(Secret::from("needless"));
    granted(&*connected(patient(settings)).await, ask(10, 1, 0)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_proxy_with_a_password_admits_it_and_no_other() {
    let server = Server::start(&[]);
    let protected = Server::start_protected(&[], "sesame");
    let envoy = envoy_before(&[&server], Some("sesame")).await;
    let twemproxy = Twemproxy::before(&[&protected], Some("sesame")).await;
    for port in [envoy.ingress.port(), twemproxy.port] {
        for password in [None, Some("barley")] {
            let store = RedisStore::spawn(patient(settings_of(port, password)), "");
            let refused = one(&*store, ask(10, 1, 0)).await.expect_err("it is protected");
            let why = refused.to_string();
            assert!(why.contains("NOAUTH") || why.contains("invalid password"), "{why}");
            assert!(!why.contains("barley"), "{why}");
        }
        let store = RedisStore::spawn(patient(settings_of(port, Some("sesame"))), "");
        until_granted(&*store, ask(10, 1, 0), 10).await;
    }
}
