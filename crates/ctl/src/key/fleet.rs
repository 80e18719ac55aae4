//! The pods that share a count: whether they make the key that this tool has made, and whether they
//! have followed its order.

use std::time::Duration;

use futures_util::future::join_all;
use ratelease_cli::out::CliError;
use ratelease_engine::order::Place;
use ratelease_engine::pod::PodRecord;
use ratelease_engine::store::{Ask, Store, StoreError};
use ratelease_rules::key::KeyHasher;
use serde_json::{Value, json};
use tokio::time::{sleep, timeout};

/// How long to wait for pods to confirm an order. They follow within 250 ms.
const CONFIRMED_WITHIN: Duration = Duration::from_secs(1);

/// Interval between two looks at pods that have not confirmed.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// Records that are read at once, so that their replies fit into the connections' queues.
const READ_AT_ONCE: usize = 128;

/// Names of pods that a line lists.
const NAMES_MAX: usize = 3;

/// The settings and rules by which the tool makes its keys.
pub struct Own<'a> {
    pub domain: &'a str,
    /// The fingerprint of the domain's rules.
    pub rules: u64,
    pub hasher: &'a KeyHasher,
    /// Where the rules are, for texts.
    pub dir: &'a str,
    pub has_secret: bool,
}

/// The live pods, by the keys that they make.
#[derive(Debug, Default)]
pub struct Fleet {
    /// Pods that make the same keys, as far as they say, so that they follow an order.
    pub same: Vec<PodRecord>,
    /// Names of pods with another secret.
    other_secret: Vec<Box<str>>,
    /// Names of pods that replace a secret that this tool does not know.
    other_previous: Vec<Box<str>>,
    /// Names of pods with other rules of the domain, or none.
    other_rules: Vec<Box<str>>,
    /// Number of live pods without a record: an older version writes none, and a pod may lack the
    /// right to write to this store.
    silent: usize,
}

/// How many pods of a fleet have followed an order.
#[derive(Debug, Clone, Copy)]
pub struct Confirmed {
    pub by: usize,
    pub of: usize,
}

// === impl Fleet ===

impl Fleet {
    /// Reads the records of the live pods from the store that counts `ask`, and compares them.
    pub async fn read(store: &dyn Store, ask: &Ask, own: &Own<'_>) -> Result<Self, StoreError> {
        let mut fleet = Self::default();
        let pods = store.pods().await?;
        for pods in pods.chunks(READ_AT_ONCE) {
            for record in join_all(pods.iter().map(|pod| store.read_pod(ask, *pod))).await {
                fleet.add(record?, own);
            }
        }
        fleet.same.sort_by(|a, b| (&a.name, a.number).cmp(&(&b.name, b.number)));
        Ok(fleet)
    }

    fn add(&mut self, record: Option<PodRecord>, own: &Own<'_>) {
        let Some(record) = record else {
            self.silent += 1;
            return;
        };
        let secrets = [Some(own.hasher), own.hasher.previous()];
        let same = secrets.into_iter().flatten().find(|it| it.fingerprint() == record.secret);
        let knows = |secret: &u64| {
            secrets.into_iter().flatten().any(|known| known.fingerprint() == *secret)
        };
        let Some(hasher) = same else { return self.other_secret.push(record.name) };
        if !record.previous.iter().all(knows) {
            self.other_previous.push(record.name);
        } else if record.makes_keys_of(own.domain, hasher, own.rules) == Some(false) {
            self.other_rules.push(record.name);
        } else {
            self.same.push(record);
        }
    }

    /// Fails if there are pods, and none makes the keys of this tool.
    pub fn check(&self, own: &Own<'_>) -> Result<(), CliError> {
        let Own { domain, dir, has_secret, .. } = own;
        if !self.same.is_empty() {
            return Ok(());
        }
        let why = if !self.other_secret.is_empty() {
            let pods = listed(&self.other_secret);
            let set = match has_secret {
                true => format!("another KEY_SECRET is set at {pods}"),
                false => format!("a KEY_SECRET is set at {pods}, and none here"),
            };
            format!("{set}; set KEY_SECRET, or KEY_SECRET_FILE, to theirs")
        } else if !self.other_previous.is_empty() {
            let pods = listed(&self.other_previous);
            format!("KEY_SECRET is being replaced at {pods}; set KEY_SECRET_PREVIOUS as there")
        } else if !self.other_rules.is_empty() {
            let pods = listed(&self.other_rules);
            format!(
                "{pods} with other rules of the domain '{domain}' than {dir} has, or none; name \
                 theirs by --rules DIR (from a control plane: GET /v1/export?domain={domain})"
            )
        } else {
            return Ok(());
        };
        let text = format!("nothing was done, since no pod counts under the keys made here: {why}");
        Err(CliError::new(text))
    }

    /// Number of live pods.
    pub fn live(&self) -> usize {
        let others = [&self.other_secret, &self.other_previous, &self.other_rules];
        self.same.len() + others.iter().map(|names| names.len()).sum::<usize>() + self.silent
    }

    /// Remarks on the pods that do not make the keys of this tool; empty if all do.
    pub fn notes(&self) -> Vec<String> {
        let mut notes = Vec::new();
        let mut note = |names: &[Box<str>], what: &str| {
            if !names.is_empty() {
                notes.push(format!("{} {what}: not acted on", listed(names)));
            }
        };
        note(&self.other_secret, "with another KEY_SECRET");
        note(&self.other_previous, "with another KEY_SECRET_PREVIOUS");
        note(&self.other_rules, "with other rules of this domain");
        if self.silent > 0 {
            let pods = pods(self.silent);
            notes.push(format!("{pods} of an older version, or not connected: not known"));
        }
        if self.same.is_empty() && notes.is_empty() {
            notes.push(
                "none is registered: none is connected to this Redis, or they have another \
                 CACHE_KEY_PREFIX or database"
                    .to_owned(),
            );
        }
        notes
    }

    /// Waits until the pods that make the same keys have followed the order at `place`, for a
    /// second at most.
    pub async fn confirm(&self, store: &dyn Store, ask: &Ask, place: Place) -> Confirmed {
        let of = self.same.len();
        let mut waiting: Vec<u64> = self.same.iter().map(|record| record.number).collect();
        let all = async {
            while !waiting.is_empty() {
                for at_once in std::mem::take(&mut waiting).chunks(READ_AT_ONCE) {
                    let records =
                        join_all(at_once.iter().map(|pod| store.read_pod(ask, *pod))).await;
                    let has_followed = |record: &Result<Option<PodRecord>, _>| matches!(record, Ok(Some(record)) if record.followed >= Some(place));
                    let others = at_once.iter().zip(&records).filter(|(_, it)| !has_followed(it));
                    waiting.extend(others.map(|(pod, _)| *pod));
                }
                if !waiting.is_empty() {
                    sleep(LOOK_EVERY).await;
                }
            }
        };
        let _ = timeout(CONFIRMED_WITHIN, all).await;
        Confirmed { by: of - waiting.len(), of }
    }

    /// The fleet as JSON.
    pub fn object(&self, confirmed: Option<Confirmed>) -> Value {
        json!({
            "same_keys": self.same.iter().map(|record| &record.name).collect::<Vec<_>>(),
            "other_secret": self.other_secret,
            "other_previous_secret": self.other_previous,
            "other_rules": self.other_rules,
            "silent": self.silent,
            "confirmed": confirmed.map(|it| it.by),
        })
    }
}

/// Formats a number of pods.
fn pods(count: usize) -> String {
    match count {
        1 => "1 pod".to_owned(),
        count => format!("{count} pods"),
    }
}

/// Formats how many pods these are, and the names of the first.
fn listed(names: &[Box<str>]) -> String {
    let mut first: Vec<_> = names.iter().take(NAMES_MAX).map(AsRef::as_ref).collect();
    if names.len() > NAMES_MAX {
        first.push("…");
    }
    format!("{} ({})", pods(names.len()), first.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    const DOMAIN: &str = "shop";

    fn own(hasher: &KeyHasher) -> Own<'_> {
        Own { domain: DOMAIN, rules: 1, hasher, dir: "rules", has_secret: true }
    }

    /// A pod with this secret, which replaces another, and with rules of this fingerprint.
    fn pod(name: &str, secret: &str, previous: Option<&str>, rules: u64) -> PodRecord {
        let hasher = KeyHasher::new(secret);
        let hasher = previous.into_iter().fold(hasher, KeyHasher::replacing);
        let domains = Some([hasher.fingerprint_in(DOMAIN, rules)].into());
        PodRecord { domains, ..PodRecord::new(1, name, &hasher) }
    }

    fn fleet(pods: &[Option<PodRecord>], own: &Own<'_>) -> Fleet {
        let mut fleet = Fleet::default();
        pods.iter().for_each(|pod| fleet.add(pod.clone(), own));
        fleet
    }

    #[test]
    fn pods_are_told_apart_by_secret_and_rules() {
        let replacing = KeyHasher::new("new").replacing("old");
        let own = own(&replacing);
        let pods = [
            pod("same", "new", None, 1),
            pod("replaces", "new", Some("old"), 1),
            pod("before", "old", None, 1),
            pod("other", "else", None, 1),
            pod("unknown", "new", Some("else"), 1),
            pod("rules", "new", None, 2),
            PodRecord { domains: None, ..pod("unsure", "new", None, 1) },
        ];
        let pods: Vec<_> = pods.into_iter().map(Some).chain([None]).collect();
        let fleet = fleet(&pods, &own);
        let same: Vec<_> = fleet.same.iter().map(|pod| &*pod.name).collect();
        assert_eq!(same, ["same", "replaces", "before", "unsure"]);
        assert!(fleet.check(&own).is_ok(), "some make the same keys");
        assert_eq!(
            fleet.notes(),
            [
                "1 pod (other) with another KEY_SECRET: not acted on",
                "1 pod (unknown) with another KEY_SECRET_PREVIOUS: not acted on",
                "1 pod (rules) with other rules of this domain: not acted on",
                "1 pod of an older version, or not connected: not known",
            ]
        );
    }

    #[test]
    fn a_fleet_without_the_same_keys_is_refused_with_the_setting() {
        let hasher = KeyHasher::new("new");
        let own = own(&hasher);
        let refused = |pods: &[Option<PodRecord>]| {
            fleet(pods, &own).check(&own).map_err(|error| error.to_string())
        };
        for (pod, says) in [
            (pod("a", "else", None, 1), "another KEY_SECRET is set at 1 pod (a); set KEY_SECRET"),
            (pod("a", "new", Some("old"), 1), "set KEY_SECRET_PREVIOUS as there"),
            (pod("a", "new", None, 2), "with other rules of the domain 'shop' than rules has"),
        ] {
            let why = refused(&[Some(pod), None]).unwrap_err();
            assert!(why.contains(says), "{why}");
        }
        let without = Own { has_secret: false, ..own };
        let why = fleet(&[Some(pod("a", "else", None, 1))], &without).check(&without);
        assert!(
            why.unwrap_err()
                .to_string()
                .contains("a KEY_SECRET is set at 1 pod (a), and none here")
        );
    }

    #[test]
    fn a_fleet_that_says_nothing_is_acted_on_with_a_note() {
        let hasher = KeyHasher::new("new");
        let own = own(&hasher);
        let none = fleet(&[], &own);
        assert!(none.check(&own).is_ok());
        assert!(none.notes()[0].starts_with("none is registered"), "{:?}", none.notes());
        let old = fleet(&[None, None], &own);
        assert!(old.check(&own).is_ok());
        assert!(old.notes()[0].starts_with("2 pods of an older version"), "{:?}", old.notes());
    }
}
