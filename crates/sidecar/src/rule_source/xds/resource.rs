//! Resources as the texts of rule files, and the sets of them that a response has.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::sync::Arc;

use bytes::Bytes;
use prost::Message;
use ratelease_rules::Source;
use ratelease_rules::alters_display;
use ratelease_xds::config::{self, TEXT_BYTES_MAX};
use ratelease_xds::shape::Undecoded;

use super::wire::{Any, CONFIG_TYPE, DiscoveryResponse, RULES_TYPE, RulesResource};

/// Maximum number of characters of a name that are shown.
const NAME_CHARS_MAX: usize = 256;

/// The types of resources.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ResourceType {
    /// The rules of a domain, as Envoy's rate limit service takes them.
    RateLimitConfig {
        /// Whether calls whose descriptors have hits of their own charge these whole.
        settles_own_hits: bool,
    },
    /// A rule file of ours.
    Rules,
}

/// A resource as the text of a rule file.
#[derive(Debug, Clone)]
pub struct Resource {
    /// Its domain; empty if that is not known.
    pub domain: String,
    pub source: Arc<Source>,
}

/// Why a resource cannot be read; follows the place of the resource.
#[derive(Debug)]
pub struct Unread {
    pub why: String,
    /// With more memory than there is now it might be read.
    pub lacks_memory: bool,
}

/// Resources by their names.
pub type Resources = BTreeMap<String, Resource>;

// === impl ResourceType ===

impl ResourceType {
    pub const fn url(self) -> &'static str {
        match self {
            Self::RateLimitConfig { .. } => CONFIG_TYPE,
            Self::Rules => RULES_TYPE,
        }
    }

    /// What the name of a source begins with.
    pub const fn prefix(self) -> &'static str {
        match self {
            Self::RateLimitConfig { .. } => "xds:",
            Self::Rules => "xds-yaml:",
        }
    }

    /// Reads a resource, with its name, within so many bytes of `memory`. What equals the `known`
    /// resource of that name is shared with it.
    pub fn read(
        self,
        resource: &Any,
        known: &Resources,
        memory: usize,
    ) -> Result<(String, Resource), Unread> {
        if resource.type_url != self.url() {
            let why = format!("a resource of another type, {}", shown(&resource.type_url));
            return Err(Unread { why, lacks_memory: false });
        }
        let (name, domain, text) = match self {
            Self::RateLimitConfig { settles_own_hits } => {
                translated(&resource.value, settles_own_hits, memory)?
            }
            Self::Rules => {
                let rules = RulesResource::decode(resource.value.clone()).map_err(unreadable)?;
                let text = std::str::from_utf8(&rules.yaml).map_err(unreadable)?;
                (rules.name, domain_of(text).to_owned(), rules.yaml)
            }
        };
        if let Some(known) = known.get(&name).filter(|it| it.source.text == text) {
            return Ok((name, known.clone()));
        }
        let source = Source { name: self.prefix().to_owned() + &shown(&name), text: text.into() };
        Ok((name, Resource { domain, source: Arc::new(source) }))
    }

    /// Returns the name and the resource that became this source; `None` if another type did.
    pub fn of_source(self, source: &Arc<Source>) -> Option<(String, Resource)> {
        let name = source.name.strip_prefix(self.prefix())?;
        let text = std::str::from_utf8(&source.text).unwrap_or_default();
        let domain = domain_of(text).to_owned();
        let source = Arc::clone(source);
        Some((name.to_owned(), Resource { domain, source }))
    }
}

/// The name, the domain and the text of a resource of Envoy's type. It takes `memory` at most: half
/// of it for the message, and half for its text, which doubles while it is written.
fn translated(
    message: &[u8],
    settles_own_hits: bool,
    memory: usize,
) -> Result<(String, String, Bytes), Unread> {
    let config = config::decode(message, memory / 2).map_err(|error| {
        let lacks_memory = matches!(error, Undecoded::TooLarge(max) if max == memory / 2);
        Unread { lacks_memory, ..unreadable(error) }
    })?;
    let text = config::text_of(&config, settles_own_hits, memory / 4).ok_or_else(|| {
        let lacks_memory = memory / 4 < TEXT_BYTES_MAX;
        let max = if lacks_memory { memory } else { TEXT_BYTES_MAX };
        Unread { lacks_memory, ..unreadable(Undecoded::TooLarge(max)) }
    })?;
    Ok((config.name, config.domain, text.into()))
}

fn unreadable(error: impl Display) -> Unread {
    let why = format!("a resource that cannot be decoded: {error}");
    Unread { why, lacks_memory: false }
}

/// The domain of a rule file, if it has a line of its own, as files usually have.
fn domain_of(text: &str) -> &str {
    let value = text.lines().find_map(|line| line.strip_prefix("domain:"));
    value.unwrap_or_default().trim().trim_matches(['"', '\''])
}

/// A name that is safe to show.
fn shown(name: &str) -> String {
    let mut characters = name.chars();
    let mut shown = String::new();
    for character in characters.by_ref().take(NAME_CHARS_MAX) {
        match alters_display(character) {
            true => shown.extend(character.escape_default()),
            false => shown.push(character),
        }
    }
    if characters.next().is_some() {
        shown.push('…');
    }
    shown
}

// Reads a response: its resources, or all faults of them. It takes a while for large ones, and
// runs on a thread that may block.

/// Maximum number of faults that are kept; of further ones only the number is known.
const FAULTS_MAX: usize = 1000;

/// Maximum bytes of the texts of a set: an indented line of a `RateLimitConfig` may be a hundred
/// times the bytes that it stands for in the message, which itself is bounded.
const SET_TEXT_BYTES_MAX: usize = 256 << 20;

/// Identifies what a response holds.
pub type Digest = blake3::Hash;

/// A set of resources that was received and is not accepted yet.
#[derive(Debug)]
pub struct Received {
    pub version: String,
    pub resources: Resources,
}

/// Why a set is refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refused {
    /// All faults, one line each.
    pub faults: Vec<String>,
    /// The set has no other fault than that memory is lacking at this moment.
    pub is_for_now: bool,
}

// === impl Refused ===

impl Refused {
    /// A set with a fault that it will have at any time.
    pub fn finally(fault: String) -> Self {
        Self { faults: vec![fault], is_for_now: false }
    }
}

/// Reads a response of this type, of which `known` resources were accepted, within so many bytes of
/// `memory`. The error is all faults of its resources.
pub fn read(
    of: ResourceType,
    response: &DiscoveryResponse,
    known: &Resources,
    memory: usize,
) -> Result<Received, Refused> {
    read_within(SET_TEXT_BYTES_MAX, of, response, known, memory)
}

/// The same with another maximum of the bytes of the texts.
pub fn read_within(
    text_bytes_max: usize,
    of: ResourceType,
    response: &DiscoveryResponse,
    known: &Resources,
    memory: usize,
) -> Result<Received, Refused> {
    let mut resources = Resources::new();
    let mut faults = Vec::new();
    let mut more = 0;
    let mut bytes = 0;
    let mut is_for_now = true;
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
pub fn digest(response: &DiscoveryResponse) -> Digest {
    let mut hasher = blake3::Hasher::new();
    for resource in &response.resources {
        for part in [resource.type_url.as_bytes(), &resource.value] {
            hasher.update(&(part.len() as u64).to_le_bytes());
            hasher.update(part);
        }
    }
    hasher.finalize()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_domain_of_a_rule_file_is_on_a_line_of_its_own() {
        for (text, domain) in [
            ("domain: shop\ndescriptors:\n", "shop"),
            ("# a\ndomain: \"a b\"\n", "a b"),
            ("domain: 'x'", "x"),
            ("{domain: x}", ""),
            ("", ""),
        ] {
            assert_eq!(domain_of(text), domain, "{text}");
        }
    }

    #[test]
    fn names_are_safe_to_show_and_long_ones_are_cut() {
        assert_eq!(shown("a\n\u{1b}[31m/b"), "a\\n\\u{1b}[31m/b");
        assert_eq!(shown(&"x".repeat(300)).chars().count(), 257);
    }
}
