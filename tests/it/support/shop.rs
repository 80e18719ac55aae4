//! A pod with rules of its own that gets one descriptor at a time, for tests of its pages.

use std::path::Path;

use serde_json::{Value, json};
use tempfile::TempDir;

use super::files::dir_of;
use super::http::Client;
use super::ratelease::Ratelease;

/// Long enough for the store on any machine: no failure mode answers instead.
pub(crate) const PATIENT: (&str, &str) = ("LEASE_MAX_WAIT", "5s");

/// A pod, its rules and a connection to its HTTP port.
pub(crate) struct Shop {
    pub(crate) pod: Ratelease,
    rules: TempDir,
    client: Client,
}

// === impl Shop ===

impl Shop {
    /// Starts a [`PATIENT`] pod with the embedded store and one rule file.
    pub(crate) async fn open(rules: &str, env: &[(&str, &str)]) -> Self {
        let dir = dir_of(&[("shop.yaml", rules)]);
        let pod = Ratelease::start(dir.path(), &[], &[&[PATIENT], env].concat()).await;
        let client = Client::connect(pod.http).await.unwrap();
        Self { pod, rules: dir, client }
    }

    /// The directory of its rules.
    pub(crate) fn rules(&self) -> &Path {
        self.rules.path()
    }

    /// Requests one descriptor; returns the HTTP status.
    pub(crate) async fn ask(&mut self, domain: &str, entries: &[(&str, &str)]) -> u16 {
        self.ask_with(domain, entries, json!({})).await
    }

    /// As `ask`, with additional fields of the descriptor.
    pub(crate) async fn ask_with(
        &mut self,
        domain: &str,
        entries: &[(&str, &str)],
        mut descriptor: Value,
    ) -> u16 {
        let entry = |(key, value): &(&str, &str)| json!({"key": key, "value": value});
        descriptor["entries"] = entries.iter().map(entry).collect();
        let body = json!({"domain": domain, "descriptors": [descriptor]}).to_string();
        self.client.send("POST", "/json", &[], body).await.unwrap().status
    }
}
