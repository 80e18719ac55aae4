//! Hits that pods reported of a rollout: all of them, and as they are weighed for its bound.
//!
//! What a pod reports is its own word, so that one pod must not decide about a rollout. Of each
//! window of time a pod weighs at most a tenth of the hits that its replica has of a domain (with
//! fewer than ten pods, its equal part), or the `hits_min` of the bound if that is more. Of three
//! or more pods, the share that is denied is that of the others without the one that denies most.

use std::collections::{BTreeMap, HashMap};
use std::hash::{BuildHasher, Hash, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use ratelease_engine::rng::next_u64;
use ratelease_engine::time::Clock;
use tokio::sync::Notify;

use crate::store::{CountKey, HitCount, ReplicaCount};

/// Seconds of a window. The recent hits are those of the present window and the one before.
const WINDOW_SECONDS: u64 = 15;

/// The part of all hits that one of many pods may have.
const PARTS: usize = 10;

/// Pods of which the one that denies most is left out.
const TRIMMED_MIN: usize = 3;

/// Maximum number of pods, each counted for each domain that it reports, of a window. Further ones
/// weigh together what one pod does.
const ENTRIES_MAX: usize = 1 << 18;

/// Identifies a pod within this process.
pub(super) type PodId = u64;

/// The pods beyond [`ENTRIES_MAX`].
const OTHERS: PodId = 0;

/// Hits that pods reported to this replica. A cheap handle: clones share all state.
#[derive(Debug, Clone)]
pub struct RolloutCounts(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    clock: Clock,
    hasher: RandomState,
    state: Mutex<State>,
    changed: Notify,
    reports: AtomicU64,
    rollbacks: AtomicU64,
}

#[derive(Debug)]
struct State {
    /// Tells the rows of this process from those of others.
    replica: u32,
    counts: BTreeMap<CountKey, Counted>,
    /// The number of the present window.
    window: u64,
    /// Pods of the present window, over all counts.
    entries: usize,
    hits_min: u64,
}

/// The hits of one domain and group of pods.
#[derive(Debug, Default)]
struct Counted {
    all: HitCount,
    /// The weighed hits of windows that have ended.
    weighed: HitCount,
    former: HashMap<PodId, HitCount>,
    present: HashMap<PodId, HitCount>,
    /// How often hits were added.
    changes: u64,
}

/// What is to be written.
#[derive(Debug)]
pub(super) struct Rows {
    pub(super) replica: u32,
    pub(super) counts: Vec<(CountKey, ReplicaCount)>,
    /// The number of the last change of each count.
    changes: Vec<u64>,
}

// === impl RolloutCounts ===

impl Default for RolloutCounts {
    fn default() -> Self {
        Self(Arc::new(Shared {
            clock: Clock::start(),
            hasher: RandomState::new(),
            state: Mutex::default(),
            changed: Notify::new(),
            reports: AtomicU64::default(),
            rollbacks: AtomicU64::default(),
        }))
    }
}

impl RolloutCounts {
    /// Number of reports that were counted so far.
    pub(crate) fn reports(&self) -> u64 {
        self.0.reports.load(Ordering::Relaxed)
    }

    /// Number of rollouts that this process rolled back.
    pub(crate) fn rollbacks(&self) -> u64 {
        self.0.rollbacks.load(Ordering::Relaxed)
    }

    pub(super) fn note_rollback(&self) {
        self.0.rollbacks.fetch_add(1, Ordering::Relaxed);
    }

    /// The clock that all seconds are of.
    pub(super) fn clock(&self) -> Clock {
        self.0.clock
    }

    /// The number of the pod with this identity.
    pub(super) fn pod(&self, identity: impl Hash) -> PodId {
        self.0.hasher.hash_one(identity)
    }

    /// Adds hits of a pod, at this second of the clock. `hits_min` is that of the rollout's bound.
    pub(super) fn note(
        &self,
        key: CountKey,
        pod: PodId,
        count: &HitCount,
        (hits_min, second): (u64, u64),
    ) {
        let mut state = self.0.state.lock();
        state.hits_min = hits_min;
        state.turn(second);
        let is_full = state.entries >= ENTRIES_MAX;
        let counted = state.counts.entry(key).or_default();
        counted.changes += 1;
        counted.all.add(count);
        let pod = if is_full && !counted.present.contains_key(&pod) { OTHERS } else { pod };
        let before = counted.present.len();
        counted.present.entry(pod).or_default().add(count);
        state.entries += counted.present.len() - before;
    }

    /// What the database is to have of this replica at this second. There are as many rows as the
    /// steps have domains, twice.
    pub(super) fn rows(&self, second: u64) -> Rows {
        let mut state = self.0.state.lock();
        state.turn(second);
        let (replica, hits_min) = (state.replica, state.hits_min);
        let counts = state.counts.iter().map(|(key, it)| (key.clone(), it.row(hits_min)));
        let changes = state.counts.values().map(|it| it.changes).collect();
        Rows { replica, counts: counts.collect(), changes }
    }

    /// Notes that the database has these rows. Those of other versions than `present`, the last
    /// step's, are forgotten unless they have changed since.
    pub(super) fn written(&self, rows: &Rows, present: Option<i64>) {
        let mut state = self.0.state.lock();
        for ((key, _), changes) in rows.counts.iter().zip(&rows.changes) {
            let is_written = state.counts.get(key).is_some_and(|it| it.changes == *changes);
            if is_written && Some(key.version) != present {
                state.counts.remove(key);
            }
        }
    }

    /// Notes that a report was counted.
    pub(super) fn note_report(&self) {
        self.0.reports.fetch_add(1, Ordering::Relaxed);
        self.0.changed.notify_one();
    }

    /// Resolves after the next report.
    pub(super) async fn changed(&self) {
        self.0.changed.notified().await;
    }
}

// === impl State ===

impl Default for State {
    fn default() -> Self {
        let replica = u32::try_from(next_u64() >> 33).unwrap_or_default().max(1);
        let (counts, window, entries, hits_min) = (BTreeMap::new(), 0, 0, 0);
        Self { replica, counts, window, entries, hits_min }
    }
}

impl State {
    /// Begins the window of this second.
    fn turn(&mut self, second: u64) {
        let window = second / WINDOW_SECONDS;
        let passed = window.saturating_sub(self.window);
        if passed == 0 {
            return;
        }
        (self.window, self.entries) = (window, 0);
        for counted in self.counts.values_mut() {
            let ended = std::mem::take(&mut counted.present);
            counted.weighed.add(&weigh(ended.values(), self.hits_min));
            counted.former = if passed == 1 { ended } else { HashMap::new() };
        }
    }
}

// === impl Counted ===

impl Counted {
    fn row(&self, hits_min: u64) -> ReplicaCount {
        let mut weighed = self.weighed;
        weighed.add(&weigh(self.present.values(), hits_min));
        let mut both = self.former.clone();
        for (pod, count) in &self.present {
            both.entry(*pod).or_default().add(count);
        }
        ReplicaCount { all: self.all, weighed, recent: weigh(both.values(), hits_min) }
    }
}

/// The hits of all these pods, of which none weighs too much.
fn weigh<'c>(pods: impl Iterator<Item = &'c HitCount>, hits_min: u64) -> HitCount {
    let mut pods: Vec<_> = pods.filter(|it| it.hits > 0).copied().collect();
    pods.sort_by_key(|it| it.hits);
    let max = hits_max(&pods, PARTS.min(pods.len())).max(hits_min);
    let mut sum = HitCount::default();
    for pod in &mut pods {
        *pod = pod.scaled(max);
        sum.add(pod);
    }
    let denies_most = pods.iter().max_by_key(|it| it.denied.saturating_add(it.shadow));
    let (Some(most), true) = (denies_most, pods.len() >= TRIMMED_MIN) else { return sum };
    let others = HitCount {
        hits: sum.hits.saturating_sub(most.hits),
        denied: sum.denied.saturating_sub(most.denied),
        shadow: sum.shadow.saturating_sub(most.shadow),
    };
    others.scaled_to(sum.hits)
}

/// The hits of which no pod has more than one of so many `parts`, if pods with more have these. The
/// pods are in the order of their hits.
fn hits_max(pods: &[HitCount], parts: usize) -> u64 {
    let parts = parts as u128;
    let mut below: u128 = pods.iter().map(|it| u128::from(it.hits)).sum();
    for (above, pod) in pods.iter().rev().enumerate() {
        // `above` pods have the result, and the others have `below` together.
        let Some(rest) = parts.checked_sub(above as u128).filter(|rest| *rest > 0) else { break };
        let max = below / rest;
        if max >= u128::from(pod.hits) {
            return u64::try_from(max).unwrap_or(u64::MAX);
        }
        below -= u128::from(pod.hits);
    }
    pods.first().map_or(0, |it| it.hits)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn count(hits: u64, denied: u64) -> HitCount {
        HitCount { hits, denied, shadow: 0 }
    }

    fn share(pods: &[HitCount]) -> f64 {
        weigh(pods.iter(), 100).denied_share().unwrap()
    }

    #[test]
    fn a_pod_weighs_a_tenth_of_all_or_its_equal_part_of_fewer_pods() {
        let honest = |number| vec![count(1000, 0); number];
        for number in 1..40 {
            let mut pods = honest(number);
            pods.push(count(1 << 40, 0));
            let limit = *[10, number + 1].iter().min().unwrap() as u64;
            let sum = weigh(pods.iter(), 0).hits;
            let weighs = sum - 1000 * number as u64;
            assert!(weighs <= sum / limit + 1, "{number} others: {weighs} of {sum}");
            assert!(weighs >= 999, "{number} others: {weighs}");
        }
        assert_eq!(weigh([count(7, 3)].iter(), 0), count(7, 3), "one pod alone is what there is");
        assert_eq!(weigh([].iter(), 100), HitCount::default());
    }

    #[test]
    fn one_pod_neither_forces_nor_masks_that_the_others_deny_too_much() {
        for number in 2..40 {
            let mut pods = vec![count(1000, 0); number];
            pods.push(count(1 << 40, 1 << 40));
            assert!(share(&pods) < 0.05, "forced among {number}: {}", share(&pods));
            let mut pods = vec![count(1000, 200); number];
            pods.push(count(1 << 40, 0));
            assert!(share(&pods) > 0.05, "masked among {number}: {}", share(&pods));
        }
        // Of two pods each weighs half, however many hits it reports.
        assert!((share(&[count(1000, 0), count(1 << 40, 1 << 40)]) - 0.5).abs() < 0.001);
        assert!((share(&[count(1000, 1000), count(1 << 40, 0)]) - 0.5).abs() < 0.001);
    }

    #[test]
    fn pods_with_few_hits_take_no_weight_from_others() {
        let pods = [count(1, 1), count(2000, 100), count(1000, 50)];
        let weighed = weigh(pods.iter(), 100);
        assert!(weighed.hits >= 100 && (share(&pods) - 0.05).abs() < 0.01, "{weighed:?}");
        // As many hits as the bound needs are there if they were reported.
        assert!(weigh([count(100, 0), count(1, 0)].iter(), 100).hits >= 100);
    }

    #[test]
    fn counts_are_kept_until_they_are_written_and_recent_ones_for_two_windows() {
        let counts = RolloutCounts::default();
        let key = CountKey { version: 1, domain: "shop".to_owned(), is_chosen: true };
        let note = |second| counts.note(key.clone(), 7, &count(10, 1), (100, second));
        let recent = |second| counts.rows(second).counts[0].1.recent.hits;
        note(0);
        assert_eq!((recent(14), recent(15), recent(29)), (10, 10, 10));
        note(29);
        assert_eq!((recent(29), recent(30), recent(44), recent(45)), (20, 10, 10, 0));
        let rows = counts.rows(45);
        assert_eq!((rows.counts[0].1.all, rows.counts[0].1.weighed), (count(20, 2), count(20, 2)));
        counts.written(&rows, Some(1));
        note(45); // while the next step is written
        counts.written(&rows, Some(2));
        let rows = counts.rows(46);
        assert_eq!(rows.counts[0].1.all, count(30, 3));
        counts.written(&rows, Some(2));
        assert!(counts.rows(46).counts.is_empty());
    }
}
