//! Decides which domains a pod may have, by the names of its certificate and by the node that it
//! describes. The description is bounded, since any client may say anything.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use prost::{Message, Oneof};
use ratelease_xds::MEMORY_KEY;
use ratelease_xds::shape::{FLAT, Field, Shape};
use tokio_rustls::rustls::client::verify_server_name;
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName};
use tokio_rustls::rustls::server::ParsedCertificate;
use tonic::Status;

use crate::store::LABEL_BYTES_MAX;

/// Maximum bytes of a node's id.
const ID_BYTES_MAX: usize = 1024;

/// Maximum bytes of the names of a node's domains.
const DOMAINS_BYTES_MAX: usize = 8 << 10;

/// Maximum number of these names: each takes some 60 bytes for as long as its stream is open.
const DOMAINS_MAX: usize = 256;

/// Maximum bytes of its labels.
const LABELS_BYTES_MAX: usize = 64 << 10;

/// The metadata of a node that names its domains, separated by commas.
const DOMAINS_KEY: &str = "domains";

/// The node of a request: a pod, as it describes itself.
#[derive(Clone, PartialEq, Message)]
pub struct Node {
    #[prost(string, tag = "1")]
    id: String,
    #[prost(message, optional, tag = "3")]
    metadata: Option<Struct>,
    #[prost(string, tag = "6")]
    user_agent_name: String,
}

/// The metadata of a node.
#[derive(Clone, PartialEq, Message)]
struct Struct {
    #[prost(map = "string, message", tag = "1")]
    fields: HashMap<String, Value>,
}

/// A text, or a value of another type, which is skipped.
#[derive(Clone, PartialEq, Message)]
struct Value {
    #[prost(oneof = "Kind", tags = "3")]
    kind: Option<Kind>,
}

/// The type of a value.
#[derive(Clone, PartialEq, Oneof)]
enum Kind {
    #[prost(string, tag = "3")]
    StringValue(String),
}

/// Shape of the memory of a decoded [`Node`].
pub static NODE_SHAPE: Shape = Shape(&[Field { number: 3, item: 0, of: &STRUCT_SHAPE }]);

static STRUCT_SHAPE: Shape =
    Shape(&[Field { number: 1, item: size_of::<(String, Value)>(), of: &FLAT }]);

/// The facts of a [`Node`] that are kept.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NodeInfo {
    pub id: String,
    /// The pod's origin: see `PodRow`.
    pub origin: i64,
    /// The name of its program.
    pub agent: String,
    /// The limit of its memory in bytes, if it gives one.
    pub memory: Option<usize>,
    /// The domains that it asks for; `None` for all.
    domains: Option<BTreeSet<String>>,
    /// The texts of its metadata by which a rollout may choose it.
    labels: BTreeMap<String, String>,
}

// === impl Node ===

impl Node {
    /// The text that its metadata has at this key.
    pub fn text(&self, key: &str) -> Option<&str> {
        match self.metadata.as_ref()?.fields.get(key)?.kind.as_ref()? {
            Kind::StringValue(text) => Some(text),
        }
    }
}

// === impl NodeInfo ===

impl NodeInfo {
    /// Takes the needed fields of a node.
    ///
    /// # Errors
    /// Refuses an id, a list of domains or labels that are too long.
    pub fn of(node: Node) -> Result<Self, Status> {
        let Node { id, user_agent_name: agent, metadata, .. } = node;
        if id.len() > ID_BYTES_MAX {
            let why = format!("the id of the node has {} bytes; expected at most 1024", id.len());
            return Err(Status::invalid_argument(why));
        }
        let fields = metadata.map(|it| it.fields).unwrap_or_default();
        let mut texts: BTreeMap<_, _> = fields
            .into_iter()
            .filter_map(|(key, value)| match value.kind {
                Some(Kind::StringValue(text)) => Some((key, text)),
                _ => None,
            })
            .collect();
        let memory = texts.remove(MEMORY_KEY).and_then(|text| text.parse().ok());
        let named = texts.remove(DOMAINS_KEY);
        let is_long =
            |it: &String| it.len() > DOMAINS_BYTES_MAX || it.split(',').count() > DOMAINS_MAX;
        if named.as_ref().is_some_and(is_long) {
            let why = "the metadata 'domains' of the node has more than 256 names or 8 KiB; say \
                       what the node gets with --node-domains";
            return Err(Status::invalid_argument(why));
        }
        let domains = named.map(|it| it.split(',').map(|name| name.trim().to_owned()).collect());
        // A rollout cannot name longer ones.
        let is_short = |text: &String| text.len() <= LABEL_BYTES_MAX;
        texts.retain(|key, value| is_short(key) && is_short(value));
        if texts.iter().map(|(key, value)| key.len() + value.len()).sum::<usize>()
            > LABELS_BYTES_MAX
        {
            let why = "the metadata of the node has more than 64 KiB of texts; shorten it";
            return Err(Status::invalid_argument(why));
        }
        Ok(Self { id, origin: 0, agent, memory, domains, labels: texts })
    }

    /// A node with this id and these texts in its metadata, for tests.
    #[cfg(test)]
    pub fn named(id: &str, texts: &[(&str, &str)]) -> Self {
        let value = |text: &str| Value { kind: Some(Kind::StringValue(text.to_owned())) };
        let fields = texts.iter().map(|(key, text)| ((*key).to_owned(), value(text))).collect();
        let metadata = Some(Struct { fields });
        Self::of(Node { id: id.to_owned(), metadata, ..Node::default() }).unwrap_or_default()
    }

    /// The text that the node's metadata has at this key.
    pub fn label(&self, key: &str) -> Option<&str> {
        self.labels.get(key).map(String::as_str)
    }

    /// The domains that the node asks for; `None` for all.
    pub fn domains(&self) -> Option<&BTreeSet<String>> {
        self.domains.as_ref()
    }
}

// Selection: by the names of a pod's certificate, and by the id that it gives.

/// Domains that a node gets, by the name of the node; a node that is not named gets all.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Selection(pub BTreeMap<String, Vec<String>>);

/// The nodes of a [`Selection`] that a certificate is for.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CertifiedNodes(Vec<String>);

// === impl CertifiedNodes ===

impl CertifiedNodes {
    /// Their names, in order.
    pub fn names(&self) -> &[String] {
        &self.0
    }

    /// Nodes of these names, for tests.
    #[cfg(test)]
    pub fn named(names: &[&str]) -> Self {
        Self(names.iter().map(|it| (*it).to_owned()).collect())
    }
}

// === impl Selection ===

impl Selection {
    /// The nodes that this certificate is for: those whose names its subject alternative names
    /// cover, as DNS names or IP addresses. The handshake has verified the certificate.
    pub fn certified_by(&self, certificate: &CertificateDer<'_>) -> CertifiedNodes {
        let Ok(certificate) = ParsedCertificate::try_from(certificate) else {
            return CertifiedNodes::default();
        };
        let is_for = |name: &&String| {
            ServerName::try_from(name.as_str())
                .is_ok_and(|name| verify_server_name(&certificate, &name).is_ok())
        };
        CertifiedNodes(self.0.keys().filter(is_for).cloned().collect())
    }

    /// Whether there are domains that a pod may not have.
    pub fn is_limited(&self, nodes: &CertifiedNodes, id: &str) -> bool {
        self.0.contains_key(id) || !nodes.0.is_empty()
    }

    /// The domains that a pod may have; `None` for all. The pod chooses its id, so that the id only
    /// ever takes domains away from those that the certificate allows.
    pub fn allowed(&self, nodes: &CertifiedNodes, id: &str) -> Option<BTreeSet<&str>> {
        let of = |name: &str| self.0.get(name).into_iter().flatten().map(String::as_str);
        let named = self.0.contains_key(id).then(|| of(id).collect::<BTreeSet<_>>());
        if nodes.0.is_empty() {
            return named;
        }
        let certified: BTreeSet<_> = nodes.0.iter().flat_map(|name| of(name)).collect();
        Some(match named {
            Some(named) => certified.intersection(&named).copied().collect(),
            None => certified,
        })
    }
}

#[cfg(test)]
mod tests {
    use tonic::Code;

    use super::*;

    fn node(fields: impl IntoIterator<Item = (String, String)>) -> Result<NodeInfo, Status> {
        let text = |text| Value { kind: Some(Kind::StringValue(text)) };
        let fields = fields.into_iter().map(|(key, value)| (key, text(value))).collect();
        NodeInfo::of(Node { metadata: Some(Struct { fields }), ..Node::default() })
    }

    fn refusal(node: Result<NodeInfo, Status>) -> String {
        let refused = node.unwrap_err();
        assert_eq!(refused.code(), Code::InvalidArgument);
        refused.message().to_owned()
    }

    #[test]
    fn an_id_is_bounded() {
        let of = |bytes| NodeInfo::of(Node { id: "i".repeat(bytes), ..Node::default() });
        assert_eq!(of(ID_BYTES_MAX).unwrap().id.len(), ID_BYTES_MAX);
        assert!(refusal(of(ID_BYTES_MAX + 1)).contains("1025 bytes"));
    }

    #[test]
    fn the_names_of_domains_are_bounded_in_number_and_bytes() {
        let of = |text: String| node([(DOMAINS_KEY.to_owned(), text)]);
        let names = |count: usize| (0..count).map(|at| at.to_string()).collect::<Vec<_>>();
        let most = of(names(DOMAINS_MAX).join(", ")).unwrap();
        assert_eq!(most.domains().map(BTreeSet::len), Some(DOMAINS_MAX));
        assert!(refusal(of(names(DOMAINS_MAX + 1).join(","))).contains("256 names"));
        let long = "d".repeat(DOMAINS_BYTES_MAX);
        assert!(of(long.clone()).unwrap().domains().is_some_and(|it| it.contains(&long)));
        assert!(refusal(of(long + "d")).contains("8 KiB"));
    }

    #[test]
    fn labels_are_bounded_and_those_that_no_rollout_can_name_are_dropped() {
        let long = "v".repeat(LABEL_BYTES_MAX + 1);
        let some = node([("a".into(), long.clone()), (long, "b".into()), ("c".into(), "d".into())]);
        let some = some.unwrap();
        assert_eq!((some.label("a"), some.label("c"), some.labels.len()), (None, Some("d"), 1));
        let label = |at: usize| (format!("{at:08}"), "v".repeat(LABEL_BYTES_MAX));
        let fit = LABELS_BYTES_MAX / (8 + LABEL_BYTES_MAX);
        assert_eq!(node((0..fit).map(label)).unwrap().labels.len(), fit);
        assert!(refusal(node((0..=fit).map(label))).contains("64 KiB"));
    }

    fn certificate(names: &[&str]) -> CertificateDer<'static> {
        let names: Vec<_> = names.iter().map(|it| (*it).to_owned()).collect();
        let made = rcgen::generate_simple_self_signed(names).unwrap();
        made.cert.der().clone()
    }

    #[test]
    fn a_pod_cannot_say_another_id_than_its_certificate_has() {
        let named = |name: &str, domain: &str| (name.to_owned(), vec![domain.to_owned()]);
        let selection = Selection(BTreeMap::from([
            named("edge.shop", "shop"),
            named("edge.bank", "bank"),
            named("no name of DNS", "bank"),
        ]));
        let shop = selection.certified_by(&certificate(&["edge.shop"]));
        assert_eq!(shop, CertifiedNodes(vec!["edge.shop".into()]));
        let allows = |nodes: &CertifiedNodes, id: &str, domain: &str| {
            selection.allowed(nodes, id).is_none_or(|it| it.contains(domain))
        };
        for id in ["edge.shop", "another", ""] {
            assert!(allows(&shop, id, "shop") && !allows(&shop, id, "bank"), "{id}");
        }
        // Another id gives nothing, and takes away.
        assert!(!allows(&shop, "edge.bank", "bank") && !allows(&shop, "edge.bank", "shop"));
        let both = selection.certified_by(&certificate(&["edge.shop", "edge.bank"]));
        assert!(allows(&both, "", "shop") && allows(&both, "", "bank"));
        assert!(!allows(&both, "", "other"));
        // Without a certificate that is named, the id is a filter.
        let other = selection.certified_by(&certificate(&["other"]));
        assert_eq!(selection.allowed(&other, "other"), None);
        assert!(allows(&other, "edge.shop", "shop") && !allows(&other, "edge.shop", "bank"));
    }
}
