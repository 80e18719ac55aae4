//! OTLP, OpenTelemetry's protocol: what both kinds of telemetry share.
//!
//! Not by OpenTelemetry's SDK (0.33): it says how many spans it dropped only when it is shut down,
//! takes no metrics that something else has counted, and would bring an executor and a generator of
//! random numbers of its own into the image. What is left to do without it is a few messages, and
//! to send them.

mod client;
pub(super) mod message;

pub(super) use client::{Client, Told};
use message::{KeyValue, Resource, Scope};

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use super::dice;
use crate::settings::Identity;

/// Who sends: every push says so anew.
pub(super) fn resource(identity: &Identity) -> Resource {
    let Identity { name, namespace, instance, attributes } = identity;
    let random = format!("{:016x}{:016x}", dice::roll(), dice::roll());
    let instance = if instance.is_empty() { &random } else { instance };
    let own = [
        ("service.name", name.as_str()),
        ("service.namespace", namespace),
        ("service.instance.id", instance),
        ("service.version", env!("CARGO_PKG_VERSION")),
    ];
    let own = own.into_iter().filter(|(_, value)| !value.is_empty());
    // What has a setting of its own wins over the list, as OpenTelemetry has it.
    let given = attributes.iter().map(|(key, value)| (key.as_str(), value.as_str()));
    let given = given.filter(|(key, _)| !own.clone().any(|(name, _)| name == *key));
    let all = own.clone().chain(given);
    Resource { attributes: all.map(|(key, value)| KeyValue::text(key, value)).collect() }
}

/// What part of a process telemetry comes from: all of it.
pub(super) fn scope() -> Scope {
    Scope { name: env!("CARGO_PKG_NAME").to_owned(), version: env!("CARGO_PKG_VERSION").to_owned() }
}

/// The time of day, in nanoseconds since the Unix epoch; nobody's count hangs on it.
pub(super) fn unix_nanos() -> u64 {
    #[allow(clippy::disallowed_methods, reason = "the edge where telemetry is dated")]
    nanos(SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default())
}

pub(super) fn nanos(span: Duration) -> u64 {
    u64::try_from(span.as_nanos()).unwrap_or(u64::MAX)
}
