//! The composition root: builds the parts, binds early, serves, and drains in order.

mod bind;
mod build;

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::timeout;
use tracing::{info, warn};

use crate::control::Published;
use crate::control::health::Health;
use crate::control::watch::Watcher;
use crate::grpc::serve::{self, ConnectionAge, HealthHandle};
use crate::http;
use crate::intake::Intake;
use crate::limiter::Limiter;

pub use build::BuildError;

/// How often keys whose window has ended are forgotten.
const TIDY_INTERVAL: Duration = Duration::from_secs(1);

/// Of the drain, the part that is kept for giving leases back when calls do not finish.
const GIVE_BACK_PART: u32 = 4;

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

// === impl App ===

impl App {
    /// One line for people: where it listens, on which store, how many rules, what to try.
    pub fn greeting(&self) -> &str {
        &self.greeting
    }

    /// Serves until `stop` resolves, then drains: health fails first, calls under way finish,
    /// leases go back. Ends within the drain limit even if a client never closes.
    pub async fn run(self, stop: impl Future<Output = ()>) {
        let App { grpc, http, debug, age, admin, intake, limiter, .. } = self;
        let (end_grpc, grpc_ended) = watch::channel(());
        let (end_http, http_ended) = watch::channel(());
        let (health, handle) = serve::health().await;
        let (mut side, mut pages) = (JoinSet::new(), JoinSet::new());
        side.spawn(keep_health(self.published.clone(), self.health.clone(), handle.clone()));
        side.spawn(keep_rules(self.published, limiter.clone()));
        side.spawn(keep_tidy(limiter.clone()));
        let routes = http::routes(intake.clone(), self.health.clone());
        pages.spawn(serve_http(http, routes, http_ended.clone()));
        pages.spawn(serve_http(debug, admin, http_ended));
        let mut grpc = tokio::spawn(serve::serve(grpc, intake, health, age, closed(grpc_ended)));

        tokio::select! {
            () = stop => info!("draining: health fails, calls under way finish, leases go back"),
            ended = &mut grpc => warn!(?ended, "the gRPC listener failed"),
        }
        self.health.drain();
        handle.end().await;
        drop(end_grpc);
        let give_back = self.drain / GIVE_BACK_PART;
        let served = async {
            if !grpc.is_finished() {
                // It logs its own fault.
                let _ = (&mut grpc).await;
            }
            // Until here, so that `/healthcheck` says no while calls finish.
            drop(end_http);
            while pages.join_next().await.is_some() {}
        };
        if timeout(self.drain - give_back, served).await.is_err() {
            warn!("a client kept its call open; it is cut off");
            grpc.abort();
            pages.abort_all();
        }
        if timeout(give_back, limiter.close()).await.is_err() {
            warn!("not all leases could be given back; they end with their windows");
        }
        drop(self.watcher);
        side.abort_all();
    }
}

/// Tells gRPC's health service whatever `/healthcheck` says, whenever that may have changed.
async fn keep_health(published: Arc<Published>, health: Health, handle: HealthHandle) {
    let mut changes = published.changes();
    loop {
        handle.set(health.is_healthy()).await;
        if changes.changed().await.is_err() {
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

async fn keep_tidy(limiter: Limiter) {
    let mut ticks = tokio::time::interval(TIDY_INTERVAL);
    loop {
        ticks.tick().await;
        limiter.tidy().await;
    }
}

async fn serve_http(listener: TcpListener, routes: Router, end: watch::Receiver<()>) {
    if let Err(error) = http::serve(listener, routes, closed(end)).await {
        warn!(%error, "an HTTP listener failed");
    }
}

/// Resolves once the sender is gone.
async fn closed(mut end: watch::Receiver<()>) {
    while end.changed().await.is_ok() {}
}
