//! **Rules**: what a rate limit request is, which rule limits it, and the name of its count.
//!
//! ```text
//! read_directory ─▶ Source ─▶ text ─▶ node ─▶ reader ─▶ file ─▶ compile ─▶ Rules (tree)
//!                             UTF-8   places   aliases   types   meaning    lookup
//! ```
//!
//! It may use the standard library and parsers. It knows no clock, no socket, no runtime and no
//! store: what it needs comes in as an argument, and files are read only where it is asked to
//! ([`read_directory`], [`read_path`]).
//!
//! Used by the engine, which decides by the rules, by the sidecar, and by the tools.
//!
//! # Modules, each of which names only those before it
//!
//! [`duration`] and [`steering`] read and judge text. [`attachment`], [`limit`], [`lease`] and
//! [`failure`] are the parts of a [`rule`]; [`request`] is what is matched, [`key`] the name of a
//! count. [`fault`] to [`mod@file`] read a rule file, [`tree`] is what they become, [`compile`]
//! puts it together and [`directory`] finds the files.

#![forbid(unsafe_code)]

mod attachment;
mod compile;
mod directory;
pub mod duration;
mod failure;
mod fault;
mod field;
mod file;
mod given;
mod handful;
pub mod key;
mod lease;
mod letters;
mod limit;
mod metadata;
mod nearest;
mod node;
mod places;
mod reader;
pub mod request;
mod rule;
mod rules;
mod scalar;
mod source;
mod stats;
pub mod steering;
#[cfg(test)]
mod tests;
mod text;
mod tree;
mod wildcard;
pub mod yaml;

pub use attachment::Attachment;
pub use compile::{Loaded, Options, load, load_with_places};
pub use directory::{ReadError, read_directory, read_from, read_path};
pub use failure::FailureMode;
pub use fault::{Fault, Faults, Place, excerpt};
pub use lease::{Leasing, Terms};
pub use limit::{
    Algorithm, FILL_SECONDS_MAX, Limit, MAX_DELAY_MAX, POOLS_MAX, SLIDING_LOG_MAX,
    SLIDING_WINDOW_MAX, Unit, WINDOW_SECONDS_MAX,
};
pub use nearest::nearest;
pub use places::{Places, Written};
pub use rule::{Allowance, Level, Matched, Rule};
pub use rules::{Lookup, Rules};
pub use source::Source;
pub use tree::{Candidate, Fit, Step, Trace};
