//! Reads values of a rule file by type, and reports values of a wrong type.

use std::ops::RangeInclusive;
use std::time::Duration;

use crate::duration::parse_duration;
use crate::fault::{Place, excerpt};
use crate::field::Field;
use crate::node::{Kind, Node};
use crate::parsed::Parsed;
use crate::reader::{Entry, Reader};
use crate::scalar::Meaning;

// === impl Reader ===

impl<'d> Reader<'d, '_> {
    /// Returns the entries of the map `node`. `None` if it is null, or if it is not a map, which is
    /// reported; `what` names it in the message.
    pub(super) fn map(&mut self, node: &'d Node<'d>, what: &str) -> Option<Vec<Entry<'d>>> {
        match &node.kind {
            Kind::Map(pairs) => Some(self.entries(pairs)),
            Kind::Scalar(_, Meaning::Null) => None,
            _ => {
                self.refuse_type(node, what, "a map");
                None
            }
        }
    }

    /// Reads the maps of a list, one by one.
    pub(super) fn maps(
        &mut self,
        node: &'d Node<'d>,
        field: Field,
        mut read: impl FnMut(&mut Self, Place, Vec<Entry<'d>>),
    ) {
        let ids = match &node.kind {
            Kind::List(ids) => ids,
            Kind::Scalar(_, Meaning::Null) => return,
            _ => {
                self.refuse_type(node, &format!("'{}'", field.name()), "a list of maps");
                return;
            }
        };
        for id in ids {
            let Some(item) = self.node(*id) else { return };
            match &item.kind {
                Kind::Map(pairs) => {
                    let entries = self.entries(pairs);
                    read(self, item.place, entries);
                }
                _ if field == Field::Replaces => self.refuse_item(item, "name: …"),
                _ => self.refuse_item(item, "key: …"),
            }
        }
    }

    pub(super) fn text(&mut self, node: &'d Node<'d>, field: Field) -> Parsed<&'d str> {
        match &node.kind {
            Kind::Scalar(_, Meaning::Null) => Parsed::Absent,
            Kind::Scalar(text, meaning)
                if !matches!(meaning, Meaning::Float(_) | Meaning::Big(_)) =>
            {
                Parsed::As(node.place, text)
            }
            Kind::Scalar(text, _) => {
                let shown = excerpt(text);
                let message = format!(
                    "error checking config: '{}' is the number {shown}; put it in quotes",
                    field.name()
                );
                self.fault(node.place, message);
                Parsed::Faulty
            }
            _ => self.refuse(node, field, "text"),
        }
    }

    pub(super) fn flag(&mut self, node: &'d Node<'d>, field: Field) -> Parsed<bool> {
        match node.kind {
            Kind::Scalar(_, Meaning::Null) => Parsed::Absent,
            Kind::Scalar(_, Meaning::Bool(value)) => Parsed::As(node.place, value),
            _ => self.refuse(node, field, "true or false without quotes"),
        }
    }

    /// Reads a whole number. `range` is what the field takes, for the message: only `compile`
    /// refuses a `u32` out of range, because there it may have no effect.
    pub(super) fn number(
        &mut self,
        node: &'d Node<'d>,
        field: Field,
        range: RangeInclusive<u32>,
    ) -> Parsed<u32> {
        let number = match node.kind {
            Kind::Scalar(_, Meaning::Null) => return Parsed::Absent,
            Kind::Scalar(_, Meaning::Int(number)) => u32::try_from(number).ok(),
            _ => None,
        };
        let Some(number) = number else {
            let (least, most) = range.into_inner();
            let expected = format!("a whole number from {least} to {most} without quotes");
            return self.refuse(node, field, &expected);
        };
        Parsed::As(node.place, number)
    }

    /// Reads a duration in Go's form, with or without quotes; `example` is shown in the message.
    pub(super) fn duration(
        &mut self,
        node: &'d Node<'d>,
        field: Field,
        example: &str,
    ) -> Parsed<Duration> {
        let read = match &node.kind {
            Kind::Scalar(_, Meaning::Null) => return Parsed::Absent,
            Kind::Scalar(text, _) => parse_duration(text),
            _ => None,
        };
        let expected = || format!("a duration with its unit, such as {example}");
        read.map_or_else(
            || self.refuse(node, field, &expected()),
            |span| Parsed::As(node.place, span),
        )
    }

    /// Reads any number.
    pub(super) fn fraction(&mut self, node: &'d Node<'d>, field: Field) -> Parsed<f64> {
        match node.kind {
            Kind::Scalar(_, Meaning::Null) => Parsed::Absent,
            Kind::Scalar(_, Meaning::Float(number)) => Parsed::As(node.place, number),
            // Any whole number other than 1 is out of range, so lost precision does not matter.
            #[allow(clippy::cast_precision_loss, reason = "see above")]
            Kind::Scalar(_, Meaning::Int(number)) => Parsed::As(node.place, number as f64),
            _ => self.refuse(node, field, "a number above 0 and at most 1, without quotes"),
        }
    }

    pub(super) fn refuse<T>(&mut self, node: &Node<'_>, field: Field, expected: &str) -> Parsed<T> {
        self.refuse_type(node, &format!("'{}'", field.name()), expected);
        Parsed::Faulty
    }

    pub(crate) fn refuse_type(&mut self, node: &Node<'_>, what: &str, expected: &str) {
        let phrase = match node.kind {
            Kind::Scalar(_, Meaning::Float(_) | Meaning::Big(_)) => "error checking config",
            _ => "error loading config file",
        };
        let found = node.describe();
        self.fault(node.place, format!("{phrase}: {what} must be {expected}, found {found}"));
    }

    pub(super) fn refuse_item(&mut self, item: &Node<'_>, expected: &str) {
        let shown = match &item.kind {
            Kind::Scalar(text, meaning) if *meaning != Meaning::Null => excerpt(text),
            _ => item.describe(),
        };
        let message = format!(
            "yaml file contains list of type other than map: {shown}; expected '- {expected}'"
        );
        self.fault(item.place, message);
    }
}
