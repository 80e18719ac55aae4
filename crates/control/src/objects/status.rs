//! The status of an object: whether it is accepted, its faults, and how many pods have its rules.
//! Conditions have the names that the Gateway API gives them. Pure.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::fmt::Write as _;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use ratelease_rules::request::scoped;

use super::object::{Key, Object};
use super::object_status::{PodCount, Status};
use super::plan::Verdict;
use crate::push::PublishedSet;
use crate::store::PodRow;

/// The reason of a condition: pods have refused the object.
const REFUSED_BY_PODS: &str = "RefusedByPods";

/// Maximum number of faults that an Event repeats from the status.
const FAULTS_TOLD_MAX: usize = 3;

/// Maximum bytes of the message of an Event: the API server takes 1024.
const EVENT_BYTES_MAX: usize = 1000;

/// The versions that pods run, by the domains that they get.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Pods {
    /// Pods that get all domains, in the order of their versions.
    all: Vec<Pod>,
    /// Pods that are limited to some.
    limited: HashMap<String, Vec<Pod>>,
}

/// A pod.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Pod {
    /// The version that it runs; 0 for none.
    accepted: i64,
    /// The version that it has refused last; 0 for none. Pods that refuse are named first.
    refused: Reverse<i64>,
    /// The id of its node.
    node: String,
}

/// The pods that get a domain, and some of those that lack a version of it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Reach {
    count: PodCount,
    /// Pods that lack it, at most [`NAMED_MAX`], each with the version that it has refused, if any.
    behind: Vec<(String, i64)>,
}

/// Maximum number of pods that a message names.
const NAMED_MAX: usize = 3;

/// The facts from which a status is made, besides its object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Basis {
    pub verdict: Verdict,
    /// The reason why the publication of the object was refused.
    pub refused: Option<String>,
    /// The version that last changed the domain in force; 0 if no rules of the object are in force.
    version: i64,
    pods: Reach,
    /// Whether pods get its rules, and no others.
    is_pushed: bool,
}

/// A condition: its status, its reason, and a message for people.
struct Said(bool, &'static str, String);

// === impl Pods ===

impl Pods {
    /// Sorts pods, each of which has one row with its answers.
    pub fn new(rows: &[PodRow]) -> Self {
        let mut this = Self::default();
        for row in rows {
            let PodRow { accepted, refused, node, .. } = row;
            let pod = Pod { accepted: *accepted, refused: Reverse(*refused), node: node.clone() };
            match &row.domains {
                None => this.all.push(pod),
                Some(domains) => domains.iter().for_each(|domain| {
                    this.limited.entry(domain.clone()).or_default().push(pod.clone());
                }),
            }
        }
        this.all.sort_unstable();
        this.limited.values_mut().for_each(|pods| pods.sort_unstable());
        this
    }

    /// The number of pods that get the domain, how many run this version, and the names of some
    /// that do not.
    fn reach(&self, domain: &str, version: i64) -> Reach {
        let limited = self.limited.get(domain).map_or(&[][..], Vec::as_slice);
        let lacks = |pod: &Pod| pod.accepted < version;
        let behind = [&self.all[..], limited].map(|pods| &pods[..pods.partition_point(lacks)]);
        let connected = self.all.len() + limited.len();
        let current = connected - behind[0].len() - behind[1].len();
        let named = behind.iter().copied().flatten().take(NAMED_MAX);
        Reach {
            count: PodCount { current, connected },
            behind: named.map(|pod| (pod.node.clone(), pod.refused.0)).collect(),
        }
    }
}

// === impl Basis ===

impl Basis {
    pub fn new(
        object: &Object,
        verdict: &Verdict,
        refused: Option<&str>,
        set: &PublishedSet,
        pods: &Pods,
    ) -> Self {
        let published = set.domains.get(&object.domain);
        // If the object does not define the domain, no rules of it are in force.
        let defines =
            !matches!(verdict, Verdict::NotAllowed | Verdict::OlderObject(_) | Verdict::Database);
        let version = match published.filter(|_| defines) {
            Some(_) => set.changed.get(&object.domain).copied().unwrap_or_default(),
            None => 0,
        };
        let hash = object.rules.as_ref().ok().and_then(|rules| rules.hash.as_deref());
        Self {
            verdict: verdict.clone(),
            refused: refused.map(str::to_owned),
            version,
            pods: if version > 0 { pods.reach(&object.domain, version) } else { Reach::default() },
            is_pushed: published.map(|it| &*it.hash) == hash,
        }
    }
}

// === impl Status ===

impl Status {
    /// Makes the status of an object. A condition that was as true in `former` keeps its time.
    pub fn new(object: &Object, basis: &Basis, former: &Self, now: Timestamp) -> Self {
        let Basis { verdict, refused, version, pods, is_pushed } = basis;
        let version = *version;
        let accepted = accepted(object, verdict, refused.as_deref());
        let programmed = match &accepted {
            Said(true, ..) if *verdict == Verdict::Published && *is_pushed => {
                programmed(pods, version)
            }
            Said(true, ..) if let Verdict::RollingOut(words) = verdict => {
                Said(false, "RollingOut", words.clone())
            }
            Said(true, ..) => Said(false, "Pending", "the rules are about to be published".into()),
            Said(false, reason, _) if version > 0 => {
                let message = format!("the rules of version {version} stay in force");
                Said(false, reason, message)
            }
            Said(false, reason, _) => Said(false, reason, "nothing of it is in force".into()),
        };
        // Pods that run the rules of before do not have these.
        let has_these = accepted.0 && *verdict == Verdict::Published && *is_pushed;
        let current = if has_these { pods.count.current } else { 0 };
        let faults = match (verdict, &object.rules) {
            (Verdict::Invalid, Err(faults)) => faults.shown.clone(),
            _ => Vec::new(),
        };
        let stalled = Said(!accepted.0, accepted.1, accepted.2.clone());
        let ready = if accepted.0 { &programmed } else { &accepted };
        let ready = Said(ready.0, ready.1, ready.2.clone());
        let condition = |name: &str, Said(is_true, reason, message): Said| {
            let status = if is_true { "True" } else { "False" }.to_owned();
            let before =
                former.conditions.iter().find(|it| it.type_ == name && it.status == status);
            Condition {
                type_: name.to_owned(),
                status,
                reason: reason.to_owned(),
                message,
                observed_generation: Some(object.generation),
                last_transition_time: before
                    .map_or_else(|| Time(seconds(now)), |it| it.last_transition_time.clone()),
            }
        };
        Self {
            observed_generation: object.generation,
            version,
            pods: PodCount { current, ..pods.count },
            conditions: vec![
                condition("Accepted", accepted),
                condition("Programmed", programmed),
                condition("Ready", ready),
                condition("Stalled", stalled),
            ],
            faults,
        }
    }
}

/// An Event of Kubernetes about an object: one for each change of the object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Notice {
    /// `Normal` or `Warning`.
    pub kind: &'static str,
    /// The reason of the condition `Ready`.
    pub reason: String,
    pub message: String,
    pub uid: String,
    /// The generation that it is about, and the version that is in force.
    about: (i64, i64),
}

// === impl Notice ===

impl Notice {
    /// The Event for a status: the object is refused, pods refuse it, or it is in force. `None`
    /// while the outcome is open.
    pub fn of(status: &Status, uid: &str) -> Option<Self> {
        let of = |name: &str| status.conditions.iter().find(|it| it.type_ == name);
        let (ready, stalled) = (of("Ready")?, of("Stalled")?);
        let is_refused = stalled.status == "True" || ready.reason == REFUSED_BY_PODS;
        let kind = match ready.status == "True" {
            true => "Normal",
            false if is_refused => "Warning",
            false => return None,
        };
        let mut message = ready.message.clone();
        for fault in status.faults.iter().take(FAULTS_TOLD_MAX) {
            // Writing to a String cannot fail.
            let _ = write!(message, "; {}: {}", fault.field, fault.message);
        }
        message.truncate(message.floor_char_boundary(EVENT_BYTES_MAX));
        let about = (status.observed_generation, status.version);
        let (reason, uid) = (ready.reason.clone(), uid.to_owned());
        Some(Self { kind, reason, message, uid, about })
    }

    /// Whether this Event says the same of the same change as `other`. Pods that come and go change
    /// the message alone.
    pub fn repeats(&self, other: &Self) -> bool {
        (&self.uid, &self.reason, self.about) == (&other.uid, &other.reason, other.about)
    }

    /// The name of its Event, which is the same for all of this object with its reason.
    pub fn name(&self, key: &Key) -> String {
        let hash = blake3::hash(format!("{}/{}", self.uid, self.reason).as_bytes());
        // A name has at most 253 bytes.
        let name = &key.name[..key.name.floor_char_boundary(200)];
        format!("{}.{}", name.trim_end_matches(['.', '-']), &hash.to_hex()[..16])
    }
}

/// A time without its fraction, as the API server keeps it.
fn seconds(at: Timestamp) -> Timestamp {
    Timestamp::from_second(at.as_second()).unwrap_or(at)
}

fn accepted(object: &Object, verdict: &Verdict, refused: Option<&str>) -> Said {
    let Object { domain, key, rules, .. } = object;
    let domain = ratelease_rules::excerpt(domain);
    let namespace = &key.namespace;
    match verdict {
        Verdict::Invalid => {
            let faults = rules.as_ref().err().map_or(1, |faults| faults.count);
            let message = format!("{faults} faults; status.faults has the first of them");
            Said(false, "Invalid", message)
        }
        Verdict::NotAllowed if object.domain == scoped::DOMAIN => Said(
            false,
            "DomainNotAllowed",
            format!(
                "the domain '{domain}' has the limits of scopes (/v1/policies), and is no \
                 namespace's by its name; name another domain, such as '{namespace}.limits', or \
                 list the namespace in CONTROL_KUBERNETES_ANY_DOMAIN"
            ),
        ),
        Verdict::NotAllowed => Said(
            false,
            "DomainNotAllowed",
            format!(
                "objects of the namespace {namespace} define the domain '{namespace}' and domains \
                 that begin with '{namespace}.' or '{namespace}/'; name one of these in \
                 spec.domain, or list the namespace in CONTROL_KUBERNETES_ANY_DOMAIN"
            ),
        ),
        Verdict::OlderObject(older) => Said(
            false,
            "Conflicted",
            format!(
                "the older object {older} defines the domain '{domain}'; delete one of the two"
            ),
        ),
        Verdict::Database => Said(
            false,
            "Conflicted",
            format!(
                "the database has other rules for the domain '{domain}'; remove them there, or \
                 make spec what GET /v1/export has of it: then the object takes the domain over"
            ),
        ),
        Verdict::Approvals => Said(
            false,
            "Conflicted",
            format!(
                "the domain '{domain}' asks for approvals, which objects have none of; have an \
                 administrator of the control plane set its approvals to 0, or delete the object"
            ),
        ),
        Verdict::Due if refused.is_some() => {
            Said(false, "Refused", refused.unwrap_or_default().to_owned())
        }
        Verdict::Stopped(words) => Said(
            false,
            "RolledBack",
            format!("{words}; change the rules, or remove spec.rollout to publish them"),
        ),
        Verdict::Due | Verdict::Published | Verdict::RollingOut(_) => {
            let count = rules.as_ref().map_or(0, |rules| rules.count);
            Said(true, "Accepted", format!("{count} rules"))
        }
    }
}

fn programmed(pods: &Reach, version: i64) -> Said {
    let PodCount { current, connected } = pods.count;
    match connected {
        // A domain without rules is one that pods do not get.
        _ if version == 0 => Said(true, "Programmed", "there are no rules to enforce".into()),
        0 => Said(false, "Pending", "no pod that gets the domain is connected".into()),
        _ if current < connected => {
            let mut message = format!("{current} of {connected} pods have the rules; not");
            for (at, (node, refused)) in pods.behind.iter().enumerate() {
                let comma = if at > 0 { "," } else { "" };
                let node = ratelease_rules::excerpt(node);
                // Writing to a String cannot fail.
                let _ = write!(message, "{comma} '{node}'");
                if *refused > 0 {
                    let _ = write!(message, " (has refused version {refused}; /v1/pods says why)");
                }
            }
            let others = connected - current - pods.behind.len();
            if others > 0 {
                let _ = write!(message, " and {others} others");
            }
            let refuses = pods.behind.iter().any(|(_, refused)| *refused > 0);
            Said(false, if refuses { REFUSED_BY_PODS } else { "Pending" }, message)
        }
        _ => Said(true, "Programmed", format!("all {connected} pods have the rules")),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::sync::Arc;

    use serde::Deserialize;
    use serde_json::json;

    use super::*;
    use crate::objects::fault::Faults;
    use crate::objects::object::{Key, Rules};
    use crate::push::PublishedDomain;

    fn object(rules: Result<&str, Faults>) -> Object {
        let rules = rules.map(|hash| {
            let hash = Some(hash.to_owned());
            Rules { text: String::new(), hash, count: 3 }
        });
        Object {
            key: Key { namespace: "shop".into(), name: "limits".into() },
            uid: String::new(),
            created: 0,
            generation: 7,
            domain: "shop".into(),
            rules,
            rollout: None,
            status: Status::default(),
        }
    }

    fn set(hash: &str, version: i64) -> PublishedSet {
        let domain = PublishedDomain::new("shop", hash.to_owned(), String::new());
        PublishedSet {
            version,
            domains: BTreeMap::from([("shop".to_owned(), Arc::new(domain))]),
            changed: BTreeMap::from([("shop".to_owned(), version)]),
            ..PublishedSet::default()
        }
    }

    fn pod(node: &str, accepted: i64, domains: Option<&[&str]>) -> PodRow {
        let domains = domains.map(|it| it.iter().map(|it| (*it).to_owned()).collect());
        PodRow { node: node.to_owned(), accepted, domains, ..PodRow::default() }
    }

    fn said(
        object: &Object,
        verdict: &Verdict,
        set: &PublishedSet,
        rows: &[PodRow],
    ) -> Vec<String> {
        let basis = Basis::new(object, verdict, None, set, &Pods::new(rows));
        let status = Status::new(object, &basis, &Status::default(), Timestamp::UNIX_EPOCH);
        let conditions = status.conditions.iter();
        conditions.map(|it| format!("{} {} {}", it.status, it.reason, it.message)).collect()
    }

    #[tokio::test]
    async fn programmed_means_that_every_pod_that_gets_the_domain_has_its_rules() {
        let (it, set) = (object(Ok("a")), set("a", 4));
        let programmed = |rows: &[PodRow]| said(&it, &Verdict::Published, &set, rows).remove(1);
        assert_eq!(programmed(&[]), "False Pending no pod that gets the domain is connected");
        let rows = [pod("a", 4, None), pod("b", 3, None), pod("c", 2, Some(&["bank"]))];
        assert_eq!(programmed(&rows), "False Pending 1 of 2 pods have the rules; not 'b'");
        let rows = [pod("a", 4, None), pod("b", 9, None), pod("c", 5, Some(&["bank", "shop"]))];
        assert_eq!(programmed(&rows), "True Programmed all 3 pods have the rules");
    }

    #[tokio::test]
    async fn a_pod_that_refuses_or_hangs_is_named() {
        let (it, set) = (object(Ok("a")), set("a", 4));
        let rules = |node, accepted, refused| PodRow { refused, ..pod(node, accepted, None) };
        let mut rows = vec![rules("a", 4, 0), rules("b", 3, 4)];
        let all = said(&it, &Verdict::Published, &set, &rows);
        let refused = "False RefusedByPods 1 of 2 pods have the rules; not 'b' (has refused version \
                       4; /v1/pods says why)";
        assert_eq!(all[1..3], [refused, refused]);
        assert_eq!(all[3], "False Accepted 3 rules");
        rows.extend((0..7).map(|n| rules(["c", "d", "e", "f", "g", "h", "i"][n], 3, 0)));
        let said = said(&it, &Verdict::Published, &set, &rows);
        let named = "not 'b' (has refused version 4; /v1/pods says why), 'c', 'd' and 5 others";
        assert!(said[1].ends_with(named), "{said:?}");
    }

    #[tokio::test]
    async fn a_refused_object_is_stalled_and_one_in_force_is_ready() {
        let set = set("a", 4);
        let rows = [pod("a", 4, None)];
        let said = |object: &Object, verdict| said(object, &verdict, &set, &rows);
        let of = |it: &Object, verdict| -> Vec<String> {
            let said = said(it, verdict);
            said[2..].iter().map(|it| it.split_whitespace().next().unwrap().to_owned()).collect()
        };
        let good = object(Ok("a"));
        assert_eq!(of(&good, Verdict::Published), ["True", "False"]);
        let due = object(Ok("b"));
        assert_eq!(of(&due, Verdict::Due), ["False", "False"]);
        let faulty = object(Err(Faults::one("spec.descriptors[0].key", "an empty key")));
        assert_eq!(of(&faulty, Verdict::Invalid), ["False", "True"]);
        for verdict in [Verdict::NotAllowed, Verdict::Database] {
            assert_eq!(of(&good, verdict), ["False", "True"]);
        }
    }

    #[tokio::test]
    async fn what_is_not_pushed_yet_is_pending() {
        let rows = [pod("a", 4, None)];
        for (verdict, hash) in [(Verdict::Due, "b"), (Verdict::Published, "b")] {
            let said = said(&object(Ok(hash)), &verdict, &set("a", 4), &rows);
            assert_eq!(said[0], "True Accepted 3 rules");
            assert_eq!(said[1], "False Pending the rules are about to be published");
        }
    }

    #[tokio::test]
    async fn a_faulty_object_says_its_faults_and_what_stays_in_force() {
        let faulty = object(Err(Faults::one("spec.descriptors[0].key", "an empty key")));
        let (verdict, set) = (Verdict::Invalid, set("before", 4));
        let pods = Pods::new(&[pod("a", 4, None)]);
        let basis = Basis::new(&faulty, &verdict, None, &set, &pods);
        let status = Status::new(&faulty, &basis, &Status::default(), Timestamp::UNIX_EPOCH);
        let found = json!(status);
        assert_eq!(found["faults"][0]["field"], "spec.descriptors[0].key");
        assert_eq!((&found["observedGeneration"], &found["version"]), (&json!(7), &json!(4)));
        assert_eq!(found["conditions"][0]["reason"], "Invalid");
        assert_eq!(found["conditions"][1]["message"], "the rules of version 4 stay in force");
        // The rules of the object run in no pod.
        assert_eq!(found["pods"], json!({"current": 0, "connected": 1}));
        // The status reads back as it was written.
        assert_eq!(Status::deserialize(&found).unwrap(), status);
    }

    #[tokio::test]
    async fn an_object_that_does_not_define_its_domain_has_nothing_in_force() {
        let verdicts = [
            (Verdict::NotAllowed, "DomainNotAllowed", "CONTROL_KUBERNETES_ANY_DOMAIN"),
            (Verdict::Database, "Conflicted", "the database has other rules"),
            (
                Verdict::OlderObject(Key { namespace: "shop".into(), name: "first".into() }),
                "Conflicted",
                "shop/first",
            ),
        ];
        for (verdict, reason, text) in verdicts {
            let said = said(&object(Ok("a")), &verdict, &set("a", 4), &[pod("a", 4, None)]);
            assert!(said[0].starts_with(&format!("False {reason} ")), "{said:?}");
            assert!(said[0].contains(text), "{said:?}");
            assert_eq!(said[1], format!("False {reason} nothing of it is in force"));
        }
    }

    #[tokio::test]
    async fn an_event_tells_each_change_once_and_nothing_that_is_open() {
        let set = set("a", 4);
        let told = |object: &Object, verdict: &Verdict, rows: &[PodRow]| {
            let basis = Basis::new(object, verdict, None, &set, &Pods::new(rows));
            let status = Status::new(object, &basis, &Status::default(), Timestamp::UNIX_EPOCH);
            Notice::of(&status, "uid")
        };
        let (good, published) = (object(Ok("a")), Verdict::Published);
        assert_eq!(told(&good, &published, &[pod("a", 3, None)]), None);
        let first = told(&good, &published, &[pod("a", 4, None)]).unwrap();
        assert_eq!((first.kind, &*first.reason), ("Normal", "Programmed"));
        let more = [pod("a", 4, None), pod("b", 4, None)];
        let second = told(&good, &published, &more).unwrap();
        assert!(second != first && second.repeats(&first));
        let next = Object { generation: 8, ..good };
        let third = told(&next, &published, &more).unwrap();
        assert!(!third.repeats(&first));
        assert_eq!(third.name(&next.key), first.name(&next.key));
        let faulty = object(Err(Faults::one("spec.descriptors[0].key", "an empty key")));
        let refused = told(&faulty, &Verdict::Invalid, &[]).unwrap();
        assert_eq!((refused.kind, &*refused.reason), ("Warning", "Invalid"));
        assert!(
            refused.message.ends_with("; spec.descriptors[0].key: an empty key"),
            "{refused:?}"
        );
        assert_ne!(refused.name(&next.key), first.name(&next.key));
    }

    #[tokio::test]
    async fn a_condition_keeps_its_time_until_it_changes() {
        let (it, set) = (object(Ok("a")), set("a", 4));
        let at = |rows: &[PodRow], former: &Status, second: i64| {
            let basis = Basis::new(&it, &Verdict::Published, None, &set, &Pods::new(rows));
            Status::new(&it, &basis, former, Timestamp::from_second(second).unwrap())
        };
        let first = at(&[pod("a", 4, None)], &Status::default(), 1);
        let more = [pod("a", 4, None), pod("b", 4, None)];
        let second = at(&more, &first, 2);
        assert_eq!(second.conditions[1].last_transition_time.0.as_second(), 1);
        assert!(second != first && second.differs_in_numbers_alone(&first));
        let third = at(&[pod("a", 3, None)], &second, 3);
        let times: Vec<_> =
            third.conditions.iter().map(|it| it.last_transition_time.0.as_second()).collect();
        assert_eq!(times, [1, 3, 3, 1]);
        assert!(!third.differs_in_numbers_alone(&second));
    }
}
