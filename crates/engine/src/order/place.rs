//! The place of an order among the orders of its store.

use std::fmt;

/// The place of an order among the orders of its store: the store's time in milliseconds, and a
/// number within them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place(pub u64, pub u64);

// === impl Place ===

impl Place {
    /// Reads the text of a place.
    pub fn parse(text: &str) -> Option<Self> {
        let (millis, number) = text.split_once('-')?;
        Some(Self(millis.parse().ok()?, number.parse().ok()?))
    }
}

/// As Redis writes the id of a stream's entry.
impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.0, self.1)
    }
}
