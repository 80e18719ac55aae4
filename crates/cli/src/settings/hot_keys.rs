//! Settings for counting the hottest keys.

use std::num::NonZeroU32;

use super::fault::Faults;
use super::group::Flags;
use super::table::{Setting, setting, settings, switch};
use super::value;

/// Maximum of `sample`: with fewer samples, the counts of a minute would be too small to be useful.
const SAMPLE_MAX: NonZeroU32 = NonZeroU32::new(10_000).unwrap();

/// How the hottest keys are counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HotKeys {
    /// On average one decision in this many is counted.
    pub sample: NonZeroU32,
    /// Whether to keep the text of the entries too, besides the key's hash.
    pub values: bool,
}

settings! {
    /// Settings for counting the hottest keys.
    pub(super) group HotKeysTable("Hot keys");

    /// Count the keys that are requested and denied most often, for /status, /hotkeys and /live
    HOT_KEYS: Setting<bool> = switch(true);
    /// On average, count one decision in this many
    HOT_KEYS_SAMPLE: Setting<NonZeroU32> =
        setting("COUNT", "4", |text| value::count_within(text, NonZeroU32::MIN..=SAMPLE_MAX));
    /// Show the entries of the hottest keys, which contain clients' values, not only their hashes
    HOT_KEYS_VALUES: Setting<bool> = switch(false);
}

/// Flags for counting the hottest keys.
pub(super) type HotKeysFlags = Flags<HotKeysTable>;

// === impl HotKeysFlags ===

impl HotKeysFlags {
    /// Resolves the flags. `Some(None)` turns the counting off.
    pub(super) fn resolve(&self, faults: &mut Faults) -> Option<Option<HotKeys>> {
        let on = self.get(&HOT_KEYS, faults);
        let sample = self.get(&HOT_KEYS_SAMPLE, faults);
        let values = self.get(&HOT_KEYS_VALUES, faults);
        let options = HotKeys { sample: sample?, values: values? };
        Some(on?.then_some(options))
    }
}
