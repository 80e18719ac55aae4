//! The structure of a `rate_limit`, and of a file's `defaults`.

use std::time::Duration;

use super::is_null;
use crate::fault::Place;
use crate::field::{Field, MapKind};
use crate::limit::{POOLS_MAX, UNIT_MULTIPLIER_MAX};
use crate::node::{Kind, Node};
use crate::parsed::Parsed;
use crate::reader::{Entry, Reader};
use crate::scalar::Meaning;

/// A `rate_limit`.
#[derive(Debug)]
pub(crate) struct RateLimit<'d> {
    pub(crate) place: Place,
    pub(crate) unit: Parsed<&'d str>,
    pub(crate) unit_multiplier: Parsed<u32>,
    pub(crate) requests_per_unit: Parsed<u32>,
    pub(crate) burst: Parsed<u32>,
    pub(crate) unlimited: Parsed<bool>,
    pub(crate) name: Parsed<&'d str>,
    pub(crate) replaces: Vec<Replaced<'d>>,
    pub(crate) options: LimitFields<'d>,
    pub(crate) store: Parsed<&'d str>,
}

/// An item of `replaces`.
#[derive(Debug)]
pub(crate) struct Replaced<'d> {
    pub(crate) place: Place,
    pub(crate) name: Parsed<&'d str>,
}

/// The options of a limit, independent of the amount it allows: from a file's `defaults` or from a
/// `rate_limit`.
#[derive(Debug, Default)]
pub(crate) struct LimitFields<'d> {
    pub(crate) algorithm: Parsed<&'d str>,
    pub(crate) max_delay: Parsed<Duration>,
    pub(crate) lease: Parsed<LeaseField>,
    pub(crate) shards: Parsed<u32>,
    pub(crate) charge_denied: Parsed<bool>,
    pub(crate) failure_mode: Parsed<&'d str>,
}

/// A `lease`.
#[derive(Debug)]
pub(crate) enum LeaseField {
    Off,
    /// On, with these terms; `lease: on` names none.
    On(LeaseTermFields),
}

/// The map of a `lease`.
#[derive(Debug, Default)]
pub(crate) struct LeaseTermFields {
    pub(crate) fraction: Parsed<f64>,
    pub(crate) max: Parsed<u32>,
    pub(crate) ttl: Parsed<Duration>,
}

// === impl Reader ===

impl<'d> Reader<'d, '_> {
    /// Reads into the limit that is already there, as yaml.v2 does: if a limit was merged in by
    /// `<<`, the file's own `rate_limit` changes only the fields that it names. The same holds for
    /// the maps within it.
    pub(super) fn rate_limit(&mut self, node: &'d Node<'d>, limit: &mut Option<RateLimit<'d>>) {
        if is_null(node) {
            *limit = None;
            return;
        }
        let read = limit.get_or_insert_with(|| RateLimit::at(node.place));
        let Some(entries) = self.map(node, "'rate_limit'") else {
            // This has been reported; `Faulty` avoids further faults for the fields that are
            // missing.
            read.unit = Parsed::Faulty;
            return;
        };
        for (field, value) in self.fields(entries, MapKind::RateLimit) {
            match field {
                Field::Unit => read.unit = self.text(value, field),
                Field::UnitMultiplier => {
                    read.unit_multiplier = self.number(value, field, 1..=UNIT_MULTIPLIER_MAX);
                }
                Field::RequestsPerUnit => {
                    read.requests_per_unit = self.number(value, field, 0..=u32::MAX);
                }
                Field::Burst => read.burst = self.number(value, field, 1..=u32::MAX),
                Field::Unlimited => read.unlimited = self.flag(value, field),
                Field::Name => read.name = self.text(value, field),
                Field::Replaces => read.replaces = self.replaces(value),
                Field::Store => read.store = self.text(value, field),
                _ => self.options(field, value, &mut read.options),
            }
        }
    }

    /// Reads a file's `defaults`.
    pub(super) fn defaults(&mut self, node: &'d Node<'d>, options: &mut LimitFields<'d>) {
        if is_null(node) {
            *options = LimitFields::default();
            return;
        }
        let Some(entries) = self.map(node, "'defaults'") else { return };
        for (field, value) in self.fields(entries, MapKind::Defaults) {
            self.options(field, value, options);
        }
    }

    fn options(&mut self, field: Field, value: &'d Node<'d>, read: &mut LimitFields<'d>) {
        match field {
            Field::Algorithm => read.algorithm = self.text(value, field),
            Field::MaxDelay => read.max_delay = self.duration(value, field, "50ms"),
            Field::Lease => self.lease(value, &mut read.lease),
            Field::Shards => read.shards = self.number(value, field, 1..=POOLS_MAX.into()),
            Field::ChargeDenied => read.charge_denied = self.flag(value, field),
            Field::FailureMode => read.failure_mode = self.text(value, field),
            _ => {}
        }
    }

    /// Without quotes, `off` and `on` are booleans in YAML 1.1; in quotes they are text.
    fn lease(&mut self, node: &'d Node<'d>, lease: &mut Parsed<LeaseField>) {
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
            Some(false) => Parsed::As(node.place, LeaseField::Off),
            None => self.refuse(node, Field::Lease, "off, on, or a map such as {max: 1000}"),
        };
    }

    fn terms(&mut self, entries: Vec<Entry<'d>>, earlier: Parsed<LeaseField>) -> LeaseField {
        let mut read = match earlier {
            Parsed::As(_, LeaseField::On(terms)) => terms,
            _ => LeaseTermFields::default(),
        };
        for (field, value) in self.fields(entries, MapKind::Lease) {
            match field {
                Field::Fraction => read.fraction = self.fraction(value, field),
                Field::Max => read.max = self.number(value, field, 1..=u32::MAX),
                Field::Ttl => read.ttl = self.duration(value, field, "2s"),
                _ => {}
            }
        }
        LeaseField::On(read)
    }

    fn replaces(&mut self, node: &'d Node<'d>) -> Vec<Replaced<'d>> {
        let mut items = Vec::new();
        self.maps(node, Field::Replaces, |reader, place, entries| {
            let mut read = Replaced { place, name: Parsed::Absent };
            for (field, value) in reader.fields(entries, MapKind::Replaced) {
                read.name = reader.text(value, field);
            }
            items.push(read);
        });
        items
    }
}

// === impl RateLimit ===

impl RateLimit<'_> {
    fn at(place: Place) -> Self {
        RateLimit {
            place,
            unit: Parsed::Absent,
            unit_multiplier: Parsed::Absent,
            requests_per_unit: Parsed::Absent,
            burst: Parsed::Absent,
            unlimited: Parsed::Absent,
            name: Parsed::Absent,
            replaces: Vec::new(),
            options: LimitFields::default(),
            store: Parsed::Absent,
        }
    }
}
