//! Where the descriptors of a domain are in the text of its file, and which of them a change of the
//! text concerns.

use std::ops::Range;

use memchr::{memchr_iter, memmem};

use crate::fault::Place;
use crate::node::{Document, Kind, Node};

/// The places of the descriptors of the first level, of a file that has one on a line or more.
#[derive(Debug, Clone)]
pub(super) struct Layout {
    /// Number of spaces before the dash of each of them.
    indent: usize,
    /// Where their lines begin, in bytes.
    starts: Vec<u32>,
}

/// A part of a text that changed: whole descriptors of the first level.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Change {
    /// Their numbers in the old text.
    items: Range<usize>,
    /// Their bytes in the old text, and in the new one.
    pub(super) old: Range<usize>,
    pub(super) new: Range<usize>,
}

/// Bytes that are compared in one go.
const BLOCK: usize = 4096;

// === impl Layout ===

impl Layout {
    /// Finds the descriptors of a good file. `None` if the meaning of one may depend on others, or
    /// if one does not begin on a line of its own with a dash.
    pub(super) fn new(text: &str, document: &Document<'_>) -> Option<Self> {
        let has_directive =
            text.starts_with('%') || memmem::find(text.as_bytes(), b"\n%").is_some();
        // The parser takes a carriage return for the end of a line too.
        if has_directive || document.has_anchors() || text.contains('\r') {
            return None;
        }
        let mut lines = Lines::new(text);
        let (mut indent, mut starts) = (None, Vec::new());
        for node in items(document)? {
            let start = lines.start_of(node.place)?;
            let dash = dash_before(text.get(start..)?, node)?;
            if *indent.get_or_insert(dash) != dash {
                return None;
            }
            starts.push(u32::try_from(start).ok()?);
        }
        Some(Self { indent: indent?, starts })
    }

    pub(super) fn len(&self) -> usize {
        self.starts.len()
    }

    /// Returns the parts of whole descriptors that contain every difference between two texts, the
    /// old one of which has this layout. `None` if something else differs.
    ///
    /// Each part begins at a line with a dash at the same column as before, and so does what
    /// follows it, which is unchanged. A parser that arrives at such a line is in the state in
    /// which it was there before, because nothing within a descriptor can continue at the column of
    /// its dash.
    pub(super) fn changes(&self, old: &[u8], new: &[u8]) -> Option<Vec<Change>> {
        let whole = self.outermost(old, new)?;
        let parts = self.divided(&whole, old, new);
        parts.iter().all(|part| self.is_of_items(part, old.len(), new)).then_some(parts)
    }

    /// The smallest part that contains every difference.
    fn outermost(&self, old: &[u8], new: &[u8]) -> Option<Change> {
        let same = common_prefix(old, new);
        let [old_rest, new_rest] = [old, new].map(|text| text.get(same..).unwrap_or_default());
        let same_end = common_suffix(old_rest, new_rest);
        let old_end = old.len() - same_end;
        let first = self.starts.partition_point(|at| *at as usize <= same).checked_sub(1)?;
        let after = self.starts.partition_point(|at| (*at as usize) < old_end).max(first + 1);
        let (from, to) = (self.start(first, old), self.start(after, old));
        let new_to = new.len() - (old.len() - to);
        Some(Change { items: first..after, old: from..to, new: from..new_to })
    }

    /// Leaves out the descriptors of a part that did not change, if it has as many as before.
    fn divided(&self, part: &Change, old: &[u8], new: &[u8]) -> Vec<Change> {
        let text = new.get(part.new.clone()).unwrap_or_default();
        let begins = |at: &usize| text.get(*at..).is_some_and(|rest| self.is_item(rest));
        let lines = memchr_iter(b'\n', text).map(|at| at + 1);
        let starts = [0].into_iter().chain(lines).filter(begins).map(|at| at + part.new.start);
        let starts: Vec<usize> = starts.chain([part.new.end]).collect();
        // What is before the first of them would be left out.
        let begins_there = starts.first() == Some(&part.new.start);
        if !begins_there || starts.len() != part.items.len() + 1 {
            return vec![part.clone()];
        }
        let mut parts: Vec<Change> = Vec::new();
        for (item, bounds) in part.items.clone().zip(starts.windows(2)) {
            let &[from, to] = bounds else { continue };
            let before = self.start(item, old)..self.start(item + 1, old);
            if old.get(before.clone()) == new.get(from..to) {
                continue;
            }
            match parts.last_mut().filter(|last| last.items.end == item) {
                Some(last) => {
                    (last.items.end, last.old.end, last.new.end) = (item + 1, before.end, to);
                }
                None => parts.push(Change { items: item..item + 1, old: before, new: from..to }),
            }
        }
        parts
    }

    /// Where the descriptor of this number begins in the text, or where the text ends.
    fn start(&self, item: usize, text: &[u8]) -> usize {
        self.starts.get(item).map_or(text.len(), |at| *at as usize)
    }

    fn is_of_items(&self, change: &Change, old_len: usize, new: &[u8]) -> bool {
        let part = new.get(change.new.clone()).unwrap_or_default();
        let ends_line = change.old.end == old_len || part.is_empty() || part.ends_with(b"\n");
        // A marker ends the document: what follows it is not read.
        let has_marker =
            [&b"\n---"[..], b"\n..."].iter().any(|it| memmem::find(part, it).is_some());
        let has_others = change.items.len() < self.len();
        ends_line && !has_marker && if part.is_empty() { has_others } else { self.is_item(part) }
    }

    /// Whether this text begins with the line of a descriptor.
    fn is_item(&self, text: &[u8]) -> bool {
        let (spaces, rest) = text.split_at_checked(self.indent).unwrap_or_default();
        spaces.iter().all(|byte| *byte == b' ') && rest.starts_with(b"- ")
    }

    /// Returns the layout of the new text, each of whose changed parts has its own layout after
    /// `inset` bytes. `None` if dashes are at another column.
    pub(super) fn with(
        &self,
        changes: &[Change],
        parts: &[Option<Self>],
        inset: usize,
    ) -> Option<Self> {
        let mut starts: Vec<u32> = Vec::with_capacity(self.starts.len());
        let mut add = |list: &[u32], from: usize, to: usize| {
            let moved = list.iter().map(|at| u32::try_from((*at as usize + to) - from).ok());
            moved.map(|at| at.map(|at| starts.push(at))).collect::<Option<()>>()
        };
        let (mut next, mut old_end, mut new_end) = (0, 0, 0);
        for (change, part) in changes.iter().zip(parts) {
            add(self.starts.get(next..change.items.start)?, old_end, new_end)?;
            if let Some(part) = part {
                (part.indent == self.indent).then_some(())?;
                add(&part.starts, inset, change.new.start)?;
            }
            (next, old_end, new_end) = (change.items.end, change.old.end, change.new.end);
        }
        add(self.starts.get(next..)?, old_end, new_end)?;
        Some(Self { indent: self.indent, starts })
    }
}

/// The descriptors of the first level, if the file lists them itself.
fn items<'d>(document: &'d Document<'d>) -> Option<impl Iterator<Item = &'d Node<'d>>> {
    let node = |id| document.node(id).map(|(node, _)| node);
    let Kind::Map(pairs) = &node(document.root()?)?.kind else { return None };
    let names_list = |key: &Node<'_>| match &key.kind {
        Kind::Scalar(text, _) => &**text == "descriptors",
        _ => false,
    };
    let (_, list) = pairs.iter().find(|(key, _)| node(*key).is_some_and(names_list))?;
    let Kind::List(ids) = &node(*list)?.kind else { return None };
    Some(ids.iter().filter_map(move |id| node(*id)))
}

/// Number of spaces before the dash of the line on which `item` begins, if the line has one and
/// nothing else before the item.
fn dash_before(line: &str, item: &Node<'_>) -> Option<usize> {
    let before = line.get(..usize::try_from(item.place.column).ok()?.checked_sub(1)?)?;
    let dash = before.find('-')?;
    let is_bare = before.bytes().enumerate().all(|(at, byte)| at == dash || byte == b' ');
    (is_bare && dash + 1 < before.len()).then_some(dash)
}

/// Finds lines by their numbers, which must not decrease.
struct Lines<'t> {
    ends: memchr::Memchr<'t>,
    line: u32,
    start: usize,
}

// === impl Lines ===

impl<'t> Lines<'t> {
    fn new(text: &'t str) -> Self {
        Self { ends: memchr_iter(b'\n', text.as_bytes()), line: 1, start: 0 }
    }

    /// The byte at which the line of `place` begins.
    fn start_of(&mut self, place: Place) -> Option<usize> {
        while self.line < place.line {
            self.start = self.ends.next()? + 1;
            self.line += 1;
        }
        (self.line == place.line).then_some(self.start)
    }
}

/// Number of bytes with which both begin.
fn common_prefix(a: &[u8], b: &[u8]) -> usize {
    let blocks = a.chunks(BLOCK).zip(b.chunks(BLOCK)).take_while(|(a, b)| a == b);
    let same: usize = blocks.map(|(a, _)| a.len()).sum();
    let rest = a.iter().skip(same).zip(b.iter().skip(same));
    same + rest.take_while(|(a, b)| a == b).count()
}

/// Number of bytes with which both end.
fn common_suffix(a: &[u8], b: &[u8]) -> usize {
    let blocks = a.rchunks(BLOCK).zip(b.rchunks(BLOCK)).take_while(|(a, b)| a == b);
    let same: usize = blocks.map(|(a, _)| a.len()).sum();
    let rest = a.iter().rev().skip(same).zip(b.iter().rev().skip(same));
    same + rest.take_while(|(a, b)| a == b).count()
}

#[cfg(test)]
mod tests;
