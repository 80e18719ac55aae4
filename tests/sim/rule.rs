//! The rules that are simulated: a line of [`CASES`] for each algorithm.

use std::time::Duration;

use ratelease::rules::{self, Algorithm, Limit, Lookup, Rules, Source};

use crate::dice::Dice;

/// What is thrown for one algorithm.
pub struct Case {
    pub algorithm: &'static str,
    /// How often, beside the others.
    pub weight: u64,
    /// Further lines of the rule for this many requests a unit.
    pub terms: fn(&mut Dice, u64) -> String,
}

/// To be simulated is to stand here.
pub const CASES: [Case; 1] =
    [Case { algorithm: "fixed_window", weight: 1, terms: |_, _| String::new() }];

/// One rule of a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RulePlan {
    pub requests_per_unit: u64,
    pub unit: &'static str,
    pub charge_denied: bool,
    /// Further fields of `rate_limit`.
    pub terms: String,
    max_delay: Duration,
}

/// Entry keys, one a rule; a descriptor has one entry, whose value makes the count.
pub const NAMES: [&str; 4] = ["a", "b", "c", "e"];

/// The domain of all rules.
pub const DOMAIN: &str = "d";

// === impl RulePlan ===

impl RulePlan {
    pub fn roll(dice: &mut Dice, requests_per_unit: u64) -> Self {
        let weights: Vec<_> = CASES.iter().map(|case| case.weight).collect();
        let case = &CASES[dice.weighted(&weights)];
        // What was there before there were algorithms to name loads as it did.
        let named = case.algorithm != "fixed_window" || dice.percent(0);
        let algorithm = format!(", algorithm: {}", case.algorithm);
        let terms = (case.terms)(dice, requests_per_unit);
        let mut plan = Self {
            requests_per_unit,
            unit: dice.pick(&["second", "second", "second", "minute"]),
            charge_denied: dice.percent(70),
            terms: if named { algorithm + &terms } else { terms },
            max_delay: Duration::ZERO,
        };
        if let Algorithm::LeakyBucket { max_delay_us } = plan.limit().algorithm {
            plan.max_delay = Duration::from_micros(max_delay_us.into());
        }
        plan
    }

    /// How long an answer may be held back.
    pub fn max_delay(&self) -> Duration {
        self.max_delay
    }

    /// The limit that it loads as.
    pub fn limit(&self) -> Limit {
        limit_of(&load(std::slice::from_ref(self)), NAMES[0]).unwrap()
    }

    fn yaml(&self, name: &str) -> String {
        let Self { requests_per_unit, unit, charge_denied, terms, .. } = self;
        format!(
            "- {{key: {name}, rate_limit: {{unit: {unit}, requests_per_unit: {requests_per_unit}, \
             charge_denied: {charge_denied}{terms}}}}}\n"
        )
    }
}

/// Compiles the rules as a pod would.
pub fn load(plans: &[RulePlan]) -> Rules {
    let rules: String = plans.iter().zip(NAMES).map(|(plan, name)| plan.yaml(name)).collect();
    let text = format!("domain: {DOMAIN}\ndescriptors:\n{rules}");
    let source = Source { name: "simulated.yaml".into(), text: text.clone().into() };
    match rules::load(&[source], rules::Options::default()) {
        Ok(loaded) => loaded.rules,
        Err(faults) => panic!("{faults:?}\n{text}"),
    }
}

/// What limits the descriptors of this name.
pub fn limit_of(rules: &Rules, name: &str) -> Option<Limit> {
    let entry = ratelease::request::Entry { key: name, value: "0" };
    match rules.find(DOMAIN, &[entry]) {
        Lookup::Rule(rule) => match rule.allowance {
            rules::Allowance::Limited(limit) => Some(limit),
            rules::Allowance::Unlimited => None,
        },
        _ => None,
    }
}
