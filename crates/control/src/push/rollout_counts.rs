//! Hits that pods reported of a rollout: all of them, and as they are weighed for its bound. Also
//! ends a rollout that denies too much.
//!
//! A pod's report is its own word, so that one pod must not decide about a rollout. In each window
//! of time a pod weighs at most a tenth of the hits that its replica has of a domain. With fewer
//! than ten pods, a pod weighs at most its equal part. If the bound's `hits_min` is more, a pod may
//! weigh that much. With three or more pods, the pod that denies most is left out of the denied
//! share.

use std::collections::{BTreeMap, HashMap};
use std::hash::{BuildHasher, Hash, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use ratelease_engine::rng::next_u64;
use ratelease_engine::time::{Clock, Time};
use tokio::sync::{Notify, watch};
use tokio::time::{sleep, timeout};
use tracing::warn;

use super::in_time;
use super::published::{PublishedRollout, PublishedSet};
use crate::store::{
    Author, Bound, CountKey, HitCount, Hits, ReplicaCount, Stage, Store, StoreResult, percent,
};

/// Seconds of a window. The recent hits are the sum of the present window and the one before.
const WINDOW_SECONDS: u64 = 15;

/// The part of all hits that one of many pods may have.
const PARTS: usize = 10;

/// Pods of which the one that denies most is left out.
const TRIMMED_MIN: usize = 3;

/// Maximum number of pods, each counted for each domain that it reports, of a window. Further ones
/// weigh together what one pod does.
const ENTRIES_MAX: usize = 1 << 18;

/// Identifies a pod within this process.
type PodId = u64;

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
    /// Number that marks the rows of this process: other processes have other numbers.
    replica: u32,
    counts: BTreeMap<CountKey, Counted>,
    /// The number of the present window.
    window: u64,
    /// Pods of the present window, over all counts.
    entries: usize,
}

/// The hits of one domain and group of pods.
#[derive(Debug, Default)]
struct Counted {
    all: HitCount,
    /// The weighed hits of windows that have ended.
    weighed: HitCount,
    former: HashMap<PodId, HitCount>,
    present: HashMap<PodId, HitCount>,
    /// Number of times that hits were added.
    changes: u64,
    /// The `hits_min` of the bound of its rollout.
    hits_min: u64,
    /// Whether the hits are evidence for the next step. In a stage whose counts began empty, hits
    /// are evidence once its longest window has turned.
    is_evidence: bool,
}

/// The conditions under which hits of a report are counted.
#[derive(Debug, Clone, Copy)]
pub(super) struct Note {
    /// The `hits_min` of the bound of the rollout.
    pub(super) hits_min: u64,
    /// The second of the report, by the clock of the counts.
    pub(super) second: u64,
    /// Whether the hits are evidence for the next step.
    pub(super) is_evidence: bool,
}

/// The rows to write to the database.
#[derive(Debug)]
struct Rows {
    replica: u32,
    counts: Vec<(CountKey, ReplicaCount)>,
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
    pub fn reports(&self) -> u64 {
        self.0.reports.load(Ordering::Relaxed)
    }

    /// Number of rollouts that this process rolled back.
    pub fn rollbacks(&self) -> u64 {
        self.0.rollbacks.load(Ordering::Relaxed)
    }

    fn note_rollback(&self) {
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

    /// Adds hits of a pod.
    pub(super) fn note(&self, key: CountKey, pod: PodId, count: &HitCount, note: Note) {
        let mut state = self.0.state.lock();
        state.turn(note.second);
        let is_full = state.entries >= ENTRIES_MAX;
        let counted = state.counts.entry(key).or_default();
        if note.is_evidence && !counted.is_evidence {
            // Earlier hits met empty counts, and would make the shares smaller than they will be.
            *counted =
                Counted { is_evidence: true, changes: counted.changes, ..Counted::default() };
        }
        counted.hits_min = note.hits_min;
        counted.changes += 1;
        counted.all.add(count);
        let pod = if is_full && !counted.present.contains_key(&pod) { OTHERS } else { pod };
        let before = counted.present.len();
        counted.present.entry(pod).or_default().add(count);
        state.entries += counted.present.len() - before;
    }

    /// The rows of this replica for the database at this second. There are two rows for each domain
    /// of each step.
    fn rows(&self, second: u64) -> Rows {
        let mut state = self.0.state.lock();
        state.turn(second);
        let replica = state.replica;
        let counts = state.counts.iter().map(|(key, it)| (key.clone(), it.row()));
        let changes = state.counts.values().map(|it| it.changes).collect();
        Rows { replica, counts: counts.collect(), changes }
    }

    /// Notes that the database has these rows. If a row has not changed since, it is forgotten
    /// unless its version is one of `present`, the versions of the last steps.
    fn written(&self, rows: &Rows, present: &[i64]) {
        let mut state = self.0.state.lock();
        for ((key, _), changes) in rows.counts.iter().zip(&rows.changes) {
            let is_written = state.counts.get(key).is_some_and(|it| it.changes == *changes);
            if is_written && !present.contains(&key.version) {
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
    async fn changed(&self) {
        self.0.changed.notified().await;
    }
}

// === impl State ===

impl Default for State {
    fn default() -> Self {
        let replica = u32::try_from(next_u64() >> 33).unwrap_or_default().max(1);
        Self { replica, counts: BTreeMap::new(), window: 0, entries: 0 }
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
            counted.weighed.add(&weigh(ended.values(), counted.hits_min));
            counted.former = if passed == 1 { ended } else { HashMap::new() };
        }
    }
}

// === impl Counted ===

impl Counted {
    fn row(&self) -> ReplicaCount {
        let hits_min = self.hits_min;
        let mut weighed = self.weighed;
        weighed.add(&weigh(self.present.values(), hits_min));
        let mut both = self.former.clone();
        for (pod, count) in &self.present {
            both.entry(*pod).or_default().add(count);
        }
        let (all, is_evidence) = (self.all, self.is_evidence);
        ReplicaCount { all, weighed, is_evidence, recent: weigh(both.values(), hits_min) }
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
        left_out: sum.left_out.saturating_sub(most.left_out),
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

// Ends a rollout that denies too much. Each replica writes what its pods report, and looks at what
// all replicas wrote; the one that sees first that the bound is exceeded rolls back.

/// Pause after reports were written, so that the reports of many pods are written together.
const WRITE_PAUSE: Duration = Duration::from_millis(200);

/// Longest pause between two looks at the counts: other replicas write too.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);

/// The author of steps that the control plane takes.
pub const AUTHOR: &str = "rollout";

/// The beginning of the reason of a roll back. The rest names domains.
pub const ROLLBACK_REASON: &str = "chosen pods denied too much";

/// Writes what pods report, and rolls back. While the database is away the counts wait here; the
/// bound is looked at when it is back, with the hits that are recent then. Does not return.
pub async fn watch_rollout(
    store: Store,
    counts: RolloutCounts,
    published: watch::Receiver<Arc<PublishedSet>>,
    follower: Arc<Notify>,
) {
    let reserved = store.reserved();
    let clock = counts.clock();
    let mut is_away = false;
    loop {
        let _ = timeout(LOOK_INTERVAL, counts.changed()).await;
        let rollouts = published.borrow().rollouts.clone();
        let versions: Vec<_> = rollouts.iter().map(|it| it.version).collect();
        let looked = async {
            let second = clock.now().since(Time::default()).as_secs();
            write(&reserved, &counts, second, &versions).await?;
            let mut looked = Ok(());
            for rollout in &rollouts {
                match in_time(look(&store, &reserved, rollout)).await {
                    Ok(true) => {
                        counts.note_rollback();
                        follower.notify_one();
                    }
                    Ok(false) => {}
                    Err(error) => looked = Err(error), // which holds up no other one
                }
            }
            looked
        };
        match looked.await {
            Ok(()) => is_away = false,
            Err(error) if !is_away => {
                is_away = true;
                warn!("{error}: what pods report of a rollout waits");
            }
            Err(_) => {}
        }
        sleep(WRITE_PAUSE).await;
    }
}

/// Writes what this replica counted. If that fails it is written the next time; a write of which
/// only the answer was lost is replaced.
async fn write(
    store: &Store,
    counts: &RolloutCounts,
    second: u64,
    present: &[i64],
) -> StoreResult<()> {
    let rows = counts.rows(second);
    if !rows.counts.is_empty() {
        in_time(store.replace_hits(rows.replica, &rows.counts)).await?;
    }
    counts.written(&rows, present);
    Ok(())
}

/// Rolls back if the bound is exceeded. Returns whether this call did. In the stage `shadow` it is
/// the rules in force that deny, so that to go back would change nothing.
async fn look(store: &Store, reserved: &Store, rollout: &PublishedRollout) -> StoreResult<bool> {
    let bound = rollout.bound.filter(|_| rollout.stage == Stage::Enforced);
    let Some(bound) = bound else { return Ok(false) };
    let recent = reserved.recent_hits(rollout.version).await?;
    let Some(reason) = exceeded(&bound, &recent) else { return Ok(false) };
    let author = Author { name: AUTHOR.to_owned(), reason };
    let mut write = store.begin(&author).await?;
    // Another replica may have rolled it back already, or a client may have changed its step.
    let present = write.rollout(rollout.id).await?;
    let present = present.filter(|it| it.last().version == rollout.version);
    let Some(present) = present else { return Ok(false) };
    let version = write.end_rollout(&present, Stage::RolledBack).await?.number;
    write.note_rollout(&present, Stage::RolledBack, version).await?;
    write.commit().await?;
    warn!(rollout = rollout.id, version, "rolled back: {}", author.reason);
    Ok(true)
}

/// Domains in which the chosen pods exceed the bound, in words; `None` if there are none.
fn exceeded(bound: &Bound, recent: &Hits) -> Option<String> {
    let domains = bound.exceeded(recent, |it| it.denied)?;
    let bound = percent(bound.denied_share);
    Some(format!("{ROLLBACK_REASON} in the last 30 s: {domains}; the bound is {bound}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::Database;

    fn count(hits: u64, denied: u64) -> HitCount {
        HitCount { hits, denied, ..HitCount::default() }
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
        // Each of two pods weighs half, however many hits it reports.
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
        let note = |second| {
            let note = Note { hits_min: 100, second, is_evidence: true };
            counts.note(key.clone(), 7, &count(10, 1), note);
        };
        let recent = |second| counts.rows(second).counts[0].1.recent.hits;
        note(0);
        assert_eq!((recent(14), recent(15), recent(29)), (10, 10, 10));
        note(29);
        assert_eq!((recent(29), recent(30), recent(44), recent(45)), (20, 10, 10, 0));
        let rows = counts.rows(45);
        assert_eq!((rows.counts[0].1.all, rows.counts[0].1.weighed), (count(20, 2), count(20, 2)));
        counts.written(&rows, &[1]);
        note(45); // while the next step is written
        counts.written(&rows, &[2]);
        let rows = counts.rows(46);
        assert_eq!(rows.counts[0].1.all, count(30, 3));
        counts.written(&rows, &[2, 3]);
        assert!(counts.rows(46).counts.is_empty());
    }

    #[test]
    fn hits_before_the_longest_window_has_turned_are_no_evidence() {
        let counts = RolloutCounts::default();
        let key = CountKey { version: 1, domain: "shop".to_owned(), is_chosen: true };
        let note = |second, hits, is_evidence| {
            let note = Note { hits_min: 100, second, is_evidence };
            counts.note(key.clone(), 7, &hits, note);
            let row = counts.rows(second).counts[0].1;
            (row.all, row.weighed, row.recent)
        };
        let (early, late) = (count(900, 0), count(100, 30));
        assert_eq!(note(1, early, false), (early, early, early));
        assert_eq!(note(2, late, true), (late, late, late));
        let both = count(200, 60);
        assert_eq!(note(3, late, true), (both, both, both));
    }

    #[tokio::test]
    async fn hits_that_are_no_evidence_stay_none_after_a_restart() {
        let dir = tempfile::tempdir().unwrap();
        let file = Database::Sqlite(dir.path().join("rules.db"));
        let store = Store::open(&file).await.unwrap();
        let key = |version| CountKey { version, domain: "shop".to_owned(), is_chosen: true };
        let report = async |counts: &RolloutCounts, version, hits, is_evidence| {
            let note = Note { hits_min: 100, second: 1, is_evidence };
            counts.note(key(version), 7, &hits, note);
            write(&store, counts, 1, &[version]).await.unwrap();
            let hits = store.hits(version).await.unwrap();
            let hits = [hits.all, hits.weighed, hits.early];
            hits.map(|it| it.get(&key(version)).map_or(0, |it| it.hits))
        };
        let (early, late) = (count(900, 0), count(100, 30));
        let [dead, other, next] = [(); 3].map(|()| RolloutCounts::default());
        assert_eq!(report(&dead, 1, early, false).await, [900, 0, 900]);
        assert_eq!(report(&other, 1, early, false).await, [1800, 0, 1800]);
        assert_eq!(report(&next, 1, late, true).await, [100, 100, 1800], "of one replica");
        assert_eq!(report(&other, 1, late, true).await, [200, 200, 1800]);
        // All hits of the stage `enforced` are evidence.
        let [dead, next] = [(); 2].map(|()| RolloutCounts::default());
        assert_eq!(report(&dead, 2, early, true).await, [900, 900, 0]);
        assert_eq!(report(&next, 2, late, true).await, [1000, 1000, 0]);
    }

    fn recent(domain: &str, is_chosen: bool, hits: u64, denied: u64) -> (CountKey, HitCount) {
        let key = CountKey { version: 1, domain: domain.to_owned(), is_chosen };
        (key, HitCount { hits, denied, ..HitCount::default() })
    }

    #[test]
    fn only_chosen_pods_with_enough_hits_above_the_bound_roll_back() {
        let bound = Bound { denied_share: 0.05, hits_min: 100 };
        let of = |rows: &[(CountKey, HitCount)]| exceeded(&bound, &rows.iter().cloned().collect());
        assert_eq!(of(&[]), None);
        assert_eq!(of(&[recent("shop", true, 100, 5)]), None, "the bound itself is allowed");
        assert_eq!(of(&[recent("shop", true, 99, 99)]), None, "too few hits");
        assert_eq!(of(&[recent("shop", false, 100, 100)]), None, "the others");
        assert_eq!(of(&[recent("shop", true, 0, 0)]), None);
        let reason = of(&[recent("bank", true, 100, 0), recent("shop", true, 200, 122)]).unwrap();
        let expected = "chosen pods denied too much in the last 30 s: 'shop': 122 of 200 hits \
                        (61.0 %); the bound is 5.0 %";
        assert_eq!(reason, expected);
    }
}
