//! The rules that are simulated: a line of [`CASES`] for each algorithm.

use std::time::Duration;

use ratelease::rules::{self, Algorithm, Limit, Lookup, Rules, Source};

use crate::dice::Dice;

/// What is thrown for one algorithm.
#[derive(Clone, Copy)]
pub struct Case {
    pub algorithm: &'static str,
    /// How often, beside the others.
    pub weight: u64,
    /// Rules with more are refused.
    pub requests_max: u64,
    /// Further lines of the rule for this many requests a unit.
    pub terms: fn(&mut Dice, u64) -> String,
}

/// To be simulated is to stand here.
pub const CASES: [Case; 5] = [
    Case { algorithm: "fixed_window", weight: 4, requests_max: u64::MAX, terms: |_, _| "".into() },
    Case { algorithm: "token_bucket", weight: 3, requests_max: u64::MAX, terms: burst },
    Case {
        algorithm: "sliding_window",
        weight: 2,
        requests_max: u64::MAX,
        terms: |_, _| "".into(),
    },
    Case { algorithm: "sliding_log", weight: 1, requests_max: 10_000, terms: |_, _| "".into() },
    Case { algorithm: "leaky_bucket", weight: 2, requests_max: u64::MAX, terms: max_delay },
];

fn burst(dice: &mut Dice, requests_per_unit: u64) -> String {
    match dice.below(3) {
        // A bucket that never fills is refused.
        _ if requests_per_unit == 0 => String::new(),
        0 => String::new(),
        1 => format!(", burst: {}", 1 + requests_per_unit / 5),
        _ => format!(", burst: {}", 1 + dice.below(2 * requests_per_unit + 1)),
    }
}

fn max_delay(dice: &mut Dice, _requests_per_unit: u64) -> String {
    match dice.below(3) {
        0 => String::new(),
        _ => format!(", max_delay: {}ms", dice.within(1..200)),
    }
}

/// How tokens of any algorithm may be lent.
fn manner(dice: &mut Dice, algorithm: &str) -> String {
    let shards = match dice.below(4) {
        _ if algorithm == "leaky_bucket" => String::new(),
        0 => format!(", shards: {}", dice.within(2..6)),
        _ => String::new(),
    };
    let lease = match dice.below(6) {
        _ if algorithm == "sliding_log" => String::new(),
        0 => ", lease: off".into(),
        1 => format!(", lease: {{ttl: {}ms}}", dice.within(100..1_000)),
        2 => format!(", lease: {{max: {}}}", dice.within(1..50)),
        3 => format!(", lease: {{fraction: 0.{}}}", dice.within(1..10)),
        _ => String::new(),
    };
    shards + &lease
}

/// One rule of a run.
#[derive(Debug, Clone)]
pub struct RulePlan {
    pub requests_per_unit: u64,
    pub unit: &'static str,
    pub charge_denied: bool,
    /// Further fields of `rate_limit`.
    pub terms: String,
    /// No change makes it more.
    requests_max: u64,
    max_delay: Duration,
}

/// Entry keys, one a rule; a descriptor has one entry, whose value makes the count.
pub const NAMES: [&str; 4] = ["a", "b", "c", "e"];

/// The domain of all rules.
pub const DOMAIN: &str = "d";

// === impl RulePlan ===

impl RulePlan {
    /// A rule of so many requests; where all is `plain`, lent as if nothing were said.
    pub fn roll(dice: &mut Dice, requests_per_unit: u64, plain: bool) -> Self {
        let weights: Vec<_> = CASES.iter().map(|case| case.weight).collect();
        let Case { algorithm, requests_max, terms, .. } = CASES[dice.weighted(&weights)];
        let unit = dice.pick(&["second", "second", "second", "minute"]);
        let units = if dice.percent(20) { dice.within(2..4) } else { 1 };
        let requests_per_unit = requests_per_unit.min(requests_max);
        let mut terms = format!(", algorithm: {algorithm}{}", terms(dice, requests_per_unit));
        if !plain {
            terms += &manner(dice, algorithm);
        }
        if units > 1 {
            terms += &format!(", unit_multiplier: {units}");
        }
        let mut plan = Self {
            requests_per_unit,
            unit,
            charge_denied: dice.percent(70),
            terms,
            requests_max,
            max_delay: Duration::ZERO,
        };
        if let Algorithm::LeakyBucket { max_delay_us } = plan.limit().algorithm {
            plan.max_delay = Duration::from_micros(max_delay_us.into());
        }
        plan
    }

    /// The same rule with another amount.
    pub fn of_requests(&self, requests_per_unit: u64) -> Self {
        let never_fills = self.terms.contains("burst") && requests_per_unit == 0;
        let requests_per_unit = if never_fills { 1 } else { requests_per_unit };
        let requests_per_unit = requests_per_unit.min(self.requests_max);
        Self { requests_per_unit, ..self.clone() }
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
    let text =
        format!("domain: {DOMAIN}\ndefaults: {{failure_mode: error}}\ndescriptors:\n{rules}");
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
