//! The fingerprint of a domain's rules: a hash of all that decides which counts a request of the
//! domain charges, and of nothing else.
//!
//! Two programs with the same fingerprint and the same secret make the same keys for every request
//! of the domain. The amounts of limits are left out, since a changed amount keeps the count, and
//! so is what only decides an answer: failure modes, leases, metadata, shadow mode.

use blake3::Hasher;

use crate::rule::{Allowance, Rule};
use crate::rules::{Branch, DomainRules, Node, Rules};
use crate::store::StoreNames;

// === impl Rules ===

impl Rules {
    /// Returns the fingerprint of a domain; `None` if no rule file configures the domain. The first
    /// call takes some 100 ns for each rule, and later ones nothing, so make the first one where
    /// that may take a while.
    pub fn fingerprint(&self, domain: &str) -> Option<u64> {
        let rules = self.domain(domain)?;
        let own = rules.fingerprint.get_or_init(|| of_domain(rules, self.stores()));
        let mut hash = Hasher::new();
        hash.update(&own.to_le_bytes());
        hash.update(&[u8::from(self.has_calendar_months())]);
        Some(first_bits(&hash))
    }
}

fn of_domain(domain: &DomainRules, stores: &StoreNames) -> u64 {
    let mut hash = Hasher::new();
    part(&mut hash, b's', stores.name(domain.store));
    of_branch(&domain.branch, stores, &mut hash);
    first_bits(&hash)
}

/// Adds the nodes of one level: patterns in the order in which they are tried, and the others in
/// the order of their texts. The recursion is at most as deep as a file.
fn of_branch(branch: &Branch, stores: &StoreNames, hash: &mut Hasher) {
    let is_pattern = |key: &str, value: &str| key.contains('*') || value.contains('*');
    let mut nodes: Vec<(u32, &str, &str)> = branch.written().collect();
    nodes.sort_unstable_by_key(|&(index, key, value)| {
        let of_pattern = is_pattern(key, value).then_some(index);
        (of_pattern.is_none(), of_pattern, key, value)
    });
    hash.update(b"(");
    for (index, key, value) in nodes {
        part(hash, b'k', key);
        part(hash, b'v', value);
        if let Some(node) = branch.node(index) {
            of_node(node, stores, hash);
        }
    }
    hash.update(b")");
}

fn of_node(node: &Node, stores: &StoreNames, hash: &mut Hasher) {
    if let Some(rule) = &node.rule {
        of_rule(rule, stores, hash);
    }
    if let Some(children) = &node.children {
        of_branch(children, stores, hash);
    }
}

/// Adds the parts of a rule that decide the names of its counts, their stores, and which requests
/// charge them.
fn of_rule(rule: &Rule, stores: &StoreNames, hash: &mut Hasher) {
    match rule.allowance {
        Allowance::Unlimited => drop(hash.update(b"u")),
        Allowance::Limited(limit) => {
            hash.update(b"l");
            hash.update(&limit.identity().to_le_bytes());
            hash.update(&[rule.shards.get(), u8::from(rule.flags.settle)]);
            part(hash, b's', stores.name(limit.store));
        }
    }
    part(hash, b'n', &rule.name);
    rule.replaces.iter().for_each(|name| part(hash, b'r', name));
    if let Some(hold) = rule.hold {
        hash.update(&[b'h', hold.level]);
    }
    for (level, at) in rule.levels.iter().zip(0_u8..) {
        if let Some(pattern) = &level.shared {
            hash.update(&[b'p', at]);
            part(hash, b'p', pattern);
        }
    }
}

/// Adds a text with its length, so that no two lists of texts are the same bytes.
fn part(hash: &mut Hasher, kind: u8, text: &str) {
    hash.update(&[kind]);
    hash.update(&(text.len() as u64).to_le_bytes());
    hash.update(text.as_bytes());
}

fn first_bits(hash: &Hasher) -> u64 {
    let mut bits = [0; 8];
    bits.copy_from_slice(&hash.finalize().as_bytes()[..8]);
    u64::from_le_bytes(bits)
}
