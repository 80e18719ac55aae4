//! What statsd and DogStatsD receive, over real sockets: the lines that the reference implementation
//! sent for the same requests, captured from a build of it (at 3fb7025) with the same settings. Its
//! lines on its own process, its Redis pool and unknown domains are left out, as docs/metrics.md says.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::io::AsyncReadExt;
use tokio::net::{TcpListener, UdpSocket};

use super::SOON;
use crate::support::ports::free_port;
use crate::support::shop::Shop;

/// A day's window; the rules of the capture.
const RULES: &str = "
domain: shop
descriptors:
  - key: user
    rate_limit: {unit: day, requests_per_unit: 2}
  - key: ip
    detailed_metric: true
    rate_limit: {unit: day, requests_per_unit: 1}
  - key: dark
    shadow_mode: true
    rate_limit: {unit: day, requests_per_unit: 1}
  - key: plan
    value: gold
    descriptors:
      - key: path
        descriptors:
          - key: user
            detailed_metric: true
            rate_limit: {unit: day, requests_per_unit: 5}
";

const TAGS: (&str, &str) = ("EXTRA_TAGS", "zone:a.b,team:shop");

/// Hits by stats key and kind, as the reference sent them.
const HITS: [(&str, u64); 20] = [
    ("shop.dark.near_limit", 1),
    ("shop.dark.over_limit", 1),
    ("shop.dark.shadow_mode", 1),
    ("shop.dark.total_hits", 2),
    ("shop.dark.within_limit", 1),
    ("shop.ip_10_1_2_3.near_limit", 1),
    ("shop.ip_10_1_2_3.total_hits", 1),
    ("shop.ip_10_1_2_3.within_limit", 1),
    ("shop.ip___1.near_limit", 1),
    ("shop.ip___1.over_limit", 1),
    ("shop.ip___1.total_hits", 2),
    ("shop.ip___1.within_limit", 1),
    ("shop.plan_gold.path_/a.user_b.total_hits", 1),
    ("shop.plan_gold.path_/a.user_b.within_limit", 1),
    ("shop.plan_gold.path_/b.user_b.total_hits", 1),
    ("shop.plan_gold.path_/b.user_b.within_limit", 1),
    ("shop.user.near_limit", 1),
    ("shop.user.over_limit", 1),
    ("shop.user.total_hits", 3),
    ("shop.user.within_limit", 2),
];

/// A server of statsd that keeps what it receives.
#[derive(Clone, Default)]
struct Capture(Arc<Mutex<Vec<u8>>>);

impl Capture {
    async fn tcp() -> (Self, u16) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let capture = Self::default();
        tokio::spawn(capture.clone().accept(listener));
        (capture, port)
    }

    async fn accept(self, listener: TcpListener) {
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut bytes = vec![0; 65_536];
            while let Ok(read @ 1..) = stream.read(&mut bytes).await {
                self.0.lock().extend(&bytes[..read]);
            }
        }
    }

    async fn udp() -> (Self, u16) {
        let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        let port = socket.local_addr().unwrap().port();
        let capture = Self::default();
        let kept = capture.clone();
        tokio::spawn(async move {
            let mut bytes = vec![0; 65_536];
            while let Ok(read) = socket.recv(&mut bytes).await {
                assert!(read <= 1432, "a datagram of {read} bytes is split");
                assert_eq!(bytes[read - 1], b'\n', "a datagram ends with a line");
                kept.0.lock().extend(&bytes[..read]);
            }
        });
        (capture, port)
    }

    /// The sums, once all twelve calls have arrived.
    async fn whole(&self) -> (BTreeMap<String, u64>, u64) {
        let arrived = async {
            while self.sums().1 < 12 {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        let arrived = tokio::time::timeout(SOON, arrived).await;
        arrived.unwrap_or_else(|_| panic!("only {:?}", self.sums()));
        self.sums()
    }

    /// What was counted in all, by the text before the value and the text behind it; and the number
    /// of timed calls.
    #[allow(clippy::cast_possible_truncation, reason = "as servers cut the quotient")]
    fn sums(&self) -> (BTreeMap<String, u64>, u64) {
        let text = String::from_utf8(self.0.lock().clone()).unwrap();
        let (mut counts, mut timed) = (BTreeMap::new(), 0);
        for line in text.lines() {
            let (name, rest) = line.split_once(':').expect(line);
            let mut parts = rest.split('|');
            let value = parts.next().unwrap();
            match parts.next().expect(line) {
                "c" => {
                    let tags: String = parts.map(|part| format!("|{part}")).collect();
                    *counts.entry(format!("{name}{tags}")).or_default() +=
                        value.parse::<u64>().expect(line);
                }
                "ms" => {
                    let rate = parts.next().and_then(|part| part.strip_prefix('@'));
                    timed += rate.map_or(1, |rate| (1.0 / rate.parse::<f64>().unwrap()) as u64);
                }
                other => panic!("{other} in {line}"),
            }
        }
        (counts, timed)
    }
}

/// The requests of the capture.
async fn the_captured_requests(shop: &mut Shop) {
    for (entries, expected) in [
        (&[("user", "a")][..], 200),
        (&[("user", "a")], 200),
        (&[("user", "a")], 429),
        (&[("ip", "10.1.2.3")], 200),
        (&[("ip", "::1")], 200),
        (&[("ip", "::1")], 429),
        (&[("dark", "x")], 200),
        (&[("dark", "x")], 200),
        (&[("plan", "gold"), ("path", "/a"), ("user", "b")], 200),
        (&[("plan", "gold"), ("path", "/b"), ("user", "b")], 200),
        (&[("unknown", "b")], 200),
    ] {
        assert_eq!(shop.ask("shop", entries).await, expected, "{entries:?}");
    }
    assert_eq!(shop.ask("nowhere", &[("a", "b")]).await, 200);
}

/// The counts of the capture, each name made by `name` of the reference's.
fn expected(name: impl Fn(&str) -> String) -> BTreeMap<String, u64> {
    let hits = HITS.into_iter();
    let hits = hits.map(|(key, count)| (format!("ratelimit.service.rate_limit.{key}"), count));
    let others = [
        ("ratelimit.service.config_load_success", 1),
        ("ratelimit_server.ShouldRateLimit.total_requests", 12),
    ];
    let others = others.map(|(name, count)| (name.to_owned(), count));
    hits.chain(others).map(|(full, count)| (name(&full), count)).collect()
}

async fn sends(env: &[(&str, &str)], (capture, port): (Capture, u16), name: fn(&str) -> String) {
    let port = port.to_string();
    let at = [("STATSD_HOST", "127.0.0.1"), ("STATSD_PORT", &*port), TAGS];
    let mut shop = Shop::open(RULES, &[&at, env].concat()).await;
    the_captured_requests(&mut shop).await;
    // Nothing has been pushed yet: the last counts are sent at the end.
    assert_eq!(shop.pod.stop().await, 0);
    assert_eq!(capture.whole().await, (expected(name), 12));
}

#[tokio::test]
async fn statsd_gets_the_names_tags_and_counts_of_the_reference_over_tcp() {
    let name = |name: &str| format!("{name}.__team=shop.__zone=a_b");
    sends(&[("USE_STATSD", "true")], Capture::tcp().await, name).await;
}

#[tokio::test]
async fn statsd_gets_the_same_over_udp() {
    let env = [("USE_STATSD", "true"), ("STATSD_PROTOCOL", "udp")];
    let name = |name: &str| format!("{name}.__team=shop.__zone=a_b");
    sends(&env, Capture::udp().await, name).await;
}

#[tokio::test]
async fn dogstatsd_gets_tags_behind_the_values_and_renamed_metrics() {
    let env = [
        ("USE_DOG_STATSD", "true"),
        ("USE_DOG_STATSD_MOGRIFIERS", "HITS"),
        (
            "DOG_STATSD_MOGRIFIER_HITS_PATTERN",
            r"^ratelimit\.service\.rate_limit\.(.*)\.user\.(.*)$",
        ),
        ("DOG_STATSD_MOGRIFIER_HITS_NAME", "hits.$2"),
        ("DOG_STATSD_MOGRIFIER_HITS_TAGS", "domain:$1"),
        ("DD_ENV", "prod"),
    ];
    sends(&env, Capture::udp().await, |name| {
        let hits = name.strip_prefix("ratelimit.service.rate_limit.shop.user.");
        hits.map_or_else(
            || format!("{name}|#env:prod,team:shop,zone:a_b"),
            |kind| format!("hits.{kind}|#env:prod,team:shop,zone:a_b,domain:shop"),
        )
    })
    .await;
}

#[tokio::test]
async fn a_statsd_that_is_away_is_logged_once_and_gets_all_counts_when_it_comes() {
    let port = free_port();
    let at = [("USE_STATSD", "true"), ("STATSD_HOST", "localhost"), TAGS];
    let port_text = port.to_string();
    let env =
        [&at[..], &[("STATSD_PORT", &*port_text), ("STATS_FLUSH_INTERVAL", "100ms")]].concat();
    let mut shop = Shop::open(RULES, &env).await;
    the_captured_requests(&mut shop).await;
    let line = shop.pod.logs("counts cannot be pushed").await;
    assert!(line.contains("; see STATSD_HOST and STATSD_PORT"), "{line}");
    let listener = TcpListener::bind(("127.0.0.1", port)).await.unwrap();
    let capture = Capture::default();
    tokio::spawn(capture.clone().accept(listener));
    shop.pod.logs("counts are pushed again").await;
    let (counts, _) = capture.whole().await;
    assert_eq!(counts, expected(|name| format!("{name}.__team=shop.__zone=a_b")));
    assert_eq!(shop.pod.stop().await, 0);
    assert_eq!(shop.pod.logged("counts cannot be pushed").len(), 1);
}
