//! A row of a table of tests: it is printed as a line of JSON, for the script that makes the table,
//! and fails the test if a bound is broken.

use serde_json::{Value, json};

/// A row under way. [`TableRow::end`] prints it; a row that is dropped earlier, by a panic, is
/// printed as broken.
pub struct TableRow {
    /// The cells, by their names.
    pub line: Value,
    /// The word that its line begins with.
    tag: &'static str,
    /// The name of the cell for further measurements.
    notes: &'static str,
    broken: Vec<String>,
    is_over: bool,
}

// === impl TableRow ===

impl TableRow {
    /// `line` has a text named `notes`.
    pub fn new(tag: &'static str, notes: &'static str, line: Value) -> Self {
        Self { line, tag, notes, broken: Vec::new(), is_over: false }
    }

    /// Adds another measurement to the row.
    pub fn note(&mut self, what: &str) {
        let before = self.line[self.notes].as_str().expect("text").to_owned();
        let comma = if before.is_empty() { "" } else { "; " };
        self.line[self.notes] = format!("{before}{comma}{what}").into();
    }

    /// Checks another bound; `broken` describes the breach.
    pub fn holds(&mut self, holds: bool, broken: &str) {
        if !holds && !self.broken.iter().any(|reported| reported == broken) {
            self.broken.push(broken.to_owned());
        }
    }

    /// Prints all rows, and then fails the test if a bound of one is broken.
    pub fn end(mut rows: Vec<Self>) {
        rows.iter_mut().for_each(Self::print);
        let broken: Vec<_> = rows.iter().flat_map(|row| &row.broken).cloned().collect();
        assert!(broken.is_empty(), "{}", broken.join("; "));
    }

    fn print(&mut self) {
        self.is_over = true;
        self.line["broken"] = json!(self.broken);
        self.line["ok"] = self.broken.is_empty().into();
        println!("\n{} {}", self.tag, self.line);
    }
}

impl Drop for TableRow {
    fn drop(&mut self) {
        if !self.is_over {
            self.broken.push("the test did not come to its end".to_owned());
            self.print();
        }
    }
}
