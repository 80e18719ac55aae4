//! Pages of rows that are bounded by bytes as well as by number: a row may have a megabyte.

use sqlx::any::AnyRow;
use sqlx::{Any, Executor, Row};

use super::StoreResult;
use super::write::{Cell, bound};

/// Maximum bytes of the texts of a page. Its first row is there whatever its size.
const PAGE_BYTES_MAX: i64 = 4 << 20;

/// Which rows a page has.
#[derive(Debug)]
pub(super) struct PageQuery<'q> {
    /// The columns, separated by commas.
    pub(super) columns: &'q str,
    /// The table and the condition.
    pub(super) from: String,
    /// The order, in which no two rows are equal.
    pub(super) order: &'q str,
    /// The columns whose texts may be long.
    pub(super) texts: &'q [&'q str],
    /// The parameters of the condition.
    pub(super) cells: Vec<Cell>,
    /// Maximum number of rows.
    pub(super) limit: usize,
}

// === impl PageQuery ===

impl PageQuery<'_> {
    /// The rows, and whether there are more.
    pub(super) async fn fetch<'e>(
        self,
        executor: impl Executor<'e, Database = Any>,
    ) -> StoreResult<(Vec<AnyRow>, bool)> {
        let Self { columns, from, order, texts, mut cells, limit } = self;
        // One more than wanted tells whether there is a next page.
        let limit = i64::try_from(limit).unwrap_or(i64::MAX);
        cells.extend([Cell::Int(limit.saturating_add(1)), Cell::Int(PAGE_BYTES_MAX)]);
        let (limit_at, bytes_at) = (cells.len() - 1, cells.len());
        let size = texts.iter().map(|text| format!("COALESCE(OCTET_LENGTH({text}), 0)"));
        let size = size.collect::<Vec<_>>().join(" + ");
        let sql = format!(
            "SELECT {columns}, row_count FROM (SELECT p.*, COUNT(*) OVER () AS row_count, \
             SUM(row_bytes) OVER (ORDER BY {order}) AS bytes_so_far FROM \
             (SELECT {columns}, {size} AS row_bytes FROM {from} ORDER BY {order} \
             LIMIT ${limit_at}) p) q WHERE bytes_so_far - row_bytes < ${bytes_at} ORDER BY {order}"
        );
        let mut rows = bound(&sql, cells).fetch_all(executor).await?;
        let count = columns.split(',').count();
        let found: i64 = rows.first().map_or(Ok(0), |row| row.try_get(count))?;
        let has_more = i64::try_from(rows.len()).unwrap_or(i64::MAX) < found || found > limit;
        rows.truncate(usize::try_from(limit).unwrap_or(usize::MAX));
        Ok((rows, has_more))
    }
}
