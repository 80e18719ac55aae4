//! Reads a response: its resources, or all faults of them. It takes a while for large ones, and
//! runs on a thread that may block.

use super::resource::{ResourceType, Resources};
use super::wire::DiscoveryResponse;
use crate::rule_source::memory;

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

/// Reads a response of this type, of which `known` resources were accepted. The error is all faults
/// of its resources.
pub(super) fn read(
    of: ResourceType,
    response: &DiscoveryResponse,
    known: &Resources,
) -> Result<Received, Vec<String>> {
    read_within(TEXT_BYTES_MAX, of, response, known)
}

/// The same with another maximum of the bytes of the texts.
pub(super) fn read_within(
    text_bytes_max: usize,
    of: ResourceType,
    response: &DiscoveryResponse,
    known: &Resources,
) -> Result<Received, Vec<String>> {
    let (mut resources, mut faults, mut more) = (Resources::new(), Vec::new(), 0);
    let (mut bytes, left) = (0, memory::left());
    for (at, resource) in response.resources.iter().enumerate() {
        let fault = match of.read(resource, known, left.saturating_sub(bytes)) {
            Err(fault) => Some(fault),
            Ok((name, resource)) => {
                bytes += resource.source.text.len();
                if bytes > text_bytes_max {
                    return Err(vec![format!(
                        "resources[{at}]: the rules up to here take more than {text_bytes_max} \
                         bytes; send fewer"
                    )]);
                }
                let former = resources.insert(name, resource);
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
        return Err(faults);
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
