//! Resolves a request to its charges: rules, overrides, replacements and keys.

use std::collections::HashSet;
use std::sync::{Arc, OnceLock};

use foldhash::fast::RandomState;
use ratelease_rules::key::{HoldId, Key, KeyHasher, KeyPart};
use ratelease_rules::request::{Descriptor, Few, Request};
use ratelease_rules::{
    Allowance, Charged, FailureMode, Hold, Limit, Lookup, Rule, Rules, UnlessSettled,
};

use super::starts;
use crate::buffer::LeasedTokens;
use crate::store::Ask;
use crate::verdict::AppliedLimit;

/// The result of matching one descriptor against the rules.
#[derive(Debug)]
pub enum Resolved<'r> {
    /// Nothing limits the descriptor.
    Free,
    /// The rule of the descriptor allows everything.
    Unlimited,
    /// The descriptor has to be charged.
    Charged(Charge<'r>),
}

/// Hits to be charged to a key.
#[derive(Debug)]
pub struct Charge<'r> {
    /// The key to charge, if there is room for it.
    pub own: Key,
    /// The key of the same count under the secret before, while a secret is being replaced.
    pub previous: Option<Key>,
    /// The key to charge instead, if there is none, and that key under the secret before.
    pub(super) overflow: OnceLock<(Key, Option<Key>)>,
    /// The domain of an override; empty for a rule, whose path contains it.
    pub(super) domain: Box<str>,
    /// The limit and its rule.
    pub applied: AppliedLimit<'r>,
    /// Number of hits; 0 only looks.
    pub hits: u64,
    /// The hits are given back instead.
    pub refund: bool,
    /// The descriptor says that the hits are a cost that has been incurred.
    marked: bool,
    /// The call may be denied, and its hits are a cost that has been incurred.
    is_cost: bool,
    /// The request that holds or settles the charge, if one does.
    pub held: Option<HeldBy<'r>>,
}

/// The request that holds the charge of a rule with `hold`.
#[derive(Debug, Clone, Copy)]
pub struct HeldBy<'r> {
    /// How long the request holds it, and its fate when that time is over.
    pub terms: &'r Hold,
    /// The id under which the request holds it; `None` if the id is empty: then the request holds
    /// nothing.
    pub id: Option<HoldId>,
}

/// Resolves every descriptor of `request`, in order.
pub fn resolve<'r>(
    rules: &'r Rules,
    request: &Request<'_>,
    hasher: &KeyHasher,
) -> Few<Resolved<'r>> {
    // Pushed one by one: `collect` has two loops, and the compiler inlines the called function in
    // neither.
    let mut all = Few::<Charged<'_, '_>>::with_capacity(request.descriptors.len());
    for descriptor in &request.descriptors {
        all.push(rules.charged(request.domain, descriptor));
    }
    let replaced = replaced(request, &all);
    let has_own_hits = has_own_hits(request);
    let mut resolved = Few::with_capacity(request.descriptors.len());
    for (descriptor, charged) in request.descriptors.iter().zip(&all) {
        let allowance = allowance(rules, request, descriptor, charged.lookup, replaced.as_ref());
        resolved.push(match allowance {
            None => Resolved::Free,
            Some((Allowance::Unlimited, _)) => Resolved::Unlimited,
            Some((Allowance::Limited(limit), rule)) => {
                let applied = AppliedLimit { limit, rule };
                let charge = Charge::of(request, descriptor, charged, applied, hasher);
                let is_cost = has_own_hits && charge.settles_own_hits(charged.lookup);
                Resolved::Charged(Charge { is_cost, ..charge })
            }
        });
    }
    resolved
}

/// Whether each descriptor says itself how many hits it has, and has some: gateways report the cost
/// of an answer in this way.
fn has_own_hits(request: &Request<'_>) -> bool {
    let mut descriptors = request.descriptors.iter();
    descriptors.all(|it| it.hits_addend.is_some_and(|hits| hits > 0) && !it.refund)
}

/// The allowance in force for a descriptor. If the domain is known, an override takes precedence
/// over the rules; it is counted by the store of the rule, or else of the domain, so that each key
/// has one store.
fn allowance<'r>(
    rules: &Rules,
    request: &Request<'_>,
    descriptor: &Descriptor<'_>,
    lookup: Lookup<'r>,
    replaced: Option<&ReplacedNames<'_>>,
) -> Option<(Allowance, Option<&'r Arc<Rule>>)> {
    match (lookup, descriptor.limit) {
        (Lookup::UnknownDomain, _) | (Lookup::NoRule, None) => None,
        (_, Some(limit)) => {
            let store = match lookup {
                Lookup::Rule(rule) => rule.store(),
                _ => None,
            };
            let store = store.unwrap_or_else(|| rules.store_of_domain(request.domain));
            let limit = Limit { store, ..rules.of_override(limit) };
            Some((Allowance::Limited(limit), None))
        }
        // A rule that allows everything cannot be replaced, as in the reference implementation.
        (Lookup::Rule(rule), None) => {
            let is_replaced = || replaced.is_some_and(|names| names.contains(&*rule.name));
            let counts = rule.allowance == Allowance::Unlimited || !is_replaced();
            counts.then_some((rule.allowance, Some(rule)))
        }
    }
}

/// Names of rules of a request that other rules of it replace.
type ReplacedNames<'r> = HashSet<&'r str, RandomState>;

/// The replaced names of the rules that were found for the descriptors of `request`; `None`
/// if no rule replaces any, as nearly always. A descriptor with an override replaces nothing.
///
/// The time grows with the number of descriptors plus the number of names that their rules
/// replace, not with their product; the memory grows with the descriptors alone.
fn replaced<'r>(request: &Request<'_>, charged: &[Charged<'r, '_>]) -> Option<ReplacedNames<'r>> {
    let found = || {
        let pairs = request.descriptors.iter().zip(charged);
        pairs.filter_map(|(descriptor, charged)| match (descriptor, charged.lookup) {
            (Descriptor { limit: None, .. }, Lookup::Rule(rule)) => Some(rule),
            _ => None,
        })
    };
    if found().all(|rule| rule.replaces.is_empty()) {
        return None;
    }
    // A rule that many descriptors match is read once.
    let mut rules: Few<&'r Arc<Rule>> = found().collect();
    rules.sort_unstable_by_key(|rule| Arc::as_ptr(rule));
    rules.dedup_by_key(|rule| Arc::as_ptr(rule));
    if rules.len() == 1 {
        return None; // no rule replaces its own name: loading such a rule fails
    }
    let names: ReplacedNames<'_> = rules.iter().map(|rule| &*rule.name).collect();
    let replaces = rules.iter().flat_map(|rule| &rule.replaces).map(AsRef::as_ref);
    Some(replaces.filter(|name| names.contains(name)).collect())
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

// === impl Charge ===

impl<'r> Charge<'r> {
    /// The charge of `descriptor` to the limit that applies to it.
    fn of(
        request: &Request<'_>,
        descriptor: &Descriptor<'_>,
        charged: &Charged<'r, '_>,
        applied: AppliedLimit<'r>,
        hasher: &KeyHasher,
    ) -> Self {
        let AppliedLimit { limit, rule } = applied;
        // An override of a rule's limit is held as the rule says.
        let terms = match charged.lookup {
            Lookup::Rule(rule) => {
                rule.hold.as_ref().filter(|_| limit.algorithm.takes_settlements())
            }
            _ => None,
        };
        let parts = charged.entries.iter().enumerate().map(|(at, entry)| {
            let shared = match rule {
                Some(rule) => rule.shared_at(at),
                None => terms.filter(|terms| terms.is_at(at)).map(|_| ""),
            };
            (entry.key, shared.map_or(KeyPart::Value(entry.value), KeyPart::Shared))
        });
        // Two windows on the same entries are counted apart; two limits of one window share a
        // count, so that raising or lowering a limit keeps the count.
        let of = |hasher: &KeyHasher| hasher.key(request.domain, limit.identity(), parts.clone());
        let (own, previous) = (of(hasher), hasher.previous().map(of));
        let id = |terms: &Hold| {
            hasher.hold_id(request.domain, charged.entries, usize::from(terms.level))
        };
        // Slots come back when their request ends, and only then.
        let of_slots = !limit.algorithm.has_window();
        let refund = descriptor.refund && !of_slots;
        let hits = if descriptor.refund && of_slots { 0 } else { request.hits(descriptor) };
        Self {
            own,
            previous,
            overflow: OnceLock::new(),
            domain: if rule.is_none() { request.domain.into() } else { Box::default() },
            applied,
            hits,
            refund,
            marked: charged.settles && limit.algorithm.takes_settlements(),
            is_cost: false,
            held: terms.filter(|_| !descriptor.refund).map(|terms| HeldBy { terms, id: id(terms) }),
        }
    }

    /// A cost of `hits` of a request that has ended, to the key and limit charged at its start.
    pub(super) fn of_end(
        own: Key,
        previous: Option<Key>,
        domain: Box<str>,
        applied: AppliedLimit<'r>,
        hits: u64,
    ) -> Self {
        let overflow = OnceLock::new();
        let (refund, marked, is_cost, held) = (false, true, false, None);
        Self { own, previous, overflow, domain, applied, hits, refund, marked, is_cost, held }
    }

    /// The key whose tokens the charge takes.
    pub(super) fn key(&self) -> Key {
        self.overflow.get().map_or(self.own, |(key, _)| *key)
    }

    /// That key under the secret before, while a secret is being replaced.
    pub(super) fn previous_key(&self) -> Option<Key> {
        self.overflow.get().map_or(self.previous, |(_, previous)| *previous)
    }

    /// The domain of the charge; `None` where no name contains it.
    pub(super) fn domain(&self) -> Option<&str> {
        match self.applied.rule {
            Some(rule) => rule.domain(),
            None => Some(&self.domain),
        }
    }

    /// Whether the charge is a cost that has been incurred: it is counted whole, and never denied.
    pub fn settles(&self) -> bool {
        let is_marked = self.marked && !self.refund;
        is_marked || self.spends() && self.applied.rule.is_some_and(|rule| rule.flags.settle)
    }

    /// Whether the rule for its entries has `settle_own_hits`, also where an override takes its
    /// place.
    fn settles_own_hits(&self, lookup: Lookup<'_>) -> bool {
        let takes_settlements = self.applied.limit.algorithm.takes_settlements();
        matches!(lookup, Lookup::Rule(rule) if rule.flags.settle_own_hits) && takes_settlements
    }

    /// Whether the charge is the cost of a request that has ended, which is counted whole whatever
    /// the verdict is.
    pub(super) fn is_cost(&self) -> bool {
        self.is_cost && self.spends() && !self.settles()
    }

    /// Whether the charge takes tokens that pass with time and no more: nothing is held, settled or
    /// in use until its end.
    pub(super) fn is_plain(&self) -> bool {
        self.held.is_none() && !self.is_of_slots() && !self.settles()
    }

    /// Whether the charge takes slots, which its end gives back.
    pub(super) fn is_of_slots(&self) -> bool {
        !self.applied.limit.algorithm.has_window()
    }

    /// The id under which the charge is held, if it is held.
    pub fn hold_id(&self) -> Option<HoldId> {
        self.held.filter(|_| self.holds())?.id
    }

    /// Returns the hold of this charge: the tokens `taken` have paid for it, and this pod has
    /// admitted `alone` of its hits by itself. `None` if the charge holds nothing.
    pub fn hold(&self, taken: LeasedTokens, alone: u64) -> Option<starts::Hold> {
        let HeldBy { terms, .. } = self.held.filter(|_| self.holds())?;
        let AppliedLimit { limit, rule } = self.applied;
        let (previous, domain) = (self.previous_key(), self.domain.clone());
        let is_rare = previous.is_some() || !domain.is_empty();
        Some(starts::Hold {
            key: self.key(),
            limit,
            hits: self.hits,
            taken,
            alone,
            lasts: terms.lasts(),
            releases: terms.unless_settled == UnlessSettled::Release,
            rule: rule.cloned(),
            rare: is_rare.then(|| Box::new(starts::Rare { previous, domain })),
        })
    }

    /// Whether the charge is held until a settlement says how much the request has cost.
    pub fn holds(&self) -> bool {
        self.held.is_some() && self.spends() && !self.settles()
    }

    /// An ask for the key that takes nothing.
    pub fn look(&self) -> Ask {
        let carry_debt = self.applied.rule.is_some_and(|rule| rule.flags.carry_debt);
        let previous = self.previous_key();
        Ask { carry_debt, previous, ..Ask::look(self.key(), self.applied.limit) }
    }

    /// Whether the charge takes tokens if it passes.
    pub(super) fn spends(&self) -> bool {
        self.hits > 0 && !self.refund
    }

    /// The answer when the store is unavailable.
    pub(super) fn failure_mode(&self) -> FailureMode {
        failure_mode_of(self.applied.rule.map(AsRef::as_ref))
    }

    /// Whether a denial spends the remaining tokens of the key.
    pub fn charge_denied(&self) -> bool {
        match self.applied.rule {
            _ if self.is_cost => false, // it is counted whole instead
            Some(rule) => rule.flags.charge_denied,
            None => self.held.is_none(),
        }
    }
}
