//! The pages of the debug port, on Envoy's admin port under `/ratelease`.

use std::time::Duration;

use http_body_util::{BodyExt, Limited};
use ratelease_sidecar::admin::Below;
use ratelease_sidecar::app::Router;
use tokio::runtime::Handle;
use tokio::time::timeout;
use tower::ServiceExt;

/// Where Envoy's admin port serves the pages, each with what Envoy's help page says of it. Envoy
/// looks for the whole path.
pub const PAGES: [(&str, &str); 5] = [
    ("/ratelease", "ratelease: an overview, and the other pages"),
    ("/ratelease/hotkeys", "ratelease: the keys requested and denied most"),
    ("/ratelease/metrics", "ratelease: metrics for Prometheus"),
    ("/ratelease/rlconfig", "ratelease: the rules in force"),
    ("/ratelease/status", "ratelease: the state of decisions, leases and stores"),
];

const PREFIX: &str = "/ratelease";

/// Envoy's main thread waits for a page, at most this long.
const PAGE_MAX: Duration = Duration::from_secs(2);

/// Maximum size in bytes of a page: `/metrics` of the default number of series has less.
const PAGE_BYTES_MAX: usize = 64 << 20;

/// The pages, and where they are rendered.
pub struct Pages {
    routes: Router,
    runtime: Handle,
}

// === impl Pages ===

impl Pages {
    /// Pages that are rendered in `runtime`.
    pub fn new(routes: Router, runtime: Handle) -> Self {
        Self { routes, runtime }
    }

    /// The status and the body of a page, by the path and query that Envoy's admin port got. The
    /// calling thread waits for it.
    pub fn get(&self, method: &[u8], path: &[u8]) -> (u32, Vec<u8>) {
        let path = std::str::from_utf8(path).ok().and_then(|path| path.strip_prefix(PREFIX));
        let path = match path {
            Some("") => "/",
            Some(path) if path.starts_with(['/', '?']) => path,
            _ => return (404, b"no such page\n".to_vec()),
        };
        if method != b"GET" {
            return (405, b"pages are read with GET\n".to_vec());
        }
        // A host that the guard of the debug port lets through: Envoy's admin port guards itself.
        let request = http::Request::get(path).header("host", "localhost").body(String::new());
        let Ok(mut request) = request else { return (400, b"no such page\n".to_vec()) };
        request.extensions_mut().insert(Below(PREFIX));
        let routes = self.routes.clone();
        let (sender, page) = std::sync::mpsc::sync_channel(1);
        self.runtime.spawn(async move {
            let rendered = async {
                let Ok(answer) = routes.oneshot(request).await;
                let (head, body) = answer.into_parts();
                let body = Limited::new(body, PAGE_BYTES_MAX).collect().await.ok()?;
                Some((u32::from(head.status.as_u16()), body.to_bytes().to_vec()))
            };
            let rendered = timeout(PAGE_MAX, rendered).await.ok().flatten();
            // An error means that nobody waits any more.
            let _ = sender.send(rendered);
        });
        let late = (503, b"the page could not be made in time\n".to_vec());
        page.recv_timeout(PAGE_MAX).ok().flatten().unwrap_or(late)
    }
}
