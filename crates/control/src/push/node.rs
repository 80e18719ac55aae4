//! What a pod says of itself, as far as it is kept: a stranger chooses it.

use std::collections::BTreeSet;

use tonic::Status;

use super::wire::{Kind, Node};

/// Maximum bytes of a node's id, and of the names of its domains.
const ID_BYTES_MAX: usize = 1024;
const DOMAINS_BYTES_MAX: usize = 64 << 10;

/// The metadata of a node that names its domains, separated by commas.
const DOMAINS_KEY: &str = "domains";

/// A node.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct NodeInfo {
    pub(super) id: String,
    /// The name of its program.
    pub(super) agent: String,
    /// The domains that it asks for; `None` for all.
    domains: Option<BTreeSet<String>>,
}

// === impl NodeInfo ===

impl NodeInfo {
    /// Takes what is needed of a node.
    ///
    /// # Errors
    /// Refuses an id or a list of domains that is too long.
    pub(super) fn of(node: Node) -> Result<Self, Status> {
        let Node { id, user_agent_name: agent, metadata, .. } = node;
        if id.len() > ID_BYTES_MAX {
            let why = format!("the id of the node has {} bytes; expected at most 1024", id.len());
            return Err(Status::invalid_argument(why));
        }
        let named = metadata.and_then(|mut it| it.fields.remove(DOMAINS_KEY)?.kind);
        let named = match named {
            Some(Kind::StringValue(text)) => Some(text),
            _ => None,
        };
        if named.as_ref().is_some_and(|it| it.len() > DOMAINS_BYTES_MAX) {
            let why = "the metadata 'domains' of the node has more than 64 KiB; shorten it";
            return Err(Status::invalid_argument(why));
        }
        let domains = named.map(|it| it.split(',').map(|name| name.trim().to_owned()).collect());
        Ok(Self { id, agent, domains })
    }

    /// Whether the node asks for this domain.
    pub(super) fn wants(&self, domain: &str) -> bool {
        self.domains.as_ref().is_none_or(|domains| domains.contains(domain))
    }
}
