//! Hits that pods report while they run a step of a rollout. Each replica replaces its own rows, so
//! that a write that is repeated counts nothing twice, and no sum can leave its range.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;
use sqlx::Row;
use sqlx::any::AnyRow;

use super::write::{Cell, bound};
use super::{Store, StoreResult};

/// The time that one row of recent hits is for.
const BUCKET: Duration = Duration::from_secs(5);

/// Earlier buckets whose recent hits count: a replica writes each second while there are some.
const BUCKETS: i64 = 2;

/// Bits of a replica's number in a bucket.
const REPLICA_BITS: u32 = 32;

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

/// What the pods of one replica reported of a domain.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ReplicaCount {
    /// All hits since the step began.
    pub all: HitCount,
    /// The same as they are weighed for the bound.
    pub weighed: HitCount,
    /// The weighed hits of the last seconds.
    pub recent: HitCount,
}

// === impl HitCount ===

impl HitCount {
    /// Adds the hits of another count.
    pub fn add(&mut self, other: &Self) {
        self.hits = self.hits.saturating_add(other.hits);
        self.denied = self.denied.saturating_add(other.denied);
        self.shadow = self.shadow.saturating_add(other.shadow);
    }

    /// This, scaled down to at most so many hits.
    #[must_use]
    pub fn scaled(&self, hits_max: u64) -> Self {
        if self.hits <= hits_max { *self } else { self.scaled_to(hits_max) }
    }

    /// This, scaled to so many hits.
    #[must_use]
    pub fn scaled_to(&self, hits: u64) -> Self {
        let of = u128::from(self.hits.max(1));
        let scaled = |count: u64| {
            let scaled = u128::from(count) * u128::from(hits) / of;
            u64::try_from(scaled).unwrap_or(u64::MAX)
        };
        Self { hits, denied: scaled(self.denied), shadow: scaled(self.shadow) }
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
    /// Replaces what this replica counted. All of it or none. `replica` has 31 bits.
    ///
    /// # Errors
    /// Fails if the database is not available.
    pub async fn replace_hits(
        &self,
        replica: u32,
        counts: &[(CountKey, ReplicaCount)],
    ) -> StoreResult<()> {
        let mut tx = self.pool.begin().await?;
        let (now, replica) = (bucket(), i64::from(replica));
        let sql = "INSERT INTO rollout_counts \
                   (version, domain, chosen, bucket, hits, denied, shadow) \
                   VALUES ($1, $2, $3, $4, $5, $6, $7) \
                   ON CONFLICT (version, domain, chosen, bucket) DO UPDATE SET \
                   hits = excluded.hits, denied = excluded.denied, shadow = excluded.shadow";
        let number = |count: u64| i64::try_from(count).unwrap_or(i64::MAX);
        for (key, ReplicaCount { all, weighed, recent }) in counts {
            let recent_bucket = (now << REPLICA_BITS) + replica;
            for (bucket, count) in
                [(-2 * replica, all), (-2 * replica - 1, weighed), (recent_bucket, recent)]
            {
                let query = sqlx::query(sql).bind(key.version).bind(key.domain.clone());
                let query = query.bind(i64::from(key.is_chosen)).bind(bucket);
                let query = query.bind(number(count.hits)).bind(number(count.denied));
                query.bind(number(count.shadow)).execute(&mut *tx).await?;
            }
        }
        let sql = "DELETE FROM rollout_counts WHERE bucket > 0 AND bucket < $1";
        sqlx::query(sql).bind((now - BUCKETS) << REPLICA_BITS).execute(&mut *tx).await?;
        tx.commit().await?;
        Ok(())
    }

    /// All hits of a step.
    ///
    /// # Errors
    /// Fails if the database is not available.
    pub async fn hits(&self, version: i64) -> StoreResult<BTreeMap<CountKey, HitCount>> {
        // The row 0 is of releases that had one row for all replicas.
        self.sum(version, "bucket <= 0 AND bucket % 2 = 0").await
    }

    /// All hits of a step, as they are weighed for the bound.
    ///
    /// # Errors
    /// Fails if the database is not available.
    pub async fn weighed_hits(&self, version: i64) -> StoreResult<BTreeMap<CountKey, HitCount>> {
        self.sum(version, "bucket < 0 AND bucket % 2 <> 0").await
    }

    /// The hits of a step that were reported in the last 15 to 30 s, as they are weighed for the
    /// bound.
    ///
    /// # Errors
    /// Fails if the database is not available.
    pub async fn recent_hits(&self, version: i64) -> StoreResult<BTreeMap<CountKey, HitCount>> {
        let first = (bucket() - BUCKETS) << REPLICA_BITS;
        let mut last = BTreeMap::new();
        for (key, bucket, count) in self.rows(version, &format!("bucket >= {first}")).await? {
            // Of a replica's rows the last one counts; they come in their order.
            last.insert((key, bucket % (1 << REPLICA_BITS)), count);
        }
        Ok(sum(last.into_iter().map(|((key, _), count)| (key, count))))
    }

    async fn sum(&self, version: i64, of: &str) -> StoreResult<BTreeMap<CountKey, HitCount>> {
        let rows = self.rows(version, of).await?;
        Ok(sum(rows.into_iter().map(|(key, _, count)| (key, count))))
    }

    /// The rows of a step, in the order of their buckets.
    async fn rows(&self, version: i64, of: &str) -> StoreResult<Vec<(CountKey, i64, HitCount)>> {
        // SQLite made numbers of earlier releases that left their range floating points.
        let sql = format!(
            "SELECT domain, chosen, bucket, CAST(hits AS BIGINT), CAST(denied AS BIGINT), \
             CAST(shadow AS BIGINT) FROM rollout_counts WHERE version = $1 AND {of} ORDER BY bucket"
        );
        let rows = bound(&sql, vec![Cell::Int(version)]).fetch_all(&self.pool).await?;
        let read = |row: &AnyRow| {
            let is_chosen = row.try_get::<i64, _>(1)? != 0;
            let key = CountKey { version, domain: row.try_get(0)?, is_chosen };
            Ok((key, row.try_get(2)?, HitCount::read(row)?))
        };
        rows.iter().map(read).collect()
    }
}

fn sum(rows: impl Iterator<Item = (CountKey, HitCount)>) -> BTreeMap<CountKey, HitCount> {
    let mut all = BTreeMap::<CountKey, HitCount>::new();
    for (key, count) in rows {
        all.entry(key).or_default().add(&count);
    }
    all
}

impl HitCount {
    fn read(row: &AnyRow) -> StoreResult<Self> {
        let number = |at: usize| -> StoreResult<u64> {
            Ok(u64::try_from(row.try_get::<i64, _>(at)?).unwrap_or_default())
        };
        Ok(Self { hits: number(3)?, denied: number(4)?, shadow: number(5)? })
    }
}

/// The number of the row for hits that are reported now.
fn bucket() -> i64 {
    let seconds = i64::try_from(BUCKET.as_secs()).unwrap_or(1);
    Timestamp::now().as_second() / seconds
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::Database;

    #[tokio::test]
    async fn numbers_that_left_their_range_in_an_earlier_release_are_read() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(&Database::Sqlite(dir.path().join("rules.db"))).await.unwrap();
        let sql = "INSERT INTO rollout_counts VALUES (1, 'shop', 1, 0, \
                   9223372036854775807 + 9223372036854775807, 1, 0)";
        sqlx::query(sql).execute(&store.pool).await.unwrap();
        let key = CountKey { version: 1, domain: "shop".to_owned(), is_chosen: true };
        let count = store.hits(1).await.unwrap()[&key];
        assert_eq!(count, HitCount { hits: i64::MAX.unsigned_abs(), denied: 1, shadow: 0 });
    }
}
