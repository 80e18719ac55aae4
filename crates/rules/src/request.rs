//! A rate limit call as the core sees it: borrowed from the decoded message, free of any wire type.

pub mod json;

use smallvec::SmallVec;

use crate::limit::Limit;

/// One for each descriptor of a request. Most requests have one or two: those allocate nothing.
pub type Few<T> = SmallVec<[T; 2]>;

/// Descriptors of one request at most. Envoy sends as many as the route has actions for, so a
/// client cannot reach this.
pub const DESCRIPTORS_MAX: usize = 256;

/// Entries of one descriptor at most.
pub const ENTRIES_MAX: usize = 64;

/// Entries of a descriptor that allocates nothing.
const ENTRIES: usize = 4;

/// One `ShouldRateLimit` call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Request<'a> {
    /// Selects the tree of rules; never empty once it has been accepted.
    pub domain: &'a str,
    /// Each is limited on its own; the answer has one status for each, in this order.
    pub descriptors: Few<Descriptor<'a>>,
    /// Hits of each descriptor that names none itself; 0 stands for 1, as in the reference.
    pub hits_addend: u32,
}

/// An ordered list of entries that the rules are matched against.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Descriptor<'a> {
    /// Matched one level of the rules each.
    pub entries: SmallVec<[Entry<'a>; ENTRIES]>,
    /// An override: used instead of whatever the rules say, provided the domain is known.
    pub limit: Option<Limit>,
    /// Hits of this descriptor. 0 looks at the limit and spends nothing.
    pub hits_addend: Option<u64>,
    /// `is_negative_hits`: the hits are given back instead of spent.
    pub refund: bool,
}

/// One key and value of a descriptor; both may be empty.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Entry<'a> {
    /// Name of the entry, such as `remote_address`.
    pub key: &'a str,
    /// Value seen on this request.
    pub value: &'a str,
}

impl Request<'_> {
    /// Hits that `descriptor` charges: its own addend if present, even 0; else the request's or 1.
    #[inline]
    pub fn hits(&self, descriptor: &Descriptor<'_>) -> u64 {
        descriptor.hits_addend.unwrap_or(u64::from(self.hits_addend.max(1)))
    }
}
