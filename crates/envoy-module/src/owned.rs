//! A request that outlives the hook in which it was made: one that waits, or that follows when the
//! stream ends.

use std::collections::HashMap;
use std::ops::Range;

use ratelease_rules::request::{Descriptor, Entry, Few, Request};
use ratelease_rules::{Limit, SETTLE_KEY};
use ratelease_server::request::RequestError;

use crate::answer::Outcome;

/// A request with all its text. Text that occurs several times, as a header does that many
/// descriptors have, is kept once.
#[derive(Debug)]
pub struct OwnedRequest {
    text: Box<str>,
    domain: Piece,
    hits_addend: u64,
    descriptors: Vec<OwnedDescriptor>,
}

#[derive(Debug)]
struct OwnedDescriptor {
    /// Key and value of each.
    entries: Vec<(Piece, Piece)>,
    /// Whether one more entry makes it a settlement.
    is_end: bool,
    limit: Option<Limit>,
    hits_addend: Option<u64>,
    refund: bool,
}

/// A part of the text of a request, by its first byte and the one after its last.
type Piece = Range<usize>;

/// Text that is being put together, each piece once.
#[derive(Default)]
struct Pieces<'a> {
    text: String,
    known: HashMap<&'a str, Piece>,
}

// === impl OwnedRequest ===

impl OwnedRequest {
    /// A copy of `request`.
    pub fn of(request: &Request<'_>) -> Self {
        let mut pieces = Pieces::default();
        let domain = pieces.add(request.domain);
        let descriptors =
            request.descriptors.iter().map(|it| OwnedDescriptor::of(it, &mut pieces)).collect();
        let text = pieces.text.into_boxed_str();
        Self { text, domain, hits_addend: request.hits_addend, descriptors }
    }

    /// The ends of the slots that `request` has taken by its `outcome`; `None` if there is none.
    pub fn ends_of_slots(
        request: &Request<'_>,
        outcome: &Result<Outcome, RequestError>,
    ) -> Option<Self> {
        let slots = outcome.iter().flat_map(|outcome| outcome.slots.iter().copied());
        Self::ends_of(request, slots, None)
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
        let descriptors: Few<_> = begun.cloned().collect();
        if descriptors.is_empty() {
            return None;
        }
        let mut ends = Self::of(&Request { descriptors, ..*request });
        for end in &mut ends.descriptors {
            end.is_end = true;
            end.hits_addend = cost.or(end.hits_addend);
        }
        Some(ends)
    }

    /// The request.
    pub fn request(&self) -> Request<'_> {
        let descriptors = self.descriptors.iter().map(|it| it.descriptor(&self.text));
        Request {
            domain: piece(&self.text, &self.domain),
            descriptors: descriptors.collect(),
            hits_addend: self.hits_addend,
        }
    }

    /// The memory that it takes, in bytes.
    pub fn bytes(&self) -> usize {
        let entries: usize = self.descriptors.iter().map(|it| it.entries.len()).sum();
        self.text.len()
            + self.descriptors.len() * size_of::<OwnedDescriptor>()
            + entries * size_of::<(Piece, Piece)>()
    }
}

// === impl OwnedDescriptor ===

impl OwnedDescriptor {
    fn of<'a>(descriptor: &Descriptor<'a>, pieces: &mut Pieces<'a>) -> Self {
        let entries = descriptor.entries.iter();
        let Descriptor { limit, hits_addend, refund, .. } = *descriptor;
        Self {
            entries: entries.map(|it| (pieces.add(it.key), pieces.add(it.value))).collect(),
            is_end: false,
            limit,
            hits_addend,
            refund,
        }
    }

    fn descriptor<'a>(&self, text: &'a str) -> Descriptor<'a> {
        let own = self.entries.iter();
        let own =
            own.map(|(key, value)| Entry { key: piece(text, key), value: piece(text, value) });
        let end = self.is_end.then_some(Entry { key: SETTLE_KEY, value: "" });
        let Self { limit, hits_addend, refund, .. } = *self;
        Descriptor { entries: own.chain(end).collect(), limit, hits_addend, refund }
    }
}

// === impl Pieces ===

impl<'a> Pieces<'a> {
    fn add(&mut self, piece: &'a str) -> Piece {
        let text = &mut self.text;
        let place = self.known.entry(piece).or_insert_with(|| {
            text.push_str(piece);
            text.len() - piece.len()..text.len()
        });
        place.clone()
    }
}

/// The piece, which is one of this text's own.
fn piece<'a>(text: &'a str, at: &Piece) -> &'a str {
    text.get(at.clone()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use ratelease_rules::request::Few;

    use super::*;

    fn request<'a>(descriptors: &'a [&'a [(&'a str, &'a str)]]) -> Request<'a> {
        let descriptor = |entries: &&[(&'a str, &'a str)]| Descriptor {
            entries: entries.iter().map(|&(key, value)| Entry { key, value }).collect(),
            hits_addend: Some(7),
            refund: true,
            ..Descriptor::default()
        };
        let descriptors: Few<_> = descriptors.iter().map(descriptor).collect();
        Request { domain: "shop", descriptors, hits_addend: 3 }
    }

    #[test]
    fn a_copy_is_the_request_itself() {
        let of: [&[_]; 3] = [&[("user", "a"), ("path", "")], &[("a", "user")], &[]];
        let owned = OwnedRequest::of(&request(&of));
        assert_eq!(owned.request(), request(&of));
    }

    #[test]
    fn text_that_all_descriptors_have_is_kept_once() {
        let (long, same) = ("x".repeat(50_000), "x".repeat(50_000));
        let of: Vec<_> =
            (0..20).map(|at| [("user", if at == 0 { &*long } else { &same })]).collect();
        let of: Vec<_> = of.iter().map(|it| &it[..]).collect();
        let owned = OwnedRequest::of(&request(&of));
        assert_eq!(owned.request(), request(&of));
        assert!((50_000..55_000).contains(&owned.bytes()), "{}", owned.bytes());
    }

    #[test]
    fn ends_are_settlements_of_the_descriptors_that_have_begun() {
        let of =
            request(&[&[("slot", "a")], &[("other", "b")], &[("slot", "c"), (SETTLE_KEY, "")]]);
        let ends = OwnedRequest::ends_of(&of, [0, 2], Some(5)).unwrap();
        let mut expected = request(&[&[("slot", "a"), (SETTLE_KEY, "")]]);
        expected.descriptors[0].hits_addend = Some(5);
        assert_eq!(ends.request(), expected);
        let own = OwnedRequest::ends_of(&of, [1], None).unwrap();
        assert_eq!(own.request().descriptors[0].hits_addend, Some(7));
        assert!(OwnedRequest::ends_of(&of, [2, 9], None).is_none());
    }
}
