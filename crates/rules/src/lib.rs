//! **Rules**: the rate limit requests, the rule that limits each, and the name of its count.
//!
//! ```text
//! read_directory ─▶ Source ─▶ node ─▶ reader ─▶ options ─▶ compile ─▶ Rules
//!                             YAML    aliases   types      meaning    lookup
//!                                               ▲ takes: kinds of values
//! ```
//!
//! This crate uses only the standard library, a hash, parsers and the time zones of the world. It
//! has no async runtime, reads no clock and opens no socket; only [`read_directory`] and
//! [`read_path`] read files.
//!
//! The engine uses it to decide requests; the sidecar and the tools use it too.
//!
//! # Modules
//!
//! `memory` counts the bytes that a load allocates, and `parts` compiles the changed sources of a
//! set. `options` is the table of everything that a rule file may say, and reads its maps; `takes`
//! are the kinds of values. `limit` and `store` are the parts of a `rule`; a [`request`] is matched
//! against `rules`, and [`key`] names a count; `fingerprint` tells whether two programs name them
//! alike. `node` and `reader` read a rule file, `compile` compiles it, and `directory` finds the
//! files. [`schema()`] describes them. [`yaml`] reads other YAML files with the same parser.
//! `names` makes enums whose values have names.

#![forbid(unsafe_code)]

mod compile;
mod directory;
mod fault;
mod fingerprint;
pub mod key;
mod limit;
mod memory;
mod names;
mod node;
mod options;
mod parts;
mod reader;
pub mod request;
mod rule;
mod rules;
mod schema;
mod small_map;
mod store;
mod takes;
#[cfg(test)]
mod tests;
mod wildcard;
pub mod yaml;

pub use compile::{
    Loaded, Options, RuleLocations, Source, SourceLocation, Weight, load, load_with_locations,
    load_within,
};
pub use directory::{Dotfiles, Endings, Found, ReadError, read_directory, read_from, read_path};
pub use fault::{Fault, Faults, Place, alters_display, excerpt, nearest};
pub use limit::{
    AMOUNT_MAX, Algorithm, Burst, Calendar, FILL_SECONDS_MAX, FailureMode, Hold, LeaseTerms,
    Leasing, Limit, MAX_DELAY_MAX, POOLS_MAX, Unit, UnlessSettled, WINDOW_SECONDS_MAX,
};
pub use memory::{LoadBounds, MemoryUse, Pace};
pub use options::{FlagRow, Flags, MapKind, OptionRow};
pub use parts::Parts;
pub use rule::{Allowance, Attachment, Level, LevelMatch, Rule, RuleOption};
pub use rules::{
    CANDIDATE_SUFFIX, Candidate, Charged, Lookup, MatchKind, Rules, SETTLE_KEY, Step, Trace,
    candidate_of, domain_of_candidate,
};
pub use schema::schema;
pub use store::{
    DEFAULT_STORE, DomainStores, STORE_NAME_BYTES_MAX, STORES_MAX, StoreId, StoreNames,
};
pub use takes::parse_duration;
