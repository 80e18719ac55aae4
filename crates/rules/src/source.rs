//! The text of a rule file, before parsing.

/// The text of one rule file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Source {
    /// The name in faults, such as `shop.yaml`. Sources load in order of their names.
    pub name: String,
    /// The file's bytes. Loading is safe for any content.
    pub text: Vec<u8>,
}
