//! A server on tonic, with the settings of `crates/server/src/grpc.rs`, and Envoy's generated
//! service.

use std::io;
use std::time::Duration;

use envoy_types::pb::envoy::service::ratelimit::v3 as pb;
use futures_util::StreamExt;
use pb::rate_limit_response::Code;
use pb::rate_limit_service_server::{RateLimitService, RateLimitServiceServer};
use ratelease_listener::{Accepted, OpenConnections, connections};
use tokio::net::TcpListener;
use tonic::transport::Server;
use tonic::{Request, Response, Status};

struct Nothing;

#[tonic::async_trait]
impl RateLimitService for Nothing {
    async fn should_rate_limit(
        &self,
        _: Request<pb::RateLimitRequest>,
    ) -> Result<Response<pb::RateLimitResponse>, Status> {
        let overall_code = Code::Ok.into();
        Ok(Response::new(pb::RateLimitResponse { overall_code, ..Default::default() }))
    }
}

pub(crate) async fn serve(listener: TcpListener) -> io::Result<()> {
    let (_, health) = tonic_health::server::health_reporter();
    let incoming = connections(listener, None, OpenConnections::default());
    Server::builder()
        .max_concurrent_streams(1024)
        .http2_max_pending_accept_reset_streams(Some(1024))
        .http2_max_local_error_reset_streams(Some(1024))
        .http2_max_header_list_size(16 * 1024)
        .http2_keepalive_interval(Some(Duration::from_secs(60)))
        .http2_keepalive_timeout(Some(Duration::from_secs(20)))
        .timeout(Duration::from_secs(10))
        .add_service(health)
        .add_service(RateLimitServiceServer::new(Nothing))
        .serve_with_incoming(incoming.map(Accepted::register))
        .await
        .map_err(io::Error::other)
}
