//! How long a call waits for a store that never answers.

use std::future::pending;

use http::{HeaderMap, HeaderValue, StatusCode};
use ratelease_engine::store::{Ask, GrantFuture, Heartbeat, PodCountFuture, Store};
use ratelease_rules::{self as rules, Source};

use super::*;

/// A store that never answers.
struct Silent;

const RULES: &str = "
domain: d
descriptors:
  - key: k
    rate_limit: {unit: hour, requests_per_unit: 5, failure_mode: deny}
";

/// One descriptor (k, v) of domain d, as a gRPC frame.
const FRAME: &[u8] = b"\0\0\0\0\x0d\x0a\x01d\x12\x08\x0a\x06\x0a\x01k\x12\x01v";

/// Sends `timeout` as `grpc-timeout`, and the message in two parts, `pause` apart. Returns the time
/// until the answer, and its headers.
async fn answered(options: Options, timeout: &str, pause: Duration) -> (Duration, HeaderMap) {
    let limiter = Limiter::new(Arc::new(Silent), Clock::start(), options);
    let source = Source { name: "rules.yaml".into(), text: RULES.into() };
    let loaded = rules::load(&[source], rules::Options::default()).unwrap();
    let published = Arc::new(CurrentRules::new());
    published.put_in_force(Arc::new(loaded.rules));
    let service = DecisionService::new(limiter, published, None, 10);
    let routes = Routes::new(RateLimitService::new(service.clone())).prepare();
    let context =
        ConnectionContext { service, routes, non_http2: NonHttp2Clients::default(), age: None };
    let (near, far) = duplex(1 << 16);
    let (_end, ended) = watch::channel(false);
    tokio::spawn(serve(ratelease_listener::Connection::standalone(near), context, ended));
    let (mut sender, connection) = h2::client::handshake(far).await.unwrap();
    tokio::spawn(connection);
    #[allow(clippy::disallowed_methods)] // paused
    let start = tokio::time::Instant::now();
    let mut request = Request::post(format!("http://pod{SHOULD_RATE_LIMIT}"))
        .header("content-type", "application/grpc");
    if !timeout.is_empty() {
        request = request.header("grpc-timeout", timeout);
    }
    let (response, mut body) = sender.send_request(request.body(()).unwrap(), false).unwrap();
    let (first, rest) = if pause.is_zero() { (FRAME, None) } else { (&FRAME[..9], Some(pause)) };
    body.send_data(Bytes::from_static(first), rest.is_none()).unwrap();
    if let Some(pause) = rest {
        sleep(pause).await;
        body.send_data(Bytes::from_static(&FRAME[9..]), true).unwrap();
    }
    let response = response.await.unwrap();
    assert_eq!(response.status(), StatusCode::OK);
    (start.elapsed(), response.into_parts().0.headers)
}

/// Whether `took` is `millis`, within the millisecond that tokio's timers round up to and one more.
fn takes(took: Duration, millis: u64) -> bool {
    (Duration::from_millis(millis)..Duration::from_millis(millis + 3)).contains(&took)
}

#[tokio::test(start_paused = true)]
async fn a_call_waits_until_a_margin_before_its_deadline_and_within_both_settings() {
    // With the defaults: at least 5 ms, at most 15 ms.
    for (timeout, millis) in [
        ("20m", 15),
        ("20000u", 15),
        ("1S", 15),
        ("99999999H", 15),
        ("12m", 7),
        ("8m", 5),
        ("", 5),
        ("20", 5),
        ("20ms", 5),
        ("123456789m", 5),
    ] {
        let (took, headers) = answered(Options::default(), timeout, Duration::ZERO).await;
        assert!(takes(took, millis), "{timeout:?}: {took:?}, not {millis} ms");
        assert!(!headers.contains_key("grpc-status"), "{timeout:?}: a verdict, not {headers:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn the_time_until_the_message_arrived_shortens_the_wait() {
    let options = Options { wait_min: Duration::from_millis(1), ..Options::default() };
    let (took, headers) = answered(options.clone(), "20m", Duration::from_millis(10)).await;
    assert!(takes(took, 15), "{took:?}");
    assert!(!headers.contains_key("grpc-status"), "a verdict, not {headers:?}");
    // Without a deadline, the wait begins with the message.
    let (took, _) = answered(options, "", Duration::from_millis(10)).await;
    assert!(takes(took, 11), "{took:?}");
}

#[tokio::test(start_paused = true)]
async fn a_caller_with_a_short_deadline_gets_deadline_exceeded_at_its_end() {
    let (took, headers) = answered(Options::default(), "2m", Duration::ZERO).await;
    assert!(takes(took, 2), "{took:?}");
    assert_eq!(headers.get("grpc-status").map(HeaderValue::as_bytes), Some(&b"4"[..]));
}

// === impl Silent ===

impl Store for Silent {
    fn shard(&self, _: &Ask) -> usize {
        0
    }

    fn lend<'a>(&'a self, _: &'a Ask) -> GrantFuture<'a> {
        Box::pin(pending())
    }

    fn beat(&self, _: Heartbeat) -> PodCountFuture<'_> {
        Box::pin(pending())
    }

    fn describe(&self) -> String {
        "silent".to_owned()
    }
}
