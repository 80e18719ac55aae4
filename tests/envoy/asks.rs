//! Checks of the tests' own Envoy: the requests that it sends, and that it obeys and counts the
//! answers. If these fail, no other failure here says anything about ratelease.

use std::time::Duration;

use serde_json::json;

use crate::support::asked::Asked;
use crate::support::envoy::{Envoy, EnvoyOptions, Verdicts};
use crate::support::load::Load;

#[tokio::test]
async fn envoy_asks_by_path_and_user_and_obeys() {
    let asked = Asked::default();
    let options = EnvoyOptions::new("shop", &[asked.serve().await]);
    let envoy = Envoy::start(EnvoyOptions { timeout: Duration::from_secs(8), ..options }).await;

    let answer = envoy.get("/free", &[("x-user", "bob")]).await;
    assert_eq!((answer.status, answer.body.as_str()), (200, "ok\n"));
    assert_eq!(asked.entries(), ["shop: path=/free; user=bob; generic_key=all"]);

    let answer = envoy.get("/denied", &[]).await;
    assert_eq!(answer.status, 429);
    assert_eq!(answer.header("x-ratelimit-limit"), Some("7, 7;w=60"));
    assert_eq!(answer.header("x-ratelimit-remaining"), Some("0"));
    assert_eq!(asked.entries(), ["shop: path=/denied; generic_key=all"]);

    assert_eq!(envoy.get("/broken", &[]).await.status, 500);
    let verdicts = Verdicts { ok: 1, over_limit: 1, error: 1, failure_mode_allowed: 0 };
    assert_eq!(envoy.verdicts().await, verdicts);

    let tally = envoy.load(Load::new("/free", 8, 400)).finish().await;
    assert_eq!((tally.passed(), tally.faults()), (400, 0));
    assert_eq!(envoy.verdicts().await.ok, 401);
    assert_eq!(envoy.counter("cluster.ratelease.upstream_rq_200").await, 403);
    envoy.stop().await;
}

/// The maximum wait of requests (`LEASE_WAIT_LIMIT`) follows from the default of the filter's
/// `timeout`.
#[tokio::test]
async fn envoy_names_its_timeout_as_grpc_timeout() {
    for (timeout, header) in
        [(json!(null), "20m"), (json!("0.0125s"), "12m"), (json!("1.5s"), "1500m")]
    {
        let asked = Asked::default();
        let options = EnvoyOptions {
            filter: json!({ "timeout": timeout }),
            ..EnvoyOptions::new("shop", &[asked.serve().await])
        };
        let envoy = Envoy::start(options).await;
        // Whether the answer arrives within this short time does not matter here, and on a busy
        // machine it may be over before Envoy asks.
        let has_asked = async || {
            envoy.get("/free", &[]).await;
            asked.count() > 0
        };
        envoy.until("asking", has_asked).await;
        let timeouts = asked.timeouts();
        assert!(timeouts.iter().all(|it| it == header), "{timeout}: {timeouts:?}");
        envoy.stop().await;
    }
}
