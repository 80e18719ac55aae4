//! The structure of a rule file: each value as written, with its place, checked only for its type.
//!
//! Descriptors are read one at a time, and the children of a descriptor only once it has been
//! processed. So even with a million descriptors, only one path through them is in memory.

mod limit;
mod value;

pub(crate) use limit::{LeaseField, LimitFields, RateLimit};

use crate::fault::{Place, excerpt};
use crate::field::{self, Field, MapKind};
use crate::metadata;
use crate::node::{Kind, Node};
use crate::parsed::Parsed;
use crate::reader::{Entry, Reader};
use crate::scalar::Meaning;

/// The content of a file, which configures one domain.
#[derive(Debug)]
pub(crate) struct File<'d> {
    /// Where the first value of the file begins.
    pub(crate) place: Place,
    pub(crate) domain: Parsed<&'d str>,
    /// Defaults for every `rate_limit` of the file.
    pub(crate) defaults: LimitFields<'d>,
    /// The store of every `rate_limit` of the domain that names none.
    pub(crate) store: Parsed<&'d str>,
    /// Not read yet: see [`Reader::descriptors`].
    pub(crate) descriptors: Option<&'d Node<'d>>,
}

/// An item of `descriptors`.
#[derive(Debug)]
pub(crate) struct Descriptor<'d> {
    pub(crate) place: Place,
    pub(crate) key: Parsed<&'d str>,
    pub(crate) value: Parsed<&'d str>,
    pub(crate) rate_limit: Option<RateLimit<'d>>,
    /// Not read yet: see [`Reader::descriptors`].
    pub(crate) descriptors: Option<&'d Node<'d>>,
    pub(crate) shadow_mode: Parsed<bool>,
    pub(crate) quota_mode: Parsed<bool>,
    pub(crate) detailed_metric: Parsed<bool>,
    pub(crate) value_to_metric: Parsed<bool>,
    pub(crate) share_threshold: Parsed<bool>,
    pub(crate) metadata: Parsed<serde_json::Map<String, serde_json::Value>>,
}

/// Reads the outermost map of a file, except its descriptors.
pub(crate) fn read<'d>(reader: &mut Reader<'d, '_>) -> File<'d> {
    let root = reader.root();
    let place = root.map_or(Place::START, |root| root.place);
    let mut file = File {
        place,
        domain: Parsed::Absent,
        defaults: LimitFields::default(),
        store: Parsed::Absent,
        descriptors: None,
    };
    if let Some(root) = root
        && let Some(entries) = reader.map(root, "the file")
    {
        for (field, value) in reader.fields(entries, MapKind::Root) {
            match field {
                Field::Domain => file.domain = reader.text(value, field),
                Field::Descriptors => reader.replace(&mut file.descriptors, value),
                Field::Defaults => reader.defaults(value, &mut file.defaults),
                Field::Store => file.store = reader.text(value, field),
                _ => {}
            }
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
            reader.maps(list, Field::Descriptors, |reader, place, entries| {
                let descriptor = reader.descriptor(place, entries);
                take(reader, &descriptor);
            });
        });
    }

    /// Stores `list`. A list that it replaces is read only to report its faults.
    fn replace(&mut self, descriptors: &mut Option<&'d Node<'d>>, list: &'d Node<'d>) {
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
        let mut read = Descriptor::at(place);
        for (field, value) in self.fields(entries, MapKind::Descriptor) {
            match field {
                Field::Key => read.key = self.text(value, field),
                Field::Value => read.value = self.text(value, field),
                Field::RateLimit => self.rate_limit(value, &mut read.rate_limit),
                Field::Descriptors => self.replace(&mut read.descriptors, value),
                Field::ShadowMode => read.shadow_mode = self.flag(value, field),
                Field::QuotaMode => read.quota_mode = self.flag(value, field),
                Field::DetailedMetric => read.detailed_metric = self.flag(value, field),
                Field::ValueToMetric => read.value_to_metric = self.flag(value, field),
                Field::ShareThreshold => read.share_threshold = self.flag(value, field),
                Field::Metadata => metadata::read(self, value, &mut read.metadata),
                _ => {}
            }
        }
        read
    }

    /// Returns the entries that are allowed in a `map` of this kind, and reports the others. The
    /// caller has to read each of them; `tests/fields.rs` finds one that its `match` leaves out.
    fn fields(&mut self, entries: Vec<Entry<'d>>, map: MapKind) -> Vec<(Field, &'d Node<'d>)> {
        let mut fields: Vec<(Field, Entry<'d>)> = Vec::with_capacity(entries.len());
        for entry in entries {
            let Some(name) = self.key_text(entry.key) else { continue };
            match Field::parse(name) {
                Some(field) if field.belongs_to(map) => {
                    // A map has few different fields but may repeat one; only the last copy counts.
                    let earlier = fields.iter_mut().rev().find(|(other, _)| *other == field);
                    if let Some((_, earlier)) = earlier {
                        let earlier = *earlier;
                        self.warn_of_duplicate(name, earlier, entry);
                    }
                    fields.push((field, entry));
                }
                Some(field) if !(map.is_known_to_reference() && field.is_known_to_reference()) => {
                    let homes = MapKind::homes_of(field);
                    let message = format!("'{name}' cannot stand here; it belongs to {homes}");
                    self.fault(entry.key.place, message);
                }
                Some(field) => {
                    let homes = MapKind::homes_of(field);
                    let message = format!("'{name}' has no effect here; it belongs to {homes}");
                    self.warn(entry.key.place, message);
                    if field != Field::Metadata {
                        self.report_unknown_keys(entry.value, map);
                    }
                }
                None if name == field::STORE_FROM => {
                    self.warn(entry.key.place, field::STORE_FROM_HAS_GONE);
                }
                None => self.refuse_key(entry.key.place, name, map),
            }
        }
        fields.into_iter().map(|(field, entry)| (field, entry.value)).collect()
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
                    match Field::parse(name) {
                        None if name == field::STORE_FROM => {}
                        None => reader.refuse_key(entry.key.place, name, map),
                        // These may hold fractions.
                        Some(Field::Metadata | Field::Lease) => {}
                        Some(_) => reader.report_unknown_keys(entry.value, map),
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
}

// === impl Descriptor ===

impl Descriptor<'_> {
    fn at(place: Place) -> Self {
        Descriptor {
            place,
            key: Parsed::Absent,
            value: Parsed::Absent,
            rate_limit: None,
            descriptors: None,
            shadow_mode: Parsed::Absent,
            quota_mode: Parsed::Absent,
            detailed_metric: Parsed::Absent,
            value_to_metric: Parsed::Absent,
            share_threshold: Parsed::Absent,
            metadata: Parsed::Absent,
        }
    }
}
