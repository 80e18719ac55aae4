//! The rules in force, which `service` decides by, and the results of their loads.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use arc_swap::ArcSwapOption;
use parking_lot::Mutex;
use ratelease_rules::Rules;
use tokio::sync::watch as channel;

/// The rules in force, and the results of their loads. Shared by all parts, written by the watcher.
///
/// ```text
///  none ─put_in_force─▶ in force ─put_in_force─▶ in force (newer)
///                        └─refuse─▶ in force, with a last fault ─put_in_force or restore─▶ in force
/// ```
/// Rules are replaced whole and never withdrawn. The first rules may come from a snapshot, while
/// the rules of the source are refused.
#[derive(Debug)]
pub struct CurrentRules {
    rules: ArcSwapOption<Rules>,
    last_fault: Mutex<Option<String>>,
    /// Number of sets that were put in force.
    changes: channel::Sender<u64>,
    loads: channel::Sender<Loads>,
    is_from_snapshot: AtomicBool,
    files_left_out: AtomicUsize,
    panics: AtomicU64,
    ages: Mutex<Ages>,
}

/// When rules came into force.
#[derive(Debug, Clone, Copy, Default)]
struct Ages {
    since: Option<Instant>,
    propagation: Option<Duration>,
}

/// Number of loads. A reading that finds the same as the one before does not count.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Loads {
    /// Loads that found good rules.
    pub ok: u64,
    /// Loads that found no usable rules.
    pub failed: u64,
}

// === impl CurrentRules ===

impl CurrentRules {
    /// Creates the state without rules.
    pub fn new() -> Self {
        Self {
            rules: ArcSwapOption::empty(),
            last_fault: Mutex::new(None),
            changes: channel::Sender::new(0),
            loads: channel::Sender::new(Loads::default()),
            is_from_snapshot: AtomicBool::new(false),
            files_left_out: AtomicUsize::new(0),
            panics: AtomicU64::new(0),
            ages: Mutex::default(),
        }
    }

    /// The rules in force; `None` until the first good load. An answer is computed under one such
    /// set.
    pub fn current(&self) -> Option<Arc<Rules>> {
        self.rules.load_full()
    }

    /// Like [`CurrentRules::current`], for the time of one answer: touches no reference count that
    /// cores share, unless several answers of the thread wait meanwhile.
    pub fn borrow(&self) -> arc_swap::Guard<Option<Arc<Rules>>> {
        self.rules.load()
    }

    /// Puts `rules` in force, then wakes those that wait for them. Returns the former rules, which
    /// answers in progress may still use. The last holder frees them, which is slow.
    pub fn put_in_force(&self, rules: Arc<Rules>) -> Option<Arc<Rules>> {
        let former = self.replace(rules);
        self.restore();
        self.changes.send_modify(|count| *count += 1);
        former
    }

    /// Puts the `rules` of a snapshot in force. Does not count as a load.
    pub fn put_snapshot_in_force(&self, rules: Arc<Rules>) {
        self.replace(rules);
        self.is_from_snapshot.store(true, Ordering::Relaxed);
        self.changes.send_modify(|count| *count += 1);
    }

    /// Notes that the source holds the rules in force again, after other rules were refused.
    pub fn restore(&self) {
        *self.last_fault.lock() = None;
        self.is_from_snapshot.store(false, Ordering::Relaxed);
        self.loads.send_modify(|loads| loads.ok += 1);
    }

    /// Records a failed load; the rules in force stay.
    pub fn refuse(&self, fault: String) {
        *self.last_fault.lock() = Some(fault);
        self.loads.send_modify(|loads| loads.failed += 1);
    }

    /// Records the faults of sources that the last load left out. Does not count as a load.
    pub fn note_left_out(&self, fault: String) {
        *self.last_fault.lock() = Some(fault);
    }

    /// Whether there are no rules since no load has ended yet.
    pub fn awaits_first(&self) -> bool {
        *self.loads.borrow() == Loads::default() && self.rules.load().is_none()
    }

    /// Resolves once there are rules, or a load has ended without any.
    pub async fn first(&self) {
        let mut changes = self.changes();
        let mut loads = self.loads();
        while self.awaits_first() {
            // An error means that the process ends. The rules of a snapshot are no load.
            tokio::select! {
                _ = changes.changed() => {}
                _ = loads.changed() => {}
            }
        }
    }

    /// Wakes when [`CurrentRules::current`] has become another set; the value counts the sets. To
    /// miss none, take the receiver first, then the rules.
    pub fn changes(&self) -> channel::Receiver<u64> {
        self.changes.subscribe()
    }

    /// Wakes after every load, good or not.
    pub fn loads(&self) -> channel::Receiver<Loads> {
        self.loads.subscribe()
    }

    /// Loads that found good rules.
    pub fn loads_ok(&self) -> u64 {
        self.loads.borrow().ok
    }

    /// Loads that found no usable rules.
    pub fn loads_failed(&self) -> u64 {
        self.loads.borrow().failed
    }

    /// Whether the rules in force are those of a snapshot.
    pub fn is_from_snapshot(&self) -> bool {
        self.is_from_snapshot.load(Ordering::Relaxed)
    }

    /// Records how many files of the source were not taken for rules though they may be meant so.
    pub fn note_files_left_out(&self, count: usize) {
        self.files_left_out.store(count, Ordering::Relaxed);
    }

    /// Number of files that the last reading left out.
    pub fn files_left_out(&self) -> usize {
        self.files_left_out.load(Ordering::Relaxed)
    }

    /// Records the time from a change of the source until its rules were in force.
    pub fn note_propagation(&self, took: Duration) {
        self.ages.lock().propagation = Some(took);
    }

    /// The propagation time of the last change; `None` before the first.
    pub fn propagation(&self) -> Option<Duration> {
        self.ages.lock().propagation
    }

    /// How long the rules have been in force; `None` if there are none.
    pub fn in_force_for(&self) -> Option<Duration> {
        Some(self.ages.lock().since?.elapsed())
    }

    #[allow(clippy::disallowed_methods, reason = "an age for display; nothing is decided by it")]
    fn replace(&self, rules: Arc<Rules>) -> Option<Arc<Rules>> {
        let former = self.rules.swap(Some(rules));
        self.ages.lock().since = Some(Instant::now());
        former
    }

    /// Records a load that panicked.
    pub fn note_panic(&self) {
        self.panics.fetch_add(1, Ordering::Relaxed);
    }

    /// Loads that panicked; each counts as failed as well.
    pub fn panics(&self) -> u64 {
        self.panics.load(Ordering::Relaxed)
    }

    /// Why the last load failed, one line for each fault; `None` if it succeeded.
    pub fn last_fault(&self) -> Option<String> {
        self.last_fault.lock().clone()
    }
}

impl Default for CurrentRules {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn published_rules_stay_in_force_after_refused_ones() {
        let published = CurrentRules::new();
        assert!(published.current().is_none());
        published.refuse("a.yaml:1:1: no".to_owned());
        assert!(published.current().is_none());
        let rules = Arc::new(Rules::default());
        published.put_in_force(rules.clone());
        assert_eq!(published.last_fault(), None);
        published.refuse("a.yaml:2:1: no".to_owned());
        assert!(published.current().is_some_and(|current| Arc::ptr_eq(&current, &rules)));
        assert_eq!(published.last_fault().as_deref(), Some("a.yaml:2:1: no"));
        published.restore();
        assert_eq!(published.last_fault(), None);
        assert_eq!((published.loads_ok(), published.loads_failed()), (2, 2));
    }

    #[test]
    fn a_waiter_wakes_for_new_rules_and_not_for_refused_ones() {
        let published = CurrentRules::new();
        let mut changes = published.changes();
        published.refuse("no".to_owned());
        assert!(!changes.has_changed().expect("open"));
        published.put_in_force(Arc::default());
        assert!(changes.has_changed().expect("open"));
        assert_eq!(*changes.borrow_and_update(), 1);
    }
}
