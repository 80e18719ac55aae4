//! The ceilings of drafts. A token that may write could otherwise fill the database, and the memory
//! of the process that reads drafts.

use sqlx::{AssertSqlSafe, Row};

use super::versions::places;
use super::write::{Cell, bound};
use super::{StoreError, StoreResult, Write};

/// Maximum number of rules of the draft of a domain, which is what a pod loads of one, and of the
/// bytes of their entries and settings.
const DOMAIN_RULES_MAX: i64 = 500_000;
const DOMAIN_BYTES_MAX: i64 = 32 << 20;

/// The same for all drafts together. All domains of a token that is for some domains have together
/// what one domain may have, so that a tenant leaves three quarters to the others.
const RULES_MAX: i64 = 4 * DOMAIN_RULES_MAX;
const BYTES_MAX: i64 = 4 * DOMAIN_BYTES_MAX;

/// Maximum number of domains.
const DOMAINS_MAX: i64 = 10_000;

/// The number of rules of the draft of a row of `domains`, and their bytes. A release that does not
/// keep them may change the draft meanwhile, while replicas are replaced one by one.
pub(super) const DRAFT_RULES: &str = "CASE WHEN sized = changed THEN rules ELSE \
     (SELECT COUNT(*) FROM rules r WHERE r.domain = domains.name) END";
const DRAFT_BYTES: &str = "CASE WHEN sized = changed THEN bytes ELSE \
     (SELECT COALESCE(SUM(OCTET_LENGTH(r.entries) + OCTET_LENGTH(r.settings)), 0) \
     FROM rules r WHERE r.domain = domains.name) END";

/// The number of domains of a condition, of their rules and of the bytes of these. A domain of
/// which all was removed keeps its row and its history, and is not counted.
fn sizes(condition: &str) -> String {
    format!(
        "SELECT COUNT(CASE WHEN rules > 0 OR hash IS NOT NULL THEN 1 END), \
         CAST(COALESCE(SUM(rules), 0) AS BIGINT), CAST(COALESCE(SUM(bytes), 0) AS BIGINT) \
         FROM (SELECT hash, {DRAFT_RULES} AS rules, {DRAFT_BYTES} AS bytes FROM domains \
         {condition}) sizes"
    )
}

// === impl Write ===

impl Write {
    /// Notes that the draft of a domain will have so many more rules and bytes, or fewer. The
    /// caller changes its rules after this.
    ///
    /// # Errors
    /// [`StoreError::TooLarge`] if it grows above a ceiling. One that is too large may shrink.
    pub(super) async fn resize(&mut self, domain: &str, rules: i64, bytes: i64) -> StoreResult<()> {
        let sql = format!(
            "UPDATE domains SET rules = {DRAFT_RULES} + $1, bytes = {DRAFT_BYTES} + $2, \
             sized = changed WHERE name = $3 RETURNING rules, bytes"
        );
        let query = sqlx::query(AssertSqlSafe(sql)).bind(rules).bind(bytes).bind(domain.to_owned());
        let row = query.fetch_one(&mut *self.tx).await?;
        if rules <= 0 && bytes <= 0 {
            return Ok(());
        }
        let shown = ratelease_rules::excerpt(domain);
        let of_domain = format!("the draft of '{shown}'");
        within(&of_domain, "rules", row.try_get(0)?, DOMAIN_RULES_MAX)?;
        within(&of_domain, "bytes", row.try_get(1)?, DOMAIN_BYTES_MAX)?;
        if let Some(own) = self.kept.domains.clone() {
            let sql = sizes(&format!("WHERE name IN ({})", places(1, own.len())));
            let cells = own.into_iter().map(Cell::Text).collect();
            let row = bound(&sql, cells).fetch_one(&mut *self.tx).await?;
            let own = "the drafts of the token's domains together";
            within(own, "rules", row.try_get(1)?, DOMAIN_RULES_MAX)?;
            within(own, "bytes", row.try_get(2)?, DOMAIN_BYTES_MAX)?;
        }
        let row = sqlx::query(AssertSqlSafe(sizes(""))).fetch_one(&mut *self.tx).await?;
        let all = "all drafts together";
        within(all, "domains", row.try_get(0)?, DOMAINS_MAX)?;
        within(all, "rules", row.try_get(1)?, RULES_MAX)?;
        within(all, "bytes", row.try_get(2)?, BYTES_MAX)
    }
}

fn within(what: &str, unit: &str, found: i64, max: i64) -> StoreResult<()> {
    if found <= max {
        return Ok(());
    }
    Err(StoreError::TooLarge(format!("{what} would have {found} {unit}; expected at most {max}")))
}
