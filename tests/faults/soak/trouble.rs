//! The faults of a soak, drawn by seed.

use std::time::Duration;

use super::{Extra, Scene, rules};
use crate::stage::time_until;
use crate::support::proxy::Fault;
use crate::support::rng::Rng;

/// One fault, and how long it lasts.
#[derive(Debug, Clone, Copy)]
pub(super) enum Trouble {
    /// Stops a node, or all nodes if `None`.
    Freeze(Option<usize>, Duration),
    /// Kills a node and starts it again.
    Kill(usize, Duration),
    /// Breaks the network in front of a node, or of all nodes.
    Network(Option<usize>, Fault, Duration),
    ScriptFlush,
    FlushAll,
    /// A replica takes over by a manual failover.
    HandOver(usize),
    /// Kills the third pod, or ends it gracefully, and starts another in its place.
    PodKill,
    PodRestart,
    GoodRules,
    BadRules,
    Calm(Duration),
}

const NODES: usize = 6;

/// Maximum time for a cluster to be healthy again after a fault.
const HEALED_MAX: Duration = Duration::from_secs(30);

// === impl Trouble ===

impl Trouble {
    pub(super) fn draw(rng: &mut Rng) -> Self {
        let below = |rng: &mut Rng, end: u64| usize::try_from(rng.below(end)).expect("small");
        let span = Duration::from_millis(500 + rng.below(2500));
        let node = below(rng, NODES as u64);
        let some = rng.pick(&[Some(node), Some(node), None]);
        match rng.below(12) {
            0 => Self::Freeze(some, span),
            1 => Self::Kill(node, 2 * span),
            2..=4 => Self::Network(some, Self::roll_fault(rng), span),
            5 => Self::ScriptFlush,
            6 => Self::FlushAll,
            7 => Self::HandOver(node),
            8 => Self::PodKill,
            9 => Self::PodRestart,
            10 => rng.pick(&[Self::GoodRules, Self::BadRules]),
            _ => Self::Calm(span),
        }
    }

    fn roll_fault(rng: &mut Rng) -> Fault {
        let delay = Duration::from_millis(rng.pick(&[2, 20, 100, 400]));
        rng.pick(&[
            Fault::Latency { delay, jitter: delay / 2 },
            Fault::Drip { bytes_per_second: 8000 },
            Fault::Hole,
            Fault::Reset,
            Fault::Cut { after: 17 },
            Fault::Refuse,
        ])
    }
}

// === impl Scene ===

impl Scene {
    /// Starts the fault, ends it, and waits until the cluster is healthy again.
    pub(super) async fn suffer(&mut self, trouble: Trouble, extra: &mut Option<Extra>) {
        match trouble {
            Trouble::Freeze(node, span) => {
                let these = self.these(node);
                these.iter().for_each(|at| self.cluster.nodes[*at].stop());
                tokio::time::sleep(span).await;
                these.iter().for_each(|at| self.cluster.nodes[*at].cont());
                // Replicas may have taken over without the latest writes.
                self.losses += 1;
            }
            Trouble::Kill(node, span) => {
                self.cluster.nodes[node].kill();
                tokio::time::sleep(span).await;
                self.cluster.nodes[node].start_again();
                self.losses += 1;
            }
            Trouble::Network(node, fault, span) => {
                let these = self.these(node);
                these.iter().for_each(|at| self.cluster.proxies[*at].set(fault));
                tokio::time::sleep(span).await;
                these.iter().for_each(|at| self.cluster.proxies[*at].set(Fault::None));
                self.losses += 1;
            }
            Trouble::ScriptFlush | Trouble::FlushAll => {
                let flush = matches!(trouble, Trouble::FlushAll);
                let words: &[&str] = if flush { &["FLUSHALL"] } else { &["SCRIPT", "FLUSH"] };
                for node in &self.cluster.nodes {
                    // Replicas accept only one of the two commands.
                    let _ = node.try_command::<()>(words);
                }
                self.losses += u64::from(flush);
            }
            Trouble::HandOver(node) => {
                // A master refuses this command.
                let _ = self.cluster.nodes[node].try_command::<()>(&["CLUSTER", "FAILOVER"]);
            }
            Trouble::PodKill | Trouble::PodRestart => self.replace(trouble, extra).await,
            Trouble::GoodRules => {
                let version = u32::try_from(self.rng.below(1_000_000)).expect("small");
                self.rules.replace(&rules(version));
            }
            Trouble::BadRules => {
                self.rules.replace("domain: soak\ndescriptors: [{key: path, rate");
                tokio::time::sleep(Duration::from_secs(1)).await;
                // A pod that starts now would have no rules.
                self.rules.replace(&rules(0));
            }
            Trouble::Calm(span) => tokio::time::sleep(span).await,
        }
        tokio::time::sleep(Duration::from_millis(500)).await;
        self.heal().await;
    }

    fn these(&self, node: Option<usize>) -> Vec<usize> {
        node.map_or_else(|| (0..NODES).collect(), |node| vec![node])
    }

    async fn replace(&self, trouble: Trouble, extra: &mut Option<Extra>) {
        if let Some(extra) = extra.take() {
            extra.ask().await;
            if matches!(trouble, Trouble::PodKill) {
                extra.pod.process.signal("KILL");
            } else {
                assert_eq!(extra.pod.stop().await, 0, "{}", extra.pod.process.log());
            }
        }
        *extra = Some(Extra::start(self).await);
    }

    /// Waits, without blocking the load, until each node finds the cluster healthy and each replica
    /// is in sync.
    async fn heal(&self) {
        let healed = time_until(HEALED_MAX, async || self.cluster.is_ok()).await;
        assert!(healed.is_some(), "the cluster is not whole again after {HEALED_MAX:?}");
    }
}
