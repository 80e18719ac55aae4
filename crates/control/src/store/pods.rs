//! The versions that pods run, as reported by the replicas of the control plane that the pods are
//! connected to.

use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;
use sqlx::Row;
use sqlx::any::AnyRow;
use utoipa::ToSchema;

use super::query::{Cell, bound};
use super::write::PageQuery;
use super::write::insert;
use super::{Backend, Store, StoreResult, as_time};

/// A stream that no replica has reported for so long is gone.
const GONE_AFTER: Duration = Duration::from_secs(30);

/// Maximum number of streams that one write changes: with the longest texts some 3 MB, which a slow
/// database writes in time.
pub const CHANGES_MAX: usize = 250;

/// The longest wait for rows that another replica holds.
const LOCK_WAIT: &str = "SET LOCAL lock_timeout = '1s'";

/// Maximum number of replicas whose pods are shown.
const REPLICAS_MAX: i64 = 32;

/// A pod: the stream by which it gets its rules.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, Serialize, ToSchema)]
#[schema(as = PodView)]
pub struct PodRow {
    /// The id of its node.
    pub node: String,
    /// Its address.
    pub peer: String,
    /// The name of its program.
    pub agent: String,
    /// The type of resources that it asks for.
    #[serde(rename = "type")]
    pub type_url: String,
    /// The replica of the control plane that it is connected to.
    pub replica: String,
    /// Since when.
    #[serde(serialize_with = "as_time")]
    #[schema(value_type = String, format = DateTime)]
    pub connected_at: i64,
    /// The version that it was sent last; 0 for none.
    pub sent: i64,
    /// The version that it runs; 0 for none.
    pub accepted: i64,
    /// The version that it refused, if it refused the last one.
    #[serde(skip_serializing_if = "is_zero")]
    #[schema(value_type = Option<i64>)]
    pub refused: i64,
    /// Why it refused that, or which domains its type cannot say. Only for tokens of all domains,
    /// because it may quote the rules of any.
    #[serde(skip_serializing_if = "String::is_empty")]
    #[schema(value_type = Option<String>)]
    pub fault: String,
    /// The rollouts that chose it.
    #[serde(rename = "rollouts", skip_serializing_if = "Vec::is_empty")]
    #[schema(value_type = Option<Vec<i64>>)]
    pub chosen_by: Vec<i64>,
    /// Whether it reports hits of its domains while a rollout is under way.
    pub reports: bool,
    /// A hash of the pod's address without the port and of the nodes that its certificate is for: the
    /// pod chooses neither freely. At an address of loopback the node's id is part of it too. 0 if its
    /// replica is of an earlier release.
    #[serde(skip)]
    pub origin: i64,
    /// The number of the stream in that replica.
    #[serde(skip)]
    pub stream: i64,
    /// The domains that it gets, if it is limited to some; `None` if it gets all. Only
    /// [`Store::pod_versions`] reads it.
    #[serde(skip)]
    pub domains: Option<Arc<[String]>>,
    /// When the replica reported it last, in milliseconds since the Unix epoch by the database's
    /// clock.
    #[serde(skip)]
    pub seen_at: i64,
    /// When the version that it has not answered yet was published; 0 if it has answered. Only its
    /// replica knows it.
    #[serde(skip)]
    pub unanswered_at: i64,
}

fn is_zero(number: &i64) -> bool {
    *number == 0
}

const COLUMNS: &str = "replica, stream, node, peer, agent, type, connected_at, seen_at, sent, \
                       accepted, refused, fault, chosen, reports, origin";

/// The value of the column `domains` for a pod that gets all domains.
const ALL_DOMAINS: &str = "*";

/// Where a pod is: the id of its node, and its address without the port. An index has it.
const SAME_PLACE: &str = "newest.node = pods.node AND \
                          RTRIM(newest.peer, '0123456789') = RTRIM(pods.peer, '0123456789')";

/// A text by which streams are ordered: node, replica and number.
const PLACE: &str = "node || '\n' || replica || '\n' || SUBSTR('00000000000000000000' || \
                     CAST(stream AS TEXT), LENGTH(CAST(stream AS TEXT)) + 1)";

// === impl Store ===

impl Store {
    /// At most `limit` streams that are open, by node, after the place `after`; and whether there
    /// are more. Of pods that get one of these domains; `None` for all pods.
    ///
    /// # Errors
    /// Fails if the database is not available.
    pub async fn pods(
        &self,
        domains: Option<&[String]>,
        after: &str,
        limit: usize,
    ) -> StoreResult<(Vec<PodRow>, bool)> {
        let (from, mut cells) = self.open_streams(domains);
        cells.push(Cell::Text(after.to_owned()));
        let query = PageQuery {
            columns: COLUMNS,
            from: format!("{from} AND {PLACE} > ${}", cells.len()),
            order: PLACE,
            texts: &["node", "peer", "agent", "fault"],
            cells,
            limit,
        };
        let (rows, has_more) = query.fetch(&self.pool).await?;
        Ok((rows.iter().map(PodRow::read).collect::<StoreResult<_>>()?, has_more))
    }

    /// All streams that are open of pods that get one of these domains, or of all pods, without
    /// the texts of their agents and faults: these may be long.
    ///
    /// # Errors
    /// Fails if the database is not available.
    pub async fn connected_pods(&self, domains: Option<&[String]>) -> StoreResult<Vec<PodRow>> {
        let columns = COLUMNS.replace("agent", "'' AS agent").replace("fault", "'' AS fault");
        let (from, cells) = self.open_streams(domains);
        let sql = format!("SELECT {columns} FROM {from}");
        let rows = bound(&sql, cells).fetch_all(&self.pool).await?;
        rows.iter().map(PodRow::read).collect()
    }

    /// All streams that are open: the version that each runs, and the domains that it is limited
    /// to.
    ///
    /// # Errors
    /// Fails if the database is not available.
    pub async fn pod_versions(&self) -> StoreResult<Vec<PodRow>> {
        let (from, cells) = self.open_streams(None);
        let sql = format!(
            "SELECT replica, node, peer, accepted, domains, type, refused, origin FROM {from}"
        );
        let rows = bound(&sql, cells).fetch_all(&self.pool).await?;
        let read = |row: &AnyRow| {
            let domains: String = row.try_get(4)?;
            // Each of some domains is after a line break.
            let some = domains.starts_with('\n');
            let domains = some.then(|| domains.lines().skip(1).map(str::to_owned).collect());
            Ok(PodRow {
                replica: row.try_get(0)?,
                node: row.try_get(1)?,
                peer: row.try_get(2)?,
                accepted: row.try_get(3)?,
                domains,
                type_url: row.try_get(5)?,
                refused: row.try_get(6)?,
                origin: row.try_get(7)?,
                ..PodRow::default()
            })
        };
        rows.iter().map(read).collect()
    }

    /// Writes these streams of `replica`, which may be there already, and removes those with the
    /// numbers `gone`; both together at most `CHANGES_MAX`.
    ///
    /// # Errors
    /// Fails if the database is not available.
    pub async fn change_pods(
        &self,
        replica: &str,
        pods: Vec<PodRow>,
        gone: Vec<i64>,
    ) -> StoreResult<()> {
        let former: Vec<_> = pods.iter().map(|pod| pod.stream).chain(gone).collect();
        if former.is_empty() {
            return Ok(());
        }
        let mut tx = self.pool.begin().await?;
        let numbers = former.iter().map(i64::to_string).collect::<Vec<_>>().join(",");
        let sql = format!("DELETE FROM pods WHERE replica = $1 AND stream IN ({numbers})");
        bound(&sql, vec![Cell::Text(replica.to_owned())]).execute(&mut *tx).await?;
        let clock = self.backend.clock();
        let rows = pods.into_iter().map(|pod| pod.cells(replica, clock)).collect();
        insert(&mut tx, &format!("pods ({COLUMNS}, domains)"), rows).await?;
        Ok(tx.commit().await?)
    }

    /// Marks all streams of `replica` as seen. Returns their numbers.
    ///
    /// # Errors
    /// Fails if the database is not available.
    pub async fn refresh_pods(&self, replica: &str) -> StoreResult<Vec<i64>> {
        let clock = self.backend.clock();
        let sql = format!("UPDATE pods SET seen_at = {clock} WHERE replica = $1 RETURNING stream");
        let cells = vec![Cell::Text(replica.to_owned())];
        let rows = bound(&sql, cells).fetch_all(&self.pool).await?;
        rows.iter().map(|row| Ok(row.try_get(0)?)).collect()
    }

    /// Forgets what `replica` reported.
    ///
    /// # Errors
    /// Fails if the database is not available.
    pub async fn forget_replica(&self, replica: &str) -> StoreResult<()> {
        self.forget("replica = $1", vec![Cell::Text(replica.to_owned())]).await
    }

    /// Forgets what replicas that are gone reported. It is a write of its own, so that no replica
    /// that stopped within a write keeps the others from their own.
    ///
    /// # Errors
    /// Fails if the database is not available, or such a replica holds the rows.
    pub async fn forget_gone_replicas(&self) -> StoreResult<()> {
        self.forget(&format!("NOT {}", self.is_seen()), Vec::new()).await
    }

    async fn forget(&self, which: &str, cells: Vec<Cell>) -> StoreResult<()> {
        let mut tx = self.pool.begin().await?;
        if self.backend == Backend::Postgres {
            bound(LOCK_WAIT, Vec::new()).execute(&mut *tx).await?;
        }
        for table in ["pods", "fleets"] {
            let sql = format!("DELETE FROM {table} WHERE {which}");
            bound(&sql, cells.clone()).execute(&mut *tx).await?;
        }
        Ok(tx.commit().await?)
    }

    /// Writes the sums of the reports of the pods of `replica`.
    ///
    /// # Errors
    /// Fails if the database is not available.
    pub async fn write_fleet(&self, replica: &str, sums: String) -> StoreResult<()> {
        let mut tx = self.pool.begin().await?;
        let sql = "DELETE FROM fleets WHERE replica = $1";
        bound(sql, vec![Cell::Text(replica.to_owned())]).execute(&mut *tx).await?;
        let seen_at = Cell::Expression(self.backend.clock());
        let row = vec![Cell::Text(replica.to_owned()), seen_at, Cell::Text(sums)];
        insert(&mut tx, "fleets (replica, seen_at, sums)", vec![row]).await?;
        tx.commit().await?;
        Ok(())
    }

    /// The sums of the reports of each replica. A replica is left out if all its pods have left.
    ///
    /// # Errors
    /// Fails if the database is not available.
    pub async fn fleets(&self) -> StoreResult<Vec<String>> {
        let is_seen = self.is_seen();
        let (open, _) = self.open_streams(None);
        let sql = format!(
            "SELECT sums FROM fleets WHERE {is_seen} AND (replica NOT IN (SELECT replica FROM pods) \
             OR replica IN (SELECT replica FROM {open})) ORDER BY replica LIMIT $1"
        );
        let rows = bound(&sql, vec![Cell::Int(REPLICAS_MAX)]).fetch_all(&self.pool).await?;
        rows.iter().map(|row| Ok(row.try_get(0)?)).collect()
    }

    /// The table and the condition of streams that are open, and its parameters: of pods that get
    /// one of these domains, or of all pods. A pod that has connected to another replica since is
    /// there alone: the former one may have died, or not have noticed yet that the pod has gone.
    fn open_streams(&self, domains: Option<&[String]>) -> (String, Vec<Cell>) {
        let mut cells = Vec::new();
        let is_seen = self.is_seen();
        let mut from = format!(
            "pods WHERE {is_seen} AND replica = (SELECT newest.replica FROM pods newest WHERE \
             {SAME_PLACE} AND newest.{is_seen} ORDER BY newest.connected_at DESC LIMIT 1)"
        );
        if let Some(domains) = domains {
            // LIKE would take 'SHOP' for 'shop' on SQLite.
            let has = domains.iter().zip(1..).map(|(domain, place)| {
                cells.push(Cell::Text(format!("{}\n", line_of(domain))));
                format!(" OR REPLACE(domains, ${place}, '') <> domains")
            });
            let has = has.collect::<String>();
            from.push_str(&format!(" AND (domains = '{ALL_DOMAINS}'{has})"));
        }
        (from, cells)
    }

    /// The condition of rows whose replica has reported them lately. The times are by the
    /// database's clock alone: the clocks of replicas may differ by more than [`GONE_AFTER`].
    fn is_seen(&self) -> String {
        // As a query of its own it is computed once, not for each row.
        format!("seen_at > (SELECT {}) - {}", self.backend.clock(), GONE_AFTER.as_millis())
    }
}

/// A domain in the list of a pod's domains: a line, so that no name is found within another one.
fn line_of(domain: &str) -> String {
    format!("\n{}", domain.replace('\\', "\\\\").replace('\n', "\\n"))
}

/// Numbers as a text: each after a line break, with one at the end.
fn lines_of(numbers: &[i64]) -> String {
    if numbers.is_empty() {
        return String::new();
    }
    numbers.iter().map(|it| format!("\n{it}")).collect::<String>() + "\n"
}

fn numbers_of(text: &str) -> Vec<i64> {
    text.lines().filter_map(|it| it.parse().ok()).collect()
}

// === impl PodRow ===

impl PodRow {
    /// The origin; the node's id if the origin is not known.
    pub fn origin(&self) -> (i64, &str) {
        (self.origin, if self.origin == 0 { &self.node } else { "" })
    }

    /// The place of the row in the order of lists.
    pub fn place(&self) -> String {
        let Self { node, replica, stream, .. } = self;
        format!("{node}\n{replica}\n{stream:020}")
    }

    fn cells(self, replica: &str, clock: &'static str) -> Vec<Cell> {
        let lines =
            |all: Arc<[String]>| all.iter().map(|it| line_of(it)).collect::<String>() + "\n";
        let domains = self.domains.map_or_else(|| ALL_DOMAINS.to_owned(), lines);
        vec![
            Cell::Text(replica.to_owned()),
            Cell::Int(self.stream),
            Cell::Text(self.node),
            Cell::Text(self.peer),
            Cell::Text(self.agent),
            Cell::Text(self.type_url),
            Cell::Int(self.connected_at),
            Cell::Expression(clock),
            Cell::Int(self.sent),
            Cell::Int(self.accepted),
            Cell::Int(self.refused),
            Cell::Text(self.fault),
            Cell::Text(lines_of(&self.chosen_by)),
            Cell::Int(i64::from(self.reports)),
            Cell::Int(self.origin),
            Cell::Text(domains),
        ]
    }

    fn read(row: &AnyRow) -> StoreResult<Self> {
        Ok(Self {
            replica: row.try_get(0)?,
            stream: row.try_get(1)?,
            node: row.try_get(2)?,
            peer: row.try_get(3)?,
            agent: row.try_get(4)?,
            type_url: row.try_get(5)?,
            connected_at: row.try_get(6)?,
            seen_at: row.try_get(7)?,
            sent: row.try_get(8)?,
            accepted: row.try_get(9)?,
            refused: row.try_get(10)?,
            fault: row.try_get(11)?,
            chosen_by: numbers_of(row.try_get(12)?),
            reports: row.try_get::<i64, _>(13)? != 0,
            origin: row.try_get(14)?,
            ..Self::default()
        })
    }
}
