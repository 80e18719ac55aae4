//! One row of the fault table: it is printed as a line for `scripts/faults`, and fails the test if
//! a promise is broken.

use std::time::Duration;

use serde_json::{Value, json};

/// A row under way. [`Row::end`] prints it; a row that is dropped earlier, by a panic, is printed
/// as broken.
pub struct Row {
    line: Value,
    broken: Vec<String>,
    is_over: bool,
}

// === impl Row ===

impl Row {
    /// `name` is that of the table, such as `R4`; `fault` is what is done; `promise` is what must
    /// hold.
    pub fn new(name: &str, fault: &str, promise: &str) -> Self {
        let line = json!({
            "row": name, "fault": fault, "errors": null, "admitted": null, "bound": null,
            "recovered_ms": null, "promise": promise, "ours": "",
        });
        Self { line, broken: Vec::new(), is_over: false }
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
        self.holds(took <= within, &format!("recovered in {took:.0?}, not {within:?}"));
    }

    /// Adds another measurement to the row.
    pub fn note(&mut self, what: &str) {
        let before = self.line["ours"].as_str().expect("text").to_owned();
        let comma = if before.is_empty() { "" } else { "; " };
        self.line["ours"] = format!("{before}{comma}{what}").into();
    }

    /// Checks another part of the promise; `broken` describes the breach.
    pub fn holds(&mut self, holds: bool, broken: &str) {
        if !holds && !self.broken.iter().any(|reported| reported == broken) {
            self.broken.push(broken.to_owned());
        }
    }

    /// Prints the row, and fails the test if a promise is broken.
    pub fn end(self) {
        Self::end_all(vec![self]);
    }

    /// Prints all rows, and then fails the test if a promise of one is broken.
    pub fn end_all(mut rows: Vec<Self>) {
        rows.iter_mut().for_each(Self::print);
        let broken: Vec<_> = rows.iter().flat_map(|row| &row.broken).cloned().collect();
        assert!(broken.is_empty(), "{}", broken.join("; "));
    }

    fn print(&mut self) {
        self.is_over = true;
        self.line["broken"] = json!(self.broken);
        self.line["ok"] = self.broken.is_empty().into();
        println!("\nFAULT {}", self.line);
    }
}

impl Drop for Row {
    fn drop(&mut self) {
        if !self.is_over {
            self.broken.push("the test did not come to its end".to_owned());
            self.print();
        }
    }
}
