//! V9: a faulty or hostile Redis, or another server in its place.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::io::AsyncReadExt;
use tokio::net::TcpListener;

use crate::fake_redis::{FakeRedis, Say, slots};
use crate::scene::{Attacked, Plan, Scene};
use crate::support::ports::free_port;

/// The pod's password for Redis.
const PASSWORD: &str = "open-sesame";

/// Connections to every node that a map of the cluster may name, and some for retries.
const CONNECTS_MAX: u64 = 1_024 + 64;

/// Maximum length of a log line, and of all that an attack of seconds may have logged.
const LINE_MAX: usize = 4 << 10;
const LOG_MAX: usize = 256 << 10;

/// A breaker probes at most twice a second: time for enough probes.
const MORE: Duration = Duration::from_secs(2);

fn plan<'a>(name: &'a str, attack: &'a str, redis: &FakeRedis) -> Plan<'a> {
    let env = [("REDIS_AUTH", PASSWORD), ("KEY_SECRET", "attack")];
    Plan { redis: vec![redis.addr], ..Plan::new(name, attack) }.with_env(&env).lasting(MORE)
}

async fn attacked(scene: Scene, redis: &FakeRedis) -> Attacked {
    let attack = scene.attack(async |foes, _| {
        let before = redis.sent();
        redis.attack();
        foes.rest().await;
        foes.meter.sent.fetch_add(redis.sent() - before, Ordering::Relaxed);
    });
    let mut attacked = attack.await;
    let log = attacked.pod.process.log();
    let longest = log.lines().map(str::len).max().unwrap_or_default();
    let row = &mut attacked.row;
    row.holds(longest <= LINE_MAX, &format!("a log line of {longest} bytes"));
    row.holds(log.len() <= LOG_MAX, &format!("a log of {} bytes", log.len()));
    row.holds(!log.contains(PASSWORD), "the log has the password");
    attacked
}

/// Accepts connections, and records the first bytes of each.
async fn stranger() -> (SocketAddr, Arc<Mutex<Vec<String>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let addr = listener.local_addr().expect("its address");
    let said = Arc::new(Mutex::new(Vec::new()));
    let hearing = Arc::clone(&said);
    tokio::spawn(async move {
        while let Ok((mut client, _)) = listener.accept().await {
            let hearing = Arc::clone(&hearing);
            tokio::spawn(async move {
                let mut first = vec![0; 4_096];
                let length = client.read(&mut first).await.unwrap_or_default();
                let text = String::from_utf8_lossy(&first[..length]).into_owned();
                hearing.lock().push(text);
            });
        }
    });
    (addr, said)
}

#[tokio::test(flavor = "multi_thread")]
async fn v9a_a_redirect_takes_no_password_to_a_stranger() {
    let (to, said) = stranger().await;
    let redis = FakeRedis::start(move |words, own| {
        let is_of = |name: &str| words.iter().any(|word| word == name);
        Say::Text(match words[0].as_str() {
            "CLUSTER" if is_of("SLOTS") => slots(&[own]),
            "CLUSTER" => "$0\r\n\r\n".to_owned(),
            _ => format!("-MOVED 1 {to}\r\n"),
        })
    });
    let redis = redis.await;
    let scene = Scene::start(plan("V9a", "Redis: MOVED to a stranger", &redis)).await;
    let mut row = attacked(scene, &redis).await.row;
    let heard = said.lock().iter().any(|text| text.contains(PASSWORD));
    row.note(&format!("{} connections to the stranger", said.lock().len()));
    row.holds(!heard, "a stranger heard the password");
    row.end();
}

#[tokio::test(flavor = "multi_thread")]
async fn v9b_a_map_of_16384_masters_is_not_followed() {
    // Addresses of this machine without a listener.
    let port = free_port();
    let masters: Vec<SocketAddr> = (0..16_384_u16)
        .map(|at| SocketAddr::from(([127, 7, at.to_be_bytes()[0], at.to_be_bytes()[1]], port)))
        .collect();
    let map = slots(&masters);
    let redis = FakeRedis::start(move |words, own| {
        Say::Text(match words[0].as_str() {
            "CLUSTER" => map.clone(),
            _ => format!("-MOVED 1 {own}\r\n"),
        })
    });
    let redis = redis.await;
    let scene = Scene::start(plan("V9b", "Redis: a map of 16 384 masters", &redis)).await;
    let Attacked { mut row, pod, .. } = attacked(scene, &redis).await;
    let connects = pod.count("redis_connects");
    row.note(&format!("{connects} connects"));
    row.holds(connects <= CONNECTS_MAX, &format!("{connects} connects"));
    row.end();
}

#[tokio::test(flavor = "multi_thread")]
async fn v9c_a_reply_of_two_gigabytes_is_not_held() {
    let redis = FakeRedis::start(|words, own| match words[0].as_str() {
        "CLUSTER" => Say::Text(slots(&[own])),
        _ => Say::Endless("$2147483647\r\n".to_owned()),
    });
    let redis = redis.await;
    let scene = Scene::start(plan("V9c", "Redis: a bulk of 2 GB", &redis)).await;
    attacked(scene, &redis).await.row.end();
}

#[tokio::test(flavor = "multi_thread")]
async fn v9d_an_error_of_five_megabytes_is_cut() {
    let error = format!("-ERR {}\r\n", "x".repeat(5 << 20));
    let redis = FakeRedis::start(move |words, own| match words[0].as_str() {
        "CLUSTER" => Say::Text(slots(&[own])),
        _ => Say::Text(error.clone()),
    });
    let redis = redis.await;
    let scene = Scene::start(plan("V9d", "Redis: an error text of 5 MB", &redis)).await;
    attacked(scene, &redis).await.row.end();
}
