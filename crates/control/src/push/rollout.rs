//! Which pods a rollout chooses.

use super::node::NodeInfo;
use super::published::{PublishedRollout, PublishedSet};
use crate::store::Choice;

/// What is hashed to choose pods. Another text would choose other ones.
const CONTEXT: &str = "ratelease 2026-11 pods of a rollout";

// === impl PublishedSet ===

impl PublishedSet {
    /// The rollout, if it chooses this node.
    pub(super) fn rollout_of(&self, node: &NodeInfo) -> Option<&PublishedRollout> {
        self.rollout.as_deref().filter(|it| it.chooses(node))
    }
}

// === impl PublishedRollout ===

impl PublishedRollout {
    /// Whether the rollout chooses this node. Each replica and each connection finds the same.
    pub(super) fn chooses(&self, node: &NodeInfo) -> bool {
        match &self.choice {
            Choice::Percent(percent) => part(self.id, &node.id) < *percent,
            Choice::Label(key, value) => node.label(key) == Some(value),
        }
    }
}

/// In which hundredth of all nodes this one is, 0 to 99. Another rollout chooses other ones.
fn part(rollout: i64, node: &str) -> u8 {
    let mut hasher = blake3::Hasher::new_derive_key(CONTEXT);
    hasher.update(&rollout.to_le_bytes()).update(node.as_bytes());
    let mut first = [0; 8];
    first.copy_from_slice(&hasher.finalize().as_bytes()[..8]);
    let scaled = (u128::from(u64::from_le_bytes(first)) * 100) >> 64;
    u8::try_from(scaled).unwrap_or(u8::MAX)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::push::requests::{Kind, Node, Struct, Value};
    use crate::store::Stage;

    fn rollout(id: i64, choice: Choice) -> PublishedRollout {
        let (version, stage, bound) = (1, Stage::Shadow, None);
        PublishedRollout { id, version, stage, choice, bound, domains: BTreeMap::new() }
    }

    fn node(id: &str) -> NodeInfo {
        NodeInfo::of(Node { id: id.to_owned(), ..Node::default() }).unwrap()
    }

    #[test]
    fn a_percentage_of_many_nodes_is_chosen_and_more_include_fewer() {
        let chosen = |id: i64, percent: u8| -> Vec<bool> {
            let rollout = rollout(id, Choice::Percent(percent));
            (0..10_000).map(|at| rollout.chooses(&node(&format!("pod-{at}")))).collect()
        };
        for (percent, expected) in [(1, 100), (10, 1000), (50, 5000), (99, 9900)] {
            let found = chosen(1, percent).iter().filter(|it| **it).count();
            assert!(found.abs_diff(expected) <= 200, "{percent} %: {found}");
        }
        assert!(chosen(1, 100).iter().all(|it| *it));
        let (few, many) = (chosen(1, 10), chosen(1, 50));
        assert!(few.iter().zip(&many).all(|(few, many)| many | !few));
        assert_ne!(chosen(2, 50), many);
    }

    #[test]
    fn a_choice_of_pods_never_changes() {
        let first: Vec<_> = (0..8).map(|at| part(1, &format!("pod-{at}"))).collect();
        assert_eq!(
            first,
            [51, 15, 65, 43, 50, 53, 81, 28],
            "another hash moves pods of rollouts that are under way"
        );
    }

    #[test]
    fn a_label_chooses_nodes_whose_metadata_has_it() {
        let rollout = rollout(1, Choice::Label("zone".into(), "a".into()));
        let labelled = |value: &str| {
            let kind = Some(Kind::StringValue(value.to_owned()));
            let metadata = Struct { fields: [("zone".to_owned(), Value { kind })].into() };
            NodeInfo::of(Node { metadata: Some(metadata), ..Node::default() }).unwrap()
        };
        assert!(rollout.chooses(&labelled("a")));
        assert!(!rollout.chooses(&labelled("b")) && !rollout.chooses(&node("a")));
    }
}
