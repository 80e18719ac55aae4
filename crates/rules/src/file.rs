//! Reads the maps of a rule file: each value as written, with its place, checked only for its type
//! and range.
//!
//! Descriptors are read one at a time, and the children of a descriptor only once it has been
//! processed. So even with a million descriptors, only one path through them is in memory.

use crate::fault::{Place, excerpt};
use crate::node::{Kind, Meaning, Node};
use crate::options::{
    Descriptor, File, LeaseOption, LeaseOptions, LimitOptions, MapKind, MapOptions, RateLimit,
    Replaced, STORE_FROM, STORE_FROM_HAS_GONE, is_known_to_reference,
};
use crate::reader::{Entry, Parsed, Reader};

/// Reads the outermost map of a file, except its descriptors.
pub(crate) fn read<'d>(reader: &mut Reader<'d, '_>) -> File<'d> {
    let root = reader.root();
    let place = root.map_or(Place::START, |root| root.place);
    let mut file = File { place, ..File::default() };
    if let Some(root) = root
        && let Some(entries) = reader.map(root, "the file")
    {
        for (name, value) in reader.options(entries, MapKind::Root) {
            file.read(name, reader, value);
        }
    } else if root.is_some_and(|root| !is_null(root)) {
        // The wrong type has been reported; a further fault for the missing domain would add
        // nothing.
        file.domain = Parsed::Faulty;
    }
    file
}

fn is_null(node: &Node<'_>) -> bool {
    matches!(node.kind, Kind::Scalar(_, Meaning::Null))
}

// === impl Reader: the maps of a rule file ===

impl<'d> Reader<'d, '_> {
    /// Reads the items of a `descriptors` list one by one and passes each to `take`, which may in
    /// turn read the descriptors below it.
    pub(crate) fn descriptors(
        &mut self,
        list: &'d Node<'d>,
        mut take: impl FnMut(&mut Self, &Descriptor<'d>),
    ) {
        self.inside(list.place, |reader| {
            reader.maps(list, "descriptors", |reader, place, entries| {
                let descriptor = reader.descriptor(place, entries);
                take(reader, &descriptor);
            });
        });
    }

    /// Stores `list`. A list that it replaces is read only to report its faults.
    pub(crate) fn replace(&mut self, descriptors: &mut Option<&'d Node<'d>>, list: &'d Node<'d>) {
        if let Some(replaced) = descriptors.replace(list) {
            self.sift(replaced);
        }
    }

    fn sift(&mut self, list: &'d Node<'d>) {
        self.descriptors(list, |reader, descriptor| {
            descriptor.descriptors.into_iter().for_each(|list| reader.sift(list));
        });
    }

    fn descriptor(&mut self, place: Place, entries: Vec<Entry<'d>>) -> Descriptor<'d> {
        let mut read = Descriptor { place, ..Descriptor::default() };
        for (name, value) in self.options(entries, MapKind::Descriptor) {
            read.read(name, self, value);
            read.flags.read(name, self, value);
        }
        read
    }

    /// Returns the options that are allowed in a `map` of this kind, and reports the others.
    fn options(
        &mut self,
        entries: Vec<Entry<'d>>,
        map: MapKind,
    ) -> Vec<(&'static str, &'d Node<'d>)> {
        let mut options: Vec<(&'static str, Entry<'d>)> = Vec::with_capacity(entries.len());
        for entry in entries {
            let Some(name) = self.key_text(entry.key) else { continue };
            let Some(option) = map.option(name) else {
                self.refuse_here(entry, name, map);
                continue;
            };
            // A map has few different options but may repeat one; only the last copy counts.
            let earlier = options.iter().rev().find(|(other, _)| *other == option.name);
            if let Some((_, earlier)) = earlier {
                self.warn_of_duplicate(name, *earlier, entry);
            }
            options.push((option.name, entry));
        }
        options.into_iter().map(|(name, entry)| (name, entry.value)).collect()
    }

    /// Reports an option that does not belong to this kind of map. One that the reference ignores
    /// there loads with a warning.
    fn refuse_here(&mut self, entry: Entry<'d>, name: &str, map: MapKind) {
        let place = entry.key.place;
        let homes = || MapKind::homes_of(name);
        match is_known_to_reference(name) {
            None if name == STORE_FROM => self.warn(place, STORE_FROM_HAS_GONE),
            None => self.refuse_key(place, name, map),
            Some(is_known) if !(map.is_known_to_reference() && is_known) => {
                self.fault(place, format!("'{name}' cannot stand here; it belongs to {}", homes()));
            }
            Some(_) => {
                let message = format!("'{name}' has no effect here; it belongs to {}", homes());
                self.warn(place, message);
                if name != "metadata" {
                    self.report_unknown_keys(entry.value, map);
                }
            }
        }
    }

    /// Reports a name that a map of this kind may not hold.
    fn refuse_key(&mut self, place: Place, name: &str, map: MapKind) {
        let findings = self.findings;
        findings.fault_with(place, || map.refusal(name, findings));
    }

    /// Returns the text of a map's key; reports a key that is not text.
    fn key_text(&mut self, key: &'d Node<'d>) -> Option<&'d str> {
        match &key.kind {
            Kind::Scalar(text, Meaning::Text | Meaning::Merge) => Some(text),
            Kind::Scalar(text, _) => {
                let shown = excerpt(text);
                let message =
                    format!("key is not of type string: {shown}; expected the name of a setting");
                self.fault(key.place, message);
                None
            }
            _ => {
                let what = key.describe();
                self.fault(key.place, format!("key is not of type string: {what}"));
                None
            }
        }
    }

    /// Checks the names in a value that is ignored, as the reference does.
    fn report_unknown_keys(&mut self, node: &'d Node<'d>, map: MapKind) {
        self.inside(node.place, |reader| match &node.kind {
            Kind::Map(pairs) => {
                for entry in reader.entries(pairs) {
                    let Some(name) = reader.key_text(entry.key) else { continue };
                    match (name, is_known_to_reference(name)) {
                        // The last two may hold fractions.
                        (STORE_FROM | "metadata" | "lease", _) => {}
                        (_, None) => reader.refuse_key(entry.key.place, name, map),
                        _ => reader.report_unknown_keys(entry.value, map),
                    }
                }
            }
            Kind::List(ids) => {
                for item in reader.items(ids) {
                    match item.kind {
                        Kind::Map(_) => reader.report_unknown_keys(item, map),
                        _ => reader.refuse_item(item, "name: …"),
                    }
                }
            }
            Kind::Scalar(text, Meaning::Float(_) | Meaning::Big(_)) => {
                let shown = excerpt(text);
                reader.fault(node.place, format!("error checking config: number {shown} unused"));
            }
            _ => {}
        });
    }

    /// Reads into the limit that is already there, as yaml.v2 does: if a limit was merged in by
    /// `<<`, the file's own `rate_limit` changes only the options that it names. The same holds for
    /// the maps within it.
    pub(crate) fn rate_limit(&mut self, node: &'d Node<'d>, limit: &mut Option<RateLimit<'d>>) {
        if is_null(node) {
            *limit = None;
            return;
        }
        let at = || RateLimit { place: node.place, ..RateLimit::default() };
        let read = limit.get_or_insert_with(at);
        let Some(entries) = self.map(node, "'rate_limit'") else {
            // This has been reported; `Faulty` avoids further faults for the options that are
            // missing.
            read.unit = Parsed::Faulty;
            return;
        };
        for (name, value) in self.options(entries, MapKind::RateLimit) {
            read.read(name, self, value);
            self.limit_option(name, value, &mut read.options);
        }
    }

    /// Reads a file's `defaults`.
    pub(crate) fn defaults(&mut self, node: &'d Node<'d>, options: &mut LimitOptions) {
        if is_null(node) {
            *options = LimitOptions::default();
            return;
        }
        let Some(entries) = self.map(node, "'defaults'") else { return };
        for (name, value) in self.options(entries, MapKind::Defaults) {
            self.limit_option(name, value, options);
        }
    }

    fn limit_option(&mut self, name: &str, value: &'d Node<'d>, options: &mut LimitOptions) {
        options.read(name, self, value);
        options.flags.read(name, self, value);
    }

    /// Without quotes, `off` and `on` are booleans in YAML 1.1; in quotes they are text.
    pub(crate) fn lease(&mut self, node: &'d Node<'d>, lease: &mut Parsed<LeaseOption>) {
        let word = match &node.kind {
            Kind::Scalar(_, Meaning::Null) => {
                *lease = Parsed::Absent;
                return;
            }
            Kind::Map(pairs) => {
                let entries = self.entries(pairs);
                *lease = Parsed::As(node.place, self.terms(entries, std::mem::take(lease)));
                return;
            }
            Kind::Scalar(_, Meaning::Bool(on)) => Some(*on),
            Kind::Scalar(text, Meaning::Text) if text == "on" => Some(true),
            Kind::Scalar(text, Meaning::Text) if text == "off" => Some(false),
            _ => None,
        };
        *lease = match word {
            Some(true) => Parsed::As(node.place, self.terms(Vec::new(), std::mem::take(lease))),
            Some(false) => Parsed::As(node.place, LeaseOption::Off),
            None => self.refuse(node, "lease", "off, on, or a map such as {max: 1000}"),
        };
    }

    fn terms(&mut self, entries: Vec<Entry<'d>>, earlier: Parsed<LeaseOption>) -> LeaseOption {
        let mut read = match earlier {
            Parsed::As(_, LeaseOption::On(terms)) => terms,
            _ => LeaseOptions::default(),
        };
        for (name, value) in self.options(entries, MapKind::Lease) {
            read.read(name, self, value);
        }
        LeaseOption::On(read)
    }

    pub(crate) fn replaces(&mut self, node: &'d Node<'d>) -> Vec<Replaced<'d>> {
        let mut items = Vec::new();
        self.maps(node, "replaces", |reader, place, entries| {
            let mut read = Replaced { place, ..Replaced::default() };
            for (name, value) in reader.options(entries, MapKind::Replaced) {
                read.read(name, reader, value);
            }
            items.push(read);
        });
        items
    }
}
