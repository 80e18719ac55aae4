//! Rules from an xDS server: ADS, state of the world. The last good set stays in force whatever the
//! server does, and is kept in the snapshot.
//!
//! ```text
//! stream ─▶ subscription: names, versions ─▶ translate: text ─▶ pushed ─▶ watch: compile, publish
//!    └◀─────────────── accepted, or all faults ◀────────────────────┘
//! ```
//! The stream runs on the thread of pages, since a message may be large. Rules are compiled on the
//! thread of rules, as those of files are.

mod connect;
#[doc(hidden)]
pub mod fuzzing;
mod pushed;
mod status;
mod stream;
mod subscription;
mod translate;
mod wire;

use std::io;
use std::sync::Arc;

use ratelease_cli::settings::Xds;
use ratelease_engine::time::Clock;
use ratelease_rules::Options;
use tokio::runtime::Handle;
use tokio::task::AbortHandle;
use tracing::info;

use super::snapshot::Snapshot;
use super::watch::Watcher;
use pushed::pushed;
use ratelease_server::current_rules::CurrentRules;
pub use status::XdsStatus;
use stream::Client;

/// Follows an xDS server; dropping it ends that.
#[derive(Debug)]
pub struct XdsWatch {
    watcher: Watcher,
    stream: AbortHandle,
    status: XdsStatus,
}

// === impl XdsWatch ===

impl XdsWatch {
    /// Puts the rules of `snapshot` in force, if it has any, and starts to follow the server, on
    /// `runtime`.
    ///
    /// # Errors
    /// Fails if the thread that compiles the rules cannot be started.
    pub fn start(
        settings: Xds,
        options: Options,
        published: &Arc<CurrentRules>,
        snapshot: Option<Arc<Snapshot>>,
        clock: Clock,
        runtime: &Handle,
    ) -> io::Result<Self> {
        let status = XdsStatus::new(&settings.server.to_string(), clock);
        let (load, pusher) = pushed(options);
        let (watcher, wake) = Watcher::spawn_pushed(load, Arc::clone(published), snapshot)?;
        let client = Client::new(settings, pusher(wake), status.clone(), clock);
        let stream = runtime.spawn(client.run()).abort_handle();
        Ok(Self { watcher, stream, status })
    }

    /// Resolves once there are rules of the snapshot, or the server has sent a set, good or not.
    pub async fn first_set(published: &CurrentRules) {
        let (mut changes, mut loads) = (published.changes(), published.loads());
        if published.current().is_some() || published.loads_failed() > 0 {
            return;
        }
        info!("waiting for the first rules of the xDS server");
        // An error means that the process ends.
        tokio::select! {
            _ = changes.changed() => {}
            _ = loads.changed() => {}
        }
    }

    /// The state of the stream.
    pub fn status(&self) -> XdsStatus {
        self.status.clone()
    }

    /// Ends it: the caller goes on while the threads end.
    pub fn stop(&self) {
        self.stream.abort();
        self.watcher.stop();
    }
}

impl Drop for XdsWatch {
    fn drop(&mut self) {
        self.stop();
    }
}
