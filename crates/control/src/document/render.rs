//! Writes a document as the text of a rule file, and notes which field each line is from.

use std::collections::HashMap;
use std::fmt::Write;

use ratelease_rules::alters_display;
use serde_json::{Map, Value};

use super::{Document, Entry};

/// The order in which the fields of `rate_limit` are written; others follow by name.
const LIMIT_FIELDS: [&str; 6] =
    ["unit", "unit_multiplier", "time_zone", "anchor", "requests_per_unit", "algorithm"];

/// Text above this length is not written: a rule file may have 16 MiB.
const TEXT_BYTES_MAX: usize = 16 << 20;

/// The text of a rule file.
#[derive(Debug)]
pub struct Rendered {
    /// The text.
    pub text: String,
    /// The origin of each line, in order.
    lines: Vec<Line>,
}

/// Which field a line is from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Line {
    /// The index of the record, if it is from one.
    pub record: Option<usize>,
    /// The field, as in `rate_limit.unit`.
    pub field: String,
}

/// A node of the tree that the records describe.
#[derive(Debug)]
struct Node<'d> {
    entry: &'d Entry,
    /// The index of the first record that needs it.
    needed_by: usize,
    /// The index of its own record.
    record: Option<usize>,
    children: Vec<usize>,
}

/// Writes `document`. Its records have at most as many entries as
/// [`check_entries`](super::check_entries) allows.
pub fn render(document: &Document) -> Rendered {
    let mut writer = Writer { document, nodes: Vec::new(), text: String::new(), lines: Vec::new() };
    let top = writer.build_tree();
    writer.line(0, None, "domain", &scalar(&document.domain));
    if !document.defaults.is_empty() {
        writer.map(0, None, "defaults", "defaults", &document.defaults);
    }
    writer.descriptors(0, None, &top);
    Rendered { text: writer.text, lines: writer.lines }
}

struct Writer<'d> {
    document: &'d Document,
    nodes: Vec<Node<'d>>,
    text: String,
    lines: Vec<Line>,
}

// === impl Rendered ===

impl Rendered {
    /// The origin of a line, counted from 1.
    pub fn line(&self, number: u32) -> Option<&Line> {
        self.lines.get(usize::try_from(number).ok()?.checked_sub(1)?)
    }
}

// === impl Writer ===

impl<'d> Writer<'d> {
    /// Makes the nodes, and returns those of the first level.
    fn build_tree(&mut self) -> Vec<usize> {
        let mut top = Vec::new();
        let mut known: HashMap<(Option<usize>, &'d Entry), usize> = HashMap::new();
        for (at, record) in self.document.records.iter().enumerate() {
            let mut parent = None;
            for (depth, entry) in record.entries.iter().enumerate() {
                let is_last = depth + 1 == record.entries.len();
                let found = known.get(&(parent, entry)).copied();
                // A second record of one address becomes a node of its own, which the compiler
                // reports.
                let found = found.filter(|it| !(is_last && self.nodes[*it].record.is_some()));
                let node = found.unwrap_or_else(|| {
                    let node = self.nodes.len();
                    let record = None;
                    self.nodes.push(Node { entry, needed_by: at, record, children: Vec::new() });
                    match parent {
                        Some(parent) => self.nodes[parent].children.push(node),
                        None => top.push(node),
                    }
                    known.insert((parent, entry), node);
                    node
                });
                if is_last {
                    self.nodes[node].record = Some(at);
                }
                parent = Some(node);
            }
        }
        top
    }

    fn descriptors(&mut self, indent: usize, record: Option<usize>, nodes: &[usize]) {
        if nodes.is_empty() {
            return;
        }
        self.line(indent, record, "descriptors", "");
        for at in nodes {
            self.descriptor(indent + 2, *at);
        }
    }

    fn descriptor(&mut self, indent: usize, at: usize) {
        let Node { entry, needed_by, record, .. } = self.nodes[at];
        let origin = Some(record.unwrap_or(needed_by));
        let depth = indent / 4;
        let key = format!("entries[{depth}].key");
        self.push(indent, origin, key, format_args!("- key: {}", scalar(&entry.key)));
        let indent = indent + 2;
        if let Some(value) = &entry.value {
            let field = format!("entries[{depth}].value");
            self.push(indent, origin, field, format_args!("value: {}", scalar(value)));
        }
        if let Some(record) = record {
            let document = self.document;
            let mut settings: Vec<_> = document.records[record].settings.iter().collect();
            settings.sort_by_key(|(name, _)| (*name != "rate_limit", *name));
            for (name, value) in settings {
                match value {
                    Value::Null => {}
                    Value::Object(map) if name == "rate_limit" && !map.is_empty() => {
                        self.map(indent, Some(record), name, name, map);
                    }
                    value => self.line(indent, Some(record), name, &inline(value)),
                }
            }
        }
        let children = std::mem::take(&mut self.nodes[at].children);
        self.descriptors(indent, origin, &children);
    }

    /// Writes a map with a line for each of its fields.
    fn map(
        &mut self,
        indent: usize,
        record: Option<usize>,
        name: &str,
        path: &str,
        map: &Map<String, Value>,
    ) {
        self.line(indent, record, name, "");
        let rank = |field: &str| LIMIT_FIELDS.iter().position(|it| *it == field);
        let mut fields: Vec<_> = map.iter().filter(|(_, value)| !value.is_null()).collect();
        fields.sort_by_key(|(field, _)| (rank(field).unwrap_or(LIMIT_FIELDS.len()), *field));
        for (field, value) in fields {
            let text = format!("{}: {}", scalar(field), inline(value));
            self.push(indent + 2, record, format!("{path}.{field}"), format_args!("{text}"));
        }
    }

    fn line(&mut self, indent: usize, record: Option<usize>, name: &str, value: &str) {
        let space = if value.is_empty() { "" } else { " " };
        let text = format_args!("{}:{space}{value}", scalar(name)).to_string();
        self.push(indent, record, name.to_owned(), format_args!("{text}"));
    }

    fn push(
        &mut self,
        indent: usize,
        record: Option<usize>,
        field: String,
        text: std::fmt::Arguments<'_>,
    ) {
        if self.text.len() > TEXT_BYTES_MAX {
            return; // the compiler refuses texts of this length
        }
        // Writing to a string cannot fail.
        let _ = writeln!(self.text, "{:indent$}{text}", "");
        self.lines.push(Line { record, field });
    }
}

/// A text as YAML: as it is where that is surely text, else in quotes.
fn scalar(text: &str) -> String {
    let is_plain = text.starts_with(|first: char| first.is_ascii_alphabetic() || first == '/')
        && text.chars().all(|it| it.is_ascii_alphanumeric() || "_-./".contains(it))
        && !is_word(text);
    if is_plain { text.to_owned() } else { inline(&Value::from(text)) }
}

/// Whether the text may have a meaning of its own in YAML 1.1.
fn is_word(text: &str) -> bool {
    const WORDS: [&str; 9] = ["y", "n", "yes", "no", "true", "false", "on", "off", "null"];
    WORDS.iter().any(|word| text.eq_ignore_ascii_case(word))
}

/// A value on one line: JSON, which is YAML except for characters that YAML does not allow.
fn inline(value: &Value) -> String {
    let json = value.to_string();
    let mut text = String::with_capacity(json.len());
    for character in json.chars() {
        let code = u32::from(character);
        let is_odd = alters_display(character) || (code & 0xfffe) == 0xfffe;
        // Outside of strings JSON is printable ASCII, so that these are inside of one.
        let _ = match (is_odd, code > 0xffff) {
            (false, _) => write!(text, "{character}"),
            (true, false) => write!(text, "\\u{code:04x}"),
            (true, true) => write!(text, "\\U{code:08x}"),
        };
    }
    text
}
