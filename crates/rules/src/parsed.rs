//! A value of a rule file that may be absent or faulty.

use crate::fault::Place;

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

    /// Returns the value that `check` makes of this one; what it refuses is not reported yet.
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
