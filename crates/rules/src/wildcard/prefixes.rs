//! Finds the patterns whose prefix starts a text, without trying all patterns.
//!
//! Prefixes are sorted, and each has a link to the longest other prefix that starts it. All
//! prefixes that start a text are then found with one binary search: they are on the chain of links
//! that begins at the last prefix that is not greater than the text.

use super::pattern::Pattern;
use crate::memory::Memory;

/// Patterns, grouped by prefix.
#[derive(Debug, Clone)]
pub(super) struct Prefixes {
    /// Numbers of patterns, ordered by prefix, then by number.
    numbers: Box<[u32]>,
    /// One group for each prefix, in the order of the prefixes.
    groups: Box<[Group]>,
}

/// The patterns that have the same prefix.
#[derive(Debug, Clone, Copy)]
struct Group {
    /// The index at which its numbers begin.
    start: u32,
    /// The group of the longest other prefix that starts this one.
    parent: Option<u32>,
}

// === impl Prefixes ===

impl Prefixes {
    /// Returns `None` if there is no memory for them.
    pub(super) fn new(patterns: &[Pattern], memory: &Memory) -> Option<Self> {
        // The numbers, and half as many while they are sorted; the groups, and those that nest,
        // which double while they are found.
        let kept = patterns.len() * (size_of::<u32>() + size_of::<Group>());
        memory.take(kept)?;
        memory.pass(3 * kept)?;
        let prefix =
            |number: &u32| patterns.get(*number as usize).map_or(&b""[..], Pattern::prefix);
        let mut numbers: Box<[u32]> = (0..).take(patterns.len()).collect();
        numbers.sort_by(|a, b| prefix(a).cmp(prefix(b)));
        let mut groups: Vec<Group> = Vec::new();
        // The groups whose prefixes start the previous prefix, outermost first.
        let mut open: Vec<(u32, &[u8])> = Vec::new();
        for (start, number) in (0..).zip(&numbers) {
            let prefix = prefix(number);
            while open.last().is_some_and(|(_, outer)| !prefix.starts_with(outer)) {
                open.pop();
            }
            if open.last().is_some_and(|(_, outer)| *outer == prefix) {
                continue;
            }
            let parent = open.last().map(|(group, _)| *group);
            // `DESCRIPTORS_MAX` keeps this far from failing.
            open.push((u32::try_from(groups.len()).unwrap_or(u32::MAX), prefix));
            groups.push(Group { start, parent });
        }
        Some(Self { numbers, groups: groups.into() })
    }

    /// Returns the numbers of the patterns of each prefix that starts `text`, longest prefix first.
    pub(super) fn groups<'i>(
        &'i self,
        patterns: &'i [Pattern],
        text: &[u8],
    ) -> impl Iterator<Item = &'i [u32]> {
        let prefix = |group: &Group| {
            let number = self.numbers.get(group.start as usize).copied().unwrap_or_default();
            patterns.get(number as usize).map_or(&b""[..], Pattern::prefix)
        };
        let behind = self.groups.partition_point(|group| prefix(group) <= text);
        let last = behind.checked_sub(1);
        let shared = last
            .and_then(|last| self.groups.get(last))
            .map_or(0, |group| prefix(group).iter().zip(text).take_while(|(a, b)| a == b).count());
        let up = move |at: &usize| Some(self.groups.get(*at)?.parent? as usize);
        std::iter::successors(last, up)
            .filter(move |at| self.groups.get(*at).is_some_and(|it| prefix(it).len() <= shared))
            .filter_map(|at| self.numbers_of(at))
    }

    fn numbers_of(&self, at: usize) -> Option<&[u32]> {
        let start = self.groups.get(at)?.start as usize;
        let end = self.groups.get(at + 1).map_or(self.numbers.len(), |next| next.start as usize);
        self.numbers.get(start..end)
    }
}
