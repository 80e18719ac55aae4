//! A rate limit request in the form that the engine uses: borrowed from the decoded message, and
//! independent of wire types.

pub mod json;
pub mod scoped;

use smallvec::SmallVec;

use crate::limit::Limit;

/// A list with one item for each descriptor of a request. Most requests have one or two
/// descriptors, which need no allocation.
pub type Few<T> = SmallVec<[T; 2]>;

/// Maximum number of descriptors in one request. Envoy sends as many as the route has actions for,
/// so a client cannot reach this.
pub const DESCRIPTORS_MAX: usize = 256;

/// Maximum number of entries in one descriptor.
pub const ENTRIES_MAX: usize = 64;

/// Entries that a descriptor holds without an allocation.
const ENTRIES: usize = 4;

/// One `ShouldRateLimit` call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Request<'a> {
    /// Selects the tree of rules; never empty in an accepted request.
    pub domain: &'a str,
    /// Each descriptor is limited separately; the answer has one status for each, in this order.
    pub descriptors: Few<Descriptor<'a>>,
    /// Hits of each descriptor that has no `hits_addend` of its own; 0 stands for 1, as in the
    /// reference.
    pub hits_addend: u64,
}

/// An ordered list of entries, which is matched against the rules.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Descriptor<'a> {
    /// Each entry is matched against one level of the rules.
    pub entries: SmallVec<[Entry<'a>; ENTRIES]>,
    /// An override, used instead of the limit of the rules if the domain is known.
    pub limit: Option<Limit>,
    /// Hits of this descriptor. 0 reads the limit and spends nothing.
    pub hits_addend: Option<u64>,
    /// `is_negative_hits`: the hits are given back instead of spent.
    pub refund: bool,
}

/// A key and a value of a descriptor; both may be empty.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Entry<'a> {
    /// Key of the entry, such as `remote_address`.
    pub key: &'a str,
    /// Value of the entry on this request.
    pub value: &'a str,
}

impl Request<'_> {
    /// Returns the hits that `descriptor` charges: its own addend if present, even 0; else the
    /// request's, where 0 stands for 1.
    #[inline]
    pub fn hits(&self, descriptor: &Descriptor<'_>) -> u64 {
        descriptor.hits_addend.unwrap_or(self.hits_addend.max(1))
    }
}
