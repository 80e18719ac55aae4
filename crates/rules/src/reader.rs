//! Walks a document as Go's yaml.v2 decodes one: it follows aliases, expands merge keys in place,
//! and lets the last of two equal keys win. It bounds the work that aliases can multiply.

use crate::fault::{Findings, Place, excerpt};
use crate::node::{DEPTH_MAX, Document, Kind, Meaning, Node, NodeId};

/// A reader of one document.
pub(crate) struct Reader<'d, 'f> {
    document: &'d Document<'d>,
    pub(crate) findings: &'f Findings,
    depth: usize,
    /// The remaining cost that may be read, in the unit of `Node::cost`; `None` once it is used up.
    budget: Option<usize>,
    /// Bytes that aliases may still add to the reading.
    aliased: usize,
}

/// A key of a map with its value.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Entry<'d> {
    pub(crate) key: &'d Node<'d>,
    pub(crate) value: &'d Node<'d>,
    /// Whether a merge key added it.
    pub(crate) merged: bool,
}

/// Maximum cost that aliases add to the reading of a file, for each byte of the file. The cost is
/// in bytes of copied text and nodes.
const ALIASED_PER_BYTE: usize = 8;

/// Maximum cost that aliases add besides, whatever the size of the file.
const ALIASED_BESIDES: usize = 1 << 20;

/// Bytes of an entry while it is read and collected.
const ENTRY_BYTES: usize = 3 * size_of::<Entry<'_>>();

// === impl Reader ===

impl<'d, 'f> Reader<'d, 'f> {
    /// Makes a reader that reports to `findings`.
    pub(crate) fn new(document: &'d Document<'d>, findings: &'f Findings) -> Self {
        // Without aliases each node is read once, and its kind perhaps looked at before, so any
        // cost above this was multiplied by aliases.
        let aliased = document.text_bytes() * ALIASED_PER_BYTE + ALIASED_BESIDES;
        let budget = Some(document.cost().saturating_add(aliased));
        Reader { document, findings, depth: 0, budget, aliased }
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
            let kib = self.aliased >> 10;
            let message = format!(
                "aliases stand for more than {kib} KiB, which is {ALIASED_PER_BYTE} times the file \
                 and 1 MiB; use fewer"
            );
            self.fault(node.place, message);
            return None;
        }
        Some(node)
    }

    /// Returns the entries of a map, in the order in which they take effect.
    pub(crate) fn entries(&mut self, pairs: &'d [(NodeId, NodeId)]) -> Vec<Entry<'d>> {
        let mut entries = Vec::new();
        if self.has_room_for(pairs.len()) {
            entries.reserve_exact(pairs.len());
            self.unfold(pairs, false, &mut entries);
        }
        entries
    }

    /// Returns the items of a list.
    pub(crate) fn items(&mut self, ids: &'d [NodeId]) -> Vec<&'d Node<'d>> {
        let mut items = Vec::new();
        if self.findings.memory.pass(ids.len() * size_of::<&Node<'_>>()).is_some() {
            items.reserve_exact(ids.len());
            items.extend(ids.iter().map_while(|id| self.node(*id)));
        }
        items
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

    /// Whether there is memory for so many entries and the values read from them, in vectors that
    /// double.
    fn has_room_for(&self, entries: usize) -> bool {
        self.findings.memory.pass(ENTRY_BYTES * entries).is_some()
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
            if entries.len() == entries.capacity() && !self.has_room_for(2 * entries.len()) {
                return;
            }
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

// A value of a rule file that may be absent or faulty.

/// A value that may be absent, or faulty in a way that has been reported.
#[derive(Debug, Default, Clone)]
pub(crate) enum Parsed<T> {
    #[default]
    Absent,
    Faulty,
    /// Out of range, which is reported only if the value has an effect.
    Refused(Place, Box<str>),
    As(Place, T),
}

// === impl Parsed ===

impl<T> Parsed<T> {
    /// The value, if there is one.
    pub(crate) fn value(&self) -> Option<&T> {
        match self {
            Parsed::As(_, value) => Some(value),
            _ => None,
        }
    }

    /// Returns the value's place, or `holder`, the place of the map that should contain it.
    pub(crate) fn place_or(&self, holder: Place) -> Place {
        match self {
            Parsed::As(place, _) | Parsed::Refused(place, _) => *place,
            _ => holder,
        }
    }

    /// The value's place, if there is one.
    pub(crate) fn place(&self) -> Option<Place> {
        match self {
            Parsed::As(place, _) | Parsed::Refused(place, _) => Some(*place),
            _ => None,
        }
    }

    /// Returns the value that `check` makes of this one. A value that `check` refuses is not
    /// reported yet.
    pub(crate) fn checked<U>(self, check: impl FnOnce(T) -> Result<U, String>) -> Parsed<U> {
        match self {
            Parsed::Absent => Parsed::Absent,
            Parsed::Faulty => Parsed::Faulty,
            Parsed::Refused(place, why) => Parsed::Refused(place, why),
            Parsed::As(place, value) => match check(value) {
                Ok(value) => Parsed::As(place, value),
                Err(why) => Parsed::Refused(place, why.into()),
            },
        }
    }

    /// Returns whether the value was present but faulty; the fault has been reported.
    pub(crate) fn is_faulty(&self) -> bool {
        matches!(self, Parsed::Faulty)
    }
}

impl Parsed<bool> {
    /// Returns whether the value is `true`; absent counts as false.
    pub(crate) fn is_true(&self) -> bool {
        self.value().copied().unwrap_or_default()
    }
}

impl Parsed<&str> {
    /// Returns the text; absent counts as empty.
    pub(crate) fn text(&self) -> &str {
        self.value().copied().unwrap_or_default()
    }
}
