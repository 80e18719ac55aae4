//! A request that outlives the hook in which it was made: one that waits, or that follows when the
//! stream ends.

use ratelease_rules::request::{Descriptor, Entry, Request};
use ratelease_rules::{Limit, SETTLE_KEY};

/// A request with all its text.
#[derive(Debug, Clone)]
pub struct OwnedRequest {
    domain: String,
    hits_addend: u64,
    descriptors: Vec<OwnedDescriptor>,
}

#[derive(Debug, Clone)]
struct OwnedDescriptor {
    entries: Vec<(String, String)>,
    limit: Option<Limit>,
    hits_addend: Option<u64>,
    refund: bool,
}

// === impl OwnedRequest ===

impl OwnedRequest {
    /// A copy of `request`.
    pub fn of(request: &Request<'_>) -> Self {
        Self {
            domain: request.domain.to_owned(),
            hits_addend: request.hits_addend,
            descriptors: request.descriptors.iter().map(OwnedDescriptor::of).collect(),
        }
    }

    /// The ends of those descriptors of `request` that have these indexes, each of which costs its
    /// own hits, or so many; `None` if there is none.
    pub fn ends_of(
        request: &Request<'_>,
        indexes: impl IntoIterator<Item = usize>,
        cost: Option<u64>,
    ) -> Option<Self> {
        let taken = indexes.into_iter().filter_map(|at| request.descriptors.get(at));
        let begun = taken.filter(|it| it.entries.last().is_some_and(|last| last.key != SETTLE_KEY));
        let end = |descriptor: &Descriptor<'_>| {
            let mut end = OwnedDescriptor::of(descriptor);
            end.entries.push((SETTLE_KEY.to_owned(), String::new()));
            end.hits_addend = cost.or(end.hits_addend);
            end
        };
        let descriptors: Vec<_> = begun.map(end).collect();
        let (domain, hits_addend) = (request.domain.to_owned(), request.hits_addend);
        (!descriptors.is_empty()).then_some(Self { domain, hits_addend, descriptors })
    }

    /// The request.
    pub fn request(&self) -> Request<'_> {
        let descriptors = self.descriptors.iter().map(OwnedDescriptor::descriptor);
        Request {
            domain: &self.domain,
            descriptors: descriptors.collect(),
            hits_addend: self.hits_addend,
        }
    }
}

// === impl OwnedDescriptor ===

impl OwnedDescriptor {
    fn of(descriptor: &Descriptor<'_>) -> Self {
        let entries = descriptor.entries.iter();
        let Descriptor { limit, hits_addend, refund, .. } = *descriptor;
        Self {
            entries: entries.map(|it| (it.key.to_owned(), it.value.to_owned())).collect(),
            limit,
            hits_addend,
            refund,
        }
    }

    fn descriptor(&self) -> Descriptor<'_> {
        let entries = self.entries.iter().map(|(key, value)| Entry { key, value });
        let Self { limit, hits_addend, refund, .. } = *self;
        Descriptor { entries: entries.collect(), limit, hits_addend, refund }
    }
}
