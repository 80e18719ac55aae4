//! A value of a rule file that may be absent or faulty.

use crate::fault::Place;

/// A value that may be absent, or faulty in a way that has been reported.
#[derive(Debug, Default, Clone)]
pub(crate) enum Parsed<T> {
    #[default]
    Absent,
    Faulty,
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
            Parsed::As(place, _) => *place,
            _ => holder,
        }
    }

    /// The value's place, if there is one.
    pub(crate) fn place(&self) -> Option<Place> {
        match self {
            Parsed::As(place, _) => Some(*place),
            _ => None,
        }
    }

    /// Returns `self`, or `other` if `self` is absent.
    pub(crate) fn or<'g>(&'g self, other: &'g Self) -> &'g Self {
        match self {
            Parsed::Absent => other,
            _ => self,
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
