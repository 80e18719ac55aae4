//! The faults of a soak, drawn by seed.

use std::time::Duration;

use super::{Extra, Scene, rules};
use crate::stage::time_until;
use crate::support::dice::Dice;
use crate::support::proxy::Fault;

/// One fault, and how long it lasts.
#[derive(Debug, Clone, Copy)]
pub(super) enum Trouble {
    /// A node is stopped; all of them without a node.
    Freeze(Option<usize>, Duration),
    /// A node is killed and started again.
    Kill(usize, Duration),
    /// The network before a node, or before all.
    Network(Option<usize>, Fault, Duration),
    ScriptFlush,
    FlushAll,
    /// A replica takes over in good order.
    HandOver(usize),
    /// The pod beside is killed, or ends in good order, and another takes its place.
    PodKill,
    PodRestart,
    GoodRules,
    BadRules,
    Calm(Duration),
}

const NODES: usize = 6;

/// For a cluster to be whole after a fault.
const HEALED_MAX: Duration = Duration::from_secs(30);

// === impl Trouble ===

impl Trouble {
    pub(super) fn roll(dice: &mut Dice) -> Self {
        let below = |dice: &mut Dice, end: u64| usize::try_from(dice.below(end)).expect("small");
        let span = Duration::from_millis(500 + dice.below(2500));
        let node = below(dice, NODES as u64);
        let some = dice.pick(&[Some(node), Some(node), None]);
        match dice.below(12) {
            0 => Self::Freeze(some, span),
            1 => Self::Kill(node, 2 * span),
            2..=4 => Self::Network(some, Self::roll_fault(dice), span),
            5 => Self::ScriptFlush,
            6 => Self::FlushAll,
            7 => Self::HandOver(node),
            8 => Self::PodKill,
            9 => Self::PodRestart,
            10 => dice.pick(&[Self::GoodRules, Self::BadRules]),
            _ => Self::Calm(span),
        }
    }

    fn roll_fault(dice: &mut Dice) -> Fault {
        let delay = Duration::from_millis(dice.pick(&[2, 20, 100, 400]));
        dice.pick(&[
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
    /// Has the fault begin and end, and waits until the cluster is whole again.
    pub(super) async fn suffer(&mut self, trouble: Trouble, extra: &mut Option<Extra>) {
        match trouble {
            Trouble::Freeze(node, span) => {
                let these = self.these(node);
                these.iter().for_each(|at| self.cluster.nodes[*at].stop());
                tokio::time::sleep(span).await;
                these.iter().for_each(|at| self.cluster.nodes[*at].cont());
                // Replicas may have taken over, without what was not in step yet.
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
                    // Replicas refuse the one and not the other.
                    let _ = node.try_command::<()>(words);
                }
                self.losses += u64::from(flush);
            }
            Trouble::HandOver(node) => {
                // A master refuses.
                let _ = self.cluster.nodes[node].try_command::<()>(&["CLUSTER", "FAILOVER"]);
            }
            Trouble::PodKill | Trouble::PodRestart => self.replace(trouble, extra).await,
            Trouble::GoodRules => {
                let version = u32::try_from(self.dice.below(1_000_000)).expect("small");
                self.rules.replace(&rules(version));
            }
            Trouble::BadRules => {
                self.rules.replace("domain: soak\ndescriptors: [{key: path, rate");
                tokio::time::sleep(Duration::from_secs(1)).await;
                // A pod that starts meanwhile would have none.
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

    /// Waits, without holding up the load, until each node finds the cluster whole and each replica
    /// is in step.
    async fn heal(&self) {
        let healed = time_until(HEALED_MAX, async || self.cluster.is_ok()).await;
        assert!(healed.is_some(), "the cluster is not whole again after {HEALED_MAX:?}");
    }
}
