//! What is told of this process to an OpenTelemetry collector: spans, and metrics that are pushed.

use std::time::Duration;

use clap::Args;

use super::fault::{Expected, Fault, Faults};
use super::flag::BOOL;
use super::otlp::{self, Otlp, OtlpProtocol, Signal};
use super::value;

/// What goes to a collector, and under which name.
#[derive(Debug, Clone, PartialEq)]
pub struct Telemetry {
    /// Who sends it.
    pub identity: Identity,
    /// Spans; `None` for none.
    pub tracing: Option<Tracing>,
    /// Metrics; `None` if they are only there to be scraped.
    pub push: Option<Push>,
}

/// What a collector knows this process by.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    /// `service.name`.
    pub name: String,
    /// `service.namespace`; empty for what `attributes` say.
    pub namespace: String,
    /// `service.instance.id`; empty for what `attributes` say, or a random one.
    pub instance: String,
    /// Other attributes of the resource, such as `k8s.pod.name`; the three above win over them.
    pub attributes: Vec<(String, String)>,
}

/// Spans of requests.
#[derive(Debug, Clone, PartialEq)]
pub struct Tracing {
    /// Share of the requests without a parent that are traced, 0 to 1. Those with one are traced
    /// where their parent is.
    pub rate: f32,
    /// Where spans go.
    pub otlp: Otlp,
}

/// Metrics that are pushed.
#[derive(Debug, Clone, PartialEq)]
pub struct Push {
    /// From one push to the next.
    pub interval: Duration,
    /// Where they go.
    pub otlp: Otlp,
}

/// From one push of metrics to the next, in milliseconds.
const INTERVAL_MS: std::ops::RangeInclusive<usize> = 1_000..=3_600_000;

/// Attributes of `OTEL_RESOURCE_ATTRIBUTES` at most.
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
    /// The environment's variables are read only for what is asked for: a faulty one of a collector
    /// that is not used is no fault.
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

/// A share, with a warning where it is out of its range: the reference's sampler takes what is
/// above 1 for 1, and what is below 0 for 0.
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

/// OpenTelemetry's list of exporters. `prometheus` asks for what is there anyway.
fn pushes(text: &str) -> Result<bool, Expected> {
    let mut names = text.split(',').map(str::trim);
    let known = |name: &str| ["otlp", "none", "prometheus", ""].contains(&name);
    if names.clone().all(known) {
        Ok(names.any(|name| name == "otlp"))
    } else {
        Err(Expected::new("otlp or none", "otlp"))
    }
}

/// `key=value,key=value`, values percent-encoded.
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
