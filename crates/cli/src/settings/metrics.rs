//! Settings for metrics.

use super::fault::{Expected, Faults};
use super::group::Flags;
use super::table::{Setting, setting, settings, switch};
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

settings! {
    /// Settings for metrics.
    pub(super) group MetricsTable("Metrics");

    /// Do not count decisions
    DISABLE_STATS: Setting<bool> = switch(false);
    /// Also serve metrics on a port of their own; the debug port serves them as /metrics either way
    USE_PROMETHEUS: Setting<bool> = switch(false);
    /// That port, with or without the interface; all interfaces if there is none
    PROMETHEUS_ADDR: Setting<HostPort> = setting("HOST:PORT", ":9090", address);
    /// Path of the metrics on that port
    PROMETHEUS_PATH: Setting<String> = setting("PATH", "/metrics", path);
    /// Maximum number of rules, and of values of detailed rules, that are counted separately; the
    /// rest are counted together
    METRICS_SERIES_MAX: Setting<usize> =
        setting("COUNT", "10000", |text| value::count_within(text, 0..=SERIES_LIMIT));
}

/// Flags for metrics.
pub(super) type MetricsFlags = Flags<MetricsTable>;

// === impl MetricsFlags ===

impl MetricsFlags {
    pub(super) fn resolve(&self, faults: &mut Faults) -> Option<Metrics> {
        let off = self.get(&DISABLE_STATS, faults);
        let has_listener = self.get(&USE_PROMETHEUS, faults);
        let listen = self.get(&PROMETHEUS_ADDR, faults);
        let path = self.get(&PROMETHEUS_PATH, faults);
        let series_max = self.get(&METRICS_SERIES_MAX, faults);
        let listen = listen?;
        Some(Metrics {
            counts_decisions: !off?,
            listen: has_listener?.then_some(listen),
            path: path?,
            series_max: series_max?,
        })
    }
}

/// Parses an address as Go's `net.Listen` does: without a host it means all interfaces.
fn address(text: &str) -> Result<HostPort, Expected> {
    let expected = || Expected::new("a port after a colon, with or without a host");
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
    Err(Expected::new("a path that begins with / (letters, digits and -._~)"))
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
