//! One row of the fault table as it comes out: printed as a line for `scripts/faults`, and the test
//! fails if a promise is broken.

use std::time::Duration;

use serde_json::{Value, json};

/// A row under way. [`Row::end`] prints it; one that is dropped before, by a panic, is printed as
/// broken.
pub struct Row {
    line: Value,
    broken: Vec<String>,
    is_over: bool,
}

// === impl Row ===

impl Row {
    /// `name` as in the table, such as `R4`; what is done; what must hold.
    pub fn new(name: &str, fault: &str, promise: &str) -> Self {
        let line = json!({
            "row": name, "fault": fault, "errors": null, "admitted": null, "bound": null,
            "recovered_ms": null, "promise": promise, "ours": "",
        });
        Self { line, broken: Vec::new(), is_over: false }
    }

    /// Errors seen by Envoy, or calls that failed where no Envoy stands: there are to be none.
    pub fn errors(&mut self, errors: u64) {
        self.line["errors"] = errors.into();
        self.holds(errors == 0, &format!("{errors} errors"));
    }

    /// Requests that passed on the key whose bound it is.
    pub fn admitted(&mut self, admitted: u64, bound: u64) {
        self.line["admitted"] = admitted.into();
        self.line["bound"] = bound.into();
        self.holds(admitted <= bound, &format!("{admitted} admitted, at most {bound} may be"));
    }

    /// From the end of the fault, or what the promise counts from, until all is well.
    pub fn recovered(&mut self, took: Duration, within: Duration) {
        let ms = |span: Duration| u64::try_from(span.as_millis()).expect("a span of a test");
        self.line["recovered_ms"] = ms(took).into();
        self.holds(took <= within, &format!("recovered in {took:.0?}, not {within:?}"));
    }

    /// Tells what was measured beside that.
    pub fn note(&mut self, what: &str) {
        let before = self.line["ours"].as_str().expect("text").to_owned();
        let comma = if before.is_empty() { "" } else { "; " };
        self.line["ours"] = format!("{before}{comma}{what}").into();
    }

    /// Another part of the promise; `broken` says how it is broken, if it is.
    pub fn holds(&mut self, holds: bool, broken: &str) {
        if !holds && !self.broken.iter().any(|told| told == broken) {
            self.broken.push(broken.to_owned());
        }
    }

    /// Prints the row, and fails the test if a promise is broken.
    pub fn end(self) {
        Self::end_all(vec![self]);
    }

    /// Prints them all, and then fails the test if a promise of one is broken.
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
