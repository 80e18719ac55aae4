//! The steps of a rollout, and the pods that a step chooses.
//!
//! A pod has a place among all pods: a hash of a random number of the rollout and the pod's origin,
//! which the pod cannot choose freely. A step that is for a percentage chooses, of the origins that
//! serve a domain when it is taken, those with the lowest places; the place of the last of them is
//! kept. So each replica finds the same pods, a pod that restarts is chosen again, and a larger
//! percentage adds pods to those before.
//!
//! A pod chooses the id of its node, so the id decides nothing beyond the pod's origin. An origin
//! with several ids is a crowd. Crowds are not counted among the origins of one pod, of which the
//! percentage is chosen as if there were no crowds. While there are more origins of one pod than
//! crowds, a crowd is drawn as an origin is, and the percentage of its pods is chosen then. Else, as
//! behind gateways, the percentage of the pods of all crowds is chosen.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::{PodRow, StoreError, StoreResult};

/// The context of the hash that is a pod's place in a rollout of an earlier release. Another text
/// would choose other pods.
const FORMER_CONTEXT: &str = "ratelease 2026-11 pods of a rollout";

/// The context of the hash that is an origin's place. Another text would choose other pods.
const ORIGIN_CONTEXT: &str = "ratelease 2026-11 origins of a rollout";

/// The context of the hash that is a pod's place within a crowd. Another text would choose other
/// pods.
const CROWD_CONTEXT: &str = "ratelease 2026-11 crowds of a rollout";

/// The context of the hash that stands for a pod's origin if that is not known. Another text would
/// choose other pods.
const UNKNOWN_CONTEXT: &str = "ratelease 2026-11 pods without an origin";

/// The threshold that chooses no pod.
const NONE: i64 = -1;

/// Maximum number of crowds of a domain with thresholds of their own: each takes some 40 bytes in
/// each step. Of a further crowd all pods are chosen or none, as if the crowd were one pod.
const CROWDS_MAX: usize = 256;

/// How far a rollout is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Stage {
    /// Chosen pods try the changed rules beside the rules in force, and count the hits that the
    /// changed rules would deny.
    Shadow,
    /// Chosen pods enforce the changed rules.
    Enforced,
    /// All pods enforce them: they are published.
    All,
    /// A call or the limit of time ended it; all pods run the published rules.
    Aborted,
    /// The control plane ended it, because too much was denied.
    RolledBack,
}

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

/// The random order in which a rollout chooses pods.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Draw {
    /// The number of the rollout.
    pub rollout: i64,
    /// A random number from 0. It is `None` for a rollout of an earlier release: there the places
    /// follow from the rollout's number and the node's id.
    pub seed: Option<i64>,
}

/// The place of a pod among all of a rollout, from 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    /// Identifies its origin.
    origin: i64,
    /// The place of its origin among all.
    alone: i64,
    /// The place of the pod in the crowd of its origin.
    within: i64,
}

/// The part of a domain's pods that a step has chosen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Share {
    /// The domain.
    pub domain: String,
    /// The place of the last origin that is chosen, of those that are no crowds; -1 if none is.
    pub threshold: i64,
    /// The place of the last chosen pod within each crowd; -1 if no pod is chosen. An origin that
    /// was a crowd stays one until the rollout ends, so that ids that come and go do not have pods
    /// chosen again.
    pub crowds: BTreeMap<i64, i64>,
    /// The pods that served the domain when the step was taken.
    pub pods: usize,
    /// How many of the domain's pods were chosen.
    pub chosen: usize,
}

/// The pods of an origin.
#[derive(Debug, Default)]
struct Origin {
    /// The place of the origin among all.
    alone: i64,
    /// The places of its pods within it.
    pods: BTreeSet<i64>,
}

// === impl Stage ===

impl Stage {
    /// The name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Shadow => "shadow",
            Self::Enforced => "enforced",
            Self::All => "all",
            Self::Aborted => "aborted",
            Self::RolledBack => "rolled_back",
        }
    }

    /// Whether pods run different rules.
    pub fn is_open(self) -> bool {
        matches!(self, Self::Shadow | Self::Enforced)
    }
}

impl FromStr for Stage {
    type Err = StoreError;

    fn from_str(text: &str) -> Result<Self, StoreError> {
        let all = [Self::Shadow, Self::Enforced, Self::All, Self::Aborted, Self::RolledBack];
        let found = all.into_iter().find(|it| it.name() == text);
        found.ok_or_else(|| StoreError::Internal(format!("there is no stage '{text}'")))
    }
}

// === impl Draw ===

impl Draw {
    /// The place of a pod of this origin, 0 if that is not known, and with this node's id.
    pub fn place(self, origin: i64, node: &str) -> Place {
        let Some(seed) = self.seed else {
            let place = hash(FORMER_CONTEXT, &[self.rollout], node);
            return Place { origin: place, alone: place, within: place };
        };
        let origin = if origin == 0 { hash(UNKNOWN_CONTEXT, &[], node) } else { origin };
        let alone = hash(ORIGIN_CONTEXT, &[seed, origin], "");
        Place { origin, alone, within: hash(CROWD_CONTEXT, &[seed, origin], node) }
    }

    /// The pods that serve a domain, by their origins. Pods of one origin that share an id are one,
    /// and so is a pod that has left a replica and is in the rows of both for a while.
    fn serving(self, domain: &str, pods: &[PodRow]) -> BTreeMap<i64, Origin> {
        let serves =
            |row: &&PodRow| row.domains.as_ref().is_none_or(|it| it.iter().any(|of| of == domain));
        let mut origins = BTreeMap::<_, Origin>::new();
        for row in pods.iter().filter(serves) {
            let place = self.place(row.origin, &row.node);
            let origin = origins.entry(place.origin).or_default();
            origin.alone = place.alone;
            origin.pods.insert(place.within);
        }
        origins
    }
}

// === impl Share ===

impl Share {
    /// The share of a step that is for `percent` of `pods`, which may be in several rows, after the
    /// step that chose `former`.
    pub fn of(
        draw: Draw,
        domain: &str,
        percent: u8,
        pods: &[PodRow],
        former: Option<&Self>,
    ) -> Self {
        let mut single = draw.serving(domain, pods);
        let pods = single.values().map(|it| it.pods.len()).sum();
        let mut thresholds = former.map(|it| it.crowds.clone()).unwrap_or_default();
        let mut largest: Vec<_> = single.iter().filter(|(_, it)| it.pods.len() > 1).collect();
        largest.sort_by_key(|(_, it)| std::cmp::Reverse(it.pods.len()));
        for (origin, _) in largest {
            if thresholds.len() < CROWDS_MAX {
                thresholds.entry(*origin).or_insert(NONE);
            }
        }
        let crowds: BTreeMap<_, _> =
            single.extract_if(.., |origin, _| thresholds.contains_key(origin)).collect();
        let mut places: Vec<_> = single.values().map(|it| (it.alone, it.pods.len())).collect();
        places.sort_unstable();
        places.truncate(wanted(percent, places.len()));
        let threshold = places.last().map_or(NONE, |(place, _)| *place);
        let mut chosen: usize = places.iter().map(|(_, pods)| pods).sum();
        // By origins, of which a client has one for each address, and not by ids.
        let of_crowds: BTreeMap<i64, usize> = match crowds.len() >= single.len() {
            true => {
                let all = crowds.values().map(|it| it.pods.len()).sum();
                chosen_of(&crowds, wanted(percent, all))
            }
            // A crowd is drawn as an origin of one pod is: more ids do not have it chosen.
            false => crowds
                .iter()
                .map(|(origin, it)| match it.alone <= threshold {
                    true => (*origin, wanted(percent, it.pods.len())),
                    false => (*origin, 0),
                })
                .collect(),
        };
        for (origin, count) in of_crowds {
            let last = count.checked_sub(1).and_then(|at| crowds[&origin].pods.iter().nth(at));
            thresholds.insert(origin, last.copied().unwrap_or(NONE));
            chosen += count;
        }
        Self { domain: domain.to_owned(), threshold, crowds: thresholds, pods, chosen }
    }

    /// Whether a pod of this place is chosen.
    pub fn chooses(&self, pod: &Place) -> bool {
        match self.crowds.get(&pod.origin) {
            Some(threshold) => pod.within <= *threshold,
            None => pod.alone <= self.threshold,
        }
    }

    /// How many pods serve the domain now, and how many of them the share chooses. If there are more
    /// origins of one pod than crowds, only the pods of these origins count. If there are fewer, only
    /// the pods of crowds count. So the ids of one address do not decide which pods count.
    pub fn now(&self, draw: Draw, pods: &[PodRow]) -> (usize, usize) {
        let mut single = draw.serving(&self.domain, pods);
        let crowds: BTreeMap<_, _> =
            single.extract_if(.., |origin, _| self.crowds.contains_key(origin)).collect();
        let counted = match single.len().cmp(&crowds.len()) {
            Ordering::Greater => single,
            Ordering::Less => crowds,
            Ordering::Equal => single.into_iter().chain(crowds).collect(),
        };
        let chosen = |(origin, it): (&i64, &Origin)| match self.crowds.get(origin) {
            Some(threshold) => it.pods.range(..=threshold).count(),
            None if it.alone <= self.threshold => it.pods.len(),
            None => 0,
        };
        let chosen = counted.iter().map(chosen).sum();
        (counted.values().map(|it| it.pods.len()).sum(), chosen)
    }

    /// The crowds, as the database has them.
    pub fn crowds_text(&self) -> StoreResult<String> {
        if self.crowds.is_empty() {
            return Ok(String::new());
        }
        serde_json::to_string(&self.crowds).map_err(|it| StoreError::Internal(it.to_string()))
    }

    /// The crowds of such a text.
    pub fn crowds_of(text: &str) -> StoreResult<BTreeMap<i64, i64>> {
        if text.is_empty() { Ok(BTreeMap::new()) } else { Ok(serde_json::from_str(text)?) }
    }
}

/// How many pods of each crowd are chosen if `wanted` of all are. Each crowd has its part of them,
/// rounded up or down.
fn chosen_of(crowds: &BTreeMap<i64, Origin>, wanted: usize) -> BTreeMap<i64, usize> {
    let mut positions = Vec::new();
    for (origin, it) in crowds {
        // The positions of its pods are evenly spaced from 0 to 2^95, after a random first one.
        let count = it.pods.len() as u128;
        let first = u128::from(it.alone.unsigned_abs());
        let position = |at: u128| (((at << 63) + first) << 32) / count;
        positions.extend((0..count).map(|at| (position(at), *origin)));
    }
    positions.sort_unstable();
    let mut chosen = BTreeMap::new();
    for (at, (_, origin)) in positions.into_iter().enumerate() {
        *chosen.entry(origin).or_default() += usize::from(at < wanted);
    }
    chosen
}

/// How many of so many pods a percentage is: rounded, and at least one if there are some.
pub fn wanted(percent: u8, pods: usize) -> usize {
    rounded(percent, pods).max(1).min(pods)
}

fn rounded(percent: u8, pods: usize) -> usize {
    (pods * usize::from(percent) + 50) / 100
}

/// A hash of these numbers and this text, from 0.
fn hash(context: &str, numbers: &[i64], text: &str) -> i64 {
    let mut hasher = blake3::Hasher::new_derive_key(context);
    for number in numbers {
        hasher.update(&number.to_le_bytes());
    }
    positive(&hasher.update(text.as_bytes()).finalize())
}

/// The first bits of a hash as a number from 0.
pub fn positive(hash: &blake3::Hash) -> i64 {
    let mut first = [0; 8];
    first.copy_from_slice(&hash.as_bytes()[..8]);
    i64::from_le_bytes(first) & i64::MAX
}

#[cfg(test)]
mod tests {
    use super::*;

    fn draw(seed: i64) -> Draw {
        Draw { rollout: 1, seed: Some(seed) }
    }

    fn pods(number: usize) -> Vec<PodRow> {
        (0..number).map(|at| pod(&format!("pod-{at}"), None)).collect()
    }

    fn pod(node: &str, domains: Option<&[&str]>) -> PodRow {
        let domains = domains.map(|it| it.iter().map(|it| (*it).to_owned()).collect());
        PodRow { node: node.to_owned(), domains, ..PodRow::default() }
    }

    /// Pods of one origin.
    fn crowd(origin: i64, ids: std::ops::Range<usize>) -> Vec<PodRow> {
        ids.map(|at| PodRow { origin, ..pod(&format!("{origin}-{at}"), None) }).collect()
    }

    fn chosen(share: &Share, draw: Draw, pods: &[PodRow]) -> BTreeSet<String> {
        let is = |pod: &&PodRow| share.chooses(&draw.place(pod.origin, &pod.node));
        pods.iter().filter(is).map(|pod| pod.node.clone()).collect()
    }

    fn share(draw: Draw, percent: u8, pods: &[PodRow]) -> Share {
        Share::of(draw, "shop", percent, pods, None)
    }

    #[test]
    fn a_percentage_chooses_that_part_of_the_pods_and_at_least_one() {
        for seed in 1..40 {
            for draw in [draw(seed), Draw { rollout: seed, seed: None }] {
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
                    let share = share(draw, percent, &pods);
                    assert_eq!((share.pods, share.chosen), (number, expected), "{percent} %");
                    assert_eq!(chosen(&share, draw, &pods).len(), expected, "{percent} %");
                    assert_eq!(share.now(draw, &pods), (number, expected));
                }
            }
        }
    }

    #[test]
    fn a_larger_percentage_adds_pods_to_those_of_a_smaller_one() {
        let mut pods = pods(40);
        pods.extend((1..8).flat_map(|origin| crowd(origin, 0..5)));
        let of = |seed, percent| {
            let draw = draw(seed);
            chosen(&share(draw, percent, &pods), draw, &pods)
        };
        for seed in 0..20 {
            for (few, many) in [(1, 10), (10, 25), (25, 50), (50, 100)] {
                assert!(of(seed, few).is_subset(&of(seed, many)), "{few} % and {many} %");
            }
        }
        assert_ne!(of(7, 50), of(8, 50), "another rollout chooses other pods");
    }

    #[test]
    fn an_id_that_a_pod_chooses_does_not_have_it_chosen() {
        let others = (2..40).flat_map(|origin| crowd(origin, 0..1));
        let others: Vec<_> = others.collect();
        let of = |id: usize, seed| {
            let pods: Vec<_> = others.iter().cloned().chain(crowd(1, id..id + 1)).collect();
            let share = share(draw(seed), 10, &pods);
            chosen(&share, draw(seed), &pods[38..]).len()
        };
        for seed in 0..50 {
            let ids: BTreeSet<_> = (0..50).map(|id| of(id, seed)).collect();
            assert_eq!(ids.len(), 1, "an id decides about its own pod");
        }
        assert!((0..50).any(|seed| of(0, seed) == 1) && (0..50).any(|seed| of(0, seed) == 0));
    }

    #[test]
    fn ids_of_one_origin_change_no_choice_of_the_others() {
        let honest: Vec<_> = (2..22).flat_map(|origin| crowd(origin, 0..1)).collect();
        let mut drawn = 0;
        for seed in 0..50 {
            let draw = draw(seed);
            let alone = share(draw, 10, &honest);
            let expected = chosen(&alone, draw, &honest);
            assert_eq!(expected.len(), 2);
            let mut former = alone.clone();
            // As many as there may be, those that were chosen alone, and those that were not.
            let all = crowd(1, 0..1000);
            let lying: Vec<_> = honest.iter().cloned().chain(all.clone()).collect();
            let share = share(draw, 10, &lying);
            let is_drawn = draw.place(1, "").alone <= share.threshold;
            drawn += usize::from(is_drawn);
            assert_eq!(share.chosen, if is_drawn { 102 } else { 2 }, "a tenth of these, or none");
            let low = chosen(&share, draw, &all);
            for keeps_low in [true, false] {
                let kept = all.iter().filter(|it| low.contains(&it.node) == keeps_low).cloned();
                let pods: Vec<_> = honest.iter().cloned().chain(kept).collect();
                former = Share::of(draw, "shop", 10, &pods, Some(&former));
                assert_eq!(chosen(&former, draw, &honest), expected, "{keeps_low}");
                assert_eq!(former.now(draw, &pods), (20, 2), "the choice stands");
            }
            // A crowd stays one though a single id is left.
            let pods: Vec<_> = honest.iter().cloned().chain(crowd(1, 0..1)).collect();
            let after = Share::of(draw, "shop", 10, &pods, Some(&former));
            assert_eq!(chosen(&after, draw, &honest), expected);
            assert_eq!(after.now(draw, &lying), (20, 2));
        }
        assert!((1..15).contains(&drawn), "{drawn} of 50: the odds of one pod");
    }

    #[test]
    fn an_address_beside_pods_behind_another_one_neither_displaces_nor_moves_the_choice() {
        for (seed, number) in (0..50).zip([2, 4, 8, 9, 40].into_iter().cycle()) {
            let draw = draw(seed);
            let honest = crowd(1, 0..number);
            let alone = share(draw, 10, &honest);
            let lying: Vec<_> = honest.iter().cloned().chain(crowd(2, 0..1)).collect();
            let beside = Share::of(draw, "shop", 10, &lying, Some(&alone));
            for share in [alone, beside] {
                let chosen = chosen(&share, draw, &honest).len();
                assert_eq!(chosen, wanted(10, number), "pods behind the gateway");
                for pods in [&honest, &lying] {
                    let (serve, chosen) = share.now(draw, pods);
                    let off = chosen.abs_diff(wanted(10, serve));
                    assert!(chosen > 0 && off <= 1, "{chosen} of {serve}");
                }
            }
        }
    }

    #[test]
    fn pods_of_one_id_at_different_addresses_are_chosen_apart() {
        let pods: Vec<_> = (1..=20).map(|origin| PodRow { origin, ..pod("same", None) }).collect();
        let share = share(draw(1), 10, &pods);
        assert_eq!((share.pods, share.chosen, share.crowds.len()), (20, 2, 0));
    }

    #[test]
    fn pods_behind_one_address_are_chosen_apart_and_of_each_its_share() {
        for seed in 0..50 {
            let draw = draw(seed);
            // A gateway for all: one of each ten, and at least one.
            for (number, expected) in [(2, 1), (8, 1), (40, 4), (200, 20)] {
                let pods = crowd(1, 0..number);
                let share = share(draw, 10, &pods);
                assert_eq!((share.pods, share.chosen), (number, expected));
                assert_eq!(chosen(&share, draw, &pods).len(), expected);
                assert_eq!(share.now(draw, &pods), (number, expected));
            }
            // Machines with several pods each.
            let sizes = [2, 2, 3, 5, 8, 40, 3, 2, 4, 11];
            let pods = (1..).zip(sizes).flat_map(|(origin, size)| crowd(origin, 0..size));
            let pods: Vec<_> = pods.collect();
            let share = share(draw, 25, &pods);
            assert_eq!((share.pods, share.chosen), (80, 20));
            let of_largest = chosen(&share, draw, &pods[20..60]).len();
            assert!((8..=12).contains(&of_largest), "{of_largest} of 40");
        }
    }

    #[test]
    fn an_origin_that_became_a_crowd_shifts_the_share_until_the_next_choice() {
        let draw = draw(3);
        let first = crowd(1, 0..1);
        let share = share(draw, 10, &first);
        let many = crowd(1, 0..50);
        assert_eq!(share.now(draw, &many), (50, 50), "all are chosen with the first one");
        let again = Share::of(draw, "shop", 10, &many, Some(&share));
        assert_eq!((again.chosen, again.now(draw, &many)), (5, (50, 5)));
    }

    #[test]
    fn crowds_beyond_the_bound_count_as_one_pod_each() {
        let number = CROWDS_MAX + 10;
        let pods: Vec<_> = (1..)
            .take(number)
            .flat_map(|origin| crowd(origin, 0..2 + (usize::try_from(origin % 3).unwrap())))
            .collect();
        let share = share(draw(1), 10, &pods);
        assert_eq!((share.crowds.len(), share.pods), (CROWDS_MAX, pods.len()));
        let percent = 100 * share.chosen / share.pods;
        assert!((9..=10).contains(&percent), "{percent} %");
        assert_eq!(Share::crowds_of(&share.crowds_text().unwrap()).unwrap(), share.crowds);
    }

    #[test]
    fn only_pods_that_serve_the_domain_count() {
        let mut all: Vec<_> =
            (0..292).map(|at| pod(&format!("other-{at}"), Some(&["bank"]))).collect();
        all.extend((0..8).map(|at| pod(&format!("shop-{at}"), Some(&["bank", "shop"]))));
        let share = share(draw(3), 10, &all);
        assert_eq!((share.pods, share.chosen), (8, 1));
        let nobody = Share::of(draw(3), "lab", 10, &all, None);
        assert_eq!((nobody.threshold, nobody.pods, nobody.chosen), (NONE, 0, 0));
    }

    #[test]
    fn a_pod_counts_once_though_two_replicas_or_types_list_it() {
        let mut rows = pods(4);
        rows.extend(pods(4));
        rows.extend(pods(4).into_iter().map(|it| PodRow { replica: "gone".into(), ..it }));
        let twice = share(draw(1), 50, &rows);
        assert_eq!((twice.pods, twice.chosen), (4, 2));
        // Pods of one origin that share an id are one.
        let mut same = pods(1);
        same.push(PodRow { peer: "another".into(), ..same[0].clone() });
        assert_eq!((share(draw(1), 50, &same).pods, share(draw(1), 50, &same).chosen), (1, 1));
    }

    #[test]
    fn the_place_of_a_pod_never_changes() {
        let former = Draw { rollout: 1, seed: None };
        let first: Vec<_> = (0..3).map(|at| former.place(7, &format!("pod-{at}")).alone).collect();
        assert_eq!(
            first,
            [341_788_884_335_529_722, 2_849_942_117_525_642_900, 2_834_653_276_173_689_000],
            "another hash moves pods of rollouts that are under way"
        );
        let Place { origin, alone, within } = draw(1).place(7, "pod-0");
        let expected = (7, 4_748_736_757_755_467_364, 54_680_374_092_906_340);
        assert_eq!((origin, alone, within), expected);
    }
}
