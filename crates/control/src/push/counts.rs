//! Hits that pods reported of a rollout, until they are written.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::store::{CountKey, HitCount};

/// Hits that pods reported, and that the database does not have yet. A cheap handle: clones share
/// all state.
#[derive(Debug, Clone, Default)]
pub struct RolloutCounts(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    waiting: Mutex<BTreeMap<CountKey, HitCount>>,
    changed: Notify,
    reports: AtomicU64,
    rollbacks: AtomicU64,
}

// === impl RolloutCounts ===

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

    /// Adds hits. There are as many keys as the steps have domains, twice.
    pub(super) fn note(&self, key: CountKey, count: &HitCount) {
        self.0.waiting.lock().entry(key).or_default().add(count);
    }

    /// Takes what the database does not have yet.
    pub(super) fn take(&self) -> BTreeMap<CountKey, HitCount> {
        std::mem::take(&mut *self.0.waiting.lock())
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
