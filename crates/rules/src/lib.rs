//! **Rules**: what a rate limit request is, which rule limits it, and the name of its count.
//!
//! ```text
//! read_directory ─▶ Source ─▶ text ─▶ node ─▶ reader ─▶ file ─▶ compile ─▶ Rules (tree)
//!                             UTF-8   places   aliases   types   meaning    lookup
//!                                                          ▲ options, takes: the table
//! ```
//!
//! This crate uses only the standard library, a hash and parsers. It has no async runtime, reads no
//! clock and opens no socket; only [`read_directory`] and [`read_path`] read files.
//!
//! The engine uses it to decide requests; the sidecar and the tools use it too.
//!
//! # Modules
//!
//! Each module names only modules that come before it in `tests/it/tidy/layers.rs`. [`duration`]
//! parses durations, [`display_safety`] recognises characters that alter a display, and `memory`
//! counts what a load allocates. `options` is the table of everything that a rule file may say;
//! `takes` are the kinds of values. `limit` and `store` are the parts of a `rule`; [`request`] is
//! what is matched against rules, and [`key`] names a count. `source`, `text`, `node`, `reader` and
//! `file` read a rule file, `compile` compiles it to a `tree`, and `directory` finds the files.
//! [`schema()`] describes them. [`yaml`] reads other YAML files with the same parser.

#![forbid(unsafe_code)]

mod compile;
mod directory;
pub mod display_safety;
pub mod duration;
mod fault;
mod file;
pub mod key;
mod limit;
mod memory;
mod metadata;
mod node;
mod options;
mod reader;
pub mod request;
mod rule;
mod rules;
mod schema;
mod small_map;
mod source;
mod stats;
mod store;
mod takes;
#[cfg(test)]
mod tests;
mod text;
mod tree;
mod wildcard;
pub mod yaml;

pub use compile::{Loaded, Options, load, load_with_locations, load_within};
pub use directory::{Dotfiles, Endings, Found, ReadError, read_directory, read_from, read_path};
pub use fault::{Fault, Faults, Place, excerpt, nearest};
pub use limit::{
    Algorithm, FILL_SECONDS_MAX, FailureMode, LeaseTerms, Leasing, Limit, MAX_DELAY_MAX, POOLS_MAX,
    SLIDING_LOG_MAX, SLIDING_WINDOW_MAX, Unit, WINDOW_SECONDS_MAX,
};
pub use memory::MemoryUse;
pub use options::{FlagRow, Flags, MapKind, OptionRow};
pub use rule::{Allowance, Attachment, Level, LevelMatch, Rule, RuleOption};
pub use rules::{Lookup, Rules};
pub use schema::schema;
pub use source::{RuleLocations, Source, SourceLocation};
pub use store::{
    DEFAULT_STORE, DomainStores, STORE_NAME_BYTES_MAX, STORES_MAX, StoreId, StoreNames,
};
pub use tree::{Candidate, MatchKind, Step, Trace};
