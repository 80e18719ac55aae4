//! The number of pods, by domain, and the heartbeats that count them. The number determines how
//! many tokens a pod may hold before it has observed which pods draw on a key, and its part of a
//! limit when the store is unavailable.
//!
//! Pods of one domain count each other by heartbeats in the store. A pod counts in a domain while
//! it has used the domain's keys within [`USED_FOR`].

use std::collections::HashMap;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures_util::future::{join_all, try_join_all};
use parking_lot::RwLock;
use tokio::sync::watch;

use super::{Limiter, Shared};
use crate::store::Heartbeat;
use crate::time::Time;

/// The largest number of domains that are counted separately; pods of further domains are counted
/// together.
const DOMAINS_MAX: usize = 1024;

/// The largest number of heartbeats that a pod sends in one round: with more domains than that,
/// they take turns.
const HEARTBEATS_MAX: usize = 32;

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
struct Due {
    /// The domains of the heartbeats; `None` is for the pods of all domains.
    domains: Vec<Option<Box<str>>>,
    /// Number of rounds until each domain has had one heartbeat.
    rounds: u32,
}

/// The numbers of live pods that the last heartbeats reported.
///
/// The store's count may be too low after an outage that is longer than a heartbeat lasts: the
/// first pod to reconnect finds itself alone until the others reconnect. Their back-off may delay
/// that by two seconds, and quiet pods' next heartbeat by four. If the pod believed that count, it
/// would take the whole limit as its part, so the count falls only once the last heartbeats agree.
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
    fn note_used(&self, domain: &str, now: Time) -> bool {
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
    fn due(&self, now: Time) -> Due {
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
    fn note(&self, domain: &Option<Box<str>>, pods: u32) {
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

// === Heartbeats, by which the store counts the pods ===

/// Time between two rounds of heartbeats.
const ROUND_INTERVAL: Duration = Duration::from_secs(1);

/// Time between two rounds of heartbeats while the pod is quiet.
const QUIET_INTERVAL: Duration = Duration::from_secs(4);

/// Number of rounds without a request that waited for the store, after which a pod is quiet.
const QUIET_AFTER: u32 = 10;

/// The longest time for a round of heartbeats: a heartbeat without a reply by then is sent again
/// with the next round.
const ROUND_MAX: Duration = Duration::from_secs(1);

/// A pod that has sent no heartbeat for this number of rounds counts as dead.
const HEARTBEAT_LASTS: u32 = 3;

impl Limiter {
    /// Sends heartbeats to the store every second, or every four seconds while the pod is quiet,
    /// and whenever a further domain is first used; never returns.
    pub async fn run_heartbeats(&self) {
        let Shared { clock, pods, quiet_rounds, heartbeat_due, rounds, .. } = &*self.shared;
        loop {
            let is_quiet = quiet_rounds.fetch_add(1, Ordering::Relaxed) >= QUIET_AFTER;
            let due = pods.due(clock.now());
            // Where domains take turns, a heartbeat has to last until the next turn.
            let is_slow = is_quiet && due.rounds == 1;
            let interval = if is_slow { QUIET_INTERVAL } else { ROUND_INTERVAL };
            // Read before the heartbeats are sent, so that a slow one puts off no round.
            let next = clock.next_multiple(interval);
            self.send_heartbeats(due, interval).await;
            tokio::select! {
                () = tokio::time::sleep_until(next) => rounds.send_replace(()),
                () = heartbeat_due.notified() => {}
            }
        }
    }

    /// Changes about once a second, and every four seconds while the pod is quiet. Work that
    /// follows these rounds needs no timer, and the pod wakes less often.
    pub fn rounds(&self) -> watch::Receiver<()> {
        self.shared.rounds.subscribe()
    }

    /// Sends heartbeats of this pod, in each domain whose turn it is, and learns the number of live
    /// pods. The next round comes after this `interval`.
    async fn send_heartbeats(&self, due: Due, interval: Duration) {
        let Self { shared } = self;
        let Due { domains, rounds } = due;
        let beats = domains.into_iter().map(|domain| async move {
            let rounds = if domain.is_some() { rounds } else { 1 };
            if let Some(pods) = shared.beat(domain.as_deref(), interval * rounds, false).await {
                shared.pods.note(&domain, pods);
            }
        });
        // A heartbeat that hangs must not delay the next round.
        let _ = tokio::time::timeout(ROUND_MAX, join_all(beats)).await;
        shared.lease_client.set_pods(shared.pods.of(None));
    }

    /// Tells the store that this pod leaves.
    pub(super) async fn leave(&self) {
        let Self { shared } = self;
        let Due { domains, .. } = shared.pods.due(shared.clock.now());
        let leave = async |domain: Option<Box<str>>| {
            shared.beat(domain.as_deref(), ROUND_INTERVAL, true).await
        };
        join_all(domains.into_iter().map(leave)).await;
    }
}

impl Shared {
    /// Sends a heartbeat of this pod in a domain, or in all, where the next one comes after
    /// `interval`. Returns the number of pods, if the store says it.
    ///
    /// While a secret is being replaced, the pod beats under both: all pods know one of the two.
    /// The number is taken under the secret that more of them know, so both have to be answered.
    async fn beat(&self, domain: Option<&str>, interval: Duration, leaves: bool) -> Option<u32> {
        let hasher = &self.options.hasher;
        let hashers = [Some(hasher), hasher.previous().filter(|_| domain.is_some())];
        let beats = hashers.into_iter().flatten().map(|hasher| {
            let domain = domain.map(|name| hasher.key(name, 0, std::iter::empty()));
            let (pod, lasts) = (self.options.pod, interval * HEARTBEAT_LASTS);
            self.lease_client.beat(Heartbeat { pod, lasts, leaves, domain })
        });
        try_join_all(beats).await.ok()?.into_iter().max()
    }

    /// Notes that a request for a key of `domain` waits for the store, so that the pod is not
    /// quiet. If it was, its number of pods may be some seconds old, and of a new domain nothing is
    /// known: then a heartbeat is sent at once.
    pub(super) fn note_active(&self, domain: Option<&str>, now: Time) {
        let was_quiet = self.quiet_rounds.swap(0, Ordering::Relaxed) > QUIET_AFTER;
        let is_new = domain.is_some_and(|domain| self.pods.note_used(domain, now));
        if was_quiet || is_new {
            self.heartbeat_due.notify_one();
        }
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
