//! Whether the time at which two servers counted a request, or a documented difference, explains
//! why their answers differ.

use std::hash::{BuildHasher, Hash};
use std::time::Duration;

use foldhash::HashMap;
use foldhash::fast::FixedState;
use ratelease_engine::time::Time;
use ratelease_rules::Unit;
use ratelease_rules::request::{Descriptor, Request};

use super::difference::{Difference, Field};
use crate::query::wire::{DescriptorReply, Reply};

/// Maximum number of keys that are remembered to differ.
const KEYS_MAX: usize = 1 << 16;

/// Why answers differ.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Cause {
    /// Nothing known explains it.
    Unexplained,
    /// A request that one rule denies: ratelease does not charge its other rules.
    Design,
    /// The servers counted the request, or one before it, in different windows or orders.
    Timing,
}

/// Finds causes. Remembers keys whose counts differ for a known cause until their windows end.
#[derive(Debug)]
pub(super) struct Causes {
    edge: Duration,
    /// Difference of remaining tokens that the order of requests may cause.
    within: u64,
    known: HashMap<u64, Known>,
}

/// Why the counts of a key differ.
#[derive(Debug, Clone, Copy)]
struct Known {
    cause: Cause,
    /// By how many tokens, at most.
    by: u64,
    /// The end of the window.
    until: Time,
}

/// One descriptor with its two statuses.
struct Pair<'a> {
    key: u64,
    hits: u64,
    target: &'a DescriptorReply,
    against: &'a DescriptorReply,
}

// === impl Causes ===

impl Causes {
    pub(super) fn new(edge: Duration, within: u64) -> Self {
        Self { edge, within, known: HashMap::default() }
    }

    /// Returns the cause of each difference between two replies to `request`, in order.
    pub(super) fn of(
        &mut self,
        request: &Request<'_>,
        (target, against): (&Reply, &Reply),
        differences: &[Difference],
        now: Time,
    ) -> Vec<Cause> {
        let is_denied = [target, against].iter().any(|reply| reply.code == "OVER_LIMIT");
        let is_split = is_denied && request.descriptors.len() > 1;
        let mut of_descriptors = Vec::with_capacity(request.descriptors.len());
        for (at, descriptor) in request.descriptors.iter().enumerate() {
            let differs = differences.iter().any(|it| it.descriptor == Some(at));
            let statuses = target.statuses.get(at).zip(against.statuses.get(at));
            of_descriptors.push(match statuses {
                Some((target, against)) if differs => {
                    let key = key(request.domain, descriptor);
                    let hits = request.hits(descriptor);
                    self.of_descriptor(&Pair { key, hits, target, against }, is_split, now)
                }
                _ => None,
            });
        }
        // The request as a whole differs for the worst of the causes of its descriptors.
        let of_request = of_descriptors.iter().flatten().min().copied();
        let of_request = of_request.unwrap_or(Cause::Unexplained);
        let cause = |difference: &Difference| match (&difference.field, difference.descriptor) {
            (Field::Statuses | Field::Limit | Field::Body, _) => Cause::Unexplained,
            (_, Some(at)) => of_descriptors.get(at).copied().flatten().unwrap_or(of_request),
            (_, None) => of_request,
        };
        differences.iter().map(cause).collect()
    }

    fn of_descriptor(&mut self, pair: &Pair<'_>, is_split: bool, now: Time) -> Option<Cause> {
        let Pair { key, hits, target, against } = *pair;
        let cause = if self.is_at_edge(pair) {
            Cause::Timing
        } else if is_split && target.code == against.code && target.code == "OK" {
            Cause::Design
        } else {
            return Some(self.follows(pair, now));
        };
        let reset = [target, against].map(|status| status.reset_seconds.unwrap_or_default());
        let reset = Duration::try_from_secs_f64(reset[0].max(reset[1])).unwrap_or_default();
        let before = self.known.get(&key).filter(|known| known.until > now);
        let by = before.map_or(0, |known| known.by).saturating_add(hits);
        self.make_room(now);
        self.known.insert(key, Known { cause, by, until: now + reset + self.edge });
        Some(cause)
    }

    /// Whether the servers may have counted in different windows.
    fn is_at_edge(&self, pair: &Pair<'_>) -> bool {
        let edge = self.edge.as_secs_f64();
        [pair.target, pair.against].into_iter().any(|status| {
            let limit = status.limit.as_ref();
            let unit = limit.and_then(|limit| Unit::parse(&limit.unit)).map(unit_seconds);
            let (Some(unit), Some(reset)) = (unit, status.reset_seconds) else { return false };
            // The start of a window of several units is not known, since no answer has its length.
            reset <= edge || (unit - reset).abs() <= edge
        })
    }

    /// The cause of an earlier difference of the key, if this one follows from it; or the order of
    /// requests.
    fn follows(&self, pair: &Pair<'_>, now: Time) -> Cause {
        let known = self.known.get(&pair.key).filter(|known| known.until > now);
        let by = known.map_or(0, |known| known.by).saturating_add(self.within);
        let apart = pair.target.remaining.abs_diff(pair.against.remaining);
        let is_explained = u64::from(apart) <= by
            && (pair.target.code == pair.against.code || {
                // One server admitted it with what it had left before this request.
                let left = pair.target.remaining.max(pair.against.remaining);
                u64::from(left).saturating_add(pair.hits) <= by.saturating_add(1) && by > 0
            });
        match known {
            _ if !is_explained => Cause::Unexplained,
            Some(known) => known.cause,
            None => Cause::Timing,
        }
    }

    fn make_room(&mut self, now: Time) {
        if self.known.len() >= KEYS_MAX {
            self.known.retain(|_, known| known.until > now);
        }
        if self.known.len() >= KEYS_MAX {
            self.known.clear();
        }
    }
}

fn unit_seconds(unit: Unit) -> f64 {
    // Exact: a year has some 31 million.
    u32::try_from(unit.seconds()).map_or(f64::MAX, f64::from)
}

fn key(domain: &str, descriptor: &Descriptor<'_>) -> u64 {
    let mut hasher = FixedState::default().build_hasher();
    domain.hash(&mut hasher);
    for entry in &descriptor.entries {
        (entry.key, entry.value).hash(&mut hasher);
    }
    std::hash::Hasher::finish(&hasher)
}

// === impl Cause ===

impl Cause {
    pub(super) const ALL: [Self; 3] = [Self::Unexplained, Self::Timing, Self::Design];

    /// Its name in reports.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Unexplained => "unexplained",
            Self::Timing => "timing",
            Self::Design => "by design",
        }
    }
}

#[cfg(test)]
mod tests {
    use ratelease_rules::request::Entry;
    use smallvec::smallvec;

    use super::super::difference;
    use super::*;
    use crate::query::wire::ReplyLimit;

    fn status(code: &str, remaining: u32, reset: f64) -> DescriptorReply {
        let limit = ReplyLimit { name: String::new(), requests_per_unit: 9, unit: "MINUTE".into() };
        let limit = Some(limit);
        DescriptorReply { code: code.into(), limit, remaining, reset_seconds: Some(reset) }
    }

    fn reply(code: &str, statuses: Vec<DescriptorReply>) -> Reply {
        let (response_headers, request_headers) = (Vec::new(), Vec::new());
        let (code, metadata, body) = (code.to_owned(), None, String::new());
        Reply { code, statuses, response_headers, request_headers, metadata, body }
    }

    /// The causes of the differences between two replies to a request with these values of `k`.
    fn causes(
        causes: &mut Causes,
        at: u64,
        values: &[&str],
        replies: (&Reply, &Reply),
    ) -> Vec<Cause> {
        let descriptors = values.iter().map(|value| Descriptor {
            entries: smallvec![Entry { key: "k", value }],
            ..Descriptor::default()
        });
        let request = Request { domain: "d", descriptors: descriptors.collect(), hits_addend: 0 };
        let differences = difference::replies(replies.0, replies.1);
        causes.of(&request, replies, &differences, Time::from_nanos(at * 1_000_000_000))
    }

    fn one(code: &str, remaining: u32, reset: f64) -> Reply {
        reply(code, vec![status(code, remaining, reset)])
    }

    #[test]
    fn a_difference_within_a_window_is_not_explained() {
        let mut it = Causes::new(Duration::from_secs(1), 0);
        let found = causes(&mut it, 0, &["a"], (&one("OK", 3, 30.0), &one("OK", 4, 30.0)));
        assert_eq!(found, [Cause::Unexplained]);
        let found = causes(&mut it, 0, &["a"], (&one("OK", 0, 30.0), &one("OVER_LIMIT", 0, 30.0)));
        assert_eq!(found, [Cause::Unexplained; 2]);
    }

    #[test]
    fn an_edge_explains_its_request_and_what_follows_in_the_window_and_no_more() {
        let mut it = Causes::new(Duration::from_secs(1), 0);
        let found = causes(&mut it, 100, &["a"], (&one("OK", 8, 60.0), &one("OK", 0, 1.0)));
        assert!(found.iter().all(|cause| *cause == Cause::Timing), "{found:?}");
        let later = (&one("OK", 5, 30.0), &one("OK", 6, 30.0));
        assert_eq!(causes(&mut it, 130, &["a"], later), [Cause::Timing]);
        assert_eq!(causes(&mut it, 130, &["b"], later), [Cause::Unexplained], "another key");
        let more = (&one("OK", 3, 30.0), &one("OK", 6, 30.0));
        assert_eq!(causes(&mut it, 130, &["a"], more), [Cause::Unexplained], "more than one token");
        let at_limit = (&one("OVER_LIMIT", 0, 20.0), &one("OK", 0, 20.0));
        assert_eq!(causes(&mut it, 140, &["a"], at_limit), [Cause::Timing; 2]);
        assert_eq!(causes(&mut it, 190, &["a"], later), [Cause::Unexplained], "the next window");
    }

    #[test]
    fn requests_in_another_order_differ_by_as_many_tokens_as_are_allowed() {
        let mut it = Causes::new(Duration::from_secs(1), 2);
        let near = (&one("OK", 3, 30.0), &one("OK", 5, 30.0));
        assert_eq!(causes(&mut it, 0, &["a"], near), [Cause::Timing]);
        let far = (&one("OK", 3, 30.0), &one("OK", 6, 30.0));
        assert_eq!(causes(&mut it, 0, &["a"], far), [Cause::Unexplained]);
        let verdict = (&one("OK", 1, 30.0), &one("OVER_LIMIT", 0, 30.0));
        assert!(causes(&mut it, 0, &["a"], verdict).iter().all(|it| *it == Cause::Timing));
        let verdict = (&one("OK", 7, 30.0), &one("OVER_LIMIT", 0, 30.0));
        assert!(causes(&mut it, 0, &["a"], verdict).contains(&Cause::Unexplained));
    }

    #[test]
    fn other_rules_of_a_denied_request_differ_by_design_then_and_later() {
        let mut it = Causes::new(Duration::from_secs(1), 0);
        let denied = |remaining| {
            reply("OVER_LIMIT", vec![status("OVER_LIMIT", 0, 30.0), status("OK", remaining, 30.0)])
        };
        let found = causes(&mut it, 0, &["a", "b"], (&denied(5), &denied(4)));
        assert_eq!(found, [Cause::Design]);
        let later = (&one("OK", 4, 20.0), &one("OK", 3, 20.0));
        assert_eq!(causes(&mut it, 5, &["b"], later), [Cause::Design]);
        assert_eq!(causes(&mut it, 5, &["a"], later), [Cause::Unexplained]);
    }

    #[test]
    fn another_limit_is_never_explained() {
        let mut it = Causes::new(Duration::from_secs(1), 99);
        let mut other = one("OK", 3, 1.0);
        other.statuses[0].limit = None;
        let found = causes(&mut it, 0, &["a"], (&one("OK", 3, 1.0), &other));
        assert_eq!(found, [Cause::Unexplained]);
    }
}
