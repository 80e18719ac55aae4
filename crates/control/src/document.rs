//! **Documents**: the rules of a domain as records, and as the text of a rule file. Pure.
//!
//! ```text
//! rule file ─▶ read ─▶ Document ─▶ render ─▶ rule file ─▶ check: the compiler of ratelease-rules
//!                            └─▶ difference, shadow
//! ```
//! A rule file is a tree; a record is one node of it, addressed by the entries that lead to it. A
//! rule's id is a hash of its domain and entries. Nodes that only lead to others have no record.
//! The order of records is that of the file, because wildcards are tried in that order.

mod check;
mod content;
mod difference;
mod render;
#[cfg(test)]
mod tests;

use std::fmt;

use ratelease_rules::yaml::{self, Yaml, YamlKind};
use ratelease_rules::{Faults, MapKind, OptionRow, Options, Source, load, load_within};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use utoipa::ToSchema;

use self::check::PATH_BYTES_MAX;
pub use check::{
    FieldFault, check_sizes, check_together, compile, memory_for_rules, mib, need_at_most, weigh,
};
pub use content::Content;
pub use difference::{Difference, RuleChange, difference, longest_window, shadow};
pub use render::render;

/// Maximum bytes of the fields of a rule that is written, which its history keeps twice.
pub const SETTINGS_BYTES_MAX: usize = 64 << 10;

/// Maximum number of entries of a rule. The parser of rule files refuses a nesting of more than 64
/// levels, and an entry takes two.
const ENTRIES_MAX: usize = 24;

/// Maximum bytes of a key or a value.
pub const TEXT_BYTES_MAX: usize = 8192;

/// The rules of one domain, in the order of its rule file.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Document {
    /// The domain.
    pub domain: String,
    /// The `defaults` of the rule file.
    pub defaults: Map<String, Value>,
    /// The rules.
    pub records: Vec<Record>,
}

/// One rule of a domain: an address, and all that a rule file may say of it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Record {
    /// The entries that lead to it, the first one at the top of the file.
    pub entries: Vec<Entry>,
    /// `rate_limit`, `shadow_mode` and the other fields of a descriptor.
    #[serde(flatten)]
    pub settings: Map<String, Value>,
}

/// One step from the top of a rule file to a rule.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Entry {
    /// The key of the descriptor's entry.
    pub key: String,
    /// Its value; `*` stands for any text. Without one, every value matches, and each counts apart.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub value: Option<String>,
}

/// The id of a rule: a UUID (version 8, RFC 9562) that is a hash of domain and entries. A rule that
/// is removed and added again therefore has its id and its history again.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, ToSchema)]
#[serde(transparent)]
pub struct RuleId(String);

/// What is wrong with an address, and at which field.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EntryFault {
    /// The field, as in `entries[1].key`.
    pub field: String,
    /// What is wrong, and what was expected.
    pub message: String,
}

// === impl Record ===

impl Record {
    /// The id of the rule in `domain`.
    pub fn id(&self, domain: &str) -> RuleId {
        RuleId::of(domain, &self.entries)
    }
}

// === impl RuleId ===

impl RuleId {
    /// The id of the rule at this address. `entries` must have passed [`check_entries`].
    pub fn of(domain: &str, entries: &[Entry]) -> Self {
        let mut hasher = blake3::Hasher::new_derive_key("ratelease 2026-11 id of a rule");
        let mut write = |text: &str| {
            hasher.update(&(text.len() as u64).to_le_bytes());
            hasher.update(text.as_bytes());
        };
        write(domain);
        for entry in entries {
            write(&entry.key);
            // A value is never empty, so the two cases differ.
            write(entry.value.as_deref().unwrap_or_default());
        }
        let mut bytes = [0; 16];
        bytes.copy_from_slice(&hasher.finalize().as_bytes()[..16]);
        let number = u128::from_be_bytes(bytes);
        let version = 0xf_u128 << 76;
        let variant = 0b11_u128 << 62;
        let number = number & !version & !variant | (8 << 76) | (0b10 << 62);
        let hex = format!("{number:032x}");
        let (a, rest) = hex.split_at(8);
        let (b, rest) = rest.split_at(4);
        let (c, rest) = rest.split_at(4);
        let (d, e) = rest.split_at(4);
        Self(format!("{a}-{b}-{c}-{d}-{e}"))
    }

    /// The id as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for RuleId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Takes an id that the database holds, or that a request names.
impl From<String> for RuleId {
    fn from(text: String) -> Self {
        Self(text)
    }
}

// === impl Entry ===

impl Entry {
    /// An entry without a value if that is empty.
    pub fn new(key: impl Into<String>, value: impl Into<String>) -> Self {
        Self { key: key.into(), value: Some(value.into()).filter(|value| !value.is_empty()) }
    }

    /// Entries as the database stores and compares them.
    pub fn list_to_text(entries: &[Entry]) -> String {
        json!(entries).to_string()
    }
}

/// Brings entries into the one form that they are compared in (an empty value is none), and checks
/// their sizes.
///
/// # Errors
/// Every fault: no entries, or more than 24; a key that is empty; a key or value above 8 KiB.
pub fn check_entries(entries: &mut [Entry]) -> Result<(), Vec<EntryFault>> {
    let mut faults = Vec::new();
    let mut fault = |field: String, message: String| faults.push(EntryFault { field, message });
    match entries.len() {
        0 => fault(
            "entries".into(),
            "no entries; expected at least one, as in [{\"key\": …}]".into(),
        ),
        1..=ENTRIES_MAX => {}
        n => fault("entries".into(), format!("{n} entries; expected at most {ENTRIES_MAX}")),
    }
    for (at, entry) in entries.iter_mut().enumerate() {
        entry.value = entry.value.take().filter(|value| !value.is_empty());
        if entry.key.is_empty() {
            fault(format!("entries[{at}].key"), "an empty key; expected a name".into());
        }
        let value = entry.value.as_deref().unwrap_or_default();
        for (name, text) in [("key", &*entry.key), ("value", value)] {
            if text.len() > TEXT_BYTES_MAX {
                let message = format!("{} bytes; expected at most {TEXT_BYTES_MAX}", text.len());
                fault(format!("entries[{at}].{name}"), message);
            }
            if text.contains('\0') {
                let message = "a NUL character, which the database cannot store; remove it";
                fault(format!("entries[{at}].{name}"), message.into());
            }
        }
    }
    if faults.is_empty() { Ok(()) } else { Err(faults) }
}

// What the compiler and its schema say of rule files, for rules that are pushed to pods.

/// The field that names a store of a pod, which rules from xDS cannot: no control plane knows these.
const STORE: &str = "store";

/// The schema of rule files, without what the control plane refuses.
pub fn schema() -> Value {
    let mut schema = ratelease_rules::schema();
    if let Some(properties) = schema["properties"].as_object_mut() {
        properties.remove(STORE);
    }
    let maps = schema["definitions"].as_object_mut().into_iter().flatten();
    for properties in maps.filter_map(|(_, map)| map["properties"].as_object_mut()) {
        properties.remove(STORE);
    }
    schema
}

/// What the compiler says of a rule file, but for stores: it does not know why there are none.
pub fn without_store(message: &str) -> String {
    match message.starts_with("unknown store ") {
        true => {
            "rules that are pushed to pods cannot name a store; remove it, or have the rule in \
                 a file of the pods that have the store"
                .to_owned()
        }
        false => message.to_owned(),
    }
}

/// What the compiler says of rules that are in no file, and of values that have no quotes.
pub fn without_file(message: &str) -> String {
    let message = message.strip_prefix("error loading config file: ").unwrap_or(message);
    let message = message.replacen(", without quotes", "", 1).replacen(" without quotes", "", 1);
    without_store(&message)
}

// Reads a rule file to a document. The compiler checks the file first, so that what is left to read
// has no fault.

/// Why a rule file cannot be read.
#[derive(Debug, Clone, PartialEq)]
pub enum ReadFaults {
    /// The compiler refuses it.
    Compiler(Faults),
    /// A document cannot hold it: the file, and what is wrong.
    Document(String, String),
}

/// Reads rule files, in order of their names, each of which is one domain.
///
/// # Errors
/// All faults that the compiler finds, or the first thing that a document cannot hold.
pub fn read(sources: &[Source]) -> Result<Vec<Document>, ReadFaults> {
    load(sources, Options::default()).map_err(ReadFaults::Compiler)?;
    sources.iter().map(read_one).collect()
}

/// Reads rule files that others sent, each of which a pod loads with so many bytes of `memory`. What is
/// read takes five times that, so that a file which no pod would load is not read at all.
///
/// # Errors
/// As [`read`], and the first file whose rules need more.
pub fn read_within(sources: &[Source], memory: usize) -> Result<Vec<Document>, ReadFaults> {
    for source in sources {
        match load_within(&[source], Options::default(), memory) {
            Err(faults) if faults.exceeds_memory() => {
                let message = format!(
                    "a pod needs more than {} of memory for its rules, which is all that it has \
                     by --pod-memory. Remove rules, or give pods more memory",
                    mib(memory)
                );
                return Err(ReadFaults::Document(source.name.clone(), message));
            }
            // Several files are compiled together too, which finds all their faults.
            loaded if sources.len() == 1 => {
                loaded.map_err(ReadFaults::Compiler)?;
                return Ok(vec![read_one(source)?]);
            }
            _ => {}
        }
    }
    read(sources)
}

/// The domain that a rule file names, whatever else is wrong with it; `None` if it names none, or if it
/// is no YAML.
pub fn domain_of(source: &Source) -> Option<String> {
    let root = yaml::read(source).ok()??;
    let (_, domain) = root.fields().find(|(name, _)| *name == "domain")?;
    domain.text().map(str::to_owned)
}

fn read_one(source: &Source) -> Result<Document, ReadFaults> {
    let root = yaml::read(source).map_err(ReadFaults::Compiler)?;
    let mut document = Document::default();
    let mut list = None;
    for (name, value) in root.iter().flat_map(Yaml::fields) {
        match name {
            "domain" => document.domain = value.text().unwrap_or_default().to_owned(),
            "defaults" => merge(&mut document.defaults, typed(value)),
            "descriptors" => list = Some(value),
            // A name that the compiler does not know has been refused.
            other => {
                let message = format!("'{other}' cannot stand beside 'domain' here; remove it");
                return Err(ReadFaults::Document(source.name.clone(), message));
            }
        }
    }
    if let Some(list) = list {
        let mut walk = Walk::default();
        walk.add(list).map_err(|message| ReadFaults::Document(source.name.clone(), message))?;
        document.records = walk.records;
    }
    Ok(document)
}

/// The records of a list of descriptors. Each record has a copy of all entries above it, so their
/// sizes are checked before they are copied: a short file can ask for gigabytes.
#[derive(Default)]
struct Walk {
    /// The entries above the present list.
    path: Vec<Entry>,
    /// Bytes of all paths that were copied.
    path_bytes: usize,
    records: Vec<Record>,
}

// === impl Walk ===

impl Walk {
    /// Adds the records of a list of descriptors. The parser bounds the depth.
    fn add(&mut self, list: &Yaml) -> Result<(), String> {
        for item in list.items() {
            let mut key = "";
            let mut value = "";
            let mut below = None;
            let mut settings = Map::new();
            for (name, field) in item.fields() {
                match name {
                    "key" => key = field.text().unwrap_or_default(),
                    "value" => value = field.text().unwrap_or_default(),
                    "descriptors" => below = Some(field),
                    // All that the compiler knows, even if it warns that it has no effect here.
                    name => set(&mut settings, name, field),
                }
            }
            self.path.push(Entry::new(key, value));
            // What is wrong with a path is wrong with all below it.
            check_entries(&mut self.path).map_err(|faults| {
                let fault = faults.first().map(|it| format!("{}: {}", it.field, it.message));
                fault.unwrap_or_default()
            })?;
            self.add_item(settings, below)?;
            self.path.pop();
        }
        Ok(())
    }

    /// Adds the records of a descriptor, which the path leads to.
    fn add_item(
        &mut self,
        settings: Map<String, Value>,
        below: Option<&Yaml>,
    ) -> Result<(), String> {
        let Some(below) = below else {
            // Without a limit it shields its requests from the wildcards beside it.
            return self.add_record(settings);
        };
        let before = self.records.len();
        if !settings.is_empty() {
            self.add_record(settings)?;
        }
        self.add(below)?;
        match self.records.len() == before {
            true => self.add_record(Map::new()),
            false => Ok(()),
        }
    }

    fn add_record(&mut self, settings: Map<String, Value>) -> Result<(), String> {
        let bytes = |entry: &Entry| entry.key.len() + entry.value.as_deref().map_or(0, str::len);
        self.path_bytes += self.path.iter().map(bytes).sum::<usize>();
        if self.path_bytes > PATH_BYTES_MAX {
            return Err(format!(
                "the keys and values that lead to its rules have more than {PATH_BYTES_MAX} bytes \
                 together, counted for each rule; shorten keys above many rules"
            ));
        }
        self.records.push(Record { entries: self.path.clone(), settings });
        Ok(())
    }
}

/// Sets a field of a descriptor. As in rule files, null removes it and a map adds to a former one.
fn set(settings: &mut Map<String, Value>, name: &str, field: &Yaml) {
    let value = if name == "metadata" { field.json() } else { typed(field) };
    match (settings.get_mut(name), value) {
        (_, Value::Null) => {
            settings.remove(name);
        }
        (Some(Value::Object(former)), Value::Object(more)) => former.extend(more),
        (_, value) => {
            settings.insert(name.to_owned(), value);
        }
    }
}

/// The value of a field other than metadata, whose maps hold fields of rule files.
fn typed(value: &Yaml) -> Value {
    match &value.kind {
        YamlKind::Map(_) => {
            let mut map = Map::new();
            for (name, field) in value.fields() {
                match field.text().filter(|_| is_text(name)) {
                    Some(text) => merge(&mut map, [(name, text)].into_iter().collect()),
                    None => set(&mut map, name, field),
                }
            }
            Value::Object(map)
        }
        YamlKind::List(items) => items.iter().map(typed).collect(),
        _ => value.json(),
    }
}

/// Whether options of this name are text whatever they look like, as in `name: 007`.
fn is_text(name: &str) -> bool {
    let option = MapKind::ALL.into_iter().find_map(|map| map.option(name));
    option.is_some_and(OptionRow::is_text)
}

fn merge(map: &mut Map<String, Value>, more: Value) {
    match more {
        Value::Object(more) => map.extend(more),
        _ => map.clear(),
    }
}
