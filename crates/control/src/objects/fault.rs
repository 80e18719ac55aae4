//! The faults of an object, each with its place.

use serde::{Deserialize, Serialize};

/// Maximum number of faults that a status shows: the API server bounds the bytes of an object.
pub const FAULTS_MAX: usize = 20;

/// Bytes of a place that are kept.
const PLACE_BYTES_MAX: usize = 256;

/// Bytes of a message that are kept.
const MESSAGE_BYTES_MAX: usize = 1024;

/// The faults of an object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Faults {
    /// The first ones.
    pub shown: Vec<PlacedFault>,
    /// Number of all.
    pub count: usize,
}

/// A fault, and where it is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlacedFault {
    /// The field, as in `spec.descriptors[0].rate_limit.unit`.
    pub field: String,
    /// The fault, then the text that was expected.
    pub message: String,
}

// === impl Faults ===

impl Faults {
    /// Keeps the first faults of `count`, and makes no further ones.
    pub fn new(count: usize, faults: impl Iterator<Item = PlacedFault>) -> Self {
        let shown = faults.take(FAULTS_MAX).map(|mut fault| {
            cut(&mut fault.field, PLACE_BYTES_MAX);
            cut(&mut fault.message, MESSAGE_BYTES_MAX);
            fault
        });
        Self { shown: shown.collect(), count }
    }

    pub fn one(field: &str, message: impl Into<String>) -> Self {
        let fault = PlacedFault { field: field.to_owned(), message: message.into() };
        Self::new(1, [fault].into_iter())
    }
}

/// Bytes that faults keep in memory.
pub fn bytes_of_faults(faults: &[PlacedFault]) -> usize {
    let texts: usize = faults.iter().map(|it| it.field.len() + it.message.len()).sum();
    texts + size_of_val(faults)
}

fn cut(text: &mut String, bytes_max: usize) {
    text.truncate(text.floor_char_boundary(bytes_max));
}
