//! The terms of a rollout, in a request or an object: the pods that run the draft, the steps, and
//! the limit of time.

use jiff::SignedDuration;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::document::FieldFault;
use crate::store::{Bound, Choice, LABEL_BYTES_MAX, PlanStep, Stage, plan_of_one_stage};

/// Maximum number of steps.
const STEPS_MAX: usize = 20;

/// Seconds without a step after which a rollout ends, unless its terms say otherwise. A rollout that
/// takes no step for a day is taken for forgotten.
const TIME_LIMIT: i64 = 24 * 3600;

/// The largest number of seconds of a wait, and of a limit of time: 30 days.
const SECONDS_MAX: i64 = 30 * 24 * 3600;

/// The terms of a rollout.
#[derive(Debug, Default, Clone, PartialEq, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct RolloutTerms {
    /// The pods that run the draft; may be left out if the first of `steps` has a percentage.
    pub pods: Option<PodsInput>,
    /// The first stage of a rollout without `steps`: `shadow` by default.
    pub stage: Option<OpenStage>,
    /// The steps, at most 20. After the last one the rules are published. By default a step
    /// `shadow`, unless `stage` is `enforced`, and a step `enforced`, without waits.
    pub steps: Option<Vec<StepInput>>,
    /// When to roll back without being asked.
    pub bound: Option<Bound>,
    /// How long it may be without a step after the wait of the last one until it ends by itself, as in
    /// `24h`, which is the default: 30 days at most.
    pub time_limit: Option<String>,
}

/// The pods that are chosen: exactly one of the two fields.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PodsInput {
    /// So many of a hundred that serve a domain of the rollout, 1 to 100: rounded, and at least one.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1, maximum = 100)]
    pub percent: Option<i64>,
    /// The pods whose nodes have this in their metadata.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub label: Option<LabelInput>,
}

/// A key of the metadata of nodes, and its value.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct LabelInput {
    /// The key.
    pub key: String,
    /// The value, which is text.
    pub value: String,
}

/// A stage in which pods run different rules.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum OpenStage {
    /// Chosen pods count the hits that the changed rules would deny.
    Shadow,
    /// Chosen pods enforce them.
    Enforced,
}

/// A step.
#[derive(Debug, Clone, PartialEq, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct StepInput {
    /// The stage; by default the stage of the step before, and `shadow` for the first one.
    pub stage: Option<OpenStage>,
    /// How many of a hundred pods are chosen, by default as many as in the step before. Later steps of
    /// a stage choose no fewer.
    #[schema(minimum = 1, maximum = 100)]
    pub percent: Option<i64>,
    /// How long until the next step is taken without being asked, as in `10m`, if the chosen pods have
    /// shown enough: 30 days at most. Without it the step waits for a call.
    pub wait: Option<String>,
}

/// Terms that were checked.
#[derive(Debug, Clone, PartialEq)]
pub struct Terms {
    /// The pods that are chosen at first.
    pub choice: Choice,
    /// When it is rolled back, if it may be.
    pub bound: Option<Bound>,
    /// The steps, of which there is at least one.
    pub plan: Vec<PlanStep>,
    /// Seconds without a step after which it ends by itself.
    pub time_limit: i64,
}

// === impl RolloutTerms ===

impl RolloutTerms {
    /// Checks the terms.
    ///
    /// # Errors
    /// Lists all faults.
    pub fn checked(self) -> Result<Terms, Vec<FieldFault>> {
        let mut faults = Faults::default();
        let Self { pods, stage, steps, bound, time_limit } = self;
        let of_steps = steps.iter().flatten().next().and_then(|it| it.percent);
        let choice = match pods {
            // The first step says it.
            None if of_steps.is_some() => Some(Choice::Percent(1)),
            pods => choice(pods, &mut faults),
        };
        check_bound(bound.as_ref(), &mut faults);
        let time_limit = time_limit.map_or(TIME_LIMIT, |text| {
            seconds("time_limit", &text, &mut faults).unwrap_or_default()
        });
        if let (Some(_), Some(_)) = (&steps, stage) {
            faults.add("stage", "expected no 'stage' beside 'steps', of which each may have one");
        }
        let plan = match (steps, &choice) {
            (Some(steps), choice) => plan(steps, choice.as_ref(), &mut faults),
            (None, Some(choice)) => {
                plan_of_one_stage(stage.unwrap_or(OpenStage::Shadow).into(), choice)
            }
            (None, None) => Vec::new(),
        };
        let percent = plan.first().and_then(|it| it.percent);
        let choice = percent.map(Choice::Percent).or(choice);
        match choice {
            Some(choice) if faults.0.is_empty() => Ok(Terms { choice, bound, plan, time_limit }),
            _ => Err(faults.0),
        }
    }
}

/// The faults of terms.
#[derive(Default)]
struct Faults(Vec<FieldFault>);

// === impl Faults ===

impl Faults {
    fn add(&mut self, field: &str, message: &str) {
        self.0.push(FieldFault::of(field, message));
    }
}

fn choice(pods: Option<PodsInput>, faults: &mut Faults) -> Option<Choice> {
    let (percent, label) = pods.map_or((None, None), |it| (it.percent, it.label));
    match (percent, label) {
        (Some(percent), None) => part("pods.percent", percent, faults).map(Choice::Percent),
        (None, Some(LabelInput { key, value })) => {
            let is_good =
                |it: &str| (1..=LABEL_BYTES_MAX).contains(&it.len()) && !it.contains('\0');
            let message = "expected 1 to 1024 bytes, without NUL characters";
            [("pods.label.key", &key), ("pods.label.value", &value)]
                .into_iter()
                .filter(|(_, text)| !is_good(text))
                .for_each(|(field, _)| faults.add(field, message));
            Some(Choice::Label(key, value))
        }
        _ => {
            faults.add("pods", "expected either 'percent' or 'label'");
            None
        }
    }
}

fn check_bound(bound: Option<&Bound>, faults: &mut Faults) {
    let Some(Bound { denied_share, hits_min }) = bound else { return };
    if !(0.0..=1.0).contains(denied_share) {
        faults.add("bound.denied_share", "expected a share from 0 to 1, as in 0.05");
    }
    if *hits_min < 1 {
        faults.add("bound.hits_min", "expected a whole number from 1");
    }
}

/// The plan of these steps, in which each has all that it takes from the one before.
fn plan(steps: Vec<StepInput>, choice: Option<&Choice>, faults: &mut Faults) -> Vec<PlanStep> {
    if steps.is_empty() || steps.len() > STEPS_MAX {
        faults.add("steps", &format!("{} steps; expected 1 to {STEPS_MAX}", steps.len()));
    }
    let (mut percent, mut stage) = match choice {
        Some(Choice::Percent(percent)) => (Some(*percent), Stage::Shadow),
        _ => (None, Stage::Shadow),
    };
    let mut plan: Vec<PlanStep> = Vec::new();
    for (at, step) in steps.into_iter().take(STEPS_MAX).enumerate() {
        let field = |name: &str| format!("steps[{at}].{name}");
        let former = plan.last().copied();
        if let Some(later) = step.stage.map(Stage::from) {
            if later < stage {
                faults.add(&field("stage"), "a step does not go back from 'enforced' to 'shadow'");
            }
            stage = later;
        }
        match (step.percent, choice) {
            (Some(_), Some(Choice::Label(..))) => {
                faults.add(&field("percent"), "expected no percentage beside 'pods.label'");
            }
            (Some(number), _) => percent = part(&field("percent"), number, faults).or(percent),
            (None, _) => {}
        }
        let is_smaller = |it: PlanStep| it.stage == stage && it.percent > percent;
        if former.is_some_and(is_smaller) {
            let message = "a later step of a stage chooses no fewer pods than the one before";
            faults.add(&field("percent"), message);
        }
        let wait = step.wait.and_then(|text| seconds(&field("wait"), &text, faults));
        plan.push(PlanStep { stage, percent, wait });
    }
    plan
}

/// A percentage.
fn part(field: &str, percent: i64, faults: &mut Faults) -> Option<u8> {
    let percent = u8::try_from(percent).ok().filter(|it| (1..=100).contains(it));
    if percent.is_none() {
        faults.add(field, "expected a whole number from 1 to 100");
    }
    percent
}

/// The seconds of a duration, as in `1h30m`.
fn seconds(field: &str, text: &str, faults: &mut Faults) -> Option<i64> {
    let parsed = text.parse::<SignedDuration>().ok().map(|it| it.as_secs());
    let parsed = parsed.filter(|it| (1..=SECONDS_MAX).contains(it));
    if parsed.is_none() {
        faults.add(field, "expected a duration from 1s to 30 days, as in 90s, 10m or 1h30m");
    }
    parsed
}

/// Seconds as a duration in words, as in `1h 30m`.
pub fn duration(seconds: i64) -> String {
    format!("{:#}", SignedDuration::from_secs(seconds))
}

// === impl OpenStage ===

impl From<OpenStage> for Stage {
    fn from(stage: OpenStage) -> Self {
        match stage {
            OpenStage::Shadow => Self::Shadow,
            OpenStage::Enforced => Self::Enforced,
        }
    }
}

// === impl PodsInput ===

impl From<&Choice> for PodsInput {
    fn from(choice: &Choice) -> Self {
        match choice {
            Choice::Percent(percent) => Self { percent: Some((*percent).into()), label: None },
            Choice::Label(key, value) => {
                let label = LabelInput { key: key.clone(), value: value.clone() };
                Self { percent: None, label: Some(label) }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn of(terms: Value) -> Result<Terms, Vec<String>> {
        let terms: RolloutTerms = serde_json::from_value(terms).unwrap();
        terms.checked().map_err(|faults| faults.into_iter().map(|it| it.field).collect())
    }

    fn step(stage: Stage, percent: u8, wait: Option<i64>) -> PlanStep {
        PlanStep { stage, percent: Some(percent), wait }
    }

    #[test]
    fn a_step_takes_what_it_does_not_say_from_the_one_before() {
        let terms = of(json!({"steps": [
            {"percent": 10, "wait": "10m"}, {"stage": "enforced", "wait": "1h30m"}, {"percent": 50},
        ]}));
        let terms = terms.unwrap();
        let plan = [
            step(Stage::Shadow, 10, Some(600)),
            step(Stage::Enforced, 10, Some(5400)),
            step(Stage::Enforced, 50, None),
        ];
        assert_eq!((terms.plan.as_slice(), terms.choice), (&plan[..], Choice::Percent(10)));
        assert_eq!(terms.time_limit, TIME_LIMIT);
        assert_eq!((duration(600), duration(5400)), ("10m".to_owned(), "1h 30m".to_owned()));
    }

    #[test]
    fn terms_without_steps_have_those_of_their_first_stage() {
        let shadow = of(json!({"pods": {"percent": 20}, "time_limit": "2h"})).unwrap();
        let plan = [step(Stage::Shadow, 20, None), step(Stage::Enforced, 20, None)];
        assert_eq!((shadow.plan.as_slice(), shadow.time_limit), (&plan[..], 7200));
        let enforced = of(json!({"pods": {"percent": 20}, "stage": "enforced"})).unwrap();
        assert_eq!(enforced.plan, plan[1..]);
    }

    #[test]
    fn every_fault_of_terms_is_named() {
        let label = json!({"label": {"key": "zone", "value": "a"}});
        for (terms, fields) in [
            (json!({}), vec!["pods"]),
            (json!({"steps": []}), vec!["pods", "steps"]),
            (json!({"steps": [{"wait": "1m"}]}), vec!["pods"]),
            (json!({"pods": label, "steps": [{"percent": 5}]}), vec!["steps[0].percent"]),
            (
                json!({"time_limit": "soon", "steps": [{"percent": 0, "wait": "-1s"}]}),
                vec!["time_limit", "steps[0].percent", "steps[0].wait"],
            ),
            (
                json!({"stage": "shadow", "steps": [
                    {"stage": "enforced", "percent": 50, "wait": "31d"},
                    {"stage": "shadow", "percent": 10},
                    {"percent": 5},
                ]}),
                vec!["stage", "steps[0].wait", "steps[1].stage", "steps[2].percent"],
            ),
        ] {
            assert_eq!(of(terms.clone()).unwrap_err(), fields, "{terms}");
        }
    }
}
