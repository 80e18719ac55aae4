//! **Documents**: the rules of a domain as records, and as the text of a rule file. Pure.
//!
//! ```text
//! rule file ─▶ read ─▶ Document ─▶ render ─▶ rule file ─▶ check: the compiler of ratelease-rules
//!                        │   └─▶ difference, shadow
//!                        └─ address: the id of each rule
//! ```
//! A rule file is a tree; a record is one node of it, addressed by the entries that lead to it.
//! Nodes that only lead to others have no record. The order of records is that of the file, because
//! wildcards are tried in that order.

mod address;
mod check;
mod difference;
mod read;
mod render;
#[cfg(test)]
mod tests;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use utoipa::ToSchema;

pub use address::{Entry, EntryFault, RuleId, check_entries};
pub use check::{
    FieldFault, check_together, check_weights, compile, memory_for_rules, mib, need_at_most, weigh,
};
pub use difference::{Difference, RuleChange, difference, domain_of_shadow, shadow};
pub use read::{ReadFaults, read};
pub use render::{Rendered, render};

/// Maximum bytes of the fields of a rule that is written, which its history keeps twice.
pub const SETTINGS_BYTES_MAX: usize = 64 << 10;

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

// === impl Record ===

impl Record {
    /// The id of the rule in `domain`.
    pub fn id(&self, domain: &str) -> RuleId {
        RuleId::of(domain, &self.entries)
    }
}
