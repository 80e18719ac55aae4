//! What a request says of a rollout.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::problem::{FieldFault, Problem};
use crate::store::{Bound, Choice, LABEL_BYTES_MAX, Stage};

/// Hits from which on a bound counts, if the request names no number.
const HITS_MIN: i64 = 100;

/// A rollout that is to begin.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct RolloutInput {
    /// These domains; by default those with changes that the token may use.
    pub(super) domains: Option<Vec<String>>,
    /// Which pods run the draft.
    pub(super) pods: PodsInput,
    /// The first stage.
    #[serde(default)]
    pub(super) stage: OpenStage,
    /// When to roll back without being asked.
    pub(super) bound: Option<BoundInput>,
}

/// Which pods are chosen: exactly one of these.
#[derive(Debug, Deserialize, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct PodsInput {
    /// So many of a hundred, 1 to 100, by a hash of the rollout and the node's id.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1, maximum = 100)]
    pub(super) percent: Option<i64>,
    /// Those whose nodes have this in their metadata.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) label: Option<LabelInput>,
}

/// A key of the metadata of nodes, and its value.
#[derive(Debug, Deserialize, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct LabelInput {
    /// The key.
    pub(super) key: String,
    /// The value, which is text.
    pub(super) value: String,
}

/// When a rollout is rolled back: once the chosen pods denied a larger share of the hits of a
/// domain in the last 30 s.
#[derive(Debug, Deserialize, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct BoundInput {
    /// The largest share that may be denied, 0 to 1.
    #[schema(minimum = 0, maximum = 1)]
    pub(super) denied_share: f64,
    /// Hits of a domain in these 30 s below which its share does not count, from 1; 100 by default.
    #[serde(default = "hits_min")]
    #[schema(minimum = 1)]
    pub(super) hits_min: i64,
}

/// A stage in which pods run different rules.
#[derive(Debug, Default, Clone, Copy, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub(super) enum OpenStage {
    /// Chosen pods count what the changed rules would deny.
    #[default]
    Shadow,
    /// Chosen pods enforce them.
    Enforced,
}

/// A later stage.
#[derive(Debug, Clone, Copy, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub(super) enum LaterStage {
    /// Chosen pods enforce the changed rules.
    Enforced,
    /// All pods do: they are published.
    All,
}

/// Where a rollout is to go.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct AdvanceInput {
    /// The stage.
    pub(super) stage: LaterStage,
    /// Whether to go on although more would be denied than the bound allows.
    #[serde(default)]
    pub(super) force: bool,
}

fn hits_min() -> i64 {
    HITS_MIN
}

/// Checks the choice of pods and the bound, and lists all faults.
pub(super) fn checked(
    pods: PodsInput,
    bound: Option<BoundInput>,
) -> Result<(Choice, Option<Bound>), Problem> {
    let mut faults = Vec::new();
    let mut fault = |field: &str, message: &str| faults.push(FieldFault::of(field, message));
    let choice = match (pods.percent, pods.label) {
        (Some(percent), None) => {
            let percent = u8::try_from(percent).ok().filter(|it| (1..=100).contains(it));
            if percent.is_none() {
                fault("pods.percent", "expected a whole number from 1 to 100");
            }
            percent.map(Choice::Percent)
        }
        (None, Some(LabelInput { key, value })) => {
            let is_good =
                |it: &str| (1..=LABEL_BYTES_MAX).contains(&it.len()) && !it.contains('\0');
            let message = "expected 1 to 1024 bytes, without NUL characters";
            [("pods.label.key", &key), ("pods.label.value", &value)]
                .into_iter()
                .filter(|(_, text)| !is_good(text))
                .for_each(|(field, _)| fault(field, message));
            Some(Choice::Label(key, value))
        }
        _ => {
            fault("pods", "expected either 'percent' or 'label'");
            None
        }
    };
    if let Some(BoundInput { denied_share, hits_min }) = &bound {
        if !(0.0..=1.0).contains(denied_share) {
            fault("bound.denied_share", "expected a share from 0 to 1, as in 0.05");
        }
        if *hits_min < 1 {
            fault("bound.hits_min", "expected a whole number from 1");
        }
    }
    match choice {
        Some(choice) if faults.is_empty() => {
            let checked = |BoundInput { denied_share, hits_min }| Bound { denied_share, hits_min };
            Ok((choice, bound.map(checked)))
        }
        _ => Err(Problem::faults("the rollout cannot begin; mend each field", faults)),
    }
}

// === impl Stage ===

impl From<OpenStage> for Stage {
    fn from(stage: OpenStage) -> Self {
        match stage {
            OpenStage::Shadow => Self::Shadow,
            OpenStage::Enforced => Self::Enforced,
        }
    }
}

impl From<LaterStage> for Stage {
    fn from(stage: LaterStage) -> Self {
        match stage {
            LaterStage::Enforced => Self::Enforced,
            LaterStage::All => Self::All,
        }
    }
}
