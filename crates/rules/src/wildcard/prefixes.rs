//! Which patterns have a prefix that starts a text, without trying them all.
//!
//! Prefixes are sorted, and each knows the longest other prefix that starts it. All that start a
//! text then follow from one binary search: they are on the way up from the last prefix that is
//! not behind the text.

use super::pattern::Pattern;

/// Patterns by their prefixes.
#[derive(Debug)]
pub(super) struct Prefixes {
    /// Numbers of patterns, by prefix, then in order.
    numbers: Box<[u32]>,
    /// One a prefix, in the order of the prefixes.
    groups: Box<[Group]>,
}

/// The patterns of one prefix.
#[derive(Debug, Clone, Copy)]
struct Group {
    /// Where its numbers begin.
    start: u32,
    /// The group of the longest other prefix that starts this one.
    parent: Option<u32>,
}

// === impl Prefixes ===

impl Prefixes {
    pub(super) fn new(patterns: &[Pattern]) -> Self {
        let prefix =
            |number: &u32| patterns.get(*number as usize).map_or(&b""[..], Pattern::prefix);
        let mut numbers: Box<[u32]> = (0..).take(patterns.len()).collect();
        numbers.sort_by(|a, b| prefix(a).cmp(prefix(b)));
        let mut groups: Vec<Group> = Vec::new();
        // The groups whose prefixes start the one before, outermost first.
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
        Self { numbers, groups: groups.into() }
    }

    /// The numbers of the patterns of each prefix that starts `text`, longest prefix first.
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
