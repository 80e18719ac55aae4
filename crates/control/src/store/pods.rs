//! What pods run, as the replicas of the control plane that they are connected to report it.

use std::time::Duration;

use jiff::Timestamp;
use sqlx::Row;
use sqlx::any::AnyRow;

use super::{Store, StoreResult};

/// A stream that no replica has reported for so long is gone.
const GONE_AFTER: Duration = Duration::from_secs(30);

/// The stream of a pod for one type of resources.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PodRow {
    /// The replica that it is connected to.
    pub replica: String,
    /// The number of the stream and of the type in that replica.
    pub stream: i64,
    /// The id of its node.
    pub node: String,
    /// Its address.
    pub peer: String,
    /// The name of its program.
    pub agent: String,
    /// The type of resources.
    pub type_url: String,
    /// Since when, in milliseconds since the Unix epoch.
    pub connected_at: i64,
    /// When the replica reported it last, in milliseconds since the Unix epoch.
    pub seen_at: i64,
    /// The version that it was sent last; 0 for none.
    pub sent: i64,
    /// The version that it runs; 0 for none.
    pub accepted: i64,
    /// The version that it refused, if it refused the last one; else 0.
    pub refused: i64,
    /// Why.
    pub fault: String,
}

const COLUMNS: &str = "replica, stream, node, peer, agent, type, connected_at, seen_at, sent, \
                       accepted, refused, fault";

// === impl Store ===

impl Store {
    /// All streams that are open, by node.
    ///
    /// # Errors
    /// Fails if the database is not available.
    pub async fn pods(&self) -> StoreResult<Vec<PodRow>> {
        let sql = format!(
            "SELECT {COLUMNS} FROM pods WHERE seen_at > $1 ORDER BY node, peer, replica, stream"
        );
        let query = sqlx::query(sqlx::AssertSqlSafe(sql)).bind(gone_before());
        let rows = query.fetch_all(&self.pool).await?;
        rows.iter().map(PodRow::read).collect()
    }

    /// Makes what `replica` reports exactly these streams, and forgets those of replicas that are
    /// gone.
    ///
    /// # Errors
    /// Fails if the database is not available.
    pub async fn report_pods(&self, replica: &str, pods: &[PodRow]) -> StoreResult<()> {
        let mut tx = self.pool.begin().await?;
        let sql = "DELETE FROM pods WHERE replica = $1 OR seen_at <= $2";
        let query = sqlx::query(sql).bind(replica.to_owned()).bind(gone_before());
        query.execute(&mut *tx).await?;
        let sql = format!(
            "INSERT INTO pods ({COLUMNS}) \
             VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12)"
        );
        for pod in pods {
            let query = sqlx::query(sqlx::AssertSqlSafe(sql.clone()))
                .bind(replica.to_owned())
                .bind(pod.stream)
                .bind(pod.node.clone())
                .bind(pod.peer.clone())
                .bind(pod.agent.clone())
                .bind(pod.type_url.clone())
                .bind(pod.connected_at)
                .bind(Timestamp::now().as_millisecond())
                .bind(pod.sent)
                .bind(pod.accepted)
                .bind(pod.refused)
                .bind(pod.fault.clone());
            query.execute(&mut *tx).await?;
        }
        tx.commit().await?;
        Ok(())
    }
}

fn gone_before() -> i64 {
    let wait = i64::try_from(GONE_AFTER.as_millis()).unwrap_or(i64::MAX);
    Timestamp::now().as_millisecond() - wait
}

// === impl PodRow ===

impl PodRow {
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
        })
    }
}
