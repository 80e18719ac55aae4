//! Settings for telemetry sent to an OpenTelemetry collector: spans and pushed metrics.

use std::time::Duration;

use clap::Args;

use super::fault::{Expected, Fault, Faults};
use super::flag::BOOL;
use super::otlp::{self, Otlp, OtlpProtocol, Signal};
use super::value;

/// What is sent to a collector, and under which name.
#[derive(Debug, Clone, PartialEq)]
pub struct Telemetry {
    /// The identity of the sender.
    pub identity: Identity,
    /// Settings for spans; `None` if no spans are sent.
    pub tracing: Option<Tracing>,
    /// Settings for pushed metrics; `None` if metrics are only scraped.
    pub push: Option<Push>,
}

/// The attributes by which a collector identifies this process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    /// `service.name`.
    pub name: String,
    /// `service.namespace`; if empty, `attributes` decide.
    pub namespace: String,
    /// `service.instance.id`; if empty, `attributes` decide, or else it is random.
    pub instance: String,
    /// Other attributes of the resource, such as `k8s.pod.name`; the three above take precedence.
    pub attributes: Vec<(String, String)>,
}

/// Spans of requests.
#[derive(Debug, Clone, PartialEq)]
pub struct Tracing {
    /// Part of the requests without a parent span that are traced, 0 to 1. Requests with a parent
    /// are traced if their parent is.
    pub rate: f32,
    /// The destination of spans.
    pub otlp: Otlp,
}

/// Settings for pushed metrics.
#[derive(Debug, Clone, PartialEq)]
pub struct Push {
    /// Time between pushes.
    pub interval: Duration,
    /// The destination of metrics.
    pub otlp: Otlp,
}

/// Range of the time between pushes of metrics, in milliseconds.
const INTERVAL_MS: std::ops::RangeInclusive<usize> = 1_000..=3_600_000;

/// Maximum number of attributes in `OTEL_RESOURCE_ATTRIBUTES`.
const ATTRIBUTES_MAX: usize = 64;

/// The reference's `service.name`.
const SERVICE: &str = "RateLimit";
const NAME: &str = "service.name";

#[derive(Debug, Args)]
#[command(next_help_heading = "Traces and pushed metrics")]
pub(super) struct TracingFlags {
    /// Send spans to the collector that OTEL_EXPORTER_OTLP_ENDPOINT names
    #[arg(long, env = "TRACING_ENABLED", value_name = BOOL, default_value = "false")]
    tracing_enabled: String,
    /// Name of the service there; OTEL_SERVICE_NAME or RateLimit if not given
    #[arg(long, env = "TRACING_SERVICE_NAME", value_name = "NAME")]
    tracing_service_name: Option<String>,
    /// Namespace of the service
    #[arg(long, env = "TRACING_SERVICE_NAMESPACE", value_name = "NAME")]
    tracing_service_namespace: Option<String>,
    /// What tells this pod from others of the service; random if not given
    #[arg(long, env = "TRACING_SERVICE_INSTANCE_ID", value_name = "ID")]
    tracing_service_instance_id: Option<String>,
    /// How spans travel: http or grpc
    #[arg(
        long,
        env = "TRACING_EXPORTER_PROTOCOL",
        value_name = "PROTOCOL",
        default_value = "http"
    )]
    tracing_exporter_protocol: String,
    /// Share of the requests that are traced of those without a traced or untraced parent, 0 to 1
    #[arg(long, env = "TRACING_SAMPLING_RATE", value_name = "SHARE", default_value = "1")]
    tracing_sampling_rate: String,
    /// Push metrics too: otlp, or none
    #[arg(long, env = "OTEL_METRICS_EXPORTER", value_name = "KIND", default_value = "none")]
    otel_metrics_exporter: String,
    /// Milliseconds from one push of metrics to the next
    #[arg(long, env = "OTEL_METRIC_EXPORT_INTERVAL", value_name = "MS", default_value = "60000")]
    otel_metric_export_interval: String,
}

// === impl TracingFlags ===

impl TracingFlags {
    /// Resolves the settings. Environment variables are read only for what is enabled: a faulty
    /// variable for a collector that is not used is not reported.
    pub(super) fn resolve(
        &self,
        env: &dyn Fn(&str) -> Option<String>,
        faults: &mut Faults,
        warnings: &mut Vec<String>,
    ) -> Option<Telemetry> {
        let identity = self.identity(env, faults);
        let enabled = faults.parse("TRACING_ENABLED", &self.tracing_enabled, value::boolean);
        let sent = &self.tracing_exporter_protocol;
        let protocol = faults.parse("TRACING_EXPORTER_PROTOCOL", sent, protocol);
        let rate = &self.tracing_sampling_rate;
        let rate = faults.parse("TRACING_SAMPLING_RATE", rate, rate_of);
        let rate = rate.map(|(rate, warning)| {
            warnings.extend(warning);
            rate
        });
        let exporter = &self.otel_metrics_exporter;
        let pushes = faults.parse("OTEL_METRICS_EXPORTER", exporter, pushes);
        let interval = &self.otel_metric_export_interval;
        let in_range = value::count_within(INTERVAL_MS, "60000");
        let interval = faults.parse("OTEL_METRIC_EXPORT_INTERVAL", interval, in_range);
        let mut otlp = |signal, protocol| Otlp::resolve(signal, protocol, env, faults, warnings);
        let tracing = match (enabled, rate, protocol) {
            (Some(true), Some(rate), Some(protocol)) => {
                Some(Tracing { rate, otlp: otlp(Signal::Traces, Some(protocol))? })
            }
            _ => None,
        };
        let push = match (pushes, interval) {
            (Some(true), Some(interval)) => {
                let interval = Duration::from_millis(interval as u64);
                Some(Push { interval, otlp: otlp(Signal::Metrics, None)? })
            }
            _ => None,
        };
        Some(Telemetry { identity: identity?, tracing, push })
    }

    fn identity(
        &self,
        env: &dyn Fn(&str) -> Option<String>,
        faults: &mut Faults,
    ) -> Option<Identity> {
        let given = |value: &Option<String>| value.clone().unwrap_or_default();
        let known = |name| env(name).filter(|value| !value.is_empty());
        let attributes =
            attributes(&known("OTEL_RESOURCE_ATTRIBUTES").unwrap_or_default(), faults)?;
        let listed = || attributes.iter().find(|(key, value)| key == NAME && !value.is_empty());
        let name = Some(given(&self.tracing_service_name)).filter(|name| !name.is_empty());
        let name = name.or_else(|| known("OTEL_SERVICE_NAME"));
        let name = name.or_else(|| listed().map(|(_, name)| name.clone()));
        Some(Identity {
            name: name.unwrap_or_else(|| SERVICE.to_owned()),
            namespace: given(&self.tracing_service_namespace),
            instance: given(&self.tracing_service_instance_id),
            attributes,
        })
    }
}

/// Parses a ratio and returns a warning if it is out of range: the reference's sampler treats
/// values above 1 as 1, and values below 0 as 0.
fn rate_of(text: &str) -> Result<(f32, Option<String>), Expected> {
    let given = text.parse().ok().filter(|rate: &f32| !rate.is_nan());
    let given = given.ok_or_else(|| Expected::new("a number from 0 to 1", "0.01"))?;
    let rate = given.clamp(0.0, 1.0);
    let warning =
        format!("TRACING_SAMPLING_RATE: {given} is taken for {rate}; it is a share, from 0 to 1");
    Ok((rate, (rate != given).then_some(warning)))
}

fn protocol(text: &str) -> Result<OtlpProtocol, Expected> {
    otlp::protocol(text).ok_or_else(|| Expected::new("http or grpc", "grpc"))
}

/// Parses OpenTelemetry's list of exporters. `prometheus` asks for what is available anyway.
fn pushes(text: &str) -> Result<bool, Expected> {
    let mut names = text.split(',').map(str::trim);
    let known = |name: &str| ["otlp", "none", "prometheus", ""].contains(&name);
    if names.clone().all(known) {
        Ok(names.any(|name| name == "otlp"))
    } else {
        Err(Expected::new("otlp or none", "otlp"))
    }
}

/// Parses `key=value,key=value` with percent-encoded values.
fn attributes(text: &str, faults: &mut Faults) -> Option<Vec<(String, String)>> {
    let pairs: Vec<_> = text.split(',').map(str::trim).filter(|pair| !pair.is_empty()).collect();
    let read = pairs.iter().map(|pair| {
        let (key, value) = pair.split_once('=').filter(|(key, _)| !key.is_empty())?;
        let value = String::from_utf8(otlp::percent_decoded(value.trim())).ok()?;
        Some((key.trim().to_owned(), value))
    });
    let read = read.collect::<Option<Vec<_>>>().filter(|read| read.len() <= ATTRIBUTES_MAX);
    if read.is_none() {
        let problem = format!("expected at most {ATTRIBUTES_MAX} pairs as key=value,key=value");
        let mend = "as in OTEL_RESOURCE_ATTRIBUTES=k8s.pod.name=shop-0";
        faults.add(Fault::new("OTEL_RESOURCE_ATTRIBUTES", problem, mend).with_found(text));
    }
    read
}
