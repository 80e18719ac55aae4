//! Ends a rollout that denies too much. Each replica writes what its pods report, and looks at what
//! all replicas wrote; the one that sees first that the bound is exceeded rolls back.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use ratelease_engine::time::Time;
use tokio::sync::{Notify, watch};
use tokio::time::{sleep, timeout};
use tracing::warn;

use super::counts::RolloutCounts;
use super::published::{PublishedRollout, PublishedSet};
use crate::store::{Author, Bound, CountKey, HitCount, Stage, Store, StoreError, StoreResult};

/// Pause after reports were written, so that those of many pods are written together.
const WRITE_PAUSE: Duration = Duration::from_millis(200);

/// Longest pause between two looks at the counts: other replicas write too.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);

/// Maximum time of a look. A database that hangs is asked again.
const LOOK_MAX: Duration = Duration::from_secs(10);

/// The author of steps that the control plane takes.
pub(crate) const AUTHOR: &str = "rollout";

/// Writes what pods report, and rolls back. While the database is away the counts wait here; the
/// bound is looked at when it is back, with the hits that are recent then. Does not return.
pub async fn watch_rollout(
    store: Store,
    counts: RolloutCounts,
    published: watch::Receiver<Arc<PublishedSet>>,
    follower: Arc<Notify>,
) {
    let (reserved, clock) = (store.reserved(), counts.clock());
    let mut is_away = false;
    loop {
        let _ = timeout(LOOK_INTERVAL, counts.changed()).await;
        let rollout = published.borrow().rollout.clone();
        let looked = async {
            let second = clock.now().since(Time::default()).as_secs();
            write(&reserved, &counts, second, rollout.as_ref().map(|it| it.version)).await?;
            match &rollout {
                Some(rollout) => look(&store, &reserved, rollout).await,
                None => Ok(false),
            }
        };
        let looked = timeout(LOOK_MAX, looked).await;
        let looked = looked
            .unwrap_or_else(|_| Err(StoreError::Unavailable(format!("silent for {LOOK_MAX:?}"))));
        match looked {
            Ok(is_rolled_back) => {
                is_away = false;
                if is_rolled_back {
                    counts.note_rollback();
                    follower.notify_one();
                }
            }
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
    present: Option<i64>,
) -> StoreResult<()> {
    let rows = counts.rows(second);
    if !rows.counts.is_empty() {
        store.replace_hits(rows.replica, &rows.counts).await?;
    }
    counts.written(&rows, present);
    Ok(())
}

/// Rolls back if the bound is exceeded. Returns whether this call did.
async fn look(store: &Store, reserved: &Store, rollout: &PublishedRollout) -> StoreResult<bool> {
    let Some(bound) = rollout.bound else { return Ok(false) };
    let recent = reserved.recent_hits(rollout.version).await?;
    let Some(reason) = exceeded(&bound, &recent) else { return Ok(false) };
    let author = Author { name: AUTHOR.to_owned(), reason };
    let mut write = store.begin(&author).await?;
    // Another replica may have done it, or somebody has taken another step.
    let present = write.open_rollout().await?.filter(|it| it.id == rollout.id);
    let is_same = |version| version == rollout.version;
    let present = present.filter(|it| it.last().is_some_and(|step| is_same(step.version)));
    let Some(present) = present else { return Ok(false) };
    let version = write.step_rollout(&present, Stage::RolledBack).await?.number;
    write.note_rollout(&present, Stage::RolledBack, version).await?;
    write.commit().await?;
    warn!(rollout = rollout.id, version, "rolled back: {}", author.reason);
    Ok(true)
}

/// Which domains the chosen pods deny too much of, in words; `None` if there are none.
fn exceeded(bound: &Bound, recent: &BTreeMap<CountKey, HitCount>) -> Option<String> {
    let mut all = Vec::new();
    for (key, count) in recent.iter().filter(|(key, _)| key.is_chosen) {
        let share = count.denied_share().filter(|share| *share > bound.denied_share);
        let hits_min = u64::try_from(bound.hits_min).unwrap_or_default();
        if let Some(share) = share.filter(|_| count.hits >= hits_min) {
            let domain = ratelease_rules::excerpt(&key.domain);
            let HitCount { hits, denied, .. } = count;
            all.push(format!("'{domain}': {denied} of {hits} hits ({})", percent(share)));
        }
    }
    let bound = percent(bound.denied_share);
    (!all.is_empty()).then(|| {
        let domains = all.join(", ");
        format!("chosen pods denied too much in the last 30 s: {domains}; the bound is {bound}")
    })
}

fn percent(share: f64) -> String {
    format!("{:.1} %", share * 100.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn recent(domain: &str, is_chosen: bool, hits: u64, denied: u64) -> (CountKey, HitCount) {
        let key = CountKey { version: 1, domain: domain.to_owned(), is_chosen };
        (key, HitCount { hits, denied, shadow: 0 })
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
