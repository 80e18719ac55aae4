//! Settings for metrics.

use clap::Args;

use super::fault::{Expected, Faults};
use super::flag::BOOL;
use super::value::{self, HostPort};

/// Maximum number of series of one kind: each takes some 500 bytes on two cores here, and more
/// memory in Prometheus.
const SERIES_LIMIT: usize = 100_000;

/// Which metrics are kept, and where they are served.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Metrics {
    /// Whether decisions are counted. The debug port serves the other metrics in any case.
    pub counts_decisions: bool,
    /// A listener for metrics only; `None` if only the debug port serves them.
    pub listen: Option<HostPort>,
    /// The path at that listener; begins with `/`.
    pub path: String,
    /// Maximum number of rules, and of values, that have their own series; up to 100 000.
    pub series_max: usize,
}

#[derive(Debug, Args)]
#[command(next_help_heading = "Metrics")]
pub(super) struct MetricsFlags {
    /// Do not count decisions
    #[arg(long, env = "DISABLE_STATS", value_name = BOOL, default_value = "false")]
    disable_stats: String,
    /// Serve metrics on a port of their own too, not only on the debug port's /metrics
    #[arg(long, env = "USE_PROMETHEUS", value_name = BOOL, default_value = "false")]
    use_prometheus: String,
    /// That port, with its interface if not all
    #[arg(long, env = "PROMETHEUS_ADDR", value_name = "HOST:PORT", default_value = ":9090")]
    prometheus_addr: String,
    /// The path on that port
    #[arg(long, env = "PROMETHEUS_PATH", value_name = "PATH", default_value = "/metrics")]
    prometheus_path: String,
    /// Rules counted apart at most, and values of detailed rules; the rest are counted together
    #[arg(long, env = "METRICS_SERIES_MAX", value_name = "COUNT", default_value = "10000")]
    metrics_series_max: String,
}

// === impl MetricsFlags ===

impl MetricsFlags {
    pub(super) fn resolve(&self, faults: &mut Faults) -> Option<Metrics> {
        let off = faults.parse("DISABLE_STATS", &self.disable_stats, value::boolean);
        let own = faults.parse("USE_PROMETHEUS", &self.use_prometheus, value::boolean);
        let listen = faults.parse("PROMETHEUS_ADDR", &self.prometheus_addr, address);
        let path = faults.parse("PROMETHEUS_PATH", &self.prometheus_path, path);
        let count = value::count_within(0..=SERIES_LIMIT, "10000");
        let series_max = faults.parse("METRICS_SERIES_MAX", &self.metrics_series_max, count);
        let listen = listen?;
        Some(Metrics {
            counts_decisions: !off?,
            listen: own?.then_some(listen),
            path: path?,
            series_max: series_max?,
        })
    }
}

/// Parses an address as Go's `net.Listen` does: without a host it means all interfaces.
fn address(text: &str) -> Result<HostPort, Expected> {
    let expected = || Expected::new("a port behind a colon, with or without a host", ":9090");
    let (host, port) = text.rsplit_once(':').ok_or_else(expected)?;
    let port = value::port(port).map_err(|_| expected())?;
    match host {
        "" => Ok(HostPort::new("0.0.0.0", port)),
        // An IPv6 address without brackets may be missing its port.
        _ if host.contains(':') && !host.starts_with('[') => Err(expected()),
        _ => Ok(HostPort::new(value::host(host).map_err(|_| expected())?, port)),
    }
}

fn path(text: &str) -> Result<String, Expected> {
    let good = |b: u8| b.is_ascii_alphanumeric() || b"/-._~".contains(&b);
    if text.starts_with('/') && text.bytes().all(good) {
        return Ok(text.to_owned());
    }
    Err(Expected::new("a path that begins with / (letters, digits and -._~)", "/metrics"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_a_port_with_or_without_its_host() {
        for (text, expected) in [
            (":9090", Some(("0.0.0.0", 9090))),
            ("127.0.0.1:0", Some(("127.0.0.1", 0))),
            ("[::]:9090", Some(("::", 9090))),
            ("localhost:80", Some(("localhost", 80))),
            ("9090", None),
            ("::1:80", None),
            ("a b:80", None),
            (":65536", None),
            ("", None),
        ] {
            let parsed = address(text).ok();
            let expected = expected.map(|(host, port)| HostPort::new(host, port));
            assert_eq!(parsed, expected, "{text}");
        }
    }

    #[test]
    fn a_path_has_nothing_that_routes_or_urls_read_otherwise() {
        for (text, good) in
            [("/metrics", true), ("/", true), ("/a/b-c", true), ("metrics", false), ("", false)]
        {
            assert_eq!(path(text).is_ok(), good, "{text}");
        }
        assert!(["/{a}", "/*", "/a?b", "/a#b", "/a b"].into_iter().all(|text| path(text).is_err()));
    }
}
