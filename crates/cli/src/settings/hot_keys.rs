//! Settings for counting the hottest keys.

use std::num::NonZeroU32;

use clap::Args;

use super::fault::Faults;
use super::flag::BOOL;
use super::value;

/// Maximum of `sample`: with fewer samples, the counts of a minute would be too small to be useful.
const SAMPLE_MAX: usize = 10_000;

/// How the hottest keys are counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HotKeys {
    /// On average one decision in this many is counted.
    pub sample: NonZeroU32,
    /// Whether to keep the text of the entries too, besides the key's hash.
    pub values: bool,
}

#[derive(Debug, Args)]
#[command(next_help_heading = "Hot keys")]
pub(super) struct HotKeysFlags {
    /// Count the keys that are requested and denied most often, for the status and live pages
    #[arg(long, env = "HOT_KEYS", value_name = BOOL, default_value = "true")]
    hot_keys: String,
    /// Count one decision in so many, on average
    #[arg(long, env = "HOT_KEYS_SAMPLE", value_name = "COUNT", default_value = "4")]
    hot_keys_sample: String,
    /// Show the entries of the hottest keys, clients' values and all, not only their hashes
    #[arg(long, env = "HOT_KEYS_VALUES", value_name = BOOL, default_value = "false")]
    hot_keys_values: String,
}

// === impl HotKeysFlags ===

impl HotKeysFlags {
    /// Resolves the flags. `Some(None)` turns the counting off.
    pub(super) fn resolve(&self, faults: &mut Faults) -> Option<Option<HotKeys>> {
        let on = faults.parse("HOT_KEYS", &self.hot_keys, value::boolean);
        let sample = value::count_within(1..=SAMPLE_MAX, "4");
        let sample = faults.parse("HOT_KEYS_SAMPLE", &self.hot_keys_sample, sample);
        let values = faults.parse("HOT_KEYS_VALUES", &self.hot_keys_values, value::boolean);
        let sample = NonZeroU32::new(u32::try_from(sample?).ok()?)?;
        let options = HotKeys { sample, values: values? };
        Some(on?.then_some(options))
    }
}
