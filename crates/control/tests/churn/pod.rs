use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::sleep;

use crate::played::limit_of;
use crate::route::{Replicas, Route};
use crate::support::{Call, SOON, free_port, now};

/// A pod of ratelease, as a process, on the embedded store.
pub(crate) struct Pod {
    pub(crate) name: String,
    pub(crate) route: Arc<Route>,
    debug: SocketAddr,
    child: Mutex<Child>,
}

// === impl Pod ===

impl Pod {
    pub(crate) async fn start(name: &str, replicas: &Arc<Replicas>) -> Arc<Self> {
        let route = Route::open(name, replicas).await;
        let debug = SocketAddr::from(([127, 0, 0, 1], free_port()));
        let child = Mutex::new(spawn(name, &route, debug));
        Arc::new(Self { name: name.to_owned(), route, debug, child })
    }

    /// Kills it and starts it again.
    pub(crate) async fn restart(&self) {
        self.route.is_restarting.store(true, Ordering::Relaxed);
        self.kill();
        *self.child.lock() = spawn(&self.name, &self.route, self.debug);
        let end = now() + SOON;
        while self.limits().await.is_none() {
            assert!(now() < end, "{} does not come back", self.name);
            sleep(Duration::from_millis(50)).await;
        }
        self.route.is_restarting.store(false, Ordering::Relaxed);
    }

    /// The limit of each domain, by the page of the rules in force. `None` if it does not answer.
    pub(crate) async fn limits(&self) -> Option<BTreeMap<String, u32>> {
        let answer = Call::new("GET", "/rlconfig").to(self.debug).await.ok()?;
        let lines = answer.text.lines().filter_map(|line| {
            let (domain, _) = line.split_once('.')?;
            Some((domain.to_owned(), limit_of(line)))
        });
        Some(lines.collect())
    }

    fn kill(&self) {
        let mut child = self.child.lock();
        let _ = child.kill();
        let _ = child.wait();
    }
}

impl Drop for Pod {
    fn drop(&mut self) {
        self.kill();
    }
}

fn spawn(name: &str, route: &Route, debug: SocketAddr) -> Child {
    let mut command = Command::new(&*crate::RATELEASE);
    command.arg("serve").env_clear().stdout(Stdio::null()).stderr(Stdio::null());
    for port in ["PORT", "GRPC_PORT"] {
        command.env(port, free_port().to_string());
    }
    command.env("DEBUG_PORT", debug.port().to_string());
    command.env("CONFIG_TYPE", "GRPC_XDS_SOTW").env("CONFIG_GRPC_XDS_RATELEASE", "true");
    command.env("CONFIG_GRPC_XDS_SERVER_URL", route.address.to_string());
    command.env("CONFIG_GRPC_XDS_NODE_ID", name).spawn().unwrap()
}
