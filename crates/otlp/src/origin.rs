//! Who sends, and when: the parts that spans and metrics share.

use std::time::{Duration, SystemTime};

use ratelease_cli::settings::Identity;
use ratelease_engine::rng;

/// The name of the part of a process that telemetry comes from: the whole process.
pub const SCOPE: &str = "ratelease";

/// The version of that part.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");

/// The sender's identity, as attributes: one for all telemetry of a process.
#[derive(Debug, Clone)]
pub struct Origin(Vec<(String, String)>);

// === impl Origin ===

impl Origin {
    /// The identity in `identity`; where that has no value, this version and a random instance.
    pub fn new(identity: Identity) -> Self {
        let Identity { name, namespace, instance, attributes } = identity;
        let set = [
            ("service.name", name),
            ("service.namespace", namespace),
            ("service.instance.id", instance),
        ];
        let unset =
            [("service.instance.id", random_instance()), ("service.version", VERSION.to_owned())];
        let owned = |(key, value): (&str, String)| (key.to_owned(), value);
        let set = set.into_iter().filter(|(_, value)| !value.is_empty()).map(owned);
        let mut all: Vec<(String, String)> = Vec::new();
        // The first value wins: a setting, then the list, as OpenTelemetry specifies.
        for (key, value) in set.chain(attributes).chain(unset.into_iter().map(owned)) {
            if all.iter().all(|(taken, _)| *taken != key) {
                all.push((key, value));
            }
        }
        Self(all)
    }

    /// The attributes, without duplicates.
    pub fn attributes(&self) -> &[(String, String)] {
        &self.0
    }
}

/// A UUID of version 4 (RFC 9562), as OpenTelemetry recommends for instances.
fn random_instance() -> String {
    let [high, low] = [rng::next_u64(), rng::next_u64()];
    let first = high >> 32;
    let second = high >> 16 & 0xffff;
    let version = 0x4000 | high & 0x0fff;
    let variant = 0x8000 | low >> 48 & 0x3fff;
    let node = low & 0xffff_ffff_ffff;
    format!("{first:08x}-{second:04x}-{version:04x}-{variant:04x}-{node:012x}")
}

/// The time of day; no count depends on it.
pub fn system_time() -> SystemTime {
    #[allow(clippy::disallowed_methods, reason = "the edge where telemetry is dated")]
    SystemTime::now()
}

/// A duration in nanoseconds; at most `u64::MAX`, which is 584 years.
pub fn nanos(span: Duration) -> u64 {
    u64::try_from(span.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attributes_of(identity: Identity) -> Vec<(String, String)> {
        Origin::new(identity).attributes().to_vec()
    }

    #[test]
    fn a_setting_wins_over_the_list_and_the_list_over_defaults() {
        let pairs = |pairs: &[(&str, &str)]| -> Vec<(String, String)> {
            pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
        };
        let listed = pairs(&[
            ("service.name", "never"),
            ("service.namespace", "shop"),
            ("service.instance.id", "pod-7"),
            ("service.version", "7.7"),
            ("k8s.pod.name", "shop-0"),
        ]);
        let own = |instance: &str, attributes| Identity {
            name: "limits".to_owned(),
            namespace: String::new(),
            instance: instance.to_owned(),
            attributes,
        };
        let mut expected = listed.clone();
        expected[0].1 = "limits".to_owned();
        assert_eq!(attributes_of(own("", listed)), expected);
        let alone = attributes_of(own("", Vec::new()));
        let version = env!("CARGO_PKG_VERSION");
        let expected = [("service.name", "limits"), ("service.version", version)];
        assert_eq!([alone[0].clone(), alone[2].clone()], *pairs(&expected));
        assert_eq!(attributes_of(own("pod-8", Vec::new()))[1].1, "pod-8");
        let (key, id) = &alone[1];
        assert_eq!((key.as_str(), id.len()), ("service.instance.id", 36));
        assert_eq!((&id[14..15], id[19..20].find(['8', '9', 'a', 'b'])), ("4", Some(0)), "{id}");
    }
}
