//! A rate limit service that records what Envoy asks.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use envoy_types::pb::envoy::service::ratelimit::v3 as proto;
use proto::rate_limit_response::rate_limit::Unit;
use proto::rate_limit_response::{Code, DescriptorStatus, RateLimit};
use proto::rate_limit_service_server::{RateLimitService, RateLimitServiceServer};
use proto::{RateLimitRequest, RateLimitResponse};
use tokio::net::TcpListener;
use tokio_stream::wrappers::TcpListenerStream;
use tonic::service::Routes;
use tonic::{Request, Response, Status};
use tonic_health::ServingStatus;

/// A service that denies `/denied`, fails at `/broken`, never answers `/slow`, and records its
/// requests.
#[derive(Clone, Default)]
pub(crate) struct Asked(Arc<Mutex<Vec<(RateLimitRequest, String)>>>);

impl Asked {
    /// The requests since the last call.
    pub(crate) fn requests(&self) -> Vec<RateLimitRequest> {
        self.take().map(|(request, _)| request).collect()
    }

    /// As [`Asked::requests`], each as its domain and entries.
    pub(crate) fn entries(&self) -> Vec<String> {
        let said = |it: RateLimitRequest| format!("{}: {}", it.domain, entries(&it).join("; "));
        self.requests().into_iter().map(said).collect()
    }

    /// `grpc-timeout` of each call since the last one.
    pub(crate) fn timeouts(&self) -> Vec<String> {
        self.take().map(|(_, timeout)| timeout).collect()
    }

    /// The number of requests since then.
    pub(crate) fn count(&self) -> usize {
        self.0.lock().unwrap().len()
    }

    fn take(&self) -> impl Iterator<Item = (RateLimitRequest, String)> + use<> {
        std::mem::take(&mut *self.0.lock().unwrap()).into_iter()
    }

    /// Serves, with the health checks that Envoy sends, until the test's runtime ends.
    pub(crate) async fn serve(&self) -> SocketAddr {
        self.serve_with(Routes::default()).await
    }

    /// As [`Asked::serve`], with more services on the port.
    pub(crate) async fn serve_with(&self, more: Routes) -> SocketAddr {
        let (reporter, health) = tonic_health::server::health_reporter();
        reporter.set_service_status("ratelimit", ServingStatus::Serving).await;
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let addr = listener.local_addr().unwrap();
        let server = tonic::transport::Server::builder()
            .add_routes(more)
            .add_service(health)
            .add_service(RateLimitServiceServer::new(self.clone()));
        tokio::spawn(server.serve_with_incoming(TcpListenerStream::new(listener)));
        addr
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
        let entries = entries(&request);
        let is_for = |value: &str| {
            entries.iter().any(|it| it.split_once('=').is_some_and(|(_, of)| of == value))
        };
        let descriptors = request.descriptors.len();
        self.0.lock().unwrap().push((request, timeout));
        if is_for("/slow") {
            std::future::pending::<()>().await;
        }
        if is_for("/broken") {
            return Err(Status::unavailable("broken"));
        }
        let code = if is_for("/denied") { Code::OverLimit } else { Code::Ok } as i32;
        let limit =
            RateLimit { requests_per_unit: 7, unit: Unit::Minute.into(), ..RateLimit::default() };
        let status =
            DescriptorStatus { code, current_limit: Some(limit), ..DescriptorStatus::default() };
        let mut statuses = vec![DescriptorStatus::default(); descriptors];
        statuses[0] = status;
        let answer =
            RateLimitResponse { overall_code: code, statuses, ..RateLimitResponse::default() };
        Ok(Response::new(answer))
    }
}

/// All entries of a request, as `key=value`.
fn entries(request: &RateLimitRequest) -> Vec<String> {
    let entries = request.descriptors.iter().flat_map(|descriptor| &descriptor.entries);
    entries.map(|entry| format!("{}={}", entry.key, entry.value)).collect()
}
