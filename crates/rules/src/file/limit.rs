//! The structure of a `rate_limit`, and of a file's `defaults`.

use std::time::Duration;

use super::is_null;
use crate::fault::Place;
use crate::field::{Field, Owner};
use crate::given::Given;
use crate::node::{Kind, Node};
use crate::reader::{Entry, Reader};
use crate::scalar::Meaning;

/// A `rate_limit`.
#[derive(Debug)]
pub(crate) struct RateLimit<'d> {
    pub(crate) place: Place,
    pub(crate) unit: Given<&'d str>,
    pub(crate) unit_multiplier: Given<u32>,
    pub(crate) requests_per_unit: Given<u32>,
    pub(crate) burst: Given<u32>,
    pub(crate) unlimited: Given<bool>,
    pub(crate) name: Given<&'d str>,
    pub(crate) replaces: Vec<Replaced<'d>>,
    pub(crate) manner: Manner<'d>,
}

/// An item of `replaces`.
#[derive(Debug)]
pub(crate) struct Replaced<'d> {
    pub(crate) place: Place,
    pub(crate) name: Given<&'d str>,
}

/// The options of a limit, independent of the amount it allows: from a file's `defaults` or from a
/// `rate_limit`.
#[derive(Debug, Default)]
pub(crate) struct Manner<'d> {
    pub(crate) algorithm: Given<&'d str>,
    pub(crate) max_delay: Given<Duration>,
    pub(crate) lease: Given<Lease>,
    pub(crate) shards: Given<u32>,
    pub(crate) charge_denied: Given<bool>,
    pub(crate) failure_mode: Given<&'d str>,
}

/// A `lease`.
#[derive(Debug)]
pub(crate) enum Lease {
    Off,
    /// On, with these terms; `lease: on` names none.
    On(Terms),
}

/// The map of a `lease`.
#[derive(Debug, Default)]
pub(crate) struct Terms {
    pub(crate) fraction: Given<f64>,
    pub(crate) max: Given<u32>,
    pub(crate) ttl: Given<Duration>,
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
            read.unit = Given::Faulty;
            return;
        };
        for (field, value) in self.fields(entries, Owner::RateLimit) {
            match field {
                Field::Unit => read.unit = self.text(value, field),
                Field::UnitMultiplier => read.unit_multiplier = self.number(value, field),
                Field::RequestsPerUnit => read.requests_per_unit = self.number(value, field),
                Field::Burst => read.burst = self.number(value, field),
                Field::Unlimited => read.unlimited = self.flag(value, field),
                Field::Name => read.name = self.text(value, field),
                Field::Replaces => read.replaces = self.replaces(value),
                _ => self.manner(field, value, &mut read.manner),
            }
        }
    }

    /// Reads a file's `defaults`.
    pub(super) fn defaults(&mut self, node: &'d Node<'d>, manner: &mut Manner<'d>) {
        if is_null(node) {
            *manner = Manner::default();
            return;
        }
        let Some(entries) = self.map(node, "'defaults'") else { return };
        for (field, value) in self.fields(entries, Owner::Defaults) {
            self.manner(field, value, manner);
        }
    }

    fn manner(&mut self, field: Field, value: &'d Node<'d>, read: &mut Manner<'d>) {
        match field {
            Field::Algorithm => read.algorithm = self.text(value, field),
            Field::MaxDelay => read.max_delay = self.duration(value, field, "50ms"),
            Field::Lease => self.lease(value, &mut read.lease),
            Field::Shards => read.shards = self.number(value, field),
            Field::ChargeDenied => read.charge_denied = self.flag(value, field),
            Field::FailureMode => read.failure_mode = self.text(value, field),
            _ => {}
        }
    }

    /// Without quotes, `off` and `on` are booleans in YAML 1.1; in quotes they are text.
    fn lease(&mut self, node: &'d Node<'d>, lease: &mut Given<Lease>) {
        let word = match &node.kind {
            Kind::Scalar(_, Meaning::Null) => {
                *lease = Given::Absent;
                return;
            }
            Kind::Map(pairs) => {
                let entries = self.entries(pairs);
                *lease = Given::As(node.place, self.terms(entries, std::mem::take(lease)));
                return;
            }
            Kind::Scalar(_, Meaning::Bool(on)) => Some(*on),
            Kind::Scalar(text, Meaning::Text) if text == "on" => Some(true),
            Kind::Scalar(text, Meaning::Text) if text == "off" => Some(false),
            _ => None,
        };
        *lease = match word {
            Some(true) => Given::As(node.place, self.terms(Vec::new(), std::mem::take(lease))),
            Some(false) => Given::As(node.place, Lease::Off),
            None => self.refuse(node, Field::Lease, "off, on, or a map such as {max: 1000}"),
        };
    }

    fn terms(&mut self, entries: Vec<Entry<'d>>, earlier: Given<Lease>) -> Lease {
        let mut read = match earlier {
            Given::As(_, Lease::On(terms)) => terms,
            _ => Terms::default(),
        };
        for (field, value) in self.fields(entries, Owner::Lease) {
            match field {
                Field::Fraction => read.fraction = self.fraction(value, field),
                Field::Max => read.max = self.number(value, field),
                Field::Ttl => read.ttl = self.duration(value, field, "2s"),
                _ => {}
            }
        }
        Lease::On(read)
    }

    fn replaces(&mut self, node: &'d Node<'d>) -> Vec<Replaced<'d>> {
        let mut items = Vec::new();
        self.maps(node, Field::Replaces, |reader, place, entries| {
            let mut read = Replaced { place, name: Given::Absent };
            for (field, value) in reader.fields(entries, Owner::Replaced) {
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
            unit: Given::Absent,
            unit_multiplier: Given::Absent,
            requests_per_unit: Given::Absent,
            burst: Given::Absent,
            unlimited: Given::Absent,
            name: Given::Absent,
            replaces: Vec::new(),
            manner: Manner::default(),
        }
    }
}
