//! Encodes requests, once, before the run, and draws the key of the next one.

use bytes::Bytes;
use envoy_types::pb::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use envoy_types::pb::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::Entry;
use envoy_types::pb::envoy::service::ratelimit::v3::RateLimitRequest;
use fastrand::Rng;
use http::{HeaderValue, Method, Request, Uri, Version, header};
use prost::Message;
use ratelease_cli::client::Target;

const PATH: &str = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";

/// Maximum bytes of all requests of a run.
const BYTES_MAX: u64 = 512 << 20;

/// The parameters of requests.
#[derive(Debug, Clone)]
pub(crate) struct Shape {
    pub(crate) domain: String,
    /// Number of distinct requests, and of distinct values of the last entry.
    pub(crate) keys: u32,
    /// Descriptors per request; at most `keys`.
    pub(crate) descriptors: u32,
    /// Entries per descriptor.
    pub(crate) entries: u32,
}

/// One gRPC message for each key, in one allocation.
#[derive(Debug)]
pub(crate) struct Requests {
    all: Bytes,
    /// The offset at which each message ends.
    ends: Vec<u32>,
}

/// Returns the head of every request.
///
/// # Errors
///
/// The target's name is not valid in a URL.
pub(crate) fn head(target: &Target) -> Result<Request<()>, String> {
    let uri = Uri::builder().scheme("http").authority(authority(target)).path_and_query(PATH);
    let uri = uri.build().map_err(|error| format!("{target} cannot be asked: {error}"))?;
    let mut head = Request::new(());
    *head.method_mut() = Method::POST;
    *head.uri_mut() = uri;
    *head.version_mut() = Version::HTTP_2;
    let headers = head.headers_mut();
    headers.insert(header::TE, HeaderValue::from_static("trailers"));
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
    headers.insert(header::USER_AGENT, HeaderValue::from_static("ratelease-bench"));
    Ok(head)
}

/// Returns the `:authority` for requests to `target`.
fn authority(target: &Target) -> &str {
    match target {
        Target::Tcp(address) => address,
        Target::Unix(_) => "localhost",
    }
}

// === impl Requests ===

impl Requests {
    /// # Errors
    ///
    /// The requests would take too much memory.
    pub(crate) fn encode(shape: &Shape) -> Result<Self, String> {
        let one = message(shape, 0).len() as u64;
        let bytes = one * u64::from(shape.keys);
        if bytes > BYTES_MAX {
            return Err(format!(
                "{} requests of {one} bytes are {} MiB, more than {} MiB; \
                 lower --keys, --descriptors or --entries",
                shape.keys,
                bytes >> 20,
                BYTES_MAX >> 20
            ));
        }
        let mut all = Vec::with_capacity(usize::try_from(bytes).unwrap_or_default());
        let mut ends = Vec::with_capacity(shape.keys as usize);
        for key in 0..shape.keys {
            all.extend(message(shape, key));
            let end = u32::try_from(all.len());
            ends.push(end.map_err(|_| "requests of 4 GiB; lower --keys".to_owned())?);
        }
        Ok(Self { all: all.into(), ends })
    }

    /// Returns the message for the key `at`; empty if there is none.
    pub(crate) fn get(&self, at: usize) -> Bytes {
        let Some(end) = self.ends.get(at) else { return Bytes::new() };
        let start = at.checked_sub(1).and_then(|before| self.ends.get(before)).unwrap_or(&0);
        self.all.slice(*start as usize..*end as usize)
    }
}

/// Encodes a `RateLimitRequest` with gRPC's prefix.
fn message(shape: &Shape, key: u32) -> Vec<u8> {
    // The descriptors of a request are spaced evenly over the ranks, so that no two are for one
    // key.
    let apart = u64::from(shape.keys / shape.descriptors.max(1));
    let keys = (0..shape.descriptors)
        .map(|at| (u64::from(key) + apart * u64::from(at)) % u64::from(shape.keys));
    let request = RateLimitRequest {
        domain: shape.domain.clone(),
        descriptors: keys.map(|key| descriptor(shape.entries, key)).collect(),
        hits_addend: 0,
    };
    let mut framed = vec![0];
    framed.extend(u32::try_from(request.encoded_len()).unwrap_or_default().to_be_bytes());
    framed.extend(request.encode_to_vec());
    framed
}

fn descriptor(entries: u32, key: u64) -> RateLimitDescriptor {
    let fixed = (1..entries).map(|at| match at {
        1 => entry("plan", "free"),
        _ => entry(&format!("part_{at}"), "all"),
    });
    let drawn = entry("user_id", &format!("user-{key:07}"));
    RateLimitDescriptor {
        entries: fixed.chain([drawn]).collect(),
        ..RateLimitDescriptor::default()
    }
}

fn entry(key: &str, value: &str) -> Entry {
    Entry { key: key.to_owned(), value: value.to_owned() }
}

// === Draw ===

/// Draws a rank from 0 with weight 1/(rank + 1)^s, in constant time: Walker's alias method, where
/// each column holds one rank's weight and is filled up with weight of another rank.
#[derive(Debug)]
pub(crate) struct Zipf {
    columns: Vec<Column>,
}

#[derive(Debug, Clone, Copy)]
struct Column {
    /// Number of coins, of 2^32, that select the column's own rank.
    own: u32,
    other: u32,
}

/// Mask of the lower half of a number.
const COIN: u64 = u32::MAX as u64;

/// Returns the random numbers of connection `index`; each index has a sequence of its own.
pub(crate) fn rng(seed: u64, index: u32) -> Rng {
    Rng::with_seed(seed ^ u64::from(index).rotate_left(32)).fork()
}

// === impl Zipf ===

impl Zipf {
    pub(crate) fn new(ranks: u32, skew: f64) -> Self {
        let weights: Vec<f64> = (1..=ranks).map(|rank| f64::from(rank).powf(-skew)).collect();
        let total: f64 = weights.iter().sum();
        // Scaled so that a column holds a weight of 1.
        let mut left: Vec<f64> = weights.iter().map(|w| w / total * f64::from(ranks)).collect();
        let mut columns: Vec<Column> =
            (0..ranks).map(|rank| Column { own: u32::MAX, other: rank }).collect();
        let (mut small, mut large): (Vec<u32>, Vec<u32>) =
            (0..ranks).partition(|rank| left[*rank as usize] < 1.0);
        while let (Some(few), Some(many)) = (small.pop(), large.last().copied()) {
            let weight = left[few as usize];
            columns[few as usize] = Column { own: coins(weight), other: many };
            let rest = &mut left[many as usize];
            *rest -= 1.0 - weight;
            if *rest < 1.0 {
                large.pop();
                small.push(many);
            }
        }
        Self { columns }
    }

    /// Draws a rank; it is below the number of ranks.
    pub(crate) fn draw(&self, rng: &mut Rng) -> usize {
        let roll = rng.u64(..);
        let at = ((roll >> 32) * self.columns.len() as u64) >> 32;
        // The product was shifted so that this is below the number of columns, which is at most
        // 2^32.
        #[allow(clippy::cast_possible_truncation, reason = "an index")]
        let at = at as usize;
        let Some(column) = self.columns.get(at) else { return 0 };
        if roll & COIN <= u64::from(column.own) { at } else { column.other as usize }
    }
}

#[allow(clippy::cast_possible_truncation, reason = "a share of 2^32, saturating")]
fn coins(share: f64) -> u32 {
    (share * f64::from(u32::MAX)) as u32
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    /// Length of the prefix of a gRPC message: a flag for compression, and four bytes of length.
    const PREFIX_BYTES: usize = 5;

    fn decoded(shape: &Shape) -> Vec<RateLimitRequest> {
        let requests = Requests::encode(shape).unwrap();
        let decode = |at| {
            let message = requests.get(at);
            let length = u32::from_be_bytes(message[1..PREFIX_BYTES].try_into().unwrap());
            assert_eq!((message[0], length as usize), (0, message.len() - PREFIX_BYTES));
            RateLimitRequest::decode(&message[PREFIX_BYTES..]).unwrap()
        };
        assert_eq!(requests.get(shape.keys as usize), Bytes::new());
        (0..shape.keys as usize).map(decode).collect()
    }

    #[test]
    fn each_request_has_every_descriptor_once_behind_the_prefix_of_its_length() {
        let shape = Shape { domain: "shop".into(), keys: 12, descriptors: 3, entries: 4 };
        let mut seen = HashSet::new();
        for request in decoded(&shape) {
            assert_eq!((request.domain.as_str(), request.hits_addend), ("shop", 0));
            assert_eq!(request.descriptors.len(), 3);
            let users: HashSet<_> = request
                .descriptors
                .iter()
                .map(|descriptor| {
                    let entries: Vec<_> = descriptor
                        .entries
                        .iter()
                        .map(|e| (e.key.as_str(), e.value.as_str()))
                        .collect();
                    let fixed = [("plan", "free"), ("part_2", "all"), ("part_3", "all")];
                    assert_eq!(entries[..3], fixed);
                    assert_eq!(entries[3].0, "user_id");
                    entries[3].1.to_owned()
                })
                .collect();
            assert_eq!(users.len(), 3, "no descriptor is there twice: {users:?}");
            seen.extend(users);
        }
        assert_eq!(seen.len(), 12);
    }

    #[test]
    fn one_entry_is_the_drawn_one() {
        let shape = Shape { domain: "shop".into(), keys: 2, descriptors: 1, entries: 1 };
        let last = &decoded(&shape)[1].descriptors[0].entries;
        assert_eq!((last.len(), last[0].key.as_str()), (1, "user_id"));
        assert_eq!(last[0].value, "user-0000001");
    }

    #[test]
    fn more_than_fits_is_refused_before_it_is_made() {
        let shape = Shape { domain: "d".into(), keys: 1_000_000, descriptors: 64, entries: 32 };
        let error = Requests::encode(&shape).unwrap_err();
        assert!(error.contains("MiB") && error.contains("lower --keys"), "{error}");
    }

    const DRAWS: u32 = 400_000;

    fn drawn(ranks: u32, skew: f64) -> Vec<f64> {
        let (zipf, mut rng) = (Zipf::new(ranks, skew), rng(7, 0));
        let mut drawn = vec![0.0; ranks as usize];
        (0..DRAWS).for_each(|_| drawn[zipf.draw(&mut rng)] += 1.0);
        drawn
    }

    #[test]
    fn ranks_come_as_often_as_their_weight() {
        for (ranks, skew) in [(1, 1.0), (2, 0.0), (10, 1.0), (100, 0.5), (1000, 2.0)] {
            let weights: Vec<f64> = (1..=ranks).map(|k| f64::from(k).powf(-skew)).collect();
            let total: f64 = weights.iter().sum();
            for (rank, (drawn, weight)) in drawn(ranks, skew).iter().zip(&weights).enumerate() {
                let expected = weight / total * f64::from(DRAWS);
                // Five standard deviations of a Poisson count, which a count exceeds in five of a
                // million cases; the seed is fixed.
                let far = (drawn - expected).abs() > 5.0 * expected.sqrt() + 5.0;
                assert!(!far, "{ranks} ranks, skew {skew}, rank {rank}: {drawn} for {expected}");
            }
        }
    }

    #[test]
    fn the_same_seed_draws_the_same_and_another_index_something_else() {
        let rolls = |seed, index| {
            let mut rng = rng(seed, index);
            [rng.u64(..), rng.u64(..), rng.u64(..)]
        };
        assert_eq!(rolls(1, 0), rolls(1, 0));
        assert_ne!(rolls(1, 0), rolls(1, 1));
        assert_ne!(rolls(1, 0), rolls(2, 0));
    }
}
