//! Requests and rules by who calls which endpoint: the form of `/shouldAllow` and
//! `/api/v1/rate_limit` on a pod, and of the rules that the control plane takes at `/rules`.
//!
//! The two meet here: [`entries`] is the address of a rule in this form, and a request asks for
//! that address, so that a pod finds the rules that the control plane wrote.
//!
//! | a request of | asks for the rules at |
//! |---|---|
//! | scope and api | `scope, api` and `scope` |
//! | several scopes and api | the same for each scope |
//! | a tier and a user | also `tier, api, user` and `tier, user` |
//! | a tier and an address, and no user | also `tier, api, ip` and `tier, ip` |
//!
//! An entry matches as in any request: the rule of its value, else that of its key alone.

mod body;
mod query;

use smallvec::{SmallVec, smallvec};

use super::{Descriptor, ENTRIES, Entry, Few, Request};
use crate::fault::{excerpt, nearest};

/// The domain of rules in this form, unless a setting of the pod names another.
pub const DOMAIN: &str = "default";

/// The key of the entry that names an endpoint.
pub const API: &str = "api";

/// Maximum bytes of a value: no rule of the control plane has a longer one.
pub const VALUE_BYTES_MAX: usize = 8192;

/// Maximum number of faults that are listed for one request.
const FAULTS_MAX: usize = 20;

/// Who calls: the key of the first entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scope {
    /// A user.
    User,
    /// An address.
    Ip,
    /// An organisation.
    Org,
    /// An API key.
    ApiKey,
    /// A plan that many users have.
    Tier,
}

/// A request in this form; owns its text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ScopedRequest {
    /// Who calls; never empty. At most one of each scope.
    callers: Few<(Scope, String)>,
    /// The endpoint; never empty.
    api: String,
    /// Hits that it charges, at least 1.
    cost: u32,
}

/// The entries of a descriptor.
pub type Entries<'a> = SmallVec<[Entry<'a>; ENTRIES]>;

/// What is wrong with one field of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FieldFault {
    /// Its name, or `body`; at most 64 characters.
    pub field: String,
    /// What is wrong, then what was expected.
    pub message: String,
}

/// The faults of one request, at most [`FAULTS_MAX`].
#[derive(Debug, Default)]
struct FieldFaults(Vec<FieldFault>);

/// The entries of a rule or a request in this form. A rule without a value counts each value apart;
/// without an api it is for all endpoints.
pub fn entries<'a>(scope: Scope, value: &'a str, api: &'a str) -> Entries<'a> {
    let mut entries = smallvec![Entry { key: scope.name(), value }];
    if !api.is_empty() {
        entries.push(Entry { key: API, value: api });
    }
    entries
}

// === impl Scope ===

impl Scope {
    /// All scopes.
    pub const ALL: [Self; 5] = [Self::User, Self::Ip, Self::Org, Self::ApiKey, Self::Tier];

    /// The name in requests, and the key in rules.
    pub const fn name(self) -> &'static str {
        match self {
            Self::User => "user",
            Self::Ip => "ip",
            Self::Org => "org",
            Self::ApiKey => "api_key",
            Self::Tier => "tier",
        }
    }

    /// The scope of this name.
    ///
    /// # Errors
    /// Says which names there are, and the nearest one.
    pub fn named(name: &str) -> Result<Self, String> {
        let found = Self::ALL.into_iter().find(|scope| scope.name() == name);
        found.ok_or_else(|| unknown(name, "scope", &Self::ALL.map(Self::name)))
    }
}

// === impl ScopedRequest ===

impl ScopedRequest {
    /// Reads the body of `/shouldAllow`, an object in JSON.
    ///
    /// # Errors
    /// Every fault, at most 20.
    pub fn from_body(body: &[u8]) -> Result<Self, Vec<FieldFault>> {
        body::read(body)
    }

    /// Reads the query of `/api/v1/rate_limit`, as `application/x-www-form-urlencoded` text.
    ///
    /// # Errors
    /// Every fault, at most 20.
    pub fn from_query(query: &str) -> Result<Self, Vec<FieldFault>> {
        query::read(query)
    }

    /// The request for the rules of `domain`. Its descriptors differ, so that no limit is charged
    /// twice.
    pub fn borrow<'a>(&'a self, domain: &'a str) -> Request<'a> {
        let mut descriptors = Few::new();
        for (scope, value) in &self.callers {
            for api in [&*self.api, ""] {
                descriptors.push(descriptor(entries(*scope, value, api)));
            }
        }
        let tier = self.callers.iter().find(|(scope, _)| *scope == Scope::Tier);
        let person = self.callers.iter().find(|(scope, _)| *scope != Scope::Tier);
        if let (Some((tier, plan)), Some((scope, value))) = (tier, person) {
            for api in [&*self.api, ""] {
                let mut entries = entries(*tier, plan, api);
                entries.push(Entry { key: scope.name(), value });
                descriptors.push(descriptor(entries));
            }
        }
        Request { domain, descriptors, hits_addend: self.cost }
    }
}

fn descriptor(entries: Entries<'_>) -> Descriptor<'_> {
    Descriptor { entries, ..Descriptor::default() }
}

/// Says that there is no such name, which there are, and which is the nearest.
fn unknown(name: &str, what: &str, known: &[&str]) -> String {
    let near = nearest(name, known).map(|it| format!("; did you mean '{it}'?"));
    let (name, near) = (excerpt(name), near.unwrap_or_default());
    format!("'{name}' is no {what}; expected one of {}{near}", known.join(", "))
}

// === impl FieldFaults ===

impl FieldFaults {
    fn add(&mut self, field: &str, message: impl Into<String>) {
        if !self.is_full() {
            let field = if field.is_empty() { "''".to_owned() } else { excerpt(field) };
            self.0.push(FieldFault { field, message: message.into() });
        }
    }

    /// Whether further faults are left out.
    fn is_full(&self) -> bool {
        self.0.len() >= FAULTS_MAX
    }

    /// Adds a name that is none of `known`. A long list of them costs no more than a full list.
    fn add_unknown(&mut self, name: &str, what: &str, known: &[&str]) {
        if !self.is_full() {
            self.add(name, unknown(name, what, known));
        }
    }

    /// Checks a text that has to be there.
    fn check_text(&mut self, field: &str, text: &str) -> bool {
        match text.len() {
            0 => self.add(field, "is empty; expected text"),
            1..=VALUE_BYTES_MAX => return true,
            n => self.add(field, format!("has {n} bytes; expected at most {VALUE_BYTES_MAX}")),
        }
        false
    }

    /// Returns `read`, unless there is a fault.
    fn or<T>(self, read: Option<T>) -> Result<T, Vec<FieldFault>> {
        match read {
            Some(read) if self.0.is_empty() => Ok(read),
            _ => Err(self.0),
        }
    }
}

#[cfg(test)]
mod tests;
