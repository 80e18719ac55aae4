//! The resources of one type: what the server last sent, what of it is in force, and what the
//! server is told of it. No I/O.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use prost::Message;
use ratelease_engine::time::Time;
use ratelease_rules::{Source, excerpt};

use super::translate::text_of;
use super::wire::{
    Any, DiscoveryRequest, DiscoveryResponse, Node, RateLimitConfig, RulesResource, Status,
};

/// How long resources stay in force that the server no longer sends. Envoy Gateway sends the set of
/// one Gateway after that of the other when it starts, so a resource that is missing may come back.
pub(super) const REMOVAL_WAIT: Duration = Duration::from_secs(2);

/// Maximum number of faults that the server is told.
const FAULTS_TOLD_MAX: usize = 20;

/// gRPC's code for an argument that cannot be used.
const INVALID_ARGUMENT: i32 = 3;

/// The types of resources.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ResourceType {
    /// The rules of a domain, as Envoy's rate limit service takes them.
    RateLimitConfig,
    /// A rule file of ours.
    Rules,
}

/// The resources of one type.
#[derive(Debug)]
pub(super) struct Subscription {
    of: ResourceType,
    /// The version that was accepted last; empty before the first one of a stream.
    version: String,
    /// The number of the last response.
    nonce: String,
    /// The accepted resources, by name.
    accepted: Resources,
    /// Resources that the server sends no longer, and that are in force until then.
    leaving: BTreeMap<String, (Resource, Time)>,
}

/// A resource as the text of a rule file.
#[derive(Debug)]
struct Resource {
    /// Its domain; empty if that is not known.
    domain: String,
    source: Source,
}

type Resources = BTreeMap<String, Resource>;

/// A set of resources that was received and is not accepted yet.
#[derive(Debug)]
pub(super) struct Received {
    version: String,
    resources: Resources,
    /// Their domains, as far as they are known.
    domains: BTreeSet<String>,
}

// === impl ResourceType ===

impl ResourceType {
    pub(super) const fn url(self) -> &'static str {
        match self {
            Self::RateLimitConfig => {
                "type.googleapis.com/ratelimit.config.ratelimit.v3.RateLimitConfig"
            }
            Self::Rules => "type.googleapis.com/ratelease.config.v1.Rules",
        }
    }

    /// Reads a resource, with its name.
    fn read(self, resource: &Any) -> Result<(String, Resource), String> {
        if resource.type_url != self.url() {
            let found = excerpt(&resource.type_url);
            return Err(format!("a resource of another type, {found}"));
        }
        let unreadable = |error| format!("a resource that cannot be decoded: {error}");
        let (name, domain, text) = match self {
            Self::RateLimitConfig => {
                let config = RateLimitConfig::decode(&*resource.value).map_err(unreadable)?;
                let text = text_of(&config);
                (config.name, config.domain, text)
            }
            Self::Rules => {
                let rules = RulesResource::decode(&*resource.value).map_err(unreadable)?;
                (rules.name, String::new(), rules.yaml)
            }
        };
        let shown = format!("{}{}", self.prefix(), excerpt(&name));
        let source = Source { name: shown, text: text.into_bytes() };
        Ok((name, Resource { domain, source }))
    }

    /// What the name of a source begins with.
    const fn prefix(self) -> &'static str {
        match self {
            Self::RateLimitConfig => "xds:",
            Self::Rules => "xds-yaml:",
        }
    }
}

// === impl Subscription ===

impl Subscription {
    pub(super) fn new(of: ResourceType) -> Self {
        let (accepted, leaving) = (Resources::new(), BTreeMap::new());
        let (version, nonce) = (String::new(), String::new());
        Self { of, version, nonce, accepted, leaving }
    }

    /// The first request of a stream. It names no version: the versions of a server that was
    /// restarted may have begun again, and the present set may have the version of an earlier one.
    pub(super) fn begin(&mut self, node: Node) -> DiscoveryRequest {
        self.version.clear();
        self.nonce.clear();
        DiscoveryRequest { node: Some(node), ..self.request() }
    }

    pub(super) fn is_of(&self, response: &DiscoveryResponse) -> bool {
        response.type_url == self.of.url()
    }

    /// Reads a response. The error is all faults of its resources.
    pub(super) fn receive(&mut self, response: DiscoveryResponse) -> Result<Received, Vec<String>> {
        self.nonce = response.nonce;
        let (mut resources, mut faults) = (Resources::new(), Vec::new());
        for (at, resource) in response.resources.iter().enumerate() {
            match self.of.read(resource) {
                Err(fault) => faults.push(format!("resources[{at}]: {fault}")),
                Ok((name, resource)) => {
                    if resources.insert(name, resource).is_some() {
                        faults.push(format!("resources[{at}]: a second one of its name"));
                    }
                }
            }
        }
        let domains = resources.values().map(|it| it.domain.clone());
        let domains = domains.filter(|domain| !domain.is_empty()).collect();
        let version = response.version_info;
        if faults.is_empty() { Ok(Received { version, resources, domains }) } else { Err(faults) }
    }

    /// The sources of a set that was received.
    pub(super) fn sources_of(received: &Received) -> impl Iterator<Item = &Source> {
        received.resources.values().map(|resource| &resource.source)
    }

    /// The sources that stay in force for a while beside a set that does not contain them. Those
    /// whose domain has another resource in the set do not.
    pub(super) fn sources_leaving<'s>(
        &'s self,
        received: &'s Received,
    ) -> impl Iterator<Item = &'s Source> {
        let leaving = self.leaving.iter().map(|(name, (resource, _))| (name, resource));
        let former = self.accepted.iter().chain(leaving);
        former.filter(|it| received.lacks(*it)).map(|(_, resource)| &resource.source)
    }

    /// The sources that are in force.
    pub(super) fn sources(&self) -> impl Iterator<Item = &Source> {
        let leaving = self.leaving.values().map(|(resource, _)| resource);
        self.accepted.values().chain(leaving).map(|resource| &resource.source)
    }

    /// Takes a set whose rules are in force, and returns the request that says so. Whether the
    /// rules of [`Subscription::sources_leaving`] are in force too is told by `with_leaving`.
    pub(super) fn accept(
        &mut self,
        received: Received,
        with_leaving: bool,
        now: Time,
    ) -> DiscoveryRequest {
        let former = std::mem::take(&mut self.accepted);
        let leaving = former.into_iter().map(|(name, it)| (name, (it, now + REMOVAL_WAIT)));
        self.leaving.extend(leaving);
        self.leaving.retain(|name, (it, _)| with_leaving && received.lacks((name, it)));
        self.version = received.version;
        self.accepted = received.resources;
        self.request()
    }

    /// The request that refuses the last response.
    pub(super) fn refuse(&self, faults: &[String]) -> DiscoveryRequest {
        let mut message = faults.iter().take(FAULTS_TOLD_MAX).cloned().collect::<Vec<_>>();
        if let Some(more) = faults.len().checked_sub(FAULTS_TOLD_MAX).filter(|more| *more > 0) {
            message.push(format!("and {more} more"));
        }
        let (code, message) = (INVALID_ARGUMENT, message.join("\n"));
        let error = Status { code, message, details: Vec::new() };
        DiscoveryRequest { error_detail: Some(error), ..self.request() }
    }

    /// When resources that the server sends no longer have to go; `None` if there are none.
    pub(super) fn leave_at(&self) -> Option<Time> {
        self.leaving.values().map(|(_, at)| *at).min()
    }

    /// Drops those whose time has come. Returns whether there were any.
    pub(super) fn drop_leaving(&mut self, now: Time) -> bool {
        let before = self.leaving.len();
        self.leaving.retain(|_, (_, at)| *at > now);
        self.leaving.len() < before
    }

    /// The version that was accepted last.
    pub(super) fn version(&self) -> &str {
        &self.version
    }

    fn request(&self) -> DiscoveryRequest {
        DiscoveryRequest {
            version_info: self.version.clone(),
            type_url: self.of.url().to_owned(),
            response_nonce: self.nonce.clone(),
            ..DiscoveryRequest::default()
        }
    }
}

// === impl Received ===

impl Received {
    /// Whether neither this resource nor another one of its domain is in the set.
    fn lacks(&self, (name, resource): (&String, &Resource)) -> bool {
        !self.resources.contains_key(name) && !self.domains.contains(&resource.domain)
    }
}

#[cfg(test)]
mod tests;
