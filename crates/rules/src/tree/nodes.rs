//! The nodes of a branch, in pieces that versions of the rules share.

use std::sync::Arc;

use super::Node;
use crate::memory::{ARC, Memory};

/// Nodes by their index. A copy shares all pieces but those that are changed later.
#[derive(Debug, Default, Clone)]
pub(super) struct Nodes {
    few: Vec<Node>,
    /// All nodes, once [`Nodes::finish`] has found more than `PIECE`. Each piece but the last has
    /// `PIECE` of them.
    many: Vec<Arc<[Node]>>,
}

/// Nodes of a piece: what is copied where one of them changes.
const PIECE: usize = 64;

// === impl Nodes ===

impl Nodes {
    #[inline]
    pub(super) fn get(&self, index: u32) -> Option<&Node> {
        let index = index as usize;
        if self.many.is_empty() {
            return self.few.get(index);
        }
        self.many.get(index / PIECE)?.get(index % PIECE)
    }

    pub(super) fn len(&self) -> usize {
        match self.many.split_last() {
            None => self.few.len(),
            Some((last, whole)) => whole.len() * PIECE + last.len(),
        }
    }

    pub(super) fn push(&mut self, node: Node) {
        let Some(last) = self.many.last_mut() else {
            self.few.push(node);
            return;
        };
        if last.len() == PIECE {
            self.many.push([node].into());
        } else {
            *last = last.iter().cloned().chain([node]).collect();
        }
    }

    /// Takes the memory of a node that is to be pushed, while there are few.
    pub(super) fn take_room(&self, memory: &Memory) -> Option<()> {
        memory.take_growth(&self.few)
    }

    /// The last node, while there are few.
    pub(super) fn last_mut(&mut self) -> Option<&mut Node> {
        self.few.last_mut()
    }

    /// Puts `node` at this index and returns the one that was there.
    pub(super) fn replace(&mut self, index: u32, node: Node) -> Option<Node> {
        let index = index as usize;
        let place = if self.many.is_empty() {
            self.few.get_mut(index)?
        } else {
            Arc::make_mut(self.many.get_mut(index / PIECE)?).get_mut(index % PIECE)?
        };
        Some(std::mem::replace(place, node))
    }

    /// Divides many nodes into pieces, and releases unused capacity.
    pub(super) fn finish(&mut self, memory: &Memory) {
        let few = self.few.capacity() * size_of::<Node>();
        if self.few.len() <= PIECE {
            self.few.shrink_to_fit();
            memory.give_back(few - self.few.capacity() * size_of::<Node>());
            return;
        }
        let pieces = self.few.len().div_ceil(PIECE);
        let bytes = self.few.len() * size_of::<Node>() + pieces * (ARC + size_of::<Arc<[Node]>>());
        if memory.take(bytes).is_none() {
            return; // the load is refused
        }
        memory.give_back(few);
        self.many.reserve_exact(self.few.len().div_ceil(PIECE));
        let mut rest = std::mem::take(&mut self.few).into_iter();
        while !rest.as_slice().is_empty() {
            self.many.push(rest.by_ref().take(PIECE).collect());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::Branch;

    /// A node that is known by the number of nodes below it.
    fn node(number: usize) -> Node {
        let mut below = Branch::default();
        for key in 0..number {
            below.insert(&format!("key-{key}"), "");
        }
        Node { rule: None, children: Some(Arc::new(below.finish(&Memory::default()))) }
    }

    fn numbers(nodes: &Nodes) -> Vec<usize> {
        let of = |index: usize| nodes.get(u32::try_from(index).unwrap()).unwrap();
        (0..nodes.len()).map(|at| of(at).children.as_ref().unwrap().nodes.len()).collect()
    }

    #[test]
    fn a_copy_that_changes_leaves_the_other_one_as_it_was() {
        for count in [0, 1, PIECE, PIECE + 1, 2 * PIECE, 3 * PIECE - 1] {
            let mut nodes = Nodes::default();
            (0..count).for_each(|_| nodes.push(node(1)));
            nodes.finish(&Memory::default());
            let mut copy = nodes.clone();
            copy.push(node(2));
            assert_eq!(copy.len(), count + 1);
            for at in (0..count).step_by(PIECE / 2) {
                assert!(copy.replace(u32::try_from(at).unwrap(), node(3)).is_some());
            }
            assert!(copy.replace(u32::try_from(count + 1).unwrap(), node(3)).is_none());
            let expected = (0..count).map(|at| if at % (PIECE / 2) == 0 { 3 } else { 1 });
            assert_eq!(numbers(&copy), expected.chain([2]).collect::<Vec<_>>());
            assert_eq!(numbers(&nodes), vec![1; count]);
        }
    }
}
