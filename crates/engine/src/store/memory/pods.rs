//! The pods that send heartbeats to the embedded store.

use std::collections::BTreeMap;
use std::time::Duration;

use ratelease_rules::key::Key;

use crate::store::{Heartbeat, PODS_MAX};

/// Live pods, of all domains and of each domain, with the store's time at which each lapses.
#[derive(Debug, Default)]
pub(super) struct Pods {
    of: BTreeMap<Option<Key>, Lapses>,
}

/// When each pod lapses.
type Lapses = BTreeMap<u64, Duration>;

/// The largest number of domains whose pods are counted; pods of others are not recorded until some
/// domains have lapsed.
pub(super) const DOMAINS_MAX: usize = 1024;

// === impl Pods ===

impl Pods {
    /// Records `beat` at the store's time `now`, and returns the number of live pods of its domain.
    pub(super) fn beat(&mut self, beat: Heartbeat, now: Duration) -> u32 {
        let is_new = beat.domain.is_some() && !self.of.contains_key(&beat.domain);
        if is_new && self.of.len() > DOMAINS_MAX {
            self.of.retain(|_, lapses| lapses.values().any(|lapses_at| *lapses_at > now));
            if self.of.len() > DOMAINS_MAX {
                return u32::from(!beat.leaves);
            }
        }
        let lapses = self.of.entry(beat.domain).or_default();
        lapses.retain(|_, lapses_at| *lapses_at > now);
        if beat.leaves {
            lapses.remove(&beat.pod);
        } else if lapses.len() < PODS_MAX || lapses.contains_key(&beat.pod) {
            lapses.insert(beat.pod, now.saturating_add(beat.lasts));
        }
        let alive = u32::try_from(lapses.len()).unwrap_or(u32::MAX);
        if lapses.is_empty() {
            self.of.remove(&beat.domain);
        }
        alive
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn beat(pods: &mut Pods, pod: u64, domain: u64, now: u64) -> u32 {
        let domain = Some(Key::for_test(domain));
        let beat = Heartbeat { pod, lasts: Duration::from_secs(3), leaves: false, domain };
        pods.beat(beat, Duration::from_secs(now))
    }

    #[test]
    fn domains_are_bounded_and_lapsed_ones_make_room() {
        let mut pods = Pods::default();
        let all = Heartbeat { pod: 1, lasts: Duration::MAX, leaves: false, domain: None };
        pods.beat(all, Duration::ZERO);
        for domain in 0..2 * DOMAINS_MAX as u64 {
            assert_eq!(beat(&mut pods, 1, domain, 0), 1);
        }
        assert_eq!(pods.of.len(), 1 + DOMAINS_MAX);
        assert_eq!(beat(&mut pods, 2, 5_000, 2), 1, "a domain too many counts the pod alone");
        assert_eq!(beat(&mut pods, 2, 0, 2), 2, "one of those that are counted goes on");
        assert_eq!(beat(&mut pods, 2, 5_000, 3), 1);
        assert_eq!(beat(&mut pods, 3, 5_000, 3), 2, "the others have lapsed");
        assert_eq!(pods.of.len(), 3);
    }

    #[test]
    fn a_domain_that_its_last_pod_leaves_is_forgotten() {
        let mut pods = Pods::default();
        beat(&mut pods, 1, 0, 0);
        let domain = Some(Key::for_test(0));
        let leaves = Heartbeat { pod: 1, lasts: Duration::ZERO, leaves: true, domain };
        assert_eq!(pods.beat(leaves, Duration::ZERO), 0);
        assert!(pods.of.is_empty());
    }
}
