//! The steps of a rollout, and the pods that a step chooses.
//!
//! A pod has a place among all pods: a hash of the rollout and its node's id. A step that is for a
//! percentage chooses, of the pods that serve a domain when it is taken, those with the lowest places;
//! the place of the last of them is kept. So each replica finds the same pods, a pod that restarts is
//! chosen again, and a larger percentage adds pods to those before.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use serde::{Deserialize, Serialize};

use super::{PodRow, Stage};

/// The context of the hash that is the place of a pod. Another text would choose other pods.
const CONTEXT: &str = "ratelease 2026-11 pods of a rollout";

/// The threshold that chooses no pod.
const NONE: i64 = -1;

/// A step that a rollout is to take.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlanStep {
    /// The stage: `shadow` or `enforced`.
    pub stage: Stage,
    /// How many of a hundred pods are chosen, 1 to 100; `None` if a label chooses them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub percent: Option<u8>,
    /// Seconds until the next step is taken without being asked; `None` for never.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wait: Option<i64>,
}

/// The part of a domain's pods that a step has chosen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Share {
    /// The domain.
    pub domain: String,
    /// The place of the last pod that is chosen; -1 if none is.
    pub threshold: i64,
    /// The pods that served the domain when the step was taken.
    pub pods: usize,
    /// How many of these were chosen.
    pub chosen: usize,
}

// === impl Share ===

impl Share {
    /// The share of a step that is for `percent` of `pods`, which may be in several rows.
    pub fn of(rollout: i64, domain: &str, percent: u8, pods: &[PodRow]) -> Self {
        let nodes = serving(domain, pods);
        let pods = nodes.values().sum();
        let wanted = wanted(percent, pods);
        let mut places: Vec<_> =
            nodes.into_iter().map(|(node, count)| (place_of(rollout, node), count)).collect();
        places.sort_unstable();
        let (mut threshold, mut chosen) = (NONE, 0);
        for (place, count) in places {
            if chosen >= wanted {
                break;
            }
            (threshold, chosen) = (place, chosen + count);
        }
        Self { domain: domain.to_owned(), threshold, pods, chosen }
    }

    /// How many pods of a rollout serve the domain now, and how many of them the share chooses.
    pub fn now(&self, rollout: i64, pods: &[PodRow]) -> (usize, usize) {
        let nodes = serving(&self.domain, pods);
        let is_chosen = |node: &&&str| place_of(rollout, node) <= self.threshold;
        let chosen = nodes.iter().filter(|(node, _)| is_chosen(node)).map(|(_, count)| count);
        (nodes.values().sum(), chosen.sum())
    }
}

/// How many of so many pods a percentage is: rounded, and at least one if there are some.
pub fn wanted(percent: u8, pods: usize) -> usize {
    ((pods * usize::from(percent) + 50) / 100).max(1).min(pods)
}

/// The nodes that serve a domain, and how many pods have the id of each: one, unless it is not
/// unique. A pod that has left a replica may be in the rows of both for a while.
fn serving<'p>(domain: &str, pods: &'p [PodRow]) -> HashMap<&'p str, usize> {
    let mut peers = BTreeMap::<(&str, &str), BTreeSet<&str>>::new();
    let serves =
        |row: &&PodRow| row.domains.as_ref().is_none_or(|it| it.iter().any(|of| of == domain));
    for row in pods.iter().filter(serves) {
        peers.entry((&row.node, &row.replica)).or_default().insert(&row.peer);
    }
    let mut nodes = HashMap::<&str, usize>::new();
    for ((node, _), peers) in peers {
        let count = nodes.entry(node).or_default();
        *count = peers.len().max(*count);
    }
    nodes
}

/// The place of a node among all, from 0. Another rollout has others.
pub fn place_of(rollout: i64, node: &str) -> i64 {
    let mut hasher = blake3::Hasher::new_derive_key(CONTEXT);
    hasher.update(&rollout.to_le_bytes()).update(node.as_bytes());
    let mut first = [0; 8];
    first.copy_from_slice(&hasher.finalize().as_bytes()[..8]);
    i64::from_le_bytes(first) & i64::MAX
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pods(number: usize) -> Vec<PodRow> {
        (0..number).map(|at| pod(&format!("pod-{at}"), None)).collect()
    }

    fn pod(node: &str, domains: Option<&[&str]>) -> PodRow {
        let domains = domains.map(|it| it.iter().map(|it| (*it).to_owned()).collect());
        let (node, peer) = (node.to_owned(), format!("peer of {node}"));
        PodRow { node, peer, domains, ..PodRow::default() }
    }

    fn chosen(share: &Share, rollout: i64, pods: &[PodRow]) -> BTreeSet<String> {
        let is = |pod: &&PodRow| place_of(rollout, &pod.node) <= share.threshold;
        pods.iter().filter(is).map(|pod| pod.node.clone()).collect()
    }

    #[test]
    fn a_percentage_chooses_that_part_of_the_pods_and_at_least_one() {
        for rollout in 1..40 {
            for (number, percent, expected) in [
                (20, 10, 2),
                (8, 10, 1),
                (1, 1, 1),
                (300, 10, 30),
                (25, 50, 13),
                (20, 100, 20),
                (3, 99, 3),
                (0, 50, 0),
            ] {
                let pods = pods(number);
                let share = Share::of(rollout, "shop", percent, &pods);
                assert_eq!((share.pods, share.chosen), (number, expected), "{percent} %");
                assert_eq!(chosen(&share, rollout, &pods).len(), expected, "{percent} %");
                assert_eq!(share.now(rollout, &pods), (number, expected));
            }
        }
    }

    #[test]
    fn a_larger_percentage_adds_pods_to_those_of_a_smaller_one() {
        let pods = pods(40);
        let of = |percent| chosen(&Share::of(7, "shop", percent, &pods), 7, &pods);
        for (few, many) in [(1, 10), (10, 25), (25, 50), (50, 100)] {
            assert!(of(few).is_subset(&of(many)), "{few} % and {many} %");
        }
        let other = chosen(&Share::of(8, "shop", 50, &pods), 8, &pods);
        assert_ne!(of(50), other, "another rollout chooses other pods");
    }

    #[test]
    fn only_pods_that_serve_the_domain_count() {
        let mut all: Vec<_> =
            (0..292).map(|at| pod(&format!("other-{at}"), Some(&["bank"]))).collect();
        all.extend((0..8).map(|at| pod(&format!("shop-{at}"), Some(&["bank", "shop"]))));
        let share = Share::of(3, "shop", 10, &all);
        assert_eq!((share.pods, share.chosen), (8, 1));
        let nobody = Share::of(3, "lab", 10, &all);
        assert_eq!((nobody.threshold, nobody.pods, nobody.chosen), (NONE, 0, 0));
    }

    #[test]
    fn a_pod_counts_once_though_two_replicas_or_types_list_it() {
        let mut rows = pods(4);
        rows.extend(pods(4));
        rows.extend(pods(4).into_iter().map(|it| PodRow { replica: "gone".into(), ..it }));
        let share = Share::of(1, "shop", 50, &rows);
        assert_eq!((share.pods, share.chosen), (4, 2));
        // Pods that share an id are chosen together.
        let mut same = pods(1);
        same.push(PodRow { peer: "another".into(), ..same[0].clone() });
        assert_eq!(Share::of(1, "shop", 50, &same).chosen, 2);
    }

    #[test]
    fn the_place_of_a_pod_never_changes() {
        let first: Vec<_> = (0..3).map(|at| place_of(1, &format!("pod-{at}"))).collect();
        assert_eq!(
            first,
            [341_788_884_335_529_722, 2_849_942_117_525_642_900, 2_834_653_276_173_689_000],
            "another hash moves pods of rollouts that are under way"
        );
    }
}
