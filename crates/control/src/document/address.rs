//! The address of a rule: its domain and entries, and the id that they give it.

use std::fmt;

use serde::{Deserialize, Serialize};
use serde_json::json;
use utoipa::ToSchema;

/// Maximum number of entries of a rule. The parser of rule files refuses a nesting of more than 64
/// levels, and an entry takes two.
const ENTRIES_MAX: usize = 24;

/// Maximum bytes of a key or a value.
const TEXT_BYTES_MAX: usize = 8192;

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
    pub(crate) fn list_to_text(entries: &[Entry]) -> String {
        json!(entries).to_string()
    }
}
