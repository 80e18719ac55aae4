//! The status of an object, as the API server keeps it.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::fault::{PlacedFault, bytes_of_faults};

/// Maximum bytes of a status that is read: more than any that is written here.
const STATUS_BYTES_MAX: usize = 64 << 10;

/// A status.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Status {
    /// The generation of the object that this is about.
    pub observed_generation: i64,
    /// The version of the control plane that has the rules of the domain; 0 for none.
    pub version: i64,
    /// The pods that get the domain.
    pub pods: PodCount,
    /// `Accepted`: whether the rules are published. `Programmed`: whether all pods have them.
    /// `Ready`: whether both are true. `Stalled`: whether the object has to change before its rules
    /// can be in force. kstatus looks at the last two.
    pub conditions: Vec<Condition>,
    /// The faults of the rules, at most 20.
    pub faults: Vec<PlacedFault>,
}

/// Pods that get a domain.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct PodCount {
    /// Pods that have the rules of the object as it is.
    pub current: usize,
    /// All pods that get the domain.
    pub connected: usize,
}

// === impl Status ===

impl Status {
    /// The status that an object has; an empty one if it has none that can be read.
    pub fn read(text: Option<&RawValue>) -> Self {
        let text = text.map(RawValue::get).filter(|it| it.len() <= STATUS_BYTES_MAX);
        text.and_then(|it| serde_json::from_str(it).ok()).unwrap_or_default()
    }

    /// Bytes that it keeps in memory, but for a fixed number.
    pub fn bytes(&self) -> usize {
        let texts =
            |it: &Condition| it.type_.len() + it.status.len() + it.reason.len() + it.message.len();
        self.conditions.iter().map(texts).sum::<usize>()
            + size_of_val(&*self.conditions)
            + bytes_of_faults(&self.faults)
    }

    /// Whether the statuses differ only in numbers of pods and in texts, and mean the same for the
    /// object.
    pub fn differs_in_numbers_alone(&self, other: &Self) -> bool {
        let meaning = |of: &Self| -> Vec<_> {
            let conditions = of.conditions.iter();
            conditions.map(|it| (it.status.clone(), it.reason.clone())).collect()
        };
        self.observed_generation == other.observed_generation
            && self.faults == other.faults
            && meaning(self) == meaning(other)
    }
}
