//! The number of pods of each domain as the store last reported it, kept beside the rules: a pod
//! that starts without the store derives its share of a limit from it.

use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;

use ratelease_engine::store::PODS_MAX;
use tracing::warn;

use super::{Snapshot, SnapshotError};

/// Pods of each domain.
pub type Pods = Vec<(Box<str>, u32)>;

/// Maximum number of domains that are kept.
pub const DOMAINS_MAX: usize = 1024;

/// Maximum length in bytes of a domain that is kept.
pub(super) const DOMAIN_BYTES_MAX: usize = 1024;

/// Valid range of a count: a store counts no more.
#[allow(clippy::cast_possible_truncation, reason = "10 000")]
pub(super) const PODS_RANGE: RangeInclusive<u32> = 1..=PODS_MAX as u32;

/// Interval between reads of the counts, and so between writes because of them.
const PODS_INTERVAL: Duration = Duration::from_secs(10);

// === impl Snapshot ===

impl Snapshot {
    /// Reads the counts in the file, sets them as those to be kept, and returns them. Returns none
    /// if there is no file, or it is damaged, which is logged. Blocks.
    pub fn load_pods(&self) -> Pods {
        let pods = match self.read_all() {
            Ok(kept) => kept.pods.ok_or(SnapshotError::Damaged),
            Err(error) => Err(error),
        };
        let pods = pods.unwrap_or_else(|error| {
            if !matches!(error, SnapshotError::Missing) {
                let path = self.path.display();
                warn!("the snapshot's counts of pods are not used: {path}: {error}");
            }
            Pods::new()
        });
        self.pending.lock().pods = Arc::new(pods.clone());
        pods
    }

    /// Keeps the counts that `counts` returns, reading them every 10 s; never returns.
    pub async fn track_pods(&self, counts: impl Fn() -> Pods) {
        loop {
            tokio::time::sleep(PODS_INTERVAL).await;
            self.set_pods(counts());
        }
    }

    /// Sets `counts` as those to be kept from now on, in addition to earlier ones of other domains.
    /// [`Snapshot::run`] writes them if they are new. Never waits.
    pub(super) fn set_pods(&self, counts: Pods) {
        let mut pending = self.pending.lock();
        let counts = merge(counts, &pending.pods);
        if counts != *pending.pods {
            pending.pods = Arc::new(counts);
            pending.has_new_pods = true;
            drop(pending);
            self.wake.notify_one();
        }
    }
}

/// Whether a count may be kept.
pub(super) fn is_valid(domain: &str, count: u32) -> bool {
    domain.len() <= DOMAIN_BYTES_MAX && PODS_RANGE.contains(&count)
}

/// Merges `counts` with those of `earlier` for other domains, in order of the domains. Above the
/// maximum, earlier ones are left out.
fn merge(mut counts: Pods, earlier: &[(Box<str>, u32)]) -> Pods {
    counts.retain(|(domain, count)| is_valid(domain, *count));
    counts.sort_unstable();
    counts.dedup_by(|later, kept| later.0 == kept.0);
    counts.truncate(DOMAINS_MAX);
    let is_new = |domain: &str| counts.binary_search_by(|(it, _)| (**it).cmp(domain)).is_err();
    let rest: Pods = earlier.iter().filter(|(domain, _)| is_new(domain)).cloned().collect();
    counts.extend(rest.into_iter().take(DOMAINS_MAX - counts.len()));
    counts.sort_unstable();
    counts
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pods(counts: &[(&str, u32)]) -> Pods {
        counts.iter().map(|&(domain, count)| (domain.into(), count)).collect()
    }

    #[test]
    fn a_domain_without_a_new_count_keeps_its_last_one() {
        let earlier = pods(&[("a", 1), ("b", 2)]);
        let now = pods(&[("c", 4), ("b", 3)]);
        assert_eq!(merge(now, &earlier), pods(&[("a", 1), ("b", 3), ("c", 4)]));
        assert_eq!(merge(Pods::new(), &earlier), earlier);
    }

    #[test]
    fn invalid_counts_are_left_out_and_new_counts_take_precedence() {
        let long = "d".repeat(DOMAIN_BYTES_MAX + 1);
        let odd = pods(&[("none", 0), ("many", 10_001), (&long, 1), ("good", 10_000)]);
        assert_eq!(merge(odd, &[]), pods(&[("good", 10_000)]));
        let many = |from: usize, count: u32| -> Pods {
            (from..from + DOMAINS_MAX).map(|n| (format!("{n:05}").into(), count)).collect()
        };
        let merged = merge(many(500, 2), &many(0, 1));
        assert_eq!(merged, many(500, 2));
    }
}
