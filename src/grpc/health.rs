//! The standard health service, `grpc.health.v1`, with one status under two names: the reference
//! implementation's and the empty one. `/healthcheck` answers plain HTTP/2 requests with the same
//! status.

use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::routing::get;
use futures_util::stream::{self, BoxStream, Stream, StreamExt};
use http::StatusCode;
use tokio::sync::watch;
use tonic::{Request, Response, Status};
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_server;
use tonic_health::pb::{HealthCheckRequest, HealthCheckResponse};

use crate::accept::{ConnectionHandle, LongLivedStream};

/// The names of the whole process: the protocol's and the reference implementation's.
const NAMES: [&str; 2] = ["", "ratelimit"];

/// The path of the health check of plain HTTP/2.
pub(super) const HEALTHCHECK: &str = "/healthcheck";

/// Maximum number of watches on one connection: a client needs one for each name, and there are two
/// names.
const WATCHES_MAX: usize = 4;

/// Answers checks, and reports every change to watchers.
#[derive(Debug, Clone)]
pub struct Health(watch::Receiver<Standing>);

/// Sets whether this process is healthy. A cheap handle: clones set the same status.
#[derive(Debug, Clone)]
pub struct HealthHandle(watch::Sender<Standing>);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Standing {
    Serving,
    NotServing,
    /// Not serving; this status is final.
    Over,
}

/// Creates a health service that reports unhealthy until it is set, and the handle to set it.
pub fn health() -> (Health, HealthHandle) {
    let (said, heard) = watch::channel(Standing::NotServing);
    (Health(heard), HealthHandle(said))
}

/// The stream for a watcher of `name`: the present status, and each change of it. It ends when no
/// more change can come, so that no watcher delays the end of the process.
///
/// For an unknown name it sends only SERVICE_UNKNOWN, as the protocol requires. `place` is released
/// with the stream.
fn told(
    name: &str,
    standing: watch::Receiver<Standing>,
    place: Option<LongLivedStream>,
) -> impl Stream<Item = Result<HealthCheckResponse, Status>> + Send + use<> {
    let is_known = NAMES.contains(&name);
    stream::unfold((standing, None, place), move |(mut standing, last, place)| async move {
        loop {
            let now = *standing.borrow_and_update();
            let status = if is_known { now.status() } else { ServingStatus::ServiceUnknown };
            if last != Some(status) {
                return Some((Ok(response(status)), (standing, Some(status), place)));
            }
            if now == Standing::Over || standing.changed().await.is_err() {
                return None;
            }
        }
    })
}

fn response(status: ServingStatus) -> HealthCheckResponse {
    HealthCheckResponse { status: status.into() }
}

// === impl Standing ===

impl Standing {
    fn status(self) -> ServingStatus {
        match self {
            Self::Serving => ServingStatus::Serving,
            Self::NotServing | Self::Over => ServingStatus::NotServing,
        }
    }
}

// === impl HealthHandle ===

impl HealthHandle {
    /// Sets the status for every later check and every watcher. Has no effect after
    /// [`HealthHandle::end`].
    pub fn set(&self, healthy: bool) {
        let standing = if healthy { Standing::Serving } else { Standing::NotServing };
        self.0.send_if_modified(|now| {
            let is_new = !matches!(*now, Standing::Over) && *now != standing;
            if is_new {
                *now = standing;
            }
            is_new
        });
    }

    /// Reports unhealthy from now on, and ends the calls of watchers once they have read that.
    pub fn end(&self) {
        self.0.send_replace(Standing::Over);
    }
}

// === impl Health ===

impl Health {
    /// `/healthcheck` for GET and POST: the statuses are those of [`crate::http`], 200 or 500, and
    /// the word is that of `grpc.health.v1`. Reads the request's body to its end first, so that the
    /// answer is to a complete request.
    pub(super) fn page(&self) -> Router {
        let healthcheck = |State(Self(standing)): State<Self>, _body: Bytes| async move {
            let standing = *standing.borrow();
            match standing {
                Standing::Serving => (StatusCode::OK, "SERVING"),
                Standing::NotServing | Standing::Over => {
                    (StatusCode::INTERNAL_SERVER_ERROR, "NOT_SERVING")
                }
            }
        };
        let methods = get(healthcheck).post(healthcheck);
        Router::new().route(HEALTHCHECK, methods).with_state(self.clone())
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
        let standing = *self.0.borrow();
        Ok(Response::new(response(standing.status())))
    }

    async fn watch(
        &self,
        request: Request<HealthCheckRequest>,
    ) -> Result<Response<Self::WatchStream>, Status> {
        let handle = request.extensions().get::<ConnectionHandle>();
        let place = match handle.map(|handle| handle.register_long_lived(WATCHES_MAX)) {
            Some(None) => {
                let reason = format!("{WATCHES_MAX} watches are open on this connection already");
                return Err(Status::resource_exhausted(reason));
            }
            Some(place) => place,
            None => None,
        };
        let told = told(&request.get_ref().service, self.0.clone(), place);
        Ok(Response::new(told.boxed()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn next(
        told: &mut (impl Stream<Item = Result<HealthCheckResponse, Status>> + Unpin),
    ) -> Option<ServingStatus> {
        told.next().await.map(|told| told.unwrap().status())
    }

    #[tokio::test]
    async fn watchers_are_told_each_change_and_let_go_at_the_end() {
        let (Health(standing), handle) = health();
        let mut watched = told("ratelimit", standing.clone(), None).boxed();
        assert_eq!(next(&mut watched).await, Some(ServingStatus::NotServing));
        handle.set(true);
        assert_eq!(next(&mut watched).await, Some(ServingStatus::Serving));
        handle.set(true);
        assert!(futures_util::poll!(watched.next()).is_pending(), "nothing has changed");
        handle.end();
        handle.set(true);
        for watched in [&mut watched, &mut told("", standing, None).boxed()] {
            assert_eq!(next(watched).await, Some(ServingStatus::NotServing));
            assert_eq!(next(watched).await, None);
        }
    }

    #[tokio::test]
    async fn a_name_that_nobody_has_is_watched_for_the_time_it_may_have_one() {
        let (Health(standing), handle) = health();
        let mut watched = told("nobody", standing, None).boxed();
        assert_eq!(next(&mut watched).await, Some(ServingStatus::ServiceUnknown));
        handle.set(true);
        assert!(futures_util::poll!(watched.next()).is_pending());
        handle.end();
        assert_eq!(next(&mut watched).await, None);
    }
}
