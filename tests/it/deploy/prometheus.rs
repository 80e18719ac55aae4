//! A real Prometheus on a port of its own, with a data directory of its own.

use std::fs;
use std::net::SocketAddr;
use std::time::Duration;

use serde_json::Value;
use tempfile::TempDir;

use crate::support::http;
use crate::support::ports::free_port;
use crate::support::process::{Process, leashed};

/// Killed when dropped, and its data is removed.
pub(super) struct Prometheus {
    pub(super) process: Process,
    api: SocketAddr,
    _dir: TempDir,
}

/// Maximum time until it answers, on a machine that also compiles.
const START_MAX: Duration = Duration::from_secs(60);

// === impl Prometheus ===

impl Prometheus {
    /// Starts with `configuration` as the text of its file, and waits until it answers.
    pub(super) async fn start(configuration: &str) -> Self {
        let dir = TempDir::new().unwrap();
        let file = dir.path().join("prometheus.yml");
        fs::write(&file, configuration).unwrap();
        let api = SocketAddr::from(([127, 0, 0, 1], free_port()));
        let mut command = leashed("prometheus");
        command
            .arg(format!("--config.file={}", file.display()))
            .arg(format!("--storage.tsdb.path={}", dir.path().join("data").display()))
            .arg(format!("--web.listen-address={api}"))
            .arg("--log.level=warn");
        let process = Process::spawn("prometheus", command);
        let ready = async || http::get(api, "/-/ready").await.is_ok_and(|it| it.status == 200);
        process.until("ready", START_MAX, ready).await;
        Self { process, api, _dir: dir }
    }

    /// The `data` of an answer of the API, or its error.
    pub(super) async fn get(&self, path: &str) -> Result<Value, String> {
        let answer = http::get(self.api, &format!("/api/v1/{path}")).await;
        let answer = answer.map_err(|error| error.to_string())?;
        let mut reported: Value = serde_json::from_str(&answer.body)
            .map_err(|error| format!("{}: {error}: {}", answer.status, answer.body))?;
        if reported["status"] == "success" {
            Ok(reported["data"].take())
        } else {
            Err(reported.to_string())
        }
    }

    /// The present values of an expression, without those that are not a number.
    pub(super) async fn query(&self, expression: &str) -> Result<Vec<f64>, String> {
        let data = self.get(&format!("query?query={}", escaped(expression))).await?;
        let samples = data["result"].as_array().ok_or_else(|| data.to_string())?;
        let number = |sample: &Value| sample["value"][1].as_str()?.parse::<f64>().ok();
        Ok(samples.iter().filter_map(number).filter(|value| !value.is_nan()).collect())
    }

    /// The values of a label on the series that `selector` selects.
    pub(super) async fn label_values(
        &self,
        label: &str,
        selector: &str,
    ) -> Result<Vec<String>, String> {
        let path = format!("label/{label}/values?match[]={}", escaped(selector));
        serde_json::from_value(self.get(&path).await?).map_err(|error| error.to_string())
    }
}

/// Escapes a text for the query of a URL.
fn escaped(text: &str) -> String {
    text.bytes().map(|byte| format!("%{byte:02X}")).collect()
}
