//! The rules that are simulated: an item of [`CASES`] for each algorithm.

use std::collections::VecDeque;
use std::time::Duration;

use ratelease_rules::{self as rules, FailureMode, Limit, Lookup, Rule, Rules, Source};

use crate::book::{self, Book};
use crate::oracle::Count;
use crate::rng::Rng;

/// How one algorithm is simulated.
#[derive(Clone, Copy)]
pub struct Case {
    pub algorithm: &'static str,
    /// Relative frequency.
    pub weight: u64,
    /// Maximum `requests_per_unit`; rules with more are refused.
    pub requests_max: u64,
    /// An empty book for a count.
    pub book: fn() -> Box<dyn Book>,
    /// A full count of the exact server, at a time in microseconds.
    pub count: fn(Limit, u64) -> Count,
}

/// Every algorithm that is simulated.
pub const CASES: [Case; 6] = [
    Case {
        algorithm: "fixed_window",
        weight: 4,
        requests_max: u64::MAX,
        book: || Box::<book::fixed_window::FixedWindow>::default(),
        count: |_, _| Count::FixedWindow { number: 0, used: 0 },
    },
    Case {
        algorithm: "token_bucket",
        weight: 3,
        requests_max: u64::MAX,
        book: || Box::<book::token_bucket::TokenBucket>::default(),
        count: |limit, now| Count::TokenBucket { tokens: limit.capacity() as f64, as_of: now },
    },
    Case {
        algorithm: "sliding_window",
        weight: 2,
        requests_max: u64::MAX,
        book: || Box::<book::sliding_window::SlidingWindow>::default(),
        count: |_, _| Count::SlidingWindow { number: 0, used: 0, before: 0 },
    },
    Case {
        algorithm: "sliding_log",
        weight: 1,
        requests_max: 10_000,
        book: || Box::<book::sliding_log::SlidingLog>::default(),
        count: |_, _| Count::SlidingLog(VecDeque::new()),
    },
    Case {
        algorithm: "leaky_bucket",
        weight: 2,
        requests_max: u64::MAX,
        book: || Box::<book::leaky_bucket::LeakyBucket>::default(),
        count: |_, _| Count::LeakyBucket { next: 0.0 },
    },
    // Only in runs of their own.
    Case {
        algorithm: "concurrency",
        weight: 0,
        requests_max: u64::MAX,
        book: || Box::<book::slots::Slots>::default(),
        count: |_, _| unreachable!("one server that counts slots"),
    },
];

/// How limits of this algorithm are simulated.
pub fn case_of(limit: Limit) -> &'static Case {
    let name = limit.algorithm.name();
    CASES.iter().find(|case| case.algorithm == name).unwrap_or_else(|| panic!("no case for {name}"))
}

/// One rule of a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RulePlan {
    pub requests_per_unit: u64,
    pub unit: &'static str,
    pub unit_multiplier: u64,
    pub algorithm: &'static str,
    /// The burst of a token bucket.
    pub burst: Option<u64>,
    /// The maximum delay of a leaky bucket.
    pub max_delay_ms: Option<u64>,
    pub shards: u64,
    /// The value of `lease`; empty for the default.
    pub lease: String,
    pub charge_denied: bool,
    pub failure_mode: &'static str,
    /// `shadow_mode` or `quota_mode`; empty for a rule that is enforced.
    pub mode: &'static str,
    pub costs: Costs,
    /// Only of a fixed window: whether hits beyond the limit count against the next windows.
    pub carry_debt: bool,
}

/// When the cost of a request is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Costs {
    /// Before it is sent: a request is charged once.
    Known,
    /// Afterwards, with `settle: true`: a request of 0 hits, and a charge for its cost.
    Settled,
    /// Afterwards, with `hold`: a request of an estimate that it holds, and a settlement.
    Held { lasts_ms: u64, releases: bool },
}

/// The entry whose value is the id of a request that holds something.
pub const ID: &str = "id";

/// How a descriptor counts under the rules in force.
#[derive(Debug, Clone, Copy)]
pub struct Applied {
    pub limit: Limit,
    pub failure_mode: FailureMode,
    pub hold: Option<rules::Hold>,
}

/// Entry keys, one per rule; a descriptor has one entry, whose value determines the count.
pub const NAMES: [&str; 4] = ["a", "b", "c", "e"];

/// The domain of all rules.
pub const DOMAIN: &str = "d";

// === impl RulePlan ===

impl RulePlan {
    /// A fixed window with the default terms.
    pub fn fixed_window(requests_per_unit: u64, unit: &'static str) -> Self {
        Self {
            requests_per_unit,
            unit,
            unit_multiplier: 1,
            algorithm: "fixed_window",
            burst: None,
            max_delay_ms: None,
            shards: 1,
            lease: String::new(),
            charge_denied: false,
            failure_mode: "error",
            mode: "",
            costs: Costs::Known,
            carry_debt: false,
        }
    }

    /// A rule with this `requests_per_unit`; a `plain` one has the default lease and one shard.
    pub fn draw(rng: &mut Rng, requests_per_unit: u64, plain: bool) -> Self {
        let unit = rng.pick(&["second", "second", "second", "minute"]);
        let mut plan = Self::fixed_window(requests_per_unit, unit);
        if rng.percent(20) {
            plan.unit_multiplier = rng.within(2..4);
        }
        plan.charge_denied = rng.percent(70);
        plan.draw_algorithm(rng);
        if !plain {
            plan.draw_terms(rng);
            plan.failure_mode = rng.pick(&["error", "error", "local", "local", "allow", "deny"]);
            plan.mode = rng.pick(&["", "", "", "", "", "", "", "shadow_mode", "quota_mode"]);
        }
        plan
    }

    pub fn draw_algorithm(&mut self, rng: &mut Rng) {
        let weights: Vec<_> = CASES.iter().map(|case| case.weight).collect();
        let Case { algorithm, requests_max, .. } = CASES[rng.weighted(&weights)];
        self.algorithm = algorithm;
        self.requests_per_unit = self.requests_per_unit.min(requests_max);
        self.draw_burst(rng);
    }

    /// Draws the terms that only this algorithm has.
    pub fn draw_burst(&mut self, rng: &mut Rng) {
        let requests = self.requests_per_unit;
        self.burst = match rng.below(4) {
            // A bucket that never fills is refused.
            _ if self.algorithm != "token_bucket" || requests == 0 => None,
            0 => None,
            1 => Some(1 + requests / 5),
            // A burst that is earned in less than 50 ms.
            2 => Some(1 + requests / rng.pick(&[30, 100])),
            _ => Some(1 + rng.below(2 * requests + 1)),
        };
        let delays = self.algorithm == "leaky_bucket" && rng.percent(66);
        self.max_delay_ms = delays.then(|| rng.within(1..200));
    }

    /// Draws how tokens are leased.
    pub fn draw_terms(&mut self, rng: &mut Rng) {
        let splits = self.algorithm != "leaky_bucket" && rng.percent(25);
        self.shards = if splits { rng.within(2..6) } else { 1 };
        self.lease = match rng.below(6) {
            _ if self.algorithm == "sliding_log" => String::new(),
            0 => "off".into(),
            1 => format!("{{ttl: {}ms}}", rng.within(100..1_000)),
            2 => format!("{{max: {}}}", rng.within(1..50)),
            3 => format!("{{fraction: 0.{}}}", rng.within(1..10)),
            _ => String::new(),
        };
    }

    /// Makes it a rule for costs that are known afterwards.
    pub fn draw_costs(&mut self, rng: &mut Rng) {
        if !takes_costs(self.algorithm) {
            self.algorithm = "fixed_window";
            (self.burst, self.max_delay_ms) = (None, None);
        }
        self.carry_debt = rng.percent(40);
        self.costs = if rng.percent(50) {
            Costs::Settled
        } else {
            let lasts_ms = rng.pick(&[1_000, 1_000, 1_500, 60_000]);
            Costs::Held { lasts_ms, releases: rng.percent(50) }
        };
        self.charge_denied &= self.costs == Costs::Settled || rng.percent(20);
    }

    /// Returns a copy of the rule with another limit.
    pub fn of_requests(&self, requests_per_unit: u64) -> Self {
        let least = u64::from(self.burst.is_some());
        let case = CASES.iter().find(|case| case.algorithm == self.algorithm).unwrap();
        let requests_per_unit = requests_per_unit.clamp(least, case.requests_max);
        Self { requests_per_unit, ..self.clone() }
    }

    /// Maximum delay of an answer.
    pub fn max_delay(&self) -> Duration {
        self.limit().algorithm.max_delay()
    }

    /// The limit that the rule compiles to.
    pub fn limit(&self) -> Limit {
        applied(&load(std::slice::from_ref(self)), NAMES[0]).unwrap().limit
    }

    fn yaml(&self, name: &str) -> String {
        let Self { requests_per_unit, unit, charge_denied, algorithm, failure_mode, .. } = self;
        let mut terms = String::new();
        if self.unit_multiplier > 1 {
            terms += &format!(", unit_multiplier: {}", self.unit_multiplier);
        }
        if let Some(burst) = self.burst {
            terms += &format!(", burst: {burst}");
        }
        if let Some(delay) = self.max_delay_ms {
            terms += &format!(", max_delay: {delay}ms");
        }
        if self.shards > 1 {
            terms += &format!(", shards: {}", self.shards);
        }
        if !self.lease.is_empty() {
            terms += &format!(", lease: {}", self.lease);
        }
        if self.carry_debt && algorithm == &"fixed_window" {
            terms += ", carry_debt: true";
        }
        let unit = if algorithm == &"concurrency" {
            String::new()
        } else {
            format!("unit: {unit}, charge_denied: {charge_denied}, ")
        };
        let (mut of_id, mut end) = (String::new(), "");
        match self.costs {
            Costs::Known => {}
            Costs::Settled => terms += ", settle: true",
            Costs::Held { lasts_ms, releases } => {
                let then = if releases { "release" } else { "keep" };
                terms += &format!(", hold: {{for: {lasts_ms}ms, unless_settled: {then}}}");
                (of_id, end) = (format!("descriptors: [{{key: {ID}, "), "}]");
            }
        }
        let mode =
            if self.mode.is_empty() { String::new() } else { format!("{}: true, ", self.mode) };
        format!(
            "- {{key: {name}, {of_id}{mode}rate_limit: {{{unit}\
             requests_per_unit: {requests_per_unit}, \
             failure_mode: {failure_mode}, algorithm: {algorithm}{terms}}}{end}}}\n"
        )
    }
}

/// Whether a rule of this algorithm may settle or hold.
pub fn takes_costs(algorithm: &str) -> bool {
    !["leaky_bucket", "sliding_log"].contains(&algorithm)
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

/// How descriptors of this name count; `None` if no rule limits them.
pub fn applied(rules: &Rules, name: &str) -> Option<Applied> {
    let entries = [name, ID].map(|key| ratelease_rules::request::Entry { key, value: "0" });
    let found = [&entries[..1], &entries[..]].map(|entries| rules.find(DOMAIN, entries));
    let rule = found.iter().find_map(|found| match found {
        Lookup::Rule(rule) => Some(rule),
        _ => None,
    })?;
    let Rule { allowance, failure_mode, hold, .. } = ***rule;
    match allowance {
        rules::Allowance::Limited(limit) => Some(Applied { limit, failure_mode, hold }),
        rules::Allowance::Unlimited => None,
    }
}
