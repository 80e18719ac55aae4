//! A control plane that publishes a version after the other to a pod.

use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use tempfile::TempDir;
use tokio::task::JoinSet;

use crate::support::control::Control;
use crate::support::files::dir_of;
use crate::support::ratelease::Ratelease;

/// Pause between two versions.
const PAUSE: Duration = Duration::from_millis(500);

/// A control plane, and a pod that follows it. Both end when this is dropped.
pub(super) struct Publishing {
    /// Dropped before the control plane.
    _versions: JoinSet<()>,
    pub(super) pod: Ratelease,
    pub(super) control: Arc<Control>,
    _none: TempDir,
}

// === impl Publishing ===

impl Publishing {
    pub(super) async fn start() -> Self {
        let control = Arc::new(Control::start().await);
        publish(&control, 0).await;
        let (none, pods) = (dir_of(&[]), control.pods.to_string());
        let env = [
            ("CONFIG_TYPE", "GRPC_XDS_SOTW"),
            ("CONFIG_GRPC_XDS_SERVER_URL", &pods),
            ("CONFIG_GRPC_XDS_RATELEASE", "true"),
        ];
        let pod = Ratelease::spawn(none.path(), &[], &env);
        pod.ready().await;
        let mut versions = JoinSet::new();
        let publisher = Arc::clone(&control);
        versions.spawn(async move {
            let mut ticks = tokio::time::interval(PAUSE);
            for version in 1_u64.. {
                ticks.tick().await;
                publish(&publisher, version).await;
            }
        });
        Self { _versions: versions, pod, control, _none: none }
    }
}

/// Publishes a limit that no version before had.
async fn publish(control: &Control, version: u64) {
    let path = "/rules?reason=scene";
    let rule = json!({
        "scope": "user", "scope_value": version.to_string(), "max_requests": 5,
        "window_seconds": 60
    });
    control.call("POST", path, &rule).await;
}
