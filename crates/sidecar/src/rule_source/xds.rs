//! Rules from an xDS server: ADS, state of the world. The last good set stays in force whatever the
//! server does, and is kept in the snapshot.
//!
//! ```text
//! stream ─▶ response, resource: text ─▶ rule_set ─▶ pushed ─▶ watch: compile, publish
//!    └◀─────────── subscription: accepted, or all faults ◀────────┘
//! ```
//! `load_report` sends the server the hits of domains, if it asks. The stream runs on the thread of
//! pages, and a thread that may block reads responses. Rules are compiled on the thread of rules,
//! as those of files are.

mod connect;
mod discovery;
mod load_report;
mod pushed;
mod resource;
mod response;
mod rule_set;
mod status;
mod stream;
mod subscription;
mod wire;

use std::io;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use ratelease_cli::settings::Xds;
use ratelease_engine::time::Clock;
use ratelease_rules::{Options, Source};
use tokio::runtime::Handle;
use tokio::sync::{Mutex, oneshot};
use tokio::task::AbortHandle;
use tokio::time::sleep;

use super::memory::MemoryLeft;
use super::snapshot::Snapshot;
use super::watch::Watcher;
use load_report::LoadReporter;
use pushed::pushed;
use ratelease_server::current_rules::CurrentRules;
use ratelease_server::metrics::Meters;
use resource::ResourceType;
use rule_set::RuleSet;
pub use status::XdsStatus;
use stream::Client;

/// Pause after a panic.
const PANIC_PAUSE: Duration = Duration::from_secs(1);

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
    /// `runtime`. The server may ask for the hits that `meters` count, if it serves rules of
    /// ratelease's own type.
    ///
    /// # Errors
    /// Fails if the thread that compiles the rules cannot be started.
    pub fn start(
        settings: Xds,
        options: Options,
        published: &Arc<CurrentRules>,
        snapshot: Option<Arc<Snapshot>>,
        clock: Clock,
        meters: Option<Meters>,
        runtime: &Handle,
    ) -> io::Result<Self> {
        let status = XdsStatus::new(&settings.server.to_string(), clock);
        let merges_domains = options.merge_domains;
        let memory = MemoryLeft::of_process();
        let (load, pusher) = pushed(options, memory.clone());
        let (watcher, wake, kept) = Watcher::spawn_pushed(load, Arc::clone(published), snapshot)?;
        let mut types = vec![ResourceType::RateLimitConfig];
        types.extend(settings.own_rules.then_some(ResourceType::Rules));
        let pusher = pusher(wake);
        let rules = RuleSet::new(&types, merges_domains, pusher, memory, status.clone(), clock);
        let meters = meters.filter(|_| settings.own_rules);
        let loads = meters.map(|it| Arc::new(Mutex::new(LoadReporter::new(it, clock))));
        let client = Client { settings: Arc::new(settings), rules, status: status.clone(), loads };
        let stream = runtime.spawn(follow(client, kept)).abort_handle();
        Ok(Self { watcher, stream, status })
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

/// Follows the server until the task is aborted. `kept` are the rules of the snapshot that are in
/// force.
async fn follow(mut client: Client, kept: oneshot::Receiver<Vec<Arc<Source>>>) {
    // An error means that the thread of rules has ended, and with it the process.
    client.rules.seed(&kept.await.unwrap_or_default());
    loop {
        // It returns only by a panic, after which the server must still be followed.
        let _ = AssertUnwindSafe(client.run()).catch_unwind().await;
        client.status.note_failure("internal error; see the log");
        sleep(PANIC_PAUSE).await;
    }
}

impl Drop for XdsWatch {
    fn drop(&mut self) {
        self.stop();
    }
}
