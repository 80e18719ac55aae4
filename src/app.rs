//! The composition root: builds the parts, binds early, serves, and drains in order.

mod bind;
mod build;

use std::io;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::{sleep, timeout};
use tracing::{info, warn};

use crate::accept::OpenConnections;
use crate::control::Published;
use crate::control::health::Health;
use crate::control::watch::Watcher;
use crate::grpc::serve::{self, ConnectionAge, HealthHandle};
use crate::http;
use crate::intake::Intake;
use crate::limiter::Limiter;

pub use build::BuildError;

/// A quarter of the drain is notice: calls are still taken, until whoever checks our health has
/// heard that it fails. Another is kept for giving leases back when calls do not finish.
const DRAIN_PARTS: u32 = 4;

/// Everything, built and bound, not yet serving.
pub struct App {
    grpc: serve::Listener,
    http: TcpListener,
    debug: TcpListener,
    age: ConnectionAge,
    admin: Router,
    intake: Intake,
    limiter: Limiter,
    published: Arc<Published>,
    health: Health,
    watcher: Watcher,
    drain: Duration,
    greeting: String,
}

/// Everything, serving.
struct Serving {
    grpc: JoinHandle<io::Result<()>>,
    /// The HTTP listeners.
    pages: JoinSet<()>,
    side: JoinSet<()>,
    /// Sending tells the gRPC listener, and then the HTTP ones, to take no more.
    end_grpc: watch::Sender<bool>,
    end_http: watch::Sender<bool>,
    open: OpenConnections,
    limiter: Limiter,
    health: Health,
    handle: HealthHandle,
    watcher: Watcher,
    drain_max: Duration,
}

// === impl App ===

impl App {
    /// One line for people: where it listens, on which store, how many rules, what to try.
    pub fn greeting(&self) -> &str {
        &self.greeting
    }

    /// Serves until `stop` resolves, then drains: health fails first, calls are taken until clients
    /// had time to hear of it, those under way finish, leases go back. Ends within the drain limit
    /// even if a client never closes.
    ///
    /// # Errors
    ///
    /// The gRPC listener failed. Leases have gone back all the same.
    pub async fn run(self, stop: impl Future<Output = ()>) -> io::Result<()> {
        let mut serving = self.start().await;
        let ended = tokio::select! {
            () = stop => Ok(()),
            ended = &mut serving.grpc => ended.unwrap_or_else(|error| Err(io::Error::other(error))),
        };
        info!("draining: health fails, calls under way finish, leases go back");
        serving.drain(ended.is_ok()).await;
        ended
    }

    async fn start(self) -> Serving {
        let App { grpc, http, debug, age, admin, intake, limiter, published, health, .. } = self;
        let (end_grpc, grpc_ended) = watch::channel(false);
        let (end_http, http_ended) = watch::channel(false);
        let (health_service, handle) = serve::health().await;
        let (mut side, mut pages) = (JoinSet::new(), JoinSet::new());
        side.spawn(keep_health(published.clone(), health.clone(), handle.clone()));
        side.spawn(keep_rules(published, limiter.clone()));
        side.spawn(keep_limiter(limiter.clone()));
        let routes = http::routes(intake.clone(), health.clone());
        pages.spawn(serve_http(http, routes, http_ended.clone()));
        pages.spawn(serve_http(debug, admin, http_ended));
        let open = OpenConnections::default();
        let door = serve::Door { intake, health: health_service, age, open: open.clone() };
        let grpc = tokio::spawn(serve::serve(grpc, door, told(grpc_ended)));
        let Self { watcher, drain: drain_max, .. } = self;
        Serving {
            grpc,
            pages,
            side,
            end_grpc,
            end_http,
            open,
            limiter,
            health,
            handle,
            watcher,
            drain_max,
        }
    }
}

// === impl Serving ===

impl Serving {
    async fn drain(mut self, is_serving: bool) {
        self.health.drain();
        self.handle.set(false).await;
        let part = self.drain_max / DRAIN_PARTS;
        if is_serving {
            if self.open.count() > 0 {
                // An Envoy that is told to go away before it has found the pod unhealthy connects
                // again at once, and each request that finds the door closed fails.
                sleep(part).await;
            }
            self.finish(self.drain_max - 2 * part).await;
        }
        if timeout(part, self.limiter.close()).await.is_err() {
            warn!("not all leases could be given back; they end with their windows");
        }
        drop(self.watcher);
        self.side.abort_all();
    }

    /// Takes no more calls and lets those under way finish, within `limit`.
    async fn finish(&mut self, limit: Duration) {
        // Not before: a watcher whose call ends while calls are taken begins another.
        self.handle.end().await;
        self.end_grpc.send_replace(true);
        let finished = async {
            // It logs its own fault.
            let _ = (&mut self.grpc).await;
            // Until here, so that `/healthcheck` says no while calls finish.
            self.end_http.send_replace(true);
            while self.pages.join_next().await.is_some() {}
        };
        if timeout(limit, finished).await.is_err() {
            warn!("a client kept its call open; it is cut off");
            self.grpc.abort();
            self.pages.abort_all();
        }
    }
}

/// Tells gRPC's health service whatever `/healthcheck` says, whenever that may have changed.
async fn keep_health(published: Arc<Published>, health: Health, handle: HealthHandle) {
    let mut changes = published.changes();
    loop {
        let healthy = health.is_healthy();
        handle.set(healthy).await;
        // A drain that began meanwhile has said no, and the line above may have said yes after it.
        if healthy == health.is_healthy() && changes.changed().await.is_err() {
            return;
        }
    }
}

/// Gives back the leases of rules that a new version no longer has.
async fn keep_rules(published: Arc<Published>, limiter: Limiter) {
    let mut changes = published.changes();
    while changes.changed().await.is_ok() {
        if let Some(rules) = published.current() {
            limiter.adopt(&rules).await;
        }
    }
}

async fn keep_limiter(limiter: Limiter) {
    limiter.run().await;
}

async fn serve_http(listener: TcpListener, routes: Router, end: watch::Receiver<bool>) {
    if let Err(error) = http::serve(listener, routes, told(end)).await {
        warn!(%error, "an HTTP listener failed");
    }
}

/// Resolves once `end` is true, or nobody is left to say so.
async fn told(mut end: watch::Receiver<bool>) {
    // An error says that the sender is gone.
    let _ = end.wait_for(|end| *end).await;
}
