//! Reads a response: its resources, or all faults of them. It takes a while for large ones, and
//! runs on a thread that may block.

use super::resource::{ResourceType, Resources};
use super::wire::DiscoveryResponse;

/// Maximum number of faults that are kept; of further ones only the number is known.
const FAULTS_MAX: usize = 1000;

/// Maximum bytes of the texts of a set: an indented line of a `RateLimitConfig` may be a hundred
/// times the bytes that it stands for in the message, which itself is bounded.
const TEXT_BYTES_MAX: usize = 256 << 20;

/// Identifies what a response holds.
pub(super) type Digest = blake3::Hash;

/// A set of resources that was received and is not accepted yet.
#[derive(Debug)]
pub(super) struct Received {
    pub(super) version: String,
    pub(super) resources: Resources,
}

/// Why a set is refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Refused {
    /// All faults, one line each.
    pub(super) faults: Vec<String>,
    /// The set has no other fault than that memory is lacking at this moment.
    pub(super) is_for_now: bool,
}

// === impl Refused ===

impl Refused {
    /// A set with a fault that it will have at any time.
    pub(super) fn finally(fault: String) -> Self {
        Self { faults: vec![fault], is_for_now: false }
    }
}

/// Reads a response of this type, of which `known` resources were accepted, within so many bytes of
/// `memory`. The error is all faults of its resources.
pub(super) fn read(
    of: ResourceType,
    response: &DiscoveryResponse,
    known: &Resources,
    memory: usize,
) -> Result<Received, Refused> {
    read_within(TEXT_BYTES_MAX, of, response, known, memory)
}

/// The same with another maximum of the bytes of the texts.
pub(super) fn read_within(
    text_bytes_max: usize,
    of: ResourceType,
    response: &DiscoveryResponse,
    known: &Resources,
    memory: usize,
) -> Result<Received, Refused> {
    let (mut resources, mut faults, mut more) = (Resources::new(), Vec::new(), 0);
    let (mut bytes, mut is_for_now) = (0, true);
    for (at, resource) in response.resources.iter().enumerate() {
        let fault = match of.read(resource, known, memory.saturating_sub(bytes)) {
            Err(unread) => {
                is_for_now &= unread.lacks_memory;
                Some(unread.why)
            }
            Ok((name, resource)) => {
                bytes += resource.source.text.len();
                if bytes > text_bytes_max {
                    return Err(Refused::finally(format!(
                        "resources[{at}]: the rules up to here take more than {text_bytes_max} \
                         bytes; send fewer"
                    )));
                }
                let former = resources.insert(name, resource);
                is_for_now &= former.is_none();
                former.map(|_| "a second one of its name".to_owned())
            }
        };
        match fault {
            Some(fault) if faults.len() < FAULTS_MAX => {
                faults.push(format!("resources[{at}]: {fault}"));
            }
            Some(_) => more += 1,
            None => {}
        }
    }
    if more > 0 {
        faults.push(format!("and {more} more"));
    }
    if !faults.is_empty() {
        return Err(Refused { faults, is_for_now });
    }
    Ok(Received { version: response.version_info.clone(), resources })
}

/// Identifies what `response` holds.
pub(super) fn digest(response: &DiscoveryResponse) -> Digest {
    let mut hasher = blake3::Hasher::new();
    for resource in &response.resources {
        for part in [resource.type_url.as_bytes(), &resource.value] {
            hasher.update(&(part.len() as u64).to_le_bytes());
            hasher.update(part);
        }
    }
    hasher.finalize()
}
