//! Settings for telemetry sent to an OpenTelemetry collector: spans and pushed metrics.

use std::time::Duration;

use super::fault::{Expected, Fault, Faults};
use super::group::Flags;
use super::otlp::{self, Otlp, OtlpProtocol, Signal};
use super::table::{OptionalSetting, Setting, setting, settings, switch, text};
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
const INTERVAL_MS: std::ops::RangeInclusive<u64> = 1_000..=3_600_000;

/// Maximum number of attributes in `OTEL_RESOURCE_ATTRIBUTES`.
const ATTRIBUTES_MAX: usize = 64;

/// The reference's `service.name`.
const SERVICE: &str = "RateLimit";
const NAME: &str = "service.name";

settings! {
    /// Settings for telemetry.
    pub(super) group TracingTable("Traces and pushed metrics");

    /// Send spans to the collector at OTEL_EXPORTER_OTLP_ENDPOINT
    TRACING_ENABLED: Setting<bool> = switch(false);
    /// service.name of the spans and metrics [default: OTEL_SERVICE_NAME, or else RateLimit]
    TRACING_SERVICE_NAME: OptionalSetting<String> = text("NAME");
    /// service.namespace of the spans and metrics
    TRACING_SERVICE_NAMESPACE: OptionalSetting<String> = text("NAME");
    /// service.instance.id, which distinguishes this pod from others [default: random]
    TRACING_SERVICE_INSTANCE_ID: OptionalSetting<String> = text("ID");
    /// Protocol of the spans: http or grpc
    TRACING_EXPORTER_PROTOCOL: Setting<OtlpProtocol> = setting("PROTOCOL", "http", protocol);
    /// Share, 0 to 1, of the requests that are traced if their caller made no decision about it
    TRACING_SAMPLING_RATE: Setting<SamplingRate> = setting("SHARE", "1", sampling_rate);
    /// Also push metrics: otlp, or none
    OTEL_METRICS_EXPORTER: Setting<bool> = setting("KIND", "none", pushes);
    /// Time between pushes of metrics, in milliseconds
    OTEL_METRIC_EXPORT_INTERVAL: Setting<u64> =
        setting("MS", "60000", |text| value::count_within(text, INTERVAL_MS));
}

/// Flags for telemetry.
pub(super) type TracingFlags = Flags<TracingTable>;

/// `TRACING_SAMPLING_RATE`.
struct SamplingRate {
    rate: f32,
    /// Set if another rate was given.
    warning: Option<String>,
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
        let enabled = self.get(&TRACING_ENABLED, faults);
        let protocol = self.get(&TRACING_EXPORTER_PROTOCOL, faults);
        let rate =
            self.get(&TRACING_SAMPLING_RATE, faults).map(|SamplingRate { rate, warning }| {
                warnings.extend(warning);
                rate
            });
        let pushes = self.get(&OTEL_METRICS_EXPORTER, faults);
        let interval = self.get(&OTEL_METRIC_EXPORT_INTERVAL, faults);
        let mut otlp = |signal, protocol| Otlp::resolve(signal, protocol, env, faults, warnings);
        let tracing = match (enabled, rate, protocol) {
            (Some(true), Some(rate), Some(protocol)) => {
                Some(Tracing { rate, otlp: otlp(Signal::Traces, Some(protocol))? })
            }
            _ => None,
        };
        let push = match (pushes, interval) {
            (Some(true), Some(interval)) => {
                let interval = Duration::from_millis(interval);
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
        let given = |setting| self.text(setting).map(str::to_owned);
        let known = |name| env(name).filter(|value| !value.is_empty());
        let attributes =
            attributes(&known("OTEL_RESOURCE_ATTRIBUTES").unwrap_or_default(), faults)?;
        let listed = || attributes.iter().find(|(key, value)| key == NAME && !value.is_empty());
        let name = given(&TRACING_SERVICE_NAME).or_else(|| known("OTEL_SERVICE_NAME"));
        let name = name.or_else(|| listed().map(|(_, name)| name.clone()));
        Some(Identity {
            name: name.unwrap_or_else(|| SERVICE.to_owned()),
            namespace: given(&TRACING_SERVICE_NAMESPACE).unwrap_or_default(),
            instance: given(&TRACING_SERVICE_INSTANCE_ID).unwrap_or_default(),
            attributes,
        })
    }
}

/// Parses a ratio and returns a warning if it is out of range: the reference's sampler treats
/// values above 1 as 1, and values below 0 as 0.
fn sampling_rate(text: &str) -> Result<SamplingRate, Expected> {
    let given = text.parse().ok().filter(|rate: &f32| !rate.is_nan());
    let given = given.ok_or_else(|| Expected::new("a number from 0 to 1").example("0.01"))?;
    let rate = given.clamp(0.0, 1.0);
    let warning = format!(
        "TRACING_SAMPLING_RATE: {given} is out of range, {rate} is used; the rate is a share from \
         0 to 1"
    );
    Ok(SamplingRate { rate, warning: (rate != given).then_some(warning) })
}

fn protocol(text: &str) -> Result<OtlpProtocol, Expected> {
    otlp::protocol(text).ok_or_else(|| Expected::new("http or grpc").example("grpc"))
}

/// Parses OpenTelemetry's list of exporters. `prometheus` asks for what is available anyway.
fn pushes(text: &str) -> Result<bool, Expected> {
    let mut names = text.split(',').map(str::trim);
    let known = |name: &str| ["otlp", "none", "prometheus", ""].contains(&name);
    if names.clone().all(known) {
        Ok(names.any(|name| name == "otlp"))
    } else {
        Err(Expected::new("otlp or none").example("otlp"))
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
