//! Walks a document as Go's yaml.v2 decodes one: it follows aliases, expands merge keys in place,
//! and lets the last of two equal keys win. It bounds the work that aliases can multiply.

use crate::fault::{Findings, Place, excerpt};
use crate::field::MapKind;
use crate::node::{DEPTH_MAX, Document, Kind, Node, NodeId};
use crate::scalar::Meaning;

/// A reader of one document.
pub(crate) struct Reader<'d, 'f> {
    document: &'d Document<'d>,
    findings: &'f Findings,
    depth: usize,
    /// The remaining cost that may be read, in the unit of `Node::cost`; `None` once it is used up.
    budget: Option<usize>,
}

/// A key of a map with its value.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Entry<'d> {
    pub(crate) key: &'d Node<'d>,
    pub(crate) value: &'d Node<'d>,
    /// Whether a merge key added it.
    pub(crate) merged: bool,
}

/// Maximum cost that aliases may add to the reading of a file, in bytes of copied text and nodes.
const ALIASED_BYTES_MAX: usize = 64 << 20;

// === impl Reader ===

impl<'d, 'f> Reader<'d, 'f> {
    /// Makes a reader that reports to `findings`.
    pub(crate) fn new(document: &'d Document<'d>, findings: &'f Findings) -> Self {
        // Without aliases each node is read once, and its kind perhaps looked at before, so any
        // cost above this was multiplied by aliases.
        let budget = Some(document.cost().saturating_add(ALIASED_BYTES_MAX));
        Reader { document, findings, depth: 0, budget }
    }

    /// The outermost node; `None` if the file holds nothing.
    pub(crate) fn root(&mut self) -> Option<&'d Node<'d>> {
        let root = self.document.root()?;
        self.node(root)
    }

    /// Returns the node that `id` stands for. `None` if the aliases of the file exceed the budget,
    /// which has been reported.
    pub(crate) fn node(&mut self, id: NodeId) -> Option<&'d Node<'d>> {
        let (node, _) = self.document.node(id)?;
        self.budget = self.budget?.checked_sub(node.cost());
        if self.budget.is_none() {
            let mib = ALIASED_BYTES_MAX >> 20;
            self.fault(node.place, format!("aliases stand for more than {mib} MiB; use fewer"));
            return None;
        }
        Some(node)
    }

    /// Returns the entries of a map, in the order in which they take effect.
    pub(crate) fn entries(&mut self, pairs: &'d [(NodeId, NodeId)]) -> Vec<Entry<'d>> {
        let mut entries = Vec::with_capacity(pairs.len());
        self.unfold(pairs, false, &mut entries);
        entries
    }

    /// Returns the items of a list.
    pub(crate) fn items(&mut self, ids: &'d [NodeId]) -> Vec<&'d Node<'d>> {
        ids.iter().map_while(|id| self.node(*id)).collect()
    }

    /// Reads the content of the node at `place`, one level deeper. Only aliases can lead deeper
    /// than the nesting of the file.
    pub(crate) fn inside<T>(
        &mut self,
        place: Place,
        read: impl FnOnce(&mut Self) -> T,
    ) -> Option<T> {
        if self.depth == DEPTH_MAX {
            self.fault(place, format!("nested deeper than {DEPTH_MAX} levels by aliases"));
            return None;
        }
        self.depth += 1;
        let read = read(self);
        self.depth -= 1;
        Some(read)
    }

    /// Reports a fault.
    pub(crate) fn fault(&mut self, place: Place, message: impl Into<String>) {
        self.findings.fault(place, message);
    }

    /// Reports a name that a map of this kind may not hold.
    pub(crate) fn refuse_key(&mut self, place: Place, name: &str, map: MapKind) {
        self.findings.fault_with(place, || map.refusal(name, self.findings));
    }

    /// Reports a warning.
    pub(crate) fn warn(&mut self, place: Place, message: impl Into<String>) {
        self.findings.warn(place, message);
    }

    /// Warns that `entry` replaces an `earlier` one, unless the replacement is the purpose of a
    /// merge.
    pub(crate) fn warn_of_duplicate(&mut self, name: &str, earlier: Entry<'_>, entry: Entry<'_>) {
        let name = excerpt(name);
        match (earlier.merged, entry.merged) {
            (true, _) => {}
            (false, false) => {
                let line = earlier.key.place.line;
                let message = format!("duplicate key '{name}'; it replaces the one of line {line}");
                self.warn(entry.key.place, message);
            }
            (false, true) => {
                let message =
                    format!("the '<<' below replaces this '{name}'; put '<<' first in its map");
                self.warn(earlier.key.place, message);
            }
        }
    }

    fn unfold(
        &mut self,
        pairs: &'d [(NodeId, NodeId)],
        merged: bool,
        entries: &mut Vec<Entry<'d>>,
    ) {
        for (key, value) in pairs {
            let Some(key) = self.node(*key) else { return };
            let Some(value) = self.node(*value) else { return };
            if matches!(key.kind, Kind::Scalar(_, Meaning::Merge)) {
                self.inside(key.place, |reader| reader.merge(value, entries));
            } else {
                entries.push(Entry { key, value, merged });
            }
        }
    }

    fn merge(&mut self, value: &'d Node<'d>, entries: &mut Vec<Entry<'d>>) {
        let maps = match &value.kind {
            Kind::List(ids) => self.items(ids),
            _ => vec![value],
        };
        // The first map of a list takes precedence, so it is processed last.
        for map in maps.into_iter().rev() {
            match &map.kind {
                Kind::Map(pairs) => self.unfold(pairs, true, entries),
                _ => self.fault(
                    map.place,
                    format!(
                        "error loading config file: '<<' needs a map or a list of maps, found {}",
                        map.describe()
                    ),
                ),
            }
        }
    }
}
