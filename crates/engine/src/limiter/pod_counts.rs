//! The number of pods, by domain: it determines what a pod may hold before it has observed which
//! pods draw on a key, and its part of a limit when the store is unavailable.
//!
//! Pods of one domain count each other by heartbeats in the store. A pod counts in a domain
//! while it has used the domain's keys within [`USED_FOR`].

use std::collections::HashMap;
use std::time::Duration;

use parking_lot::RwLock;

use crate::time::Time;

/// The largest number of domains that are counted separately; pods of further domains are counted
/// together.
pub(super) const DOMAINS_MAX: usize = 1024;

/// The largest number of heartbeats that a pod sends in one round: with more domains than that,
/// they take turns.
pub(super) const HEARTBEATS_MAX: usize = 32;

/// A domain that was not asked for in this time no longer counts as used.
const USED_FOR: Duration = Duration::from_secs(600);

/// Number of heartbeats whose counts are compared: see [`RecentCounts`].
const RECENT_COUNTS: usize = 8;

/// The numbers of pods.
#[derive(Debug)]
pub(super) struct PodCounts {
    /// Number of pods assumed for a domain without a reply.
    expected: u32,
    counts: RwLock<Counts>,
}

#[derive(Debug, Default)]
struct Counts {
    /// Pods of all domains.
    all: RecentCounts,
    by_domain: HashMap<Box<str>, Count>,
    /// Index of the domain whose heartbeat comes first in the next round.
    round: usize,
}

#[derive(Debug, Default)]
struct Count {
    heard: RecentCounts,
    /// When the domain was last asked for; `None` if it never was.
    used_at: Option<Time>,
}

/// Heartbeats of one round.
#[derive(Debug)]
pub(super) struct Due {
    /// The domains of the heartbeats; `None` is for the pods of all domains.
    pub(super) domains: Vec<Option<Box<str>>>,
    /// Number of rounds until each domain has had one heartbeat.
    pub(super) rounds: u32,
}

/// The numbers of live pods that the last heartbeats reported.
///
/// After an outage that is longer than a heartbeat lasts, the first pod to reconnect finds itself
/// alone until the others reconnect, which their back-off may delay by two seconds, and quiet pods'
/// next heartbeat by four. If the pod believed that count, it would take the whole limit as its
/// part, so the count falls only once the last heartbeats agree.
#[derive(Debug, Default)]
struct RecentCounts([u32; RECENT_COUNTS]);

// === impl PodCounts ===

impl PodCounts {
    /// Counts that are `expected`, at least 1, until the store reports others.
    pub(super) fn new(expected: u32) -> Self {
        Self { expected: expected.max(1), counts: RwLock::default() }
    }

    /// The number of pods of a domain, as far as is known; without a domain, of all domains. At
    /// least 1.
    pub(super) fn of(&self, domain: Option<&str>) -> u32 {
        let counts = self.counts.read();
        let of_domain = domain.and_then(|domain| counts.by_domain.get(domain)?.heard.count());
        of_domain.or_else(|| counts.all.count()).unwrap_or(self.expected)
    }

    /// Notes that keys of a domain are asked for. Returns whether the domain is new here, so that
    /// its pods have to be counted.
    pub(super) fn note_used(&self, domain: &str, now: Time) -> bool {
        let known = |counts: &Counts| {
            let count = counts.by_domain.get(domain)?;
            Some(count.used_at.is_some_and(|used_at| now.since(used_at) < USED_FOR / 2))
        };
        let (known, full) = {
            let counts = self.counts.read();
            (known(&counts), counts.by_domain.len() >= DOMAINS_MAX)
        };
        if known == Some(true) || (known.is_none() && full) {
            return false;
        }
        let mut counts = self.counts.write();
        let count = counts.by_domain.entry(domain.into()).or_default();
        count.used_at.replace(now).is_none()
    }

    /// The domains whose heartbeats are due in this round, and always `None` for all domains.
    pub(super) fn due(&self, now: Time) -> Due {
        let mut counts = self.counts.write();
        let is_used =
            |count: &Count| count.used_at.is_some_and(|used_at| now.since(used_at) < USED_FOR);
        if counts.by_domain.len() >= DOMAINS_MAX {
            counts.by_domain.retain(|_, count| is_used(count)); // room for others
        }
        let used = counts.by_domain.iter().filter(|(_, count)| is_used(count));
        let mut used: Vec<_> = used.map(|(domain, _)| Some(domain.clone())).collect();
        used.sort();
        let rounds = u32::try_from(used.len().div_ceil(HEARTBEATS_MAX)).unwrap_or(u32::MAX).max(1);
        if used.len() > HEARTBEATS_MAX {
            let first = counts.round % used.len();
            counts.round = first + HEARTBEATS_MAX;
            used.rotate_left(first);
            used.truncate(HEARTBEATS_MAX);
        }
        used.insert(0, None);
        Due { domains: used, rounds }
    }

    /// Records the count that a heartbeat returned.
    pub(super) fn note(&self, domain: &Option<Box<str>>, pods: u32) {
        let mut counts = self.counts.write();
        match domain {
            None => counts.all.note(pods),
            Some(domain) => {
                if let Some(count) = counts.by_domain.get_mut(domain) {
                    count.heard.note(pods);
                }
            }
        }
    }

    /// The counts of the domains for which a count was reported, in order of their names.
    pub(super) fn all(&self) -> Vec<(Box<str>, u32)> {
        let counts = self.counts.read();
        let heard = counts.by_domain.iter();
        let heard = heard.filter_map(|(name, count)| Some((name.clone(), count.heard.count()?)));
        let mut heard: Vec<_> = heard.collect();
        heard.sort();
        heard
    }

    /// Sets these counts for the domains for which none was reported.
    pub(super) fn expect(&self, pods: &[(Box<str>, u32)]) {
        let mut counts = self.counts.write();
        for (domain, pods) in pods.iter().take(DOMAINS_MAX) {
            let count = counts.by_domain.entry(domain.clone()).or_default();
            if count.heard.count().is_none() {
                count.heard.note(*pods);
            }
        }
    }

    /// Sets the number of all pods.
    #[cfg(test)]
    pub(super) fn set(&self, pods: u32) {
        self.counts.write().all = RecentCounts([pods; RECENT_COUNTS]);
    }
}

// === impl RecentCounts ===

impl RecentCounts {
    fn note(&mut self, pods: u32) {
        self.0.rotate_right(1);
        if let Some(last) = self.0.first_mut() {
            *last = pods;
        }
    }

    /// The number of pods assumed to be alive; `None` before any heartbeat was answered.
    fn count(&self) -> Option<u32> {
        self.0.into_iter().max().filter(|pods| *pods > 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Time = Time::from_nanos(1_000_000_000);

    #[test]
    fn the_count_of_pods_rises_at_once_and_falls_when_the_last_beats_agree() {
        let mut heard = RecentCounts::default();
        let beats = [0, 2, 2, 1, 1, 2, 3, 1, 1, 1, 1, 1, 1, 1, 1, 1];
        let counted = [0, 2, 2, 2, 2, 2, 3, 3, 3, 3, 3, 3, 3, 3, 1, 1];
        for (beat, counted) in beats.into_iter().zip(counted) {
            heard.note(beat);
            assert_eq!(heard.count().unwrap_or(0), counted, "{beat} after {heard:?}");
        }
    }

    #[test]
    fn a_domain_that_nothing_was_heard_of_has_as_many_pods_as_all_or_as_expected() {
        let pods = PodCounts::new(7);
        assert_eq!((pods.of(None), pods.of(Some("shop"))), (7, 7));
        pods.note(&None, 40);
        assert_eq!((pods.of(None), pods.of(Some("shop"))), (40, 40));
        assert!(pods.note_used("shop", NOW));
        assert!(!pods.note_used("shop", NOW), "known");
        pods.note(&Some("shop".into()), 3);
        assert_eq!((pods.of(None), pods.of(Some("shop")), pods.of(Some("x"))), (40, 3, 40));
    }

    #[test]
    fn no_pods_expected_counts_as_one() {
        assert_eq!(PodCounts::new(0).of(None), 1);
    }

    #[test]
    fn counts_of_before_a_restart_stand_until_the_store_says_more() {
        let pods = PodCounts::new(16);
        pods.expect(&[("shop".into(), 400)]);
        assert_eq!((pods.of(Some("shop")), pods.of(Some("other"))), (400, 16));
        assert_eq!(pods.all(), [("shop".into(), 400)]);
        pods.note_used("shop", NOW);
        for _ in 0..RECENT_COUNTS {
            pods.note(&Some("shop".into()), 390);
        }
        assert_eq!(pods.of(Some("shop")), 390);
        pods.expect(&[("shop".into(), 1)]);
        assert_eq!(pods.of(Some("shop")), 390, "known better");
    }

    #[test]
    fn only_domains_in_use_have_heartbeats_and_each_gets_its_turn() {
        let pods = PodCounts::new(1);
        assert_eq!(pods.due(NOW).domains, [None]);
        let names: Vec<Box<str>> = (0..100).map(|n| format!("d{n}").into()).collect();
        names.iter().for_each(|name| assert!(pods.note_used(name, NOW)));
        let mut beaten = std::collections::BTreeSet::new();
        for _ in 0..100_usize.div_ceil(HEARTBEATS_MAX) {
            let Due { domains, rounds } = pods.due(NOW);
            assert_eq!((domains.len(), &domains[0], rounds), (HEARTBEATS_MAX + 1, &None, 4));
            beaten.extend(domains);
        }
        assert_eq!(beaten.len(), 101);
        assert_eq!(pods.due(NOW + USED_FOR).domains, [None], "none is used any more");
    }

    #[test]
    fn domains_beyond_the_ceiling_are_counted_with_all() {
        let pods = PodCounts::new(1);
        (0..2 * DOMAINS_MAX).for_each(|n| {
            pods.note_used(&format!("d{n}"), NOW);
        });
        assert!(pods.counts.read().by_domain.len() <= DOMAINS_MAX);
        pods.due(NOW + USED_FOR);
        assert!(pods.note_used("new", NOW + USED_FOR), "those that are not used give way");
    }
}
