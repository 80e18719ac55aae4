//! Reports what pods run to the database: the rows that changed, soon; and now and then that all
//! rows are those of open streams.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::time::Duration;

use futures_util::FutureExt;
use tokio::time::{MissedTickBehavior, interval, sleep};
use tracing::warn;

use super::streams::Streams;
use crate::store::{PodRow, Store, StoreResult};

/// Pause between reports.
const PAUSE: Duration = Duration::from_millis(500);

/// Interval at which all rows are marked as seen, so that they stay fresh.
const REFRESH_INTERVAL: Duration = Duration::from_secs(10);

/// The rows that the database has, as hashes by the numbers of the streams.
#[derive(Debug, Clone, Default)]
struct Reported {
    rows: HashMap<i64, u64>,
    hasher: RandomState,
}

/// Rows that differ from those that the database has, and the numbers of those that left.
#[derive(Debug, Default, PartialEq, Eq)]
struct Changes {
    rows: Vec<PodRow>,
    gone: Vec<i64>,
}

/// Reports the streams of `replica` to the database. It does not return.
pub async fn report(store: Store, streams: Streams, replica: String) {
    let (mut is_away, mut reported) = (false, None);
    let mut refresh = interval(REFRESH_INTERVAL);
    refresh.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut is_due = true;
    loop {
        match write(&store, &replica, &mut reported, streams.rows(), is_due).await {
            Ok(()) => is_away = false,
            Err(error) if !is_away => {
                is_away = true;
                warn!("{error}: what pods run is not reported");
            }
            Err(_) => {}
        }
        sleep(PAUSE).await;
        is_due = tokio::select! {
            () = streams.changed() => refresh.tick().now_or_never().is_some(),
            _ = refresh.tick() => true,
        };
    }
}

/// Makes the rows of `replica` these. What the database has is unknown, and all rows are written,
/// at first and after a failure, and if others have removed some.
async fn write(
    store: &Store,
    replica: &str,
    reported: &mut Option<Reported>,
    rows: Vec<PodRow>,
    is_due: bool,
) -> StoreResult<()> {
    let mut known = reported.take();
    if let (Some(rows), true) = (&known, is_due)
        && store.refresh_pods(replica).await? != rows.len()
    {
        known = None;
    }
    let next = match known {
        Some(mut known) => {
            let Changes { rows, gone } = known.change(rows);
            store.change_pods(replica, rows, gone).await?;
            known
        }
        None => {
            let mut next = Reported::default();
            store.report_pods(replica, next.change(rows).rows).await?;
            next
        }
    };
    *reported = Some(next);
    Ok(())
}

// === impl Reported ===

impl Reported {
    fn len(&self) -> usize {
        self.rows.len()
    }

    /// Takes these rows for those that the database will have, and returns what differs.
    fn change(&mut self, rows: Vec<PodRow>) -> Changes {
        let mut former = std::mem::take(&mut self.rows);
        let mut changes = Changes::default();
        for row in rows {
            let hash = self.hasher.hash_one(&row);
            self.rows.insert(row.stream, hash);
            if former.remove(&row.stream) != Some(hash) {
                changes.rows.push(row);
            }
        }
        changes.gone = former.into_keys().collect();
        changes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::Database;

    fn row(stream: i64, accepted: i64) -> PodRow {
        let (node, replica) = (format!("pod-{stream}"), "one".to_owned());
        PodRow { stream, accepted, node, replica, ..PodRow::default() }
    }

    /// The streams that the database lists, with their versions and when they were seen.
    async fn listed(store: &Store) -> Vec<(i64, i64, i64)> {
        let mut rows = store.connected_pods(None).await.unwrap();
        rows.sort_by_key(|row| row.stream);
        rows.iter().map(|row| (row.stream, row.accepted, row.seen_at)).collect()
    }

    #[test]
    fn only_rows_that_differ_are_written() {
        let mut reported = Reported::default();
        assert_eq!(reported.change(vec![row(1, 1), row(2, 1)]).rows.len(), 2);
        assert_eq!(reported.change(vec![row(1, 1), row(2, 1)]), Changes::default());
        let changes = reported.change(vec![row(2, 2), row(3, 1)]);
        assert_eq!(changes, Changes { rows: vec![row(2, 2), row(3, 1)], gone: vec![1] });
        assert_eq!(reported.len(), 2);
    }

    #[tokio::test]
    async fn the_database_has_each_change_and_rows_that_others_removed_are_written_again() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(&Database::Sqlite(dir.path().join("rules.db"))).await.unwrap();
        let mut reported = None;
        let all = |versions: &[i64]| (1..).zip(versions).map(|(at, it)| row(at, *it)).collect();
        write(&store, "one", &mut reported, all(&[1, 1, 1]), true).await.unwrap();
        let first = listed(&store).await;
        sleep(Duration::from_millis(5)).await;
        write(&store, "one", &mut reported, all(&[1, 2]), false).await.unwrap();
        let second = listed(&store).await;
        assert_eq!(second[0], first[0], "it is not written");
        assert_eq!((second.len(), second[1].1), (2, 2));
        write(&store, "one", &mut reported, all(&[1, 2]), true).await.unwrap();
        assert!(listed(&store).await[0].2 > first[0].2, "it is marked as seen");
        // As another replica does with the rows of one that was silent.
        store.change_pods("one", Vec::new(), vec![1]).await.unwrap();
        write(&store, "one", &mut reported, all(&[1, 2]), true).await.unwrap();
        assert_eq!(listed(&store).await.len(), 2);
    }
}
