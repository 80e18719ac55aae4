//! OTLP, OpenTelemetry's protocol: what both kinds of telemetry share.
//!
//! Not by OpenTelemetry's SDK: `docs/decisions/0017` says why. What is left to do without it is a
//! few messages, and to send them.

mod client;
pub(super) mod message;

pub(super) use client::{Client, Told};
use message::{KeyValue, Resource, Scope};

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::dice;
use crate::settings::Identity;

/// Who sends: one for all that a process sends.
#[derive(Debug, Clone)]
pub struct Origin(Resource);

// === impl Origin ===

impl Origin {
    /// What `identity` says, with a random instance where it names none.
    pub fn new(identity: Identity) -> Self {
        let Identity { name, namespace, mut instance, attributes } = identity;
        if instance.is_empty() {
            instance = format!("{:016x}{:016x}", dice::roll(), dice::roll());
        }
        let own = [
            ("service.name", name),
            ("service.namespace", namespace),
            ("service.instance.id", instance),
            ("service.version", env!("CARGO_PKG_VERSION").to_owned()),
        ];
        // What has a setting of its own wins over the list, as OpenTelemetry has it.
        let is_other = |key: &str| own.iter().all(|(name, _)| *name != key);
        let others: Vec<_> = attributes.into_iter().filter(|(key, _)| is_other(key)).collect();
        let own = own.into_iter().filter(|(_, value)| !value.is_empty());
        let own = own.map(|(key, value)| KeyValue::text(key, value));
        let others = others.iter().map(|(key, value)| KeyValue::text(key, value.as_str()));
        Self(Resource { attributes: own.chain(others).collect() })
    }

    pub(super) fn resource(&self) -> Resource {
        self.0.clone()
    }
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
