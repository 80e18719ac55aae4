//! The standard health service, `grpc.health.v1` (`Check`, `Watch`, `List`), with one status under
//! two names: the reference implementation's and the empty one. `/healthcheck` answers plain HTTP/2
//! requests with the same status.

use std::collections::HashMap;
use std::future::{Ready, ready};

use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::routing::{get, post};
use bytes::BytesMut;
use futures_util::stream::{self, BoxStream, Stream, StreamExt};
use http::StatusCode;
use prost::Message;
use tokio::sync::watch;
use tonic::server::{Grpc, UnaryService};
use tonic::{Request, Response, Status};
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_server;
use tonic_health::pb::{HealthCheckRequest, HealthCheckResponse};

use super::fallback::Codec;
use super::{HEALTHCHECK, MESSAGE_BYTES_MAX, message_encodings};
use ratelease_listener::{ConnectionHandle, LongLivedStream};

/// The names of the whole process: the protocol's and the reference implementation's.
const NAMES: [&str; 2] = ["", "ratelimit"];

/// The path of the list of all names with their status, which `tonic-health` does not have.
const LIST: &str = "/grpc.health.v1.Health/List";

/// Maximum number of watches on one connection: a client needs one for each name, and there are two
/// names.
const WATCHES_MAX: usize = 4;

/// Answers checks, and reports every change to watchers.
#[derive(Debug, Clone)]
pub struct Health(watch::Receiver<HealthState>);

/// Sets whether this process is healthy. A cheap handle: clones set the same status.
#[derive(Debug, Clone)]
pub struct HealthHandle(watch::Sender<HealthState>);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum HealthState {
    Serving,
    NotServing,
    /// Not serving; this status is final.
    Ended,
}

/// The answer to `List`.
#[derive(Clone, PartialEq, Eq, prost::Message)]
struct HealthListResponse {
    #[prost(map = "string, message", tag = "1")]
    statuses: HashMap<String, HealthCheckResponse>,
}

/// Creates a health service that reports unhealthy until it is set, and the handle to set it.
pub fn health() -> (Health, HealthHandle) {
    let (sender, receiver) = watch::channel(HealthState::NotServing);
    (Health(receiver), HealthHandle(sender))
}

/// The stream for a watcher of `name`: the present status, and each change of it. It ends when no
/// more change can come, so that no watcher delays the end of the process.
///
/// For an unknown name it sends only SERVICE_UNKNOWN, as the protocol requires. `slot` is released
/// with the stream.
fn status_stream(
    name: &str,
    state: watch::Receiver<HealthState>,
    slot: Option<LongLivedStream>,
) -> impl Stream<Item = Result<HealthCheckResponse, Status>> + Send + use<> {
    let is_known = NAMES.contains(&name);
    stream::unfold((state, None, slot), move |(mut state, last, slot)| async move {
        loop {
            let now = *state.borrow_and_update();
            let status = if is_known { now.status() } else { ServingStatus::ServiceUnknown };
            if last != Some(status) {
                return Some((Ok(response(status)), (state, Some(status), slot)));
            }
            if now == HealthState::Ended || state.changed().await.is_err() {
                return None;
            }
        }
    })
}

fn response(status: ServingStatus) -> HealthCheckResponse {
    HealthCheckResponse { status: status.into() }
}

// === impl HealthState ===

impl HealthState {
    fn status(self) -> ServingStatus {
        match self {
            Self::Serving => ServingStatus::Serving,
            Self::NotServing | Self::Ended => ServingStatus::NotServing,
        }
    }
}

// === impl HealthHandle ===

impl HealthHandle {
    /// Sets the status for every later check and every watcher. Has no effect after
    /// [`HealthHandle::end`].
    pub fn set_healthy(&self, healthy: bool) {
        let state = if healthy { HealthState::Serving } else { HealthState::NotServing };
        self.0.send_if_modified(|now| {
            let is_new = !matches!(*now, HealthState::Ended) && *now != state;
            if is_new {
                *now = state;
            }
            is_new
        });
    }

    /// Reports unhealthy from now on, and ends the calls of watchers once they have read that.
    pub fn end(&self) {
        self.0.send_replace(HealthState::Ended);
    }
}

// === impl Health ===

impl Health {
    /// `/healthcheck` for GET and POST: the statuses are those of [`crate::http`], 200 or 500, and
    /// the word is that of `grpc.health.v1`. Reads the request's body to its end first, so that the
    /// answer is to a complete request.
    pub(super) fn page(&self) -> Router {
        let healthcheck = |State(Self(state)): State<Self>, _body: Bytes| async move {
            let state = *state.borrow();
            match state {
                HealthState::Serving => (StatusCode::OK, "SERVING"),
                HealthState::NotServing | HealthState::Ended => {
                    (StatusCode::INTERNAL_SERVER_ERROR, "NOT_SERVING")
                }
            }
        };
        let list = |State(health): State<Self>, request: http::Request<axum::body::Body>| async {
            let mut grpc = Grpc::new(Codec)
                .apply_max_message_size_config(Some(MESSAGE_BYTES_MAX), None)
                .apply_compression_config(message_encodings(), Default::default());
            grpc.unary(health, request).await
        };
        let methods = get(healthcheck).post(healthcheck);
        Router::new().route(HEALTHCHECK, methods).route(LIST, post(list)).with_state(self.clone())
    }
}

/// `List`. Its request has no fields.
impl UnaryService<Bytes> for Health {
    type Response = BytesMut;
    type Future = Ready<Result<Response<BytesMut>, Status>>;

    fn call(&mut self, _: Request<Bytes>) -> Self::Future {
        let status = self.0.borrow().status();
        let statuses = NAMES.map(|name| (name.to_owned(), response(status)));
        let list = HealthListResponse { statuses: statuses.into() };
        ready(Ok(Response::new(BytesMut::from(&*list.encode_to_vec()))))
    }
}

#[tonic::async_trait]
impl health_server::Health for Health {
    type WatchStream = BoxStream<'static, Result<HealthCheckResponse, Status>>;

    async fn check(
        &self,
        request: Request<HealthCheckRequest>,
    ) -> Result<Response<HealthCheckResponse>, Status> {
        if !NAMES.contains(&&*request.get_ref().service) {
            return Err(Status::not_found("unknown service")); // the reference's text
        }
        let state = *self.0.borrow();
        Ok(Response::new(response(state.status())))
    }

    async fn watch(
        &self,
        request: Request<HealthCheckRequest>,
    ) -> Result<Response<Self::WatchStream>, Status> {
        let handle = request.extensions().get::<ConnectionHandle>();
        let slot = match handle.map(|handle| handle.register_long_lived(WATCHES_MAX)) {
            Some(None) => {
                let reason = format!(
                    "{WATCHES_MAX} watches are open on this connection, which is the maximum"
                );
                return Err(Status::resource_exhausted(reason));
            }
            Some(slot) => slot,
            None => None,
        };
        let status_stream = status_stream(&request.get_ref().service, self.0.clone(), slot);
        Ok(Response::new(status_stream.boxed()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn next(
        status_stream: &mut (impl Stream<Item = Result<HealthCheckResponse, Status>> + Unpin),
    ) -> Option<ServingStatus> {
        status_stream.next().await.map(|status_stream| status_stream.unwrap().status())
    }

    #[tokio::test]
    async fn watchers_receive_each_change_until_the_end() {
        let (Health(state), handle) = health();
        let mut watched = status_stream("ratelimit", state.clone(), None).boxed();
        assert_eq!(next(&mut watched).await, Some(ServingStatus::NotServing));
        handle.set_healthy(true);
        assert_eq!(next(&mut watched).await, Some(ServingStatus::Serving));
        handle.set_healthy(true);
        assert!(futures_util::poll!(watched.next()).is_pending(), "nothing has changed");
        handle.end();
        handle.set_healthy(true);
        for watched in [&mut watched, &mut status_stream("", state, None).boxed()] {
            assert_eq!(next(watched).await, Some(ServingStatus::NotServing));
            assert_eq!(next(watched).await, None);
        }
    }

    #[tokio::test]
    async fn an_unknown_name_may_be_watched() {
        let (Health(state), handle) = health();
        let mut watched = status_stream("unknown", state, None).boxed();
        assert_eq!(next(&mut watched).await, Some(ServingStatus::ServiceUnknown));
        handle.set_healthy(true);
        assert!(futures_util::poll!(watched.next()).is_pending());
        handle.end();
        assert_eq!(next(&mut watched).await, None);
    }
}
