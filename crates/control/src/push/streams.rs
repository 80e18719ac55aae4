//! The versions that the pods of this replica run, and how long they took to run them.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::hash::{BuildHasher, RandomState};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use parking_lot::Mutex;
use ratelease_listener::Peer;
use tokio::sync::Notify;
use tokio::time::{MissedTickBehavior, interval, sleep};
use tracing::warn;

use super::in_time;
use crate::store::{CHANGES_MAX, PodRow, Store, StoreResult};

/// Maximum number of streams of this process.
pub const STREAMS_MAX: usize = 20_000;

/// Maximum number of streams of one client: other clients have room beside a hostile one.
const STREAMS_OF_PEER_MAX: usize = STREAMS_MAX / 4;

/// Maximum bytes of a text that a pod sends, of which the rest is cut. All rows together are
/// bounded by three times this for each stream: 120 MB; the names of domains, which are published
/// ones, by those that its metadata names.
const TEXT_BYTES_MAX: usize = 2048;

/// Upper bounds of the times from a commit to its acceptance by a pod, in seconds.
pub const LAG_BOUNDS: [f64; 9] = [0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0];

/// The streams of this process. A cheap handle: clones share all state.
#[derive(Debug, Clone, Default)]
pub struct Streams(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    changed: Notify,
}

#[derive(Debug, Default)]
struct State {
    next: i64,
    rows: BTreeMap<i64, PodRow>,
    peers: HashMap<Peer, usize>,
    /// The numbers of the rows of each address.
    by_peer: HashMap<String, Vec<i64>>,
    /// Addresses whose pods report hits.
    reporting: HashSet<String>,
    lag: Lag,
}

/// Counts of the streams by how they stand to a version.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct StreamStates {
    /// Streams whose pods run the version.
    pub current: usize,
    /// Streams whose pods run an earlier version.
    pub behind: usize,
    /// Streams whose pods refused a version.
    pub refused: usize,
    /// Time since which a pod has not run the published version, in milliseconds of Unix time.
    pub late_since: Option<i64>,
}

/// Times from the commit of a version to its acceptance.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Lag {
    /// Number of times at most each bound of the histogram, and of all.
    pub buckets: [u64; LAG_BOUNDS.len() + 1],
    /// Sum of the times, in seconds.
    pub sum: f64,
    /// Versions that were refused.
    pub refused: u64,
}

/// The row of a stream; it leaves when this is dropped.
#[derive(Debug)]
pub struct Row {
    streams: Streams,
    number: i64,
    peer: Peer,
}

/// A pod that reports hits, until this is dropped.
#[derive(Debug)]
pub struct Reporting {
    streams: Streams,
    peer: String,
}

// === impl Streams ===

impl Streams {
    /// Adds a row of a pod at this address; `None` if there are too many, or too many of it.
    pub fn add(&self, row: PodRow, address: IpAddr) -> Option<Row> {
        let peer = Peer::of(Some(address));
        let mut state = self.0.state.lock();
        let of_peer = state.peers.get(&peer).copied().unwrap_or_default();
        if state.rows.len() >= STREAMS_MAX || of_peer >= STREAMS_OF_PEER_MAX {
            return None;
        }
        state.peers.insert(peer, of_peer + 1);
        state.next += 1;
        let number = state.next;
        let row = PodRow { stream: number, node: cut(&row.node), agent: cut(&row.agent), ..row };
        state.by_peer.entry(row.peer.clone()).or_default().push(number);
        state.rows.insert(number, row);
        drop(state);
        self.0.changed.notify_one();
        Some(Row { streams: self.clone(), number, peer })
    }

    /// Notes that a pod accepted a version `now` that was published at `published`.
    pub fn note_lag(&self, published: i64, now: i64) {
        let lag = now.saturating_sub(published).max(0);
        let seconds = Duration::from_millis(lag.unsigned_abs()).as_secs_f64();
        let mut state = self.0.state.lock();
        state.lag.sum += seconds;
        let at = LAG_BOUNDS.iter().position(|bound| seconds <= *bound);
        state.lag.buckets[at.unwrap_or(LAG_BOUNDS.len())] += 1;
    }

    /// Notes that a pod refused a version.
    pub fn note_refusal(&self) {
        self.0.state.lock().lag.refused += 1;
    }

    /// All rows of streams.
    pub fn rows(&self) -> Vec<PodRow> {
        let state = self.0.state.lock();
        let row = |row: &PodRow| {
            let reports = state.reporting.contains(&row.peer);
            PodRow { reports, ..row.clone() }
        };
        state.rows.values().map(row).collect()
    }

    /// Number of rows.
    pub fn count(&self) -> usize {
        self.0.state.lock().rows.len()
    }

    /// The version that the pod of this address runs; `None` if it has no stream here, or runs none
    /// yet.
    pub fn version_of(&self, peer: &str) -> Option<i64> {
        let state = self.0.state.lock();
        let numbers = state.by_peer.get(peer)?;
        let versions = numbers.iter().filter_map(|number| state.rows.get(number));
        versions.map(|row| row.accepted).min().filter(|version| *version > 0)
    }

    /// Whether the pod of this address was sent what this rollout chose it for.
    pub fn is_chosen(&self, peer: &str, rollout: i64) -> bool {
        let state = self.0.state.lock();
        let mut rows = state.by_peer.get(peer).into_iter().flatten();
        rows.any(|number| {
            state.rows.get(number).is_some_and(|row| row.chosen_by.contains(&rollout))
        })
    }

    /// Notes that the pod of this address reports hits. `None` if it does already, or if too many
    /// do.
    pub fn note_reporting(&self, peer: &str) -> Option<Reporting> {
        let mut state = self.0.state.lock();
        if state.reporting.len() >= STREAMS_MAX || !state.reporting.insert(peer.to_owned()) {
            return None;
        }
        drop(state);
        self.0.changed.notify_one();
        Some(Reporting { streams: self.clone(), peer: peer.to_owned() })
    }

    /// Resolves after the next change of a row.
    pub async fn changed(&self) {
        self.0.changed.notified().await;
    }

    /// Counts the streams by how they stand to `version`, whose last change was at the time `at`.
    /// Copies no row, because those who ask need no token.
    pub fn states(&self, version: i64, at: i64) -> StreamStates {
        StreamStates::of(self.0.state.lock().rows.values(), version, at)
    }

    /// Number of rows of pods that a rollout chose. Copies no row either.
    pub fn chosen(&self) -> usize {
        let state = self.0.state.lock();
        state.rows.values().filter(|row| !row.chosen_by.is_empty()).count()
    }

    /// Times from commits to acceptances so far.
    pub fn lag(&self) -> Lag {
        self.0.state.lock().lag.clone()
    }
}

// === impl StreamStates ===

impl StreamStates {
    /// Counts these rows by how they stand to `version`, whose last change was at the time `at`.
    pub fn of<'r>(rows: impl Iterator<Item = &'r PodRow>, version: i64, at: i64) -> Self {
        let mut states = Self::default();
        for row in rows {
            let is_refused = row.refused > 0;
            if !is_refused && row.accepted >= version {
                states.current += 1;
                continue;
            }
            *(if is_refused { &mut states.refused } else { &mut states.behind }) += 1;
            // From the version that a pod was sent and has not answered: further ones wait for the
            // answer. A pod that connects later is late from then on.
            let sent = if row.unanswered_at == 0 { at } else { row.unanswered_at };
            let since = row.connected_at.max(sent);
            states.late_since = Some(states.late_since.map_or(since, |first| first.min(since)));
        }
        states
    }
}

// === impl Row ===

impl Row {
    /// Changes the row.
    pub fn change(&self, change: impl FnOnce(&mut PodRow)) {
        if let Some(row) = self.streams.0.state.lock().rows.get_mut(&self.number) {
            change(row);
            row.fault = cut(&row.fault);
        }
        self.streams.0.changed.notify_one();
    }
}

impl Drop for Row {
    fn drop(&mut self) {
        let mut state = self.streams.0.state.lock();
        if let Some(row) = state.rows.remove(&self.number)
            && let Some(numbers) = state.by_peer.get_mut(&row.peer)
        {
            numbers.retain(|number| *number != self.number);
            if numbers.is_empty() {
                state.by_peer.remove(&row.peer);
            }
        }
        if let Some(count) = state.peers.get_mut(&self.peer) {
            *count -= 1;
            if *count == 0 {
                state.peers.remove(&self.peer);
            }
        }
        drop(state);
        self.streams.0.changed.notify_one();
    }
}

impl Drop for Reporting {
    fn drop(&mut self) {
        self.streams.0.state.lock().reporting.remove(&self.peer);
        self.streams.0.changed.notify_one();
    }
}

/// A text of a pod: bounded, and without characters that the database cannot store.
fn cut(text: &str) -> String {
    let end = text.floor_char_boundary(TEXT_BYTES_MAX);
    text.get(..end).unwrap_or_default().replace('\0', "")
}

// Reports the rows of pods to the database: changed rows soon, and at an interval that all rows are
// of open streams.

/// First pause between reports. It doubles after each failed report, up to [`PAUSE_MAX`].
const PAUSE: Duration = Duration::from_millis(500);

/// Longest pause between reports. Until a database that was away is asked again, no replica knows
/// which versions pods run.
const PAUSE_MAX: Duration = Duration::from_secs(2);

/// Interval at which all rows are marked as seen, so that they stay fresh.
const REFRESH_INTERVAL: Duration = Duration::from_secs(10);

/// The rows that the database has, as hashes by the numbers of the streams. `None` stands for a row
/// that may be there or not, and as it is now or as it was.
#[derive(Debug, Clone, Default)]
struct Reported {
    rows: HashMap<i64, Option<u64>>,
    hasher: RandomState,
}

/// Rows that differ from those that the database has, with their hashes, and the numbers of those
/// that left.
#[derive(Debug)]
struct Changes<'r> {
    rows: Vec<(&'r PodRow, u64)>,
    gone: Vec<i64>,
}

/// Reports the streams of `replica` to the database. It does not return.
pub async fn report(store: Store, streams: Streams, replica: String) {
    let mut pause = PAUSE;
    let mut reported = Reported::default();
    let mut refresh = interval(REFRESH_INTERVAL);
    refresh.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut is_due = false;
    loop {
        let mut ticks = || refresh.tick().now_or_never().is_some();
        is_due |= ticks();
        let rows = streams.rows();
        match write(&store, &replica, &mut reported, &rows, is_due, &mut ticks).await {
            // The rest is written at once.
            Ok(true) => (is_due, pause) = (true, PAUSE),
            Ok(false) => {
                pause = PAUSE;
                sleep(pause).await;
                is_due = tokio::select! {
                    () = streams.changed() => false,
                    _ = refresh.tick() => true,
                };
            }
            // A failed report is tried again, whether or not a pod changes meanwhile.
            Err(error) => {
                if pause == PAUSE {
                    warn!("{error}: what pods run is not reported");
                }
                pause = (pause * 2).min(PAUSE_MAX);
                sleep(pause).await;
            }
        }
    }
}

/// Makes the rows of `replica` in the database equal to `rows`. If `ticks` says after a part that
/// all rows have to be marked as seen again, it stops and returns true; otherwise it returns false.
/// If it `is_due`, it first marks all rows as seen, and forgets the rows of replicas that are gone.
async fn write(
    store: &Store,
    replica: &str,
    reported: &mut Reported,
    rows: &[PodRow],
    is_due: bool,
    ticks: &mut impl FnMut() -> bool,
) -> StoreResult<bool> {
    if is_due {
        reported.correct(in_time(store.refresh_pods(replica)).await?);
        // If it fails, the next refresh removes them: readers leave out rows that are not fresh.
        let _ = in_time(store.forget_gone_replicas()).await;
    }
    let Changes { rows, gone } = reported.changes(rows);
    let (mut rows, mut gone) = (rows.as_slice(), gone.as_slice());
    while !rows.is_empty() || !gone.is_empty() {
        let (now, later) = rows.split_at(rows.len().min(CHANGES_MAX));
        let (left, leaving) = gone.split_at(gone.len().min(CHANGES_MAX - now.len()));
        reported.write(store, replica, now, left).await?;
        (rows, gone) = (later, leaving);
        if ticks() {
            return Ok(true);
        }
    }
    Ok(false)
}

// === impl Reported ===

impl Reported {
    /// Writes some changes, at most [`CHANGES_MAX`].
    async fn write(
        &mut self,
        store: &Store,
        replica: &str,
        rows: &[(&PodRow, u64)],
        gone: &[i64],
    ) -> StoreResult<()> {
        let doubtful = rows.iter().map(|(row, _)| row.stream).chain(gone.iter().copied());
        self.rows.extend(doubtful.map(|stream| (stream, None)));
        let written = rows.iter().map(|(row, _)| (*row).clone()).collect();
        in_time(store.change_pods(replica, written, gone.to_vec())).await?;
        self.rows.extend(rows.iter().map(|(row, hash)| (row.stream, Some(*hash))));
        for stream in gone {
            self.rows.remove(stream);
        }
        Ok(())
    }

    /// Compares these rows with those that the database has: rows to write, and streams to delete.
    fn changes<'r>(&self, rows: &'r [PodRow]) -> Changes<'r> {
        let open: HashSet<_> = rows.iter().map(|row| row.stream).collect();
        let hashes = rows.iter().map(|row| (row, self.hasher.hash_one(row)));
        let differs = |(row, hash): &(&PodRow, u64)| {
            self.rows.get(&row.stream).copied().flatten() != Some(*hash)
        };
        Changes {
            rows: hashes.filter(differs).collect(),
            gone: self.rows.keys().filter(|stream| !open.contains(stream)).copied().collect(),
        }
    }

    /// Notes that the database has rows of these streams alone: another replica may have taken this
    /// one for gone, and a write that has failed here may have come late there.
    fn correct(&mut self, streams: Vec<i64>) {
        let former = std::mem::take(&mut self.rows);
        let known = |stream| (stream, former.get(&stream).copied().flatten());
        self.rows = streams.into_iter().map(known).collect();
    }
}

#[cfg(test)]
mod tests {
    use sqlx::{AnyConnection, Connection, Executor};
    use tempfile::TempDir;

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

    /// A database in a directory, and a second connection to it.
    async fn database() -> (TempDir, Store, AnyConnection) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("rules.db");
        let store = Store::open(&Database::Sqlite(path.clone())).await.unwrap();
        let other = AnyConnection::connect(&format!("sqlite://{}", path.display())).await.unwrap();
        (dir, store, other)
    }

    fn rows(versions: &[i64]) -> Vec<PodRow> {
        (1..).zip(versions).map(|(at, version)| row(at, *version)).collect()
    }

    #[test]
    fn only_rows_that_differ_are_written() {
        let mut reported = Reported::default();
        let first = rows(&[1, 1]);
        let Changes { rows: differing, gone } = reported.changes(&first);
        assert_eq!((differing.len(), gone), (2, vec![]));
        reported.rows.extend(differing.iter().map(|(row, hash)| (row.stream, Some(*hash))));
        let Changes { rows: differing, gone } = reported.changes(&first);
        assert_eq!((differing, gone), (vec![], vec![]));
        let second = [row(2, 2), row(3, 1)];
        let Changes { rows: differing, gone } = reported.changes(&second);
        let differing: Vec<_> = differing.into_iter().map(|(row, _)| row.clone()).collect();
        assert_eq!((differing.as_slice(), gone), (&second[..], vec![1]));
        assert_eq!(reported.rows.len(), 2);
    }

    #[tokio::test]
    async fn the_database_has_each_change_and_rows_that_others_removed_are_written_again() {
        let (_dir, store, _other) = database().await;
        let mut reported = Reported::default();
        write(&store, "one", &mut reported, &rows(&[1, 1, 1]), true, &mut || false).await.unwrap();
        let first = listed(&store).await;
        sleep(Duration::from_millis(5)).await;
        write(&store, "one", &mut reported, &rows(&[1, 2]), false, &mut || false).await.unwrap();
        let second = listed(&store).await;
        assert_eq!(second[0], first[0], "it is not written");
        assert_eq!((second.len(), second[1].1), (2, 2));
        write(&store, "one", &mut reported, &rows(&[1, 2]), true, &mut || false).await.unwrap();
        assert!(listed(&store).await[0].2 > first[0].2, "it is marked as seen");
        // As another replica does with the rows of one that was silent.
        store.change_pods("one", Vec::new(), vec![1]).await.unwrap();
        write(&store, "one", &mut reported, &rows(&[1, 2]), true, &mut || false).await.unwrap();
        assert_eq!(listed(&store).await.len(), 2);
        // As a write does that came after all.
        store.change_pods("one", vec![row(9, 1)], Vec::new()).await.unwrap();
        write(&store, "one", &mut reported, &rows(&[1, 2]), true, &mut || false).await.unwrap();
        let third = listed(&store).await;
        assert_eq!(third.iter().map(|it| (it.0, it.1)).collect::<Vec<_>>(), [(1, 1), (2, 2)]);
    }

    #[tokio::test]
    async fn many_rows_are_written_in_steps_and_those_of_before_a_failure_not_again() {
        let (_dir, store, mut other) = database().await;
        let refuses = "CREATE TRIGGER refuses BEFORE INSERT ON pods WHEN NEW.stream = 300 \
                       BEGIN SELECT RAISE(ABORT, 'refused'); END";
        other.execute(refuses).await.unwrap();
        let mut reported = Reported::default();
        let mut all = rows(&[1; 2 * CHANGES_MAX + 1]);
        let is_cut_short = write(&store, "one", &mut reported, &all, true, &mut || true).await;
        assert!(is_cut_short.unwrap());
        write(&store, "one", &mut reported, &all, false, &mut || false).await.unwrap_err();
        let written = listed(&store).await;
        assert_eq!(written.len(), CHANGES_MAX);
        other.execute("DROP TRIGGER refuses").await.unwrap();
        // A row whose write failed has left meanwhile.
        all.remove(320);
        sleep(Duration::from_millis(5)).await;
        assert!(!write(&store, "one", &mut reported, &all, false, &mut || false).await.unwrap());
        let all = listed(&store).await;
        assert_eq!((all.len(), &all[..CHANGES_MAX]), (2 * CHANGES_MAX, &written[..]));
    }

    #[tokio::test]
    async fn rows_of_replicas_that_ended_or_are_silent_are_forgotten() {
        let (_dir, store, mut other) = database().await;
        write(&store, "one", &mut Reported::default(), &rows(&[1, 1]), true, &mut || false)
            .await
            .unwrap();
        other.execute("UPDATE pods SET seen_at = 1, replica = 'gone'").await.unwrap();
        write(&store, "two", &mut Reported::default(), &rows(&[1]), true, &mut || false)
            .await
            .unwrap();
        assert!(store.refresh_pods("gone").await.unwrap().is_empty());
        assert_eq!(store.refresh_pods("two").await.unwrap(), [1]);
        store.write_fleet("two", "{}".to_owned()).await.unwrap();
        assert_eq!(store.fleets().await.unwrap(), ["{}"]);
        store.forget_replica("two").await.unwrap();
        assert!(store.refresh_pods("two").await.unwrap().is_empty());
        assert!(store.fleets().await.unwrap().is_empty());
    }

    #[tokio::test]
    async fn a_pod_that_moved_counts_at_its_new_replica_alone() {
        let (_dir, store, _other) = database().await;
        let at = |node: &str, peer: &str, connected_at| {
            let (node, peer) = (node.to_owned(), peer.to_owned());
            PodRow { node, peer, connected_at, ..row(1, connected_at) }
        };
        let listed = async || {
            let rows = store.connected_pods(None).await.unwrap();
            let mut of: Vec<_> = rows.into_iter().map(|it| it.replica + " " + &it.peer).collect();
            of.sort();
            let (pages, _) = store.pods(None, "", 9).await.unwrap();
            assert_eq!(
                (pages.len(), store.pod_versions().await.unwrap().len()),
                (of.len(), of.len())
            );
            (of, store.fleets().await.unwrap())
        };
        for (replica, row) in [
            ("dead", at("a", "10.0.0.1:40000", 1)),
            ("next", at("a", "10.0.0.1:5", 2)),
            // Another pod that has the same id.
            ("third", at("a", "10.0.0.2:40000", 3)),
            // Another node behind the same address.
            ("fourth", at("b", "10.0.0.1:6", 4)),
        ] {
            store.change_pods(replica, vec![row], Vec::new()).await.unwrap();
            store.write_fleet(replica, format!("\"{replica}\"")).await.unwrap();
        }
        // A replica whose pods only report.
        store.write_fleet("apart", "\"apart\"".to_owned()).await.unwrap();
        let open = ["fourth 10.0.0.1:6", "next 10.0.0.1:5", "third 10.0.0.2:40000"];
        let fleets = ["apart", "fourth", "next", "third"].map(|it| format!("\"{it}\""));
        assert_eq!(listed().await, (open.map(str::to_owned).to_vec(), fleets.to_vec()));
        // Two pods of one node id are both there, if one replica has them.
        let twin = PodRow { stream: 2, ..at("b", "10.0.0.1:7", 5) };
        store.change_pods("fourth", vec![twin], Vec::new()).await.unwrap();
        assert_eq!(listed().await.0.len(), 4);
    }

    #[tokio::test]
    async fn what_failed_is_reported_again_though_nothing_has_changed() {
        let (_dir, store, mut other) = database().await;
        other.execute("ALTER TABLE pods RENAME TO gone").await.unwrap();
        let streams = Streams::default();
        let _row = streams.add(row(0, 1), [127, 0, 0, 1].into()).unwrap();
        let reporting = tokio::spawn(report(store.clone(), streams, "one".to_owned()));
        // A write that fails causes no event to wait for. After this pause the first write has
        // failed.
        sleep(PAUSE).await;
        other.execute("ALTER TABLE gone RENAME TO pods").await.unwrap();
        let known = async {
            while listed(&store).await.is_empty() {
                sleep(Duration::from_millis(20)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(20), known).await.unwrap();
        reporting.abort();
    }
}
