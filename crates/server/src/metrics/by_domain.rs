//! Hits by domain, for a control plane that compares them.

use std::collections::HashMap;

use super::Meters;
use super::series::RuleMeter;

/// Hits of the limits of a domain since the process began.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DomainHits {
    /// All of them.
    pub total: u64,
    /// Those over a limit that is enforced.
    pub denied: u64,
    /// Those over a limit in shadow mode, which passed.
    pub shadow: u64,
}

// === impl DomainHits ===

impl DomainHits {
    /// The hits since `former`. A counter that is smaller now had its rule replaced, and began
    /// again.
    #[must_use]
    pub fn since(&self, former: &Self) -> Self {
        let total = self.total.saturating_sub(former.total);
        let denied = self.denied.saturating_sub(former.denied).min(total);
        let shadow = self.shadow.saturating_sub(former.shadow).min(total - denied);
        Self { total, denied, shadow }
    }

    fn add(&mut self, meter: &RuleMeter) {
        let hits = meter.sums().hits;
        self.total = self.total.wrapping_add(hits.total);
        self.denied = self.denied.wrapping_add(hits.over.saturating_sub(hits.shadow));
        self.shadow = self.shadow.wrapping_add(hits.shadow);
    }
}

// === impl Meters ===

impl Meters {
    /// The hits of each of these domains, in their order. Reads the series of all rules of these
    /// domains. Rules without room for a series are left out.
    pub fn hits_of(&self, domains: &[String]) -> Vec<DomainHits> {
        let mut hits: HashMap<&str, DomainHits> =
            domains.iter().map(|domain| (&**domain, DomainHits::default())).collect();
        let rules = self.shared.rules.meters();
        let meters = rules.iter().map(AsRef::as_ref).chain(self.shared.overrides.iter());
        for meter in meters.filter(|meter| !self.shared.rules.is_folded(meter)) {
            if let Some(hits) = hits.get_mut(&*meter.domain) {
                hits.add(meter);
            }
        }
        domains.iter().map(|domain| hits.get(&**domain).copied().unwrap_or_default()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_counter_gained_is_never_negative_and_never_contradicts_itself() {
        let of = |total, denied, shadow| DomainHits { total, denied, shadow };
        assert_eq!(of(10, 3, 2).since(&of(4, 1, 1)), of(6, 2, 1));
        assert_eq!(of(4, 1, 1).since(&of(10, 3, 2)), of(0, 0, 0), "the rule was replaced");
        assert_eq!(of(5, 9, 9).since(&of(4, 1, 1)), of(1, 1, 0));
    }
}
