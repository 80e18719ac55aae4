//! Checks of the tests' own Envoy: the requests that it sends, and that it obeys and counts the
//! answers. If these fail, no other failure here says anything about ratelease.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use envoy_types::pb::envoy::service::ratelimit::v3 as proto;
use proto::rate_limit_response::rate_limit::Unit;
use proto::rate_limit_response::{Code, DescriptorStatus, RateLimit};
use proto::rate_limit_service_server::{RateLimitService, RateLimitServiceServer};
use proto::{RateLimitRequest, RateLimitResponse};
use serde_json::json;
use tokio::net::TcpListener;
use tokio_stream::wrappers::TcpListenerStream;
use tonic::{Request, Response, Status};
use tonic_health::ServingStatus;

use crate::support::envoy::{Envoy, EnvoyOptions, Verdicts};
use crate::support::load::Load;

#[tokio::test]
async fn envoy_asks_by_path_and_user_and_obeys() {
    let asked = Asked::default();
    let envoy = Envoy::start(EnvoyOptions::new("shop", &[serve(asked.clone()).await])).await;

    let answer = envoy.get("/free", &[("x-user", "bob")]).await;
    assert_eq!((answer.status, answer.body.as_str()), (200, "ok\n"));
    assert_eq!(asked.take(), ["shop: path=/free; user=bob; generic_key=all"]);

    let answer = envoy.get("/denied", &[]).await;
    assert_eq!(answer.status, 429);
    assert_eq!(answer.header("x-ratelimit-limit"), Some("7, 7;w=60"));
    assert_eq!(answer.header("x-ratelimit-remaining"), Some("0"));
    assert_eq!(asked.take(), ["shop: path=/denied; generic_key=all"]);

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
            ..EnvoyOptions::new("shop", &[serve(asked.clone()).await])
        };
        let envoy = Envoy::start(options).await;
        // Whether the answer arrives within this short time does not matter here.
        envoy.get("/free", &[]).await;
        assert_eq!(asked.timeouts(), [header], "{timeout}");
        envoy.stop().await;
    }
}

/// A service that denies `/denied`, fails at `/broken`, and records its requests.
#[derive(Clone, Default)]
struct Asked(Arc<Mutex<Vec<(String, String)>>>);

impl Asked {
    fn take(&self) -> Vec<String> {
        std::mem::take(&mut *self.0.lock().unwrap()).into_iter().map(|(asked, _)| asked).collect()
    }

    /// `grpc-timeout` of each call.
    fn timeouts(&self) -> Vec<String> {
        std::mem::take(&mut *self.0.lock().unwrap()).into_iter().map(|(_, it)| it).collect()
    }
}

#[tonic::async_trait]
impl RateLimitService for Asked {
    async fn should_rate_limit(
        &self,
        request: Request<RateLimitRequest>,
    ) -> Result<Response<RateLimitResponse>, Status> {
        let timeout = request.metadata().get("grpc-timeout").and_then(|it| it.to_str().ok());
        let timeout = timeout.unwrap_or_default().to_owned();
        let request = request.into_inner();
        let entries = request.descriptors.iter().flat_map(|descriptor| &descriptor.entries);
        let entries: Vec<_> =
            entries.map(|entry| format!("{}={}", entry.key, entry.value)).collect();
        let is_for = |path: &str| entries.iter().any(|entry| entry == &format!("path={path}"));
        let asked = format!("{}: {}", request.domain, entries.join("; "));
        self.0.lock().unwrap().push((asked, timeout));
        if is_for("/broken") {
            return Err(Status::unavailable("broken"));
        }
        let code = if is_for("/denied") { Code::OverLimit } else { Code::Ok } as i32;
        let limit =
            RateLimit { requests_per_unit: 7, unit: Unit::Minute.into(), ..RateLimit::default() };
        let status =
            DescriptorStatus { code, current_limit: Some(limit), ..DescriptorStatus::default() };
        let mut statuses = vec![DescriptorStatus::default(); request.descriptors.len()];
        statuses[0] = status;
        let answer =
            RateLimitResponse { overall_code: code, statuses, ..RateLimitResponse::default() };
        Ok(Response::new(answer))
    }
}

/// Serves `asked`, and the health checks that Envoy sends, until the test's runtime ends.
async fn serve(asked: Asked) -> SocketAddr {
    let (reporter, health) = tonic_health::server::health_reporter();
    reporter.set_service_status("ratelimit", ServingStatus::Serving).await;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let addr = listener.local_addr().unwrap();
    let server = tonic::transport::Server::builder()
        .add_service(health)
        .add_service(RateLimitServiceServer::new(asked));
    tokio::spawn(server.serve_with_incoming(TcpListenerStream::new(listener)));
    addr
}
