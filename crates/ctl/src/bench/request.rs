//! Encodes requests, once, before the run.
//!
//! The encoding is written by hand because only `grpc/wire.rs` names Envoy's types, and because a
//! run needs only five of their field numbers. A test decodes the requests with Envoy's types.

use bytes::Bytes;
use http::{HeaderValue, Method, Request, Uri, Version, header};
use ratelease_cli::target::Target;

use super::link::authority;

const PATH: &str = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";

/// Maximum bytes of all requests of a run.
const BYTES_MAX: u64 = 512 << 20;

/// Length of the prefix of a gRPC message: a flag for compression, and four bytes of length.
const PREFIX_BYTES: usize = 5;

/// Protobuf tags: field number << 3 | 2, the wire type of strings and messages.
const REQUEST_DOMAIN: u8 = 1 << 3 | 2;
const REQUEST_DESCRIPTOR: u8 = 2 << 3 | 2;
const DESCRIPTOR_ENTRY: u8 = 1 << 3 | 2;
const ENTRY_KEY: u8 = 1 << 3 | 2;
const ENTRY_VALUE: u8 = 2 << 3 | 2;

/// The parameters of requests.
#[derive(Debug, Clone)]
pub(super) struct Shape {
    pub(super) domain: String,
    /// Number of distinct requests, and of distinct values of the last entry.
    pub(super) keys: u32,
    /// Descriptors per request; at most `keys`.
    pub(super) descriptors: u32,
    /// Entries per descriptor.
    pub(super) entries: u32,
}

/// One gRPC message for each key, in one allocation.
#[derive(Debug)]
pub(super) struct Requests {
    all: Bytes,
    /// The offset at which each message ends.
    ends: Vec<u32>,
}

/// Returns the head of every request.
///
/// # Errors
///
/// The target's name is not valid in a URL.
pub(super) fn head(target: &Target) -> Result<Request<()>, String> {
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

// === impl Requests ===

impl Requests {
    /// # Errors
    ///
    /// The requests would take too much memory.
    pub(super) fn encode(shape: &Shape) -> Result<Self, String> {
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
    pub(super) fn get(&self, at: usize) -> Bytes {
        let Some(end) = self.ends.get(at) else { return Bytes::new() };
        let start = at.checked_sub(1).and_then(|before| self.ends.get(before)).unwrap_or(&0);
        self.all.slice(*start as usize..*end as usize)
    }
}

/// Encodes a `RateLimitRequest` with gRPC's prefix.
fn message(shape: &Shape, key: u32) -> Vec<u8> {
    let mut message = Vec::new();
    text(&mut message, REQUEST_DOMAIN, &shape.domain);
    // The descriptors of a request are spaced evenly over the ranks, so that no two are for one
    // key.
    let apart = shape.keys / shape.descriptors.max(1);
    for descriptor in 0..shape.descriptors {
        let key =
            (u64::from(key) + u64::from(apart) * u64::from(descriptor)) % u64::from(shape.keys);
        field(&mut message, REQUEST_DESCRIPTOR, &descriptor_of(shape.entries, key));
    }
    let mut framed = vec![0];
    framed.extend(u32::try_from(message.len()).unwrap_or_default().to_be_bytes());
    debug_assert_eq!(framed.len(), PREFIX_BYTES);
    framed.append(&mut message);
    framed
}

fn descriptor_of(entries: u32, key: u64) -> Vec<u8> {
    let mut descriptor = Vec::new();
    for entry in 1..entries {
        let (key, value) = match entry {
            1 => ("plan".into(), "free"),
            _ => (format!("part_{entry}"), "all"),
        };
        field(&mut descriptor, DESCRIPTOR_ENTRY, &entry_of(&key, value));
    }
    field(&mut descriptor, DESCRIPTOR_ENTRY, &entry_of("user_id", &format!("user-{key:07}")));
    descriptor
}

fn entry_of(key: &str, value: &str) -> Vec<u8> {
    let mut entry = Vec::new();
    text(&mut entry, ENTRY_KEY, key);
    text(&mut entry, ENTRY_VALUE, value);
    entry
}

fn text(to: &mut Vec<u8>, tag: u8, text: &str) {
    field(to, tag, text.as_bytes());
}

fn field(to: &mut Vec<u8>, tag: u8, bytes: &[u8]) {
    to.push(tag);
    let mut length = bytes.len();
    while length >= 0x80 {
        to.push(0x80 | low_bits(length));
        length >>= 7;
    }
    to.push(low_bits(length));
    to.extend_from_slice(bytes);
}

fn low_bits(number: usize) -> u8 {
    u8::try_from(number & 0x7f).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use envoy_types::pb::envoy::service::ratelimit::v3::RateLimitRequest;
    use prost::Message;

    use super::*;

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
    fn envoys_types_decode_the_encoded_request() {
        // Long enough that the length takes two bytes.
        let domain = "d".repeat(300);
        let shape = Shape { domain: domain.clone(), keys: 12, descriptors: 3, entries: 4 };
        let mut seen = HashSet::new();
        for request in decoded(&shape) {
            assert_eq!((request.domain.as_str(), request.hits_addend), (domain.as_str(), 0));
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
}
