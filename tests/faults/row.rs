//! One row of the fault table: it is printed as a line for `scripts/faults`, and fails the test if
//! a promise is broken.

use std::ops::{Deref, DerefMut};
use std::time::Duration;

use serde_json::json;

use crate::stage::Scale;
use crate::support::table_row::TableRow;

/// Added to the maximum time of each recovery at small scale, since a busy machine stalls. A test
/// waits for a recovery for longer than both together.
const STALLED_MAX: Duration = Duration::from_secs(5);

/// A row under way, ended by [`Row::end`].
pub struct Row(TableRow);

// === impl Row ===

impl Row {
    /// `name` is that of the table, such as `R4`; `fault` is what is done; `promise` is what must
    /// hold.
    pub fn new(name: &str, fault: &str, promise: &str) -> Self {
        let line = json!({
            "row": name, "fault": fault, "errors": null, "admitted": null, "bound": null,
            "recovered_ms": null, "promise": promise, "ours": "",
        });
        Self(TableRow::new("FAULT", "ours", line))
    }

    /// Records errors at Envoy, or failed calls where there is no Envoy; any error breaks the
    /// promise.
    pub fn errors(&mut self, errors: u64) {
        self.line["errors"] = errors.into();
        self.holds(errors == 0, &format!("{errors} errors"));
    }

    /// Records the requests that passed on the key with the bound.
    pub fn admitted(&mut self, admitted: u64, bound: u64) {
        self.line["admitted"] = admitted.into();
        self.line["bound"] = bound.into();
        self.holds(admitted <= bound, &format!("{admitted} admitted, at most {bound} may be"));
    }

    /// Records the time from the end of the fault, or from the promise's own start, to recovery.
    pub fn recovered(&mut self, took: Duration, within: Duration) {
        let ms = |span: Duration| u64::try_from(span.as_millis()).expect("a span of a test");
        self.line["recovered_ms"] = ms(took).into();
        let within = within + Scale::of_env().pick(STALLED_MAX, Duration::ZERO);
        self.holds(took <= within, &format!("recovered in {took:.0?}, not {within:?}"));
    }

    /// Prints the row, and fails the test if a promise is broken.
    pub fn end(self) {
        Self::end_all(vec![self]);
    }

    /// Prints all rows, and then fails the test if a promise of one is broken.
    pub fn end_all(rows: Vec<Self>) {
        TableRow::end(rows.into_iter().map(|row| row.0).collect());
    }
}

impl Deref for Row {
    type Target = TableRow;

    fn deref(&self) -> &TableRow {
        &self.0
    }
}

impl DerefMut for Row {
    fn deref_mut(&mut self) -> &mut TableRow {
        &mut self.0
    }
}
