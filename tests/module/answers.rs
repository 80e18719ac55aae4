use crate::stand::{Options, Rules, file, rule};
use crate::support::http::Client;
use crate::support::load::{Load, Tally};
use crate::support::redis_cluster::Cluster;

#[tokio::test]
async fn a_limit_of_the_memory_store_is_exact_and_denials_are_as_envoys_own_filter_gives_them() {
    let rules = Rules::new(&file("first", &[rule("path", 3, "")]));
    let options = Options::new("first", &rules);
    let envoy = options
        .filter(serde_json::json!({"enable_x_ratelimit_headers": "DRAFT_VERSION_03"}))
        .start()
        .await;
    let mut client = Client::connect(envoy.ingress).await.unwrap();
    for (status, left) in [(200, "2"), (200, "1"), (200, "0"), (429, "0"), (429, "0")] {
        let answer = client.get("/a", &[]).await.unwrap();
        assert_eq!(answer.status, status, "{answer:?}");
        assert_eq!(answer.header("x-ratelimit-limit"), Some("3, 3;w=86400"), "{answer:?}");
        assert_eq!(answer.header("x-ratelimit-remaining"), Some(left));
        let limited = (status == 429).then_some("true");
        assert_eq!(answer.header("x-envoy-ratelimited"), limited);
    }
    assert_eq!(envoy.counter("ratelease.ok").await, 3);
    assert_eq!(envoy.counter("ratelease.over_limit").await, 2);
    envoy.stop().await;
}

#[tokio::test]
async fn many_clients_of_two_workers_pass_as_often_as_a_limit_in_redis_says() {
    const L: u64 = 2_000;
    let rules = Rules::new(&file("module-many", &[rule("path", L, "")]));
    let options = Options::new("module-many", &rules).on_cluster(&Cluster::shared().places());
    let envoy = options.start().await;
    let tally = envoy.load(Load::new("/many", 16, 2 * L)).finish().await;
    assert_eq!(tally, Tally { statuses: [(200, L), (429, L)].into(), broken: 0 });
    envoy.stop().await;
}
