//! The text of a rule file, before it is read.

/// The text of one rule file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Source {
    /// As faults show it, such as `shop.yaml`. Sources load in order of their names.
    pub name: String,
    /// The file's bytes; whatever they are, loading them is safe.
    pub text: Vec<u8>,
}
