//! Hits that pods report while they run a step of a rollout: in all, and of the last seconds.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;
use sqlx::Row;
use sqlx::any::AnyRow;

use super::{Store, StoreResult};

/// The time that one row of recent hits is for.
const BUCKET: Duration = Duration::from_secs(5);

/// Rows of recent hits that count: those of the last 30 s.
const BUCKETS: i64 = 6;

/// What hits are counted by. Ordered, so that replicas that write at once wait for each other in
/// one order.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct CountKey {
    /// The version of the step.
    pub version: i64,
    /// The domain.
    pub domain: String,
    /// Whether the pod is one that the rollout chose.
    pub is_chosen: bool,
}

/// Hits of a domain.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct HitCount {
    /// All hits of limits.
    pub hits: u64,
    /// Those that were denied.
    pub denied: u64,
    /// Those that would have been denied, but for shadow mode.
    pub shadow: u64,
}

// === impl HitCount ===

impl HitCount {
    /// Adds the hits of another count.
    pub fn add(&mut self, other: &Self) {
        self.hits = self.hits.saturating_add(other.hits);
        self.denied = self.denied.saturating_add(other.denied);
        self.shadow = self.shadow.saturating_add(other.shadow);
    }

    /// The share of hits that were denied, 0 to 1; `None` without hits.
    pub fn denied_share(&self) -> Option<f64> {
        share(self.denied, self.hits)
    }

    /// The share of hits that would have been denied, 0 to 1; `None` without hits.
    pub fn shadow_share(&self) -> Option<f64> {
        share(self.shadow, self.hits)
    }
}

#[expect(clippy::cast_precision_loss, reason = "a share needs few digits")]
fn share(part: u64, of: u64) -> Option<f64> {
    (of > 0).then(|| part as f64 / of as f64)
}

// === impl Store ===

impl Store {
    /// Adds hits, and drops those of the last seconds that are too old. All of them or none.
    ///
    /// # Errors
    /// Fails if the database is not available.
    pub async fn add_hits(&self, hits: &BTreeMap<CountKey, HitCount>) -> StoreResult<()> {
        let mut tx = self.pool.begin().await?;
        let now = bucket();
        let sql = "INSERT INTO rollout_counts \
                   (version, domain, chosen, bucket, hits, denied, shadow) \
                   VALUES ($1, $2, $3, $4, $5, $6, $7) \
                   ON CONFLICT (version, domain, chosen, bucket) DO UPDATE SET \
                   hits = rollout_counts.hits + excluded.hits, \
                   denied = rollout_counts.denied + excluded.denied, \
                   shadow = rollout_counts.shadow + excluded.shadow";
        let number = |count: u64| i64::try_from(count).unwrap_or(i64::MAX);
        for (key, count) in hits {
            for bucket in [0, now] {
                let query = sqlx::query(sql).bind(key.version).bind(key.domain.clone());
                let query = query.bind(i64::from(key.is_chosen)).bind(bucket);
                let query = query.bind(number(count.hits)).bind(number(count.denied));
                query.bind(number(count.shadow)).execute(&mut *tx).await?;
            }
        }
        let sql = "DELETE FROM rollout_counts WHERE bucket > 0 AND bucket <= $1";
        sqlx::query(sql).bind(now - BUCKETS).execute(&mut *tx).await?;
        tx.commit().await?;
        Ok(())
    }

    /// All hits of a step.
    ///
    /// # Errors
    /// Fails if the database is not available.
    pub async fn hits(&self, version: i64) -> StoreResult<BTreeMap<CountKey, HitCount>> {
        self.hits_between(version, 0, 0).await
    }

    /// The hits of a step that were reported in the last 25 to 30 s.
    ///
    /// # Errors
    /// Fails if the database is not available.
    pub async fn recent_hits(&self, version: i64) -> StoreResult<BTreeMap<CountKey, HitCount>> {
        self.hits_between(version, bucket() - BUCKETS + 1, i64::MAX).await
    }

    async fn hits_between(
        &self,
        version: i64,
        first: i64,
        last: i64,
    ) -> StoreResult<BTreeMap<CountKey, HitCount>> {
        let sql = "SELECT domain, chosen, hits, denied, shadow FROM rollout_counts \
                   WHERE version = $1 AND bucket >= $2 AND bucket <= $3";
        let query = sqlx::query(sql).bind(version).bind(first).bind(last);
        let mut all = BTreeMap::<CountKey, HitCount>::new();
        for row in query.fetch_all(&self.pool).await? {
            let is_chosen = row.try_get::<i64, _>(1)? != 0;
            let key = CountKey { version, domain: row.try_get(0)?, is_chosen };
            all.entry(key).or_default().add(&HitCount::read(&row)?);
        }
        Ok(all)
    }
}

impl HitCount {
    fn read(row: &AnyRow) -> StoreResult<Self> {
        let number = |at: usize| -> StoreResult<u64> {
            Ok(u64::try_from(row.try_get::<i64, _>(at)?).unwrap_or_default())
        };
        Ok(Self { hits: number(2)?, denied: number(3)?, shadow: number(4)? })
    }
}

/// The number of the row for hits that are reported now.
fn bucket() -> i64 {
    let seconds = i64::try_from(BUCKET.as_secs()).unwrap_or(1);
    Timestamp::now().as_second() / seconds
}
