//! A rollout: the domains that it changes, the pods that it chooses, and the steps that were taken.

use std::fmt;

use ratelease_rules::candidate_of;
use serde::{Deserialize, Serialize};
use sqlx::Row;
use sqlx::any::AnyRow;
use utoipa::ToSchema;

use super::rollout_plan::{Draw, PlanStep, Share, Stage};
use super::{StoreResult, as_time};

/// Maximum bytes of a label's key and of its value.
pub const LABEL_BYTES_MAX: usize = 1024;

/// The pods that are chosen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Choice {
    /// So many of a hundred that serve a domain, 1 to 100, by their places: see [`Draw`].
    Percent(u8),
    /// Pods whose nodes have this key and value in their metadata.
    Label(String, String),
}

/// When a rollout is rolled back: once the chosen pods denied a larger share of the hits of a
/// domain in the last 30 s.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = BoundInput)]
pub struct Bound {
    /// The largest share that may be denied, 0 to 1.
    #[schema(minimum = 0, maximum = 1)]
    pub denied_share: f64,
    /// Hits of a domain in these 30 s below which its share does not count, from 1; 100 by default.
    #[serde(default = "hits_min")]
    #[schema(minimum = 1)]
    pub hits_min: i64,
}

/// Hits from which on a bound counts, if the request names no number.
const HITS_MIN: i64 = 100;

fn hits_min() -> i64 {
    HITS_MIN
}

/// A domain of a rollout.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RolloutDomain {
    /// The name of the domain.
    pub domain: String,
    /// The number of the last change of the draft that the texts were made of.
    pub changed: i64,
    /// The hash of the text for the stage `shadow`; `None` if there are no rules.
    pub shadow: Option<String>,
    /// The hash of the rules that the other pods count by meanwhile; `None` if there are no rules.
    pub others: Option<String>,
    /// The hash of the text that is to be published; `None` if the domain leaves.
    pub hash: Option<String>,
}

/// A step of a rollout.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
#[schema(as = StepView)]
pub struct RolloutStep {
    /// The stage that it led to.
    #[schema(value_type = String)]
    pub stage: Stage,
    /// Its version.
    pub version: i64,
    /// When.
    #[serde(serialize_with = "as_time")]
    #[schema(value_type = String, format = DateTime)]
    pub at: i64,
    /// Which token; `rollout` for the control plane itself.
    pub author: String,
    /// Why.
    pub reason: String,
    /// The number of the plan's step, from 1; absent for the last one, which ends the rollout.
    #[serde(rename = "step", skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<i64>)]
    pub number: Option<usize>,
    /// How many of a hundred pods were to be chosen.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub percent: Option<u8>,
    /// The pods that were chosen, for each domain.
    #[serde(skip)]
    pub shares: Vec<Share>,
}

/// A rollout.
#[derive(Debug, Clone, PartialEq)]
pub struct Rollout {
    /// The number of the rollout, from 1.
    pub id: i64,
    /// The random number of its [`Draw`].
    pub seed: Option<i64>,
    /// The pods that are chosen at first.
    pub choice: Choice,
    /// The bound above which the rollout is rolled back, if it has one.
    pub bound: Option<Bound>,
    /// The steps, of which there is at least one. After the last one the rules are published.
    pub plan: Vec<PlanStep>,
    /// Seconds without a step after which it ends by itself; `None` for never.
    pub time_limit: Option<i64>,
    /// Seconds of the longest window of the limits that change.
    pub longest_window: i64,
    /// The domains that the rollout changes, by name.
    pub domains: Vec<RolloutDomain>,
    /// The steps that were taken, in order; there is at least one.
    pub steps: Vec<RolloutStep>,
}

impl fmt::Display for Choice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Percent(percent) => write!(f, "{percent} % of the pods"),
            Self::Label(key, value) => write!(f, "pods of {key}={value}"),
        }
    }
}

// === impl Rollout ===

impl Rollout {
    /// The last step.
    pub fn last(&self) -> &RolloutStep {
        &self.steps[self.steps.len() - 1]
    }

    /// The last step in which pods ran different rules.
    pub fn last_open(&self) -> Option<&RolloutStep> {
        self.steps.iter().rev().find(|step| step.stage.is_open())
    }

    /// The number of the plan's step that it is at, from 1.
    pub fn number(&self) -> usize {
        let step = self.last_open();
        let of_stage = |stage| self.plan.iter().position(|it| it.stage == stage);
        let found = step.and_then(|it| it.number.or_else(|| Some(of_stage(it.stage)? + 1)));
        found.unwrap_or(1)
    }

    /// The plan's step that it is at.
    pub fn present(&self) -> PlanStep {
        self.planned(self.number()).unwrap_or(self.plan[0])
    }

    /// The plan's step of this number; `None` if its rules are to be published then.
    pub fn planned(&self, number: usize) -> Option<PlanStep> {
        self.plan.get(number.checked_sub(1)?).copied()
    }

    /// The number of the plan's first step whose stage is `stage` or a later one; `None` if there
    /// is none.
    pub fn number_of(&self, stage: Stage) -> Option<usize> {
        Some(self.plan.iter().position(|it| it.stage >= stage)? + 1)
    }

    /// The names of its domains.
    pub fn names(&self) -> Vec<String> {
        self.domains.iter().map(|it| it.domain.clone()).collect()
    }

    /// When the plan's step that it is at was taken, in milliseconds since the Unix epoch. It may
    /// have chosen other pods since.
    pub fn since(&self) -> i64 {
        let (number, stage) = (self.number(), self.present().stage);
        let is_of =
            |step: &&RolloutStep| step.number.map_or(step.stage == stage, |it| it == number);
        let same = self.steps.iter().rev().filter(|it| it.stage.is_open()).take_while(is_of);
        same.last().unwrap_or(self.last()).at
    }

    /// When the next step is taken without being asked, in milliseconds since the Unix epoch.
    pub fn next_at(&self) -> Option<i64> {
        let wait = self.present().wait.filter(|_| self.last().stage.is_open())?;
        Some(self.since().saturating_add(wait.saturating_mul(1000)))
    }

    /// When it ends by itself if no step is taken until then, in milliseconds since the Unix epoch.
    pub fn ends_at(&self) -> Option<i64> {
        let limit = self.time_limit.filter(|_| self.last().stage.is_open())?;
        let from = self.next_at().unwrap_or_else(|| self.since());
        Some(from.saturating_add(limit.saturating_mul(1000)))
    }

    /// The domains of the chosen pods in `stage`: their names and the hashes of their texts, `None`
    /// for a domain that leaves. In the stage `shadow` they are candidate rules; a domain without
    /// candidate rules is left out.
    pub fn hashes(&self, stage: Stage) -> impl Iterator<Item = (String, Option<&str>)> {
        self.domains.iter().filter_map(move |it| match stage {
            Stage::Shadow => Some((candidate_of(&it.domain), Some(it.shadow.as_deref()?))),
            _ => Some((it.domain.clone(), it.hash.as_deref())),
        })
    }

    /// The candidate rules of the other pods in `stage`, which count as the published rules do:
    /// names of domains and hashes of their texts.
    pub fn others(&self, stage: Stage) -> impl Iterator<Item = (String, Option<&str>)> {
        let domains = self.domains.iter().filter(move |_| stage == Stage::Shadow);
        domains.filter_map(|it| Some((candidate_of(&it.domain), Some(it.others.as_deref()?))))
    }
}

impl From<&Rollout> for Draw {
    fn from(rollout: &Rollout) -> Self {
        Self { rollout: rollout.id, seed: rollout.seed }
    }
}

// === impl RolloutDomain ===

impl RolloutDomain {
    pub(super) fn read(row: &AnyRow) -> StoreResult<Self> {
        Ok(Self {
            domain: row.try_get(0)?,
            changed: row.try_get(1)?,
            shadow: row.try_get(2)?,
            others: row.try_get(3)?,
            hash: row.try_get(4)?,
        })
    }
}

// === impl RolloutStep ===

impl RolloutStep {
    pub(super) fn read(row: &AnyRow) -> StoreResult<Self> {
        Ok(Self {
            version: row.try_get(0)?,
            stage: row.try_get::<String, _>(1)?.parse()?,
            at: row.try_get(2)?,
            author: row.try_get(3)?,
            reason: row.try_get(4)?,
            number: row.try_get::<Option<i64>, _>(5)?.and_then(|it| usize::try_from(it).ok()),
            percent: row.try_get::<Option<i64>, _>(6)?.and_then(|it| u8::try_from(it).ok()),
            shares: Vec::new(),
        })
    }
}

/// The plan of a rollout that names no steps: its first stage, then `enforced`. Each lasts until a
/// call asks for the next step.
pub fn plan_of_one_stage(first: Stage, choice: &Choice) -> Vec<PlanStep> {
    let percent = match choice {
        Choice::Percent(percent) => Some(*percent),
        Choice::Label(..) => None,
    };
    let stages = [Stage::Shadow, Stage::Enforced].into_iter().filter(|it| *it >= first);
    stages.map(|stage| PlanStep { stage, percent, wait: None }).collect()
}
