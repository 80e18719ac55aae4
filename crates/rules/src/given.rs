//! What a rule file says of one thing, if anything.

use crate::fault::Place;

/// A value that may be absent, or of a wrong type that has been reported.
#[derive(Debug, Default)]
pub(crate) enum Given<T> {
    #[default]
    Absent,
    Faulty,
    As(Place, T),
}

// === impl Given ===

impl<T> Given<T> {
    /// The value, if there is one.
    pub(crate) fn value(&self) -> Option<&T> {
        match self {
            Given::As(_, value) => Some(value),
            _ => None,
        }
    }

    /// The value's place, or the one of what should hold it.
    pub(crate) fn place_or(&self, holder: Place) -> Place {
        match self {
            Given::As(place, _) => *place,
            _ => holder,
        }
    }

    /// The value's place, if there is one.
    pub(crate) fn place(&self) -> Option<Place> {
        match self {
            Given::As(place, _) => Some(*place),
            _ => None,
        }
    }

    /// This, or `other` where there is nothing.
    pub(crate) fn or<'g>(&'g self, other: &'g Self) -> &'g Self {
        match self {
            Given::Absent => other,
            _ => self,
        }
    }

    /// Whether it was there and has been reported.
    pub(crate) fn is_faulty(&self) -> bool {
        matches!(self, Given::Faulty)
    }
}

impl Given<bool> {
    /// Whether it says `true`; absent is false.
    pub(crate) fn is_true(&self) -> bool {
        self.value().copied().unwrap_or_default()
    }
}

impl Given<&str> {
    /// The text; absent is empty.
    pub(crate) fn text(&self) -> &str {
        self.value().copied().unwrap_or_default()
    }
}
