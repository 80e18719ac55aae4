//! Rollouts: versions that some pods run before the others, and the hits that these report.
//!
//! Rows of rollouts are added and never edited; the last step of a rollout is its stage.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use sqlx::any::AnyRow;
use sqlx::{AnyConnection, Row};

use super::query::{Cell, bound};
use super::rollout::{Bound, Choice, Rollout, RolloutDomain, RolloutStep, plan_of_one_stage};
use super::rollout_plan::{Draw, PlanStep, Share, Stage};
use super::versions::of_domains;
use super::{PodRow, PublishedText, Store, StoreError, StoreResult, VersionRow, Write};

/// A rollout that begins.
#[derive(Debug, Clone, PartialEq)]
pub struct NewRollout {
    /// The pods that are chosen.
    pub choice: Choice,
    /// The bound above which the rollout is rolled back, if it has one.
    pub bound: Option<Bound>,
    /// The steps, of which there is at least one.
    pub plan: Vec<PlanStep>,
    /// Seconds without a step after which it ends by itself; `None` for never.
    pub time_limit: Option<i64>,
    /// Seconds of the longest window of the limits that change.
    pub longest_window: i64,
    /// The texts of each domain.
    pub texts: Vec<RolloutTexts>,
}

/// The texts of a domain of a rollout.
#[derive(Debug, Clone, PartialEq)]
pub struct RolloutTexts {
    /// The candidate rules of chosen pods, for the stage `shadow`.
    pub shadow: PublishedText,
    /// The candidate rules of the other pods.
    pub others: PublishedText,
    /// The rules that are published at the end.
    pub draft: PublishedText,
}

// === impl Store ===

impl Store {
    /// At most `limit` rollouts of one of these domains before the number `before`, the latest
    /// first; `None` for any domain. If `is_open`, of those that are under way.
    ///
    /// # Errors
    /// Fails if the database is not available.
    pub async fn rollouts(
        &self,
        domains: Option<&[String]>,
        is_open: bool,
        before: i64,
        limit: usize,
    ) -> StoreResult<Vec<Rollout>> {
        let mut connection = self.pool.acquire().await?;
        let limit = i64::try_from(limit).unwrap_or(i64::MAX);
        let mut cells = vec![Cell::Int(before), Cell::Int(limit)];
        let of_domains = of_domains(domains, &mut cells, |places| {
            format!(
                "EXISTS (SELECT 1 FROM rollout_domains d WHERE d.rollout = rollouts.id \
                 AND d.domain IN ({places}))"
            )
        });
        let open = if is_open { format!(" AND id IN ({OPEN})") } else { String::new() };
        let sql = format!(
            "SELECT id FROM rollouts WHERE id < $1{open}{of_domains} ORDER BY id DESC LIMIT $2"
        );
        let ids = bound(&sql, cells).fetch_all(&mut *connection).await?;
        read_all(&mut connection, ids).await
    }

    /// The rollout of this number.
    ///
    /// # Errors
    /// Fails if the database is not available.
    pub async fn rollout(&self, id: i64) -> StoreResult<Option<Rollout>> {
        read(&mut *self.pool.acquire().await?, id).await
    }

    /// The rollouts that are under way, of different domains, by number.
    ///
    /// # Errors
    /// Fails if the database is not available.
    pub async fn open_rollouts(&self) -> StoreResult<Vec<Rollout>> {
        open(&mut *self.pool.acquire().await?).await
    }

    /// The rollouts that have ended with a version after this one.
    ///
    /// # Errors
    /// Fails if the database is not available.
    pub async fn rollouts_ended_since(&self, version: i64) -> StoreResult<Vec<Rollout>> {
        let sql = "SELECT rollout FROM rollout_steps WHERE version > $1 \
                   AND stage NOT IN ('shadow', 'enforced') ORDER BY version";
        let mut connection = self.pool.acquire().await?;
        let rows = sqlx::query(sql).bind(version).fetch_all(&mut *connection).await?;
        read_all(&mut connection, rows).await
    }
}

// === impl Write ===

impl Write {
    /// The rollouts that are under way.
    pub async fn open_rollouts(&mut self) -> StoreResult<Vec<Rollout>> {
        open(&mut self.tx).await
    }

    /// The rollout of this number.
    pub async fn rollout(&mut self, id: i64) -> StoreResult<Option<Rollout>> {
        read(&mut self.tx, id).await
    }

    /// Begins a rollout, of which the first step chooses some of `pods`. The caller has made sure
    /// that none of its domains is in another one.
    ///
    /// # Errors
    /// [`StoreError::Moved`] if the draft of a domain changed since its text was made.
    pub async fn begin_rollout(
        &mut self,
        new: &NewRollout,
        pods: &[PodRow],
    ) -> StoreResult<VersionRow> {
        let query = sqlx::query_as("SELECT COALESCE(MAX(id), 0) + 1 FROM rollouts");
        let (id,): (i64,) = query.fetch_one(&mut *self.tx).await?;
        let (percent, key, value, label_bytes) = match &new.choice {
            Choice::Percent(percent) => (Some(i64::from(*percent)), None, None, 0),
            Choice::Label(key, value) => {
                (None, Some(key.clone()), Some(value.clone()), key.len() + value.len())
            }
        };
        let plan = serde_json::to_string(&new.plan);
        let plan = plan.map_err(|error| StoreError::Internal(error.to_string()))?;
        let draw = Draw { rollout: id, seed: Some(random()?) };
        let sql = "INSERT INTO rollouts (id, percent, label_key, label_value, denied_share, \
                   hits_min, plan, time_limit, longest_window, seed) \
                   VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)";
        let query = sqlx::query(sql).bind(id).bind(percent).bind(key).bind(value);
        let query = query.bind(new.bound.map(|it| it.denied_share));
        let query = query.bind(new.bound.map(|it| it.hits_min)).bind(plan.clone());
        let query = query.bind(new.time_limit).bind(new.longest_window).bind(draw.seed);
        query.execute(&mut *self.tx).await?;
        self.note_kept(label_bytes + plan.len());
        let mut rows = Vec::new();
        for RolloutTexts { shadow, others, draft } in &new.texts {
            if self.draft_state(&draft.domain).await?.1 != draft.changed {
                return Err(StoreError::Moved(draft.domain.clone()));
            }
            self.need_approvals(draft, false).await?;
            let mut row = vec![Cell::Int(id), Cell::Text(draft.domain.clone())];
            row.push(Cell::Int(draft.changed));
            for text in [shadow, others, draft] {
                let hash = text.hash();
                self.keep_text(text, hash.as_deref()).await?;
                row.push(Cell::Nullable(hash));
            }
            rows.push(row);
        }
        let into = "rollout_domains (rollout, domain, changed, shadow, others, hash)";
        self.keep(into, rows).await?;
        let first = new.plan.first().copied();
        let first = first.ok_or_else(|| StoreError::Internal("a plan without steps".to_owned()))?;
        let names = new.texts.iter().map(|it| (&*it.draft.domain, None));
        self.add_planned(draw, (1, first), names, pods).await
    }

    /// Takes the step of the plan with this number, which chooses some of `pods`, and returns its
    /// version. It may be the one that the rollout is at, to choose other pods.
    pub async fn take_step(
        &mut self,
        rollout: &Rollout,
        number: usize,
        pods: &[PodRow],
    ) -> StoreResult<VersionRow> {
        match rollout.planned(number) {
            Some(step) => {
                let former = rollout.steps.iter().rev().find(|it| !it.shares.is_empty());
                let former = |domain: &str| former?.shares.iter().find(|it| it.domain == domain);
                let domains = rollout.domains.iter().map(|it| (&*it.domain, former(&it.domain)));
                self.add_planned(rollout.into(), (number, step), domains, pods).await
            }
            None => self.end_rollout(rollout, Stage::All).await,
        }
    }

    /// Takes a step for these domains, each with the share of the step before it.
    async fn add_planned<'d>(
        &mut self,
        draw: Draw,
        (number, step): (usize, PlanStep),
        domains: impl Iterator<Item = (&'d str, Option<&'d Share>)>,
        pods: &[PodRow],
    ) -> StoreResult<VersionRow> {
        let planned = (i64::try_from(number).ok(), step.percent.map(i64::from));
        let version = self.add_step(draw.rollout, step.stage, planned).await?;
        let Some(percent) = step.percent else { return Ok(version) };
        let size = |number: usize| Cell::Int(i64::try_from(number).unwrap_or(i64::MAX));
        let rows = domains.map(|(domain, former)| {
            let share = Share::of(draw, domain, percent, pods, former);
            let crowds = Cell::Text(share.crowds_text()?);
            let Share { domain, threshold, pods, chosen, .. } = share;
            let (version, threshold) = (Cell::Int(version.number), Cell::Int(threshold));
            Ok(vec![version, Cell::Text(domain), threshold, size(pods), size(chosen), crowds])
        });
        let rows = rows.collect::<StoreResult<_>>()?;
        self.keep("rollout_shares (version, domain, threshold, pods, chosen, crowds)", rows)
            .await?;
        Ok(version)
    }

    /// Ends a rollout that is under way, and returns the version. The stage `all` publishes the
    /// rules.
    pub async fn end_rollout(
        &mut self,
        rollout: &Rollout,
        stage: Stage,
    ) -> StoreResult<VersionRow> {
        let version = self.add_step(rollout.id, stage, (None, None)).await?;
        if stage == Stage::All {
            let mut rows = Vec::new();
            for it in &rollout.domains {
                self.note_published(&it.domain, it.changed, it.hash.as_deref()).await?;
                let domain = Cell::Text(it.domain.clone());
                let hash = Cell::Nullable(it.hash.clone());
                rows.push(vec![Cell::Int(version.number), domain, hash]);
            }
            self.keep("version_domains (version, domain, hash)", rows).await?;
        }
        Ok(version)
    }

    async fn add_step(
        &mut self,
        rollout: i64,
        stage: Stage,
        (number, percent): (Option<i64>, Option<i64>),
    ) -> StoreResult<VersionRow> {
        let version = self.add_version(None, Some(rollout)).await?;
        let sql = "INSERT INTO rollout_steps (version, rollout, stage, number, percent) \
                   VALUES ($1, $2, $3, $4, $5)";
        let query = sqlx::query(sql).bind(version.number).bind(rollout);
        let query = query.bind(stage.name().to_owned()).bind(number).bind(percent);
        query.execute(&mut *self.tx).await?;
        self.notify(version.number).await?;
        Ok(version)
    }
}

/// A random number from 0.
fn random() -> StoreResult<i64> {
    let random = getrandom::u64().map_err(|error| StoreError::Internal(error.to_string()))?;
    Ok((random >> 1).cast_signed())
}

/// The numbers of those that are under way.
const OPEN: &str = "SELECT s.rollout FROM rollout_steps s WHERE s.stage IN ('shadow', 'enforced') \
                    AND NOT EXISTS (SELECT 1 FROM rollout_steps later \
                    WHERE later.rollout = s.rollout AND later.version > s.version)";

/// The rollouts that are under way: those whose last step has not ended them.
async fn open(connection: &mut AnyConnection) -> StoreResult<Vec<Rollout>> {
    let sql = format!("{OPEN} ORDER BY s.rollout");
    let rows = bound(&sql, Vec::new()).fetch_all(&mut *connection).await?;
    read_all(connection, rows).await
}

/// The rollouts of these numbers.
async fn read_all(connection: &mut AnyConnection, rows: Vec<AnyRow>) -> StoreResult<Vec<Rollout>> {
    let mut rollouts = Vec::new();
    for row in rows {
        rollouts.extend(read(connection, row.try_get(0)?).await?);
    }
    Ok(rollouts)
}

async fn read(connection: &mut AnyConnection, id: i64) -> StoreResult<Option<Rollout>> {
    let sql = "SELECT percent, label_key, label_value, denied_share, hits_min, plan, time_limit, \
               longest_window, seed FROM rollouts WHERE id = $1";
    let row = sqlx::query(sql).bind(id).fetch_optional(&mut *connection).await?;
    let Some(row) = row else { return Ok(None) };
    let percent: Option<i64> = row.try_get(0)?;
    let choice = match percent {
        Some(percent) => Choice::Percent(u8::try_from(percent).unwrap_or(100)),
        None => Choice::Label(row.try_get(1)?, row.try_get(2)?),
    };
    let bound = match row.try_get::<Option<f64>, _>(3)? {
        Some(denied_share) => Some(Bound { denied_share, hits_min: row.try_get(4)? }),
        None => None,
    };
    let plan: Option<String> = row.try_get(5)?;
    let (time_limit, longest_window) = (row.try_get(6)?, row.try_get(7)?);
    let seed = row.try_get(8)?;
    let sql = "SELECT domain, changed, shadow, others, hash FROM rollout_domains \
               WHERE rollout = $1 ORDER BY domain";
    let rows = sqlx::query(sql).bind(id).fetch_all(&mut *connection).await?;
    let domains = rows.iter().map(RolloutDomain::read).collect::<StoreResult<_>>()?;
    let steps = steps(connection, id).await?;
    let plan = match plan {
        Some(plan) => serde_json::from_str(&plan).map_err(|error| {
            StoreError::Internal(format!("the plan of the rollout {id}: {error}"))
        })?,
        None => plan_of_one_stage(steps[0].stage, &choice),
    };
    Ok(Some(Rollout { id, seed, choice, bound, plan, time_limit, longest_window, domains, steps }))
}

/// The steps of a rollout, of which there is at least one.
async fn steps(connection: &mut AnyConnection, id: i64) -> StoreResult<Vec<RolloutStep>> {
    let sql = "SELECT s.version, s.stage, v.at, v.author, v.reason, s.number, s.percent \
               FROM rollout_steps s JOIN versions v ON v.number = s.version \
               WHERE s.rollout = $1 ORDER BY s.version";
    let rows = sqlx::query(sql).bind(id).fetch_all(&mut *connection).await?;
    let mut steps = rows.iter().map(RolloutStep::read).collect::<StoreResult<Vec<_>>>()?;
    if steps.is_empty() {
        return Err(StoreError::Internal(format!("the rollout {id} has no step")));
    }
    let sql = "SELECT p.version, p.domain, p.threshold, p.pods, p.chosen, p.crowds \
               FROM rollout_shares p JOIN rollout_steps s ON s.version = p.version WHERE s.rollout = $1 \
               ORDER BY p.version, p.domain";
    for row in sqlx::query(sql).bind(id).fetch_all(&mut *connection).await? {
        let version: i64 = row.try_get(0)?;
        let size = |at| -> StoreResult<usize> {
            Ok(usize::try_from(row.try_get::<i64, _>(at)?).unwrap_or_default())
        };
        let (domain, threshold) = (row.try_get(1)?, row.try_get(2)?);
        let crowds = Share::crowds_of(row.try_get(5)?)?;
        let share = Share { domain, threshold, crowds, pods: size(3)?, chosen: size(4)? };
        let of = steps.iter_mut().find(|it| it.version == version);
        of.into_iter().for_each(|it| it.shares.push(share.clone()));
    }
    Ok(steps)
}

// Hits that pods report while they run a step of a rollout. Each replica replaces its own rows, so
// that a write that is repeated counts nothing twice, and no sum can leave its range.

/// The time that one row of recent hits is for.
const BUCKET: Duration = Duration::from_secs(5);

/// Earlier buckets whose recent hits count: a replica writes each second while there are some.
const BUCKETS: i64 = 2;

/// Bits of a replica's number in a bucket.
const REPLICA_BITS: u32 = 32;

/// Weighed hits that are no evidence are in the rows below this one. All others are above.
const EARLY: i64 = -(1 << 33);

/// The key of a count of hits. It is ordered, so that replicas that write at once take locks in one
/// order.
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
    /// Hits that were denied.
    pub denied: u64,
    /// Hits that would have been denied, but for shadow mode.
    pub shadow: u64,
    /// Requests besides them that were left out of the comparison with the draft.
    pub left_out: u64,
}

/// Hits of a domain that the pods of one replica reported.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ReplicaCount {
    /// All hits since the step began.
    pub all: HitCount,
    /// All hits since the step began, as they are weighed for the bound.
    pub weighed: HitCount,
    /// Whether the hits are evidence for the next step. Earlier hits are another row.
    pub is_evidence: bool,
    /// The weighed hits of the last seconds.
    pub recent: HitCount,
}

/// The hits of a step.
#[derive(Debug, Default)]
pub struct StepHits {
    /// All hits of the step. Once a domain has hits that are evidence, hits of replicas without any
    /// are left out.
    pub all: Hits,
    /// The evidence, as it is weighed for the bound.
    pub weighed: Hits,
    /// Weighed hits before they were evidence, also of replicas that have ended.
    pub early: Hits,
    /// The weighed hits that were reported in the last 15 to 30 s.
    pub recent: Hits,
}

/// Hits of the pods of all replicas.
pub type Hits = BTreeMap<CountKey, HitCount>;

// === impl Bound ===

impl Bound {
    /// The domains of which the chosen pods deny a larger share, in words; `None` if there are
    /// none. `denied` says how many hits of a count are denied.
    pub fn exceeded(&self, hits: &Hits, denied: impl Fn(&HitCount) -> u64) -> Option<String> {
        let hits_min = u64::try_from(self.hits_min).unwrap_or_default();
        let is_counted = |(key, it): &(&CountKey, &HitCount)| key.is_chosen && it.hits >= hits_min;
        let mut all = Vec::new();
        for (key, count) in hits.iter().filter(is_counted) {
            let hits = count.hits;
            let denied = denied(count);
            if let Some(share) = share(denied, hits).filter(|it| *it > self.denied_share) {
                let domain = ratelease_rules::excerpt(&key.domain);
                all.push(format!("'{domain}': {denied} of {hits} hits ({})", percent(share)));
            }
        }
        (!all.is_empty()).then(|| all.join(", "))
    }
}

// === impl HitCount ===

impl HitCount {
    /// Adds the hits of another count.
    pub fn add(&mut self, other: &Self) {
        self.hits = self.hits.saturating_add(other.hits);
        self.denied = self.denied.saturating_add(other.denied);
        self.shadow = self.shadow.saturating_add(other.shadow);
        self.left_out = self.left_out.saturating_add(other.left_out);
    }

    /// The count, scaled down to at most `hits_max` hits.
    #[must_use]
    pub fn scaled(&self, hits_max: u64) -> Self {
        if self.hits <= hits_max { *self } else { self.scaled_to(hits_max) }
    }

    /// The count, scaled to `hits` hits.
    #[must_use]
    pub fn scaled_to(&self, hits: u64) -> Self {
        let of = u128::from(self.hits.max(1));
        let scaled = |count: u64| {
            let scaled = u128::from(count) * u128::from(hits) / of;
            u64::try_from(scaled).unwrap_or(u64::MAX)
        };
        let (denied, shadow) = (scaled(self.denied), scaled(self.shadow));
        Self { hits, denied, shadow, left_out: scaled(self.left_out) }
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

/// A part of a number, 0 to 1; `None` of none.
#[expect(clippy::cast_precision_loss, reason = "a share needs few digits")]
pub fn share(part: u64, of: u64) -> Option<f64> {
    (of > 0).then(|| part as f64 / of as f64)
}

/// A share in words.
pub fn percent(share: f64) -> String {
    format!("{:.1} %", share * 100.0)
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
        let now = self.bucket();
        let replica = i64::from(replica);
        let sql = "INSERT INTO rollout_counts \
                   (version, domain, chosen, bucket, hits, denied, shadow, left_out) \
                   VALUES ($1, $2, $3, $4, $5, $6, $7, $8) \
                   ON CONFLICT (version, domain, chosen, bucket) DO UPDATE SET \
                   hits = excluded.hits, denied = excluded.denied, shadow = excluded.shadow, \
                   left_out = excluded.left_out";
        let number = |count: u64| i64::try_from(count).unwrap_or(i64::MAX);
        for (key, ReplicaCount { all, weighed, is_evidence, recent }) in counts {
            let weighed_bucket = if *is_evidence { -2 * replica - 1 } else { EARLY - replica };
            let recent_bucket = (now << REPLICA_BITS) + replica;
            for (bucket, count) in
                [(-2 * replica, all), (weighed_bucket, weighed), (recent_bucket, recent)]
            {
                let query = sqlx::query(sql).bind(key.version).bind(key.domain.clone());
                let query = query.bind(i64::from(key.is_chosen)).bind(bucket);
                let query = query.bind(number(count.hits)).bind(number(count.denied));
                let query = query.bind(number(count.shadow)).bind(number(count.left_out));
                query.execute(&mut *tx).await?;
            }
        }
        let sql = "DELETE FROM rollout_counts WHERE bucket > 0 AND bucket < $1";
        sqlx::query(sql).bind(first_recent(now)).execute(&mut *tx).await?;
        tx.commit().await?;
        Ok(())
    }

    /// The hits of a step.
    ///
    /// # Errors
    /// Fails if the database is not available.
    pub async fn hits(&self, version: i64) -> StoreResult<StepHits> {
        self.hits_from(i64::MIN, version).await
    }

    /// The recent hits of a step, of which the database has few rows: it is asked often.
    ///
    /// # Errors
    /// Fails if the database is not available.
    pub async fn recent_hits(&self, version: i64) -> StoreResult<Hits> {
        Ok(self.hits_from(first_recent(self.bucket()), version).await?.recent)
    }

    /// The number of the row for hits that are reported now.
    fn bucket(&self) -> i64 {
        self.now() / i64::try_from(BUCKET.as_millis()).unwrap_or(1)
    }

    /// The hits of a step in the buckets from `from` on.
    async fn hits_from(&self, from: i64, version: i64) -> StoreResult<StepHits> {
        // SQLite made numbers of earlier builds that left their range floating points.
        let sql = "SELECT domain, chosen, bucket, CAST(hits AS BIGINT), CAST(denied AS BIGINT), \
                   CAST(shadow AS BIGINT), CAST(left_out AS BIGINT) FROM rollout_counts \
                   WHERE version = $1 AND bucket >= $2 ORDER BY bucket";
        let first = first_recent(self.bucket());
        let rows = sqlx::query(sql).bind(version).bind(from).fetch_all(&self.pool).await?;
        let mut hits = StepHits::default();
        let (mut evidence, mut early) = (BTreeSet::new(), Vec::new());
        let mut last = BTreeMap::new();
        for row in &rows {
            let is_chosen = row.try_get::<i64, _>(1)? != 0;
            let key = CountKey { version, domain: row.try_get(0)?, is_chosen };
            let count = HitCount::read(row)?;
            match row.try_get::<i64, _>(2)? {
                // The row 0 is of builds that had one row for all replicas.
                0 => hits.all.entry(key).or_default().add(&count),
                at if at < EARLY => hits.early.entry(key).or_default().add(&count),
                // The weighed hits of a replica come before all its hits.
                at if at < 0 && at % 2 != 0 => {
                    if count.hits > 0 {
                        evidence.insert((key.clone(), at / 2));
                    }
                    hits.weighed.entry(key).or_default().add(&count);
                }
                at if at < 0 && evidence.contains(&(key.clone(), at / 2)) => {
                    hits.all.entry(key).or_default().add(&count);
                }
                at if at < 0 => early.push((key, count)),
                // The rows of a replica come in their order, and the last one counts.
                at if at >= first => drop(last.insert((key, at % (1 << REPLICA_BITS)), count)),
                _ => {}
            }
        }
        let is_known = |key: &CountKey| hits.weighed.get(key).is_some_and(|it| it.hits > 0);
        for (key, count) in early.into_iter().filter(|(key, _)| !is_known(key)) {
            hits.all.entry(key).or_default().add(&count);
        }
        for ((key, _), count) in last {
            hits.recent.entry(key).or_default().add(&count);
        }
        Ok(hits)
    }
}

impl HitCount {
    fn read(row: &AnyRow) -> StoreResult<Self> {
        let number = |at: usize| -> StoreResult<u64> {
            Ok(u64::try_from(row.try_get::<i64, _>(at)?).unwrap_or_default())
        };
        let (hits, denied, shadow) = (number(3)?, number(4)?, number(5)?);
        Ok(Self { hits, denied, shadow, left_out: number(6)? })
    }
}

/// The first of the rows whose recent hits count in the bucket `now`.
fn first_recent(now: i64) -> i64 {
    (now - BUCKETS) << REPLICA_BITS
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
                   9223372036854775807 + 9223372036854775807, 1, 0, 0)";
        sqlx::query(sql).execute(&store.pool).await.unwrap();
        let key = CountKey { version: 1, domain: "shop".to_owned(), is_chosen: true };
        let count = store.hits(1).await.unwrap().all[&key];
        assert_eq!(
            count,
            HitCount { hits: i64::MAX.unsigned_abs(), denied: 1, ..HitCount::default() }
        );
    }
}
