//! The reference's contract, written as plainly as possible: keys and values are joined to one
//! text, a level is searched from its beginning, every `*` tries every length, and counts are in
//! one map. The model uses no code of the library.
//!
//! Where ratelease differs on purpose, the code says `Differs:` with the line of
//! `docs/differences.md`.

use std::cell::RefCell;
use std::collections::{HashMap, HashSet};

use super::world::{Answer, Asked, Call, Status, UNITS, World, Written, WrittenLimit};

/// A count: domain, entries as the count uses them and whether each is a shared pattern, the
/// seconds of its unit, and its window.
type Counter = (String, Vec<(String, String, bool)>, u64, u64);

#[derive(Debug)]
pub(crate) struct Model {
    world: World,
    counts: RefCell<HashMap<Counter, u64>>,
    /// The counts that the last call changed, and their previous values, by descriptor.
    marked: RefCell<Vec<(usize, Counter, u64)>>,
    /// Counts of which a charge was denied.
    denied: RefCell<HashSet<Counter>>,
}

/// The rule that applies to one descriptor.
enum Found<'w> {
    Nothing,
    Unlimited(&'w Written),
    Limit {
        requests: u32,
        unit: usize,
        rule: Option<(&'w Written, Option<String>)>,
        counter: Counter,
    },
}

/// A level of the rules that an entry led to.
struct Step<'w> {
    node: &'w Written,
    /// Whether a pattern matched, not the text of the rule.
    by_pattern: bool,
}

/// A descriptor that is counted, before its status is known.
struct Charge {
    counter: Counter,
    requests: u32,
    hits: u64,
    over: bool,
    /// The count that its status shows.
    reported: u64,
}

// === impl Model ===

impl Model {
    pub(crate) fn new(world: World) -> Self {
        Self {
            world,
            counts: RefCell::default(),
            marked: RefCell::default(),
            denied: RefCell::default(),
        }
    }

    /// Decides `call` at `now`, in seconds since the Unix epoch.
    pub(crate) fn decide(&self, call: &Call, now: u64) -> Answer {
        let found: Vec<_> = call.descriptors.iter().map(|it| self.find(call, it, now)).collect();
        let replaced = replaced(&found);
        let mut charges: Vec<Option<Charge>> = Vec::new();
        for (asked, found) in call.descriptors.iter().zip(&found) {
            let charge = match found {
                Found::Limit { rule: Some((node, _)), .. } if replaced.contains(name(node)) => None,
                Found::Limit { requests, counter, .. } => {
                    let hits = asked.hits.unwrap_or(u64::from(call.hits.max(1)));
                    let earlier = charges.iter().flatten().filter(|it| it.counter == *counter);
                    let before = self.count(counter) + earlier.map(|it| it.hits).sum::<u64>();
                    let is_marked =
                        before >= u64::from(*requests) && self.denied.borrow().contains(counter);
                    let over = before + hits + u64::from(is_marked) > u64::from(*requests);
                    let (counter, requests) = (counter.clone(), *requests);
                    let reported = self.count(&counter);
                    Some(Charge { counter, requests, hits, over, reported })
                }
                Found::Nothing | Found::Unlimited(_) => None,
            };
            charges.push(charge);
        }
        let denied = self.is_denied(&found, &charges);
        let passes = !denied || self.world.global_shadow;
        self.charge(&mut charges, passes);
        let statuses = statuses(&found, &charges, now, passes);
        let headers = self.headers(&found, &statuses);
        Answer { over: !passes, statuses, headers }
    }

    fn count(&self, counter: &Counter) -> u64 {
        self.counts.borrow().get(counter).copied().unwrap_or_default()
    }

    fn find(&self, call: &Call, asked: &Asked, now: u64) -> Found<'_> {
        let Some((_, top)) = self.world.domains.iter().find(|(name, _)| *name == call.domain)
        else {
            return Found::Nothing;
        };
        let window = |unit: usize| (UNITS[unit].1, now / UNITS[unit].1);
        if let Some((requests, unit)) = asked.limit {
            let (seconds, window) = window(unit);
            // Differs: "a value that is the text of a shared pattern has its count | apart".
            let entries =
                asked.entries.iter().map(|(key, value)| (key.clone(), value.clone(), false));
            let counter = (call.domain.clone(), entries.collect(), seconds, window);
            return Found::Limit { requests, unit, rule: None, counter };
        }
        let Some(way) = way(top, &asked.entries) else { return Found::Nothing };
        let Some(node) = way.last().map(|step| step.node) else { return Found::Nothing };
        match &node.limit {
            None => Found::Nothing,
            Some(WrittenLimit { unit: None, .. }) => Found::Unlimited(node),
            Some(WrittenLimit { unit: Some(unit), requests, .. }) => {
                let (seconds, window) = window(*unit);
                let entries = asked.entries.iter().zip(&way).map(|((key, value), step)| {
                    let is_shared =
                        step.node.share_threshold && (step.by_pattern || *value == step.node.value);
                    let shown = if is_shared { &step.node.value } else { value };
                    (key.clone(), shown.clone(), is_shared)
                });
                let counter = (call.domain.clone(), entries.collect(), seconds, window);
                let rule = Some((node, stats(&call.domain, &asked.entries, &way)));
                Found::Limit { requests: *requests, unit: *unit, rule, counter }
            }
        }
    }

    /// Over the limit if a descriptor that is no quota is over, or if there are quotas and all of
    /// them are over. The global quota mode makes every descriptor a quota, including one that no
    /// rule limits, except unlimited ones.
    fn is_denied(&self, found: &[Found<'_>], charges: &[Option<Charge>]) -> bool {
        let (mut denied, mut quotas) = (false, Vec::new());
        for (found, charge) in found.iter().zip(charges) {
            let over = charge.as_ref().is_some_and(|it| it.over) && !in_shadow(found);
            match self.is_quota(found, charge.is_some()) {
                None => {}
                Some(true) => quotas.push(over),
                Some(false) => denied |= over,
            }
        }
        denied || (!quotas.is_empty() && quotas.iter().all(|over| *over))
    }

    /// Whether the descriptor is a quota; `None` if it counts neither way.
    fn is_quota(&self, found: &Found<'_>, is_charged: bool) -> Option<bool> {
        match found {
            Found::Unlimited(_) => None,
            Found::Limit { rule: Some((node, _)), .. } if is_charged => {
                Some(self.world.global_quota || node.quota)
            }
            Found::Limit { .. } | Found::Nothing => Some(self.world.global_quota),
        }
    }

    fn charge(&self, charges: &mut [Option<Charge>], passes: bool) {
        let mut marked = Vec::new();
        for (at, charge) in charges.iter_mut().enumerate() {
            let Some(charge) = charge else { continue };
            let mut counts = self.counts.borrow_mut();
            let count = counts.entry(charge.counter.clone()).or_default();
            if charge.over && charge.hits > 0 {
                // Differs: "denied hits go on being counted | a key is overdrawn by one at most".
                marked.push((at, charge.counter.clone(), *count));
                *count = (*count).max(u64::from(charge.requests));
                self.denied.borrow_mut().insert(charge.counter.clone());
            } else if passes && !charge.over {
                // Differs: "a request that one rule denies still charges its other rules | the
                // others are not charged, and their statuses show what they had".
                *count += charge.hits;
                charge.reported = *count;
            }
        }
        self.marked.replace(marked);
    }

    /// Whether two descriptors of `call` have one count.
    pub(crate) fn shares_a_count(&self, call: &Call, now: u64) -> bool {
        let counter = |asked: &Asked| match self.find(call, asked, now) {
            Found::Limit { counter, .. } => Some(counter),
            Found::Nothing | Found::Unlimited(_) => None,
        };
        let mut seen = HashSet::new();
        !call.descriptors.iter().filter_map(counter).all(|counter| seen.insert(counter))
    }

    /// Marks descriptors of the last call as not reached, which restores their counts.
    pub(crate) fn unreach(&self, descriptors: &[usize]) {
        let marked = self.marked.take();
        let mut counts = self.counts.borrow_mut();
        // Backwards: the first entry of a count restores it, unless that descriptor was reached.
        for (at, counter, before) in marked.iter().rev() {
            let reached = |(at, other, _): &(usize, Counter, u64)| {
                other == counter && !descriptors.contains(at)
            };
            if descriptors.contains(at) && !marked.iter().any(reached) {
                counts.insert(counter.clone(), *before);
            }
        }
    }

    /// The last descriptor that is over and no quota; otherwise the first of those with the fewest
    /// remaining.
    fn headers(&self, found: &[Found<'_>], statuses: &[Status]) -> Option<usize> {
        let mut chosen: Option<usize> = None;
        for (at, status) in statuses.iter().enumerate().filter(|(_, it)| it.limit.is_some()) {
            if chosen.is_none_or(|least| status.remaining < statuses[least].remaining) {
                chosen = Some(at);
            }
        }
        let denies =
            |at: &usize| statuses[*at].over && self.is_quota(&found[*at], true) == Some(false);
        (0..statuses.len()).rfind(denies).or(chosen)
    }
}

fn statuses(
    found: &[Found<'_>],
    charges: &[Option<Charge>],
    now: u64,
    passes: bool,
) -> Vec<Status> {
    let of_counter = |counter: &Counter| {
        charges.iter().flatten().filter(|other| other.counter == *counter).count()
    };
    let status = |(found, charge): (&Found<'_>, &Option<Charge>)| match (found, charge) {
        (Found::Unlimited(_), _) => Status { remaining: u32::MAX, ..Status::default() },
        (Found::Limit { requests, unit, rule, .. }, Some(charge)) => {
            let seconds = UNITS[*unit].1;
            let name = rule.as_ref().map(|(node, _)| name(node)).unwrap_or_default();
            let left = u64::from(*requests).saturating_sub(charge.reported);
            Status {
                over: charge.over && !in_shadow(found),
                exceeds: charge.over,
                limit: Some((*requests, UNITS[*unit].0, name.to_owned())),
                remaining: if charge.over { 0 } else { u32::try_from(left).unwrap() },
                is_vague: !passes && !charge.over && of_counter(&charge.counter) > 1,
                reset: Some(seconds - now % seconds),
                stats: rule.as_ref().and_then(|(_, stats)| stats.clone()),
            }
        }
        _ => Status::default(),
    };
    found.iter().zip(charges).map(status).collect()
}

fn name(node: &Written) -> &str {
    node.limit.as_ref().map_or("", |limit| &limit.name)
}

fn in_shadow(found: &Found<'_>) -> bool {
    matches!(found, Found::Limit { rule: Some((node, _)), .. } if node.shadow)
}

/// The names that the rules of a call replace. An unlimited rule replaces others, and is never
/// replaced.
fn replaced<'w>(found: &[Found<'w>]) -> HashSet<&'w str> {
    let nodes = found.iter().filter_map(|found| match found {
        Found::Unlimited(node) | Found::Limit { rule: Some((node, _)), .. } => Some(*node),
        _ => None,
    });
    let limits = nodes.filter_map(|node| node.limit.as_ref());
    limits.flat_map(|limit| limit.replaces.iter().map(String::as_str)).collect()
}

/// The steps that `entries` lead through; `None` if they lead nowhere, or if there are no entries.
fn way<'w>(top: &'w [Written], entries: &[(String, String)]) -> Option<Vec<Step<'w>>> {
    let (mut level, mut way) = (top, Vec::new());
    for (key, value) in entries {
        let step = step(level, key, value)?;
        level = &step.node.children;
        way.push(step);
    }
    Some(way)
}

/// The text `key_value` itself, else the first pattern of the file that matches it, else the key.
fn step<'w>(level: &'w [Written], key: &str, value: &str) -> Option<Step<'w>> {
    let joined = format!("{key}_{value}");
    let of_text = |text: &str| level.iter().find(|node| composite(node) == text);
    let exact = of_text(&joined).map(|node| Step { node, by_pattern: false });
    let by_pattern = || {
        let is_pattern = |node: &&Written| composite(node).contains('*');
        let mut patterns = level.iter().filter(is_pattern);
        let node = patterns.find(|it| glob(composite(it).as_bytes(), joined.as_bytes()))?;
        Some(Step { node, by_pattern: true })
    };
    let alone = || of_text(key).map(|node| Step { node, by_pattern: false });
    exact.or_else(by_pattern).or_else(alone)
}

fn composite(node: &Written) -> String {
    match &*node.value {
        "" => node.key.clone(),
        value => format!("{}_{value}", node.key),
    }
}

/// Every `*` tries every length.
pub(crate) fn glob(pattern: &[u8], text: &[u8]) -> bool {
    match (pattern.split_first(), text.split_first()) {
        (None, _) => text.is_empty(),
        (Some((b'*', rest)), _) => (0..=text.len()).any(|skipped| glob(rest, &text[skipped..])),
        (Some((wanted, pattern)), Some((found, text))) => wanted == found && glob(pattern, text),
        (Some(_), None) => false,
    }
}

/// Values are shown as in the rules; for patterns, the pattern. A detailed rule shows everything in
/// the call, `value_to_metric` shows what its level got, and a shared pattern takes precedence over
/// both. `None` where the contract does not define it: for keys that are patterns, and for empty
/// values beside shared ones.
fn stats(domain: &str, entries: &[(String, String)], way: &[Step<'_>]) -> Option<String> {
    let is_detailed = way.last().is_some_and(|step| step.node.detailed_metric);
    let is_shared = |step: &Step<'_>| step.by_pattern && step.node.share_threshold;
    let mut name = domain.to_owned();
    for ((key, value), step) in entries.iter().zip(way) {
        let unclear =
            is_detailed && value.is_empty() && way.iter().any(|it| it.node.share_threshold);
        if step.node.key.contains('*') || unclear {
            return None;
        }
        let shown = match () {
            () if is_shared(step) => &step.node.value,
            () if is_detailed || step.node.value_to_metric => value,
            () => &step.node.value,
        };
        name += &format!(".{key}");
        if !shown.is_empty() || is_detailed {
            name += &format!("_{shown}");
        }
    }
    Some(name)
}
