//! Resolves a request to its charges: rules, overrides, replacements and keys.

use std::collections::HashSet;
use std::sync::{Arc, OnceLock};

use foldhash::fast::RandomState;
use ratelease_rules::key::{Key, KeyHasher, KeyPart};
use ratelease_rules::request::{Descriptor, Few, Request};
use ratelease_rules::{Allowance, FailureMode, Limit, Lookup, Rule, Rules};

use crate::verdict::AppliedLimit;

/// The result of matching one descriptor against the rules.
#[derive(Debug)]
pub enum Resolved<'r> {
    /// Nothing limits it.
    Free,
    /// Its rule allows everything.
    Unlimited,
    /// It has to be charged.
    Charged(Charge<'r>),
}

/// Hits to be charged to a key.
#[derive(Debug)]
pub struct Charge<'r> {
    /// The key to charge, if there is room for it.
    pub own: Key,
    /// The key to charge instead, if there is none.
    pub(super) overflow: OnceLock<Key>,
    /// The domain of an override; empty for a rule, whose path contains it.
    pub(super) domain: Box<str>,
    /// The limit and its rule.
    pub applied: AppliedLimit<'r>,
    /// Number of hits; 0 only looks.
    pub hits: u64,
    /// The hits are given back instead.
    pub refund: bool,
}

/// The hits that a descriptor charges, and the limit that they count against.
#[derive(Debug, Clone, Copy)]
pub struct LimitedHits<'r> {
    /// The limit and its rule.
    pub applied: AppliedLimit<'r>,
    /// Number of hits; 0 only looks.
    pub hits: u64,
}

/// Names of rules of a request that other rules of it replace. The time to find them grows with the
/// number of descriptors plus the number of names that their rules replace, not with their product;
/// the memory grows with the descriptors alone.
#[derive(Debug, Default)]
struct Replaced<'r>(HashSet<&'r str, RandomState>);

/// Resolves every descriptor of `request`, in order.
pub fn resolve<'r>(
    rules: &'r Rules,
    request: &Request<'_>,
    hasher: &KeyHasher,
) -> Few<Resolved<'r>> {
    let lookups: Few<_> = request
        .descriptors
        .iter()
        .map(|descriptor| rules.find(request.domain, &descriptor.entries))
        .collect();
    let replaced = Replaced::of(request, &lookups);
    let pairs = request.descriptors.iter().zip(&lookups);
    pairs
        .map(|(descriptor, it)| resolved(rules, request, descriptor, *it, &replaced, hasher))
        .collect()
}

/// The limit that each descriptor of `request` is held to, and the hits that [`resolve`] charges to
/// it; `None` where nothing is counted.
pub fn limits<'r>(rules: &'r Rules, request: &Request<'_>) -> Few<Option<LimitedHits<'r>>> {
    let find = |descriptor: &Descriptor<'_>| rules.find(request.domain, &descriptor.entries);
    let lookups: Few<_> = request.descriptors.iter().map(find).collect();
    let replaced = Replaced::of(request, &lookups);
    let limits =
        request.descriptors.iter().zip(&lookups).map(|(descriptor, lookup)| {
            match limit_of(rules, request, descriptor, *lookup, &replaced)? {
                (Allowance::Limited(limit), rule) => {
                    Some(LimitedHits::new(request, descriptor, AppliedLimit { limit, rule }))
                }
                (Allowance::Unlimited, _) => None,
            }
        });
    limits.collect()
}

/// Resolves the only descriptor of `request`.
pub(super) fn resolve_one<'r>(
    rules: &'r Rules,
    request: &Request<'_>,
    descriptor: &Descriptor<'_>,
    hasher: &KeyHasher,
) -> Resolved<'r> {
    let lookup = rules.find(request.domain, &descriptor.entries);
    // No rule replaces its own name: loading such a rule fails.
    resolved(rules, request, descriptor, lookup, &Replaced::default(), hasher)
}

#[inline]
fn resolved<'r>(
    rules: &'r Rules,
    request: &Request<'_>,
    descriptor: &Descriptor<'_>,
    lookup: Lookup<'r>,
    replaced: &Replaced<'r>,
    hasher: &KeyHasher,
) -> Resolved<'r> {
    match limit_of(rules, request, descriptor, lookup, replaced) {
        None => Resolved::Free,
        Some((Allowance::Unlimited, _)) => Resolved::Unlimited,
        Some((Allowance::Limited(limit), rule)) => {
            let limited = LimitedHits::new(request, descriptor, AppliedLimit { limit, rule });
            Resolved::Charged(charge(request, descriptor, limited, hasher))
        }
    }
}

/// The limit in force for a descriptor. If the domain is known, an override takes precedence over
/// the rules; it is counted by the store of the rule, or else of the domain, so that each key has
/// one store.
fn limit_of<'r>(
    rules: &Rules,
    request: &Request<'_>,
    descriptor: &Descriptor<'_>,
    lookup: Lookup<'r>,
    replaced: &Replaced<'_>,
) -> Option<(Allowance, Option<&'r Arc<Rule>>)> {
    match (lookup, descriptor.limit) {
        (Lookup::UnknownDomain, _) | (Lookup::NoRule, None) => None,
        (_, Some(limit)) => {
            let store = match lookup {
                Lookup::Rule(rule) => rule.store(),
                _ => None,
            };
            let store = store.unwrap_or_else(|| rules.store_of_domain(request.domain));
            Some((Allowance::Limited(Limit { store, ..limit }), None))
        }
        // A rule that allows everything cannot be replaced, as in the reference implementation.
        (Lookup::Rule(rule), None) => {
            let counts = rule.allowance == Allowance::Unlimited || !replaced.has(&rule.name);
            counts.then_some((rule.allowance, Some(rule)))
        }
    }
}

fn charge<'r>(
    request: &Request<'_>,
    descriptor: &Descriptor<'_>,
    limited: LimitedHits<'r>,
    hasher: &KeyHasher,
) -> Charge<'r> {
    let LimitedHits { applied, hits } = limited;
    let AppliedLimit { limit, rule } = applied;
    let levels = rule.map_or(&[][..], |rule| &rule.levels);
    let parts = descriptor.entries.iter().enumerate().map(|(at, entry)| {
        let shared = levels.get(at).and_then(|level| level.shared.as_deref());
        (entry.key, shared.map_or(KeyPart::Value(entry.value), KeyPart::Shared))
    });
    // Two windows on the same entries are counted apart; two limits of one window share a count, so
    // that raising or lowering a limit keeps the count.
    let own = hasher.key(request.domain, limit.identity(), parts);
    Charge {
        own,
        overflow: OnceLock::new(),
        domain: if rule.is_none() { request.domain.into() } else { Box::default() },
        applied,
        hits,
        refund: descriptor.refund,
    }
}

/// The failure mode of a rule, or of an override. A rule in shadow mode never blocks.
pub(super) fn failure_mode_of(rule: Option<&Rule>) -> FailureMode {
    match rule {
        Some(rule) if rule.flags.shadow_mode && rule.failure_mode == FailureMode::Error => {
            FailureMode::Allow
        }
        Some(rule) => rule.failure_mode,
        None => FailureMode::default(),
    }
}

// === impl LimitedHits ===

impl<'r> LimitedHits<'r> {
    /// Nothing else computes the hits of a descriptor, so what is counted is what is charged.
    #[inline]
    fn new(
        request: &Request<'_>,
        descriptor: &Descriptor<'_>,
        applied: AppliedLimit<'r>,
    ) -> LimitedHits<'r> {
        LimitedHits { applied, hits: request.hits(descriptor) }
    }
}

// === impl Replaced ===

impl<'r> Replaced<'r> {
    /// Collects the replaced names of the rules that `lookups` found for the descriptors of
    /// `request`; a descriptor with an override replaces nothing.
    fn of(request: &Request<'_>, lookups: &[Lookup<'r>]) -> Self {
        let found = request.descriptors.iter().zip(lookups).filter_map(|it| match it {
            (Descriptor { limit: None, .. }, Lookup::Rule(rule)) => Some(*rule),
            _ => None,
        });
        let mut rules: Few<&'r Arc<Rule>> = found.collect();
        if rules.iter().all(|rule| rule.replaces.is_empty()) {
            return Self::default();
        }
        // A rule that many descriptors match is read once.
        rules.sort_unstable_by_key(|rule| Arc::as_ptr(rule));
        rules.dedup_by_key(|rule| Arc::as_ptr(rule));
        let names: HashSet<&str, RandomState> = rules.iter().map(|rule| &*rule.name).collect();
        let replaces = rules.iter().flat_map(|rule| &rule.replaces).map(AsRef::as_ref);
        Self(replaces.filter(|name| names.contains(name)).collect())
    }

    /// Whether a rule of this name is replaced.
    fn has(&self, name: &str) -> bool {
        !self.0.is_empty() && self.0.contains(name)
    }
}

// === impl Charge ===

impl Charge<'_> {
    /// The key whose tokens the charge takes.
    pub(super) fn key(&self) -> Key {
        self.overflow.get().copied().unwrap_or(self.own)
    }

    /// The domain of the charge; `None` where no name contains it.
    pub(super) fn domain(&self) -> Option<&str> {
        match self.applied.rule {
            Some(rule) => rule.domain(),
            None => Some(&self.domain),
        }
    }

    /// Whether the charge takes tokens if it passes.
    pub(super) fn spends(&self) -> bool {
        self.hits > 0 && !self.refund
    }

    /// What to answer when the store is unavailable.
    pub(super) fn failure_mode(&self) -> FailureMode {
        failure_mode_of(self.applied.rule.map(AsRef::as_ref))
    }

    /// Whether a denial spends what is left of the key.
    pub fn charge_denied(&self) -> bool {
        self.applied.rule.is_none_or(|rule| rule.flags.charge_denied)
    }
}
