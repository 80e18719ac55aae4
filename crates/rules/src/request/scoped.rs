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
//! As in any request, an entry matches the rule of its value, or else the rule of its key alone.

use std::borrow::Cow;
use std::fmt;

use percent_encoding::percent_decode;
use serde::de::{Deserialize, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};
use smallvec::{SmallVec, smallvec};

use super::json::shown;
use super::{Descriptor, ENTRIES, Entry, Few, Request};
use crate::fault::{excerpt, nearest};
use crate::limit::AMOUNT_MAX;

/// The domain of rules in this form, unless a setting of the pod names another.
pub const DOMAIN: &str = "default";

/// The key of the entry that names an endpoint.
pub const API: &str = "api";

/// Maximum bytes of a value: no rule of the control plane has a longer one.
pub const VALUE_BYTES_MAX: usize = 8192;

/// Maximum number of faults that are listed for one request.
const FAULTS_MAX: usize = 20;

crate::named! {
    /// Who calls: the key of the first entry. The name is that in requests, and the key in rules.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum Scope {
        /// A user.
        User = "user",
        /// An address.
        Ip = "ip",
        /// An organisation.
        Org = "org",
        /// An API key.
        ApiKey = "api_key",
        /// A plan that many users have.
        Tier = "tier",
    }
}

/// A request in this form; owns its text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ScopedRequest {
    /// Who calls; never empty. At most one of each scope.
    callers: Few<(Scope, String)>,
    /// The endpoint; never empty.
    api: String,
    /// Hits that it charges, from 1 to [`AMOUNT_MAX`].
    cost: u64,
}

/// The entries of a descriptor.
pub type Entries<'a> = SmallVec<[Entry<'a>; ENTRIES]>;

/// A fault in one field of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FieldFault {
    /// The name of the field, or `body`; at most 64 characters.
    pub field: String,
    /// The fault, then the expected value.
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
        read_body(body)
    }

    /// Reads the query of `/api/v1/rate_limit`, as `application/x-www-form-urlencoded` text.
    ///
    /// # Errors
    /// Every fault, at most 20.
    pub fn from_query(query: &str) -> Result<Self, Vec<FieldFault>> {
        read_query(query)
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
    let name = excerpt(name);
    let near = near.unwrap_or_default();
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

// Reads a request from a body in JSON.
//
// Only the values of the four fields are kept: others are skipped while they are read, so that a
// body takes no more memory than its length.

/// The fields of the body.
const FIELDS: [&str; 4] = ["scope", "scope_value", "api", "cost"];

/// The values that the body gives for [`FIELDS`], and the names that are wrong.
struct Body {
    given: [Given; FIELDS.len()],
    faults: FieldFaults,
}

/// The name of a field; a part of the body if it has no escapes.
#[derive(serde::Deserialize)]
struct Name<'b>(#[serde(borrow)] Cow<'b, str>);

/// The value of a field.
enum Given {
    /// Not there, or null.
    Nothing,
    Text(String),
    Number(u64),
    /// Something else, in words.
    Other(String),
}

/// Reads a body.
fn read_body(body: &[u8]) -> Result<ScopedRequest, Vec<FieldFault>> {
    let mut reader = serde_json::Deserializer::from_slice(body);
    let empty = Body { given: FIELDS.map(|_| Given::Nothing), faults: FieldFaults::default() };
    let read = reader.deserialize_map(empty).and_then(|read| reader.end().map(|()| read));
    let Body { given: [scope, value, api, cost], mut faults } = read.map_err(|error| {
        let message = format!("is not a request in JSON: {}", shown(&error));
        vec![FieldFault { field: "body".into(), message }]
    })?;
    let scope = scope
        .text("scope", &mut faults)
        .and_then(|name| Scope::named(&name).map_err(|message| faults.add("scope", message)).ok());
    let value = value.text("scope_value", &mut faults);
    let api = api.text("api", &mut faults);
    let cost = cost.cost(&mut faults);
    let request =
        || Some(ScopedRequest { callers: smallvec![(scope?, value?)], api: api?, cost: cost? });
    let request = request();
    faults.or(request)
}

// === impl Given ===

impl Given {
    /// A text that has to be there.
    fn text(self, field: &str, faults: &mut FieldFaults) -> Option<String> {
        match self {
            Self::Text(text) => return faults.check_text(field, &text).then_some(text),
            Self::Nothing => faults.add(field, "is missing; expected text"),
            Self::Number(number) => {
                faults.add(field, format!("is the number {number}; expected text in quotes"));
            }
            Self::Other(what) => faults.add(field, format!("is {what}; expected text")),
        }
        None
    }

    /// Hits; 1 if they are not there.
    fn cost(self, faults: &mut FieldFaults) -> Option<u64> {
        let what = match self {
            Self::Nothing => return Some(1),
            Self::Number(number @ 1..=AMOUNT_MAX) => return Some(number),
            Self::Number(number) => number.to_string(),
            Self::Text(_) => "text".to_owned(),
            Self::Other(what) => what,
        };
        let expected = format!("expected a whole number from 1 to {AMOUNT_MAX}");
        faults.add("cost", format!("is {what}; {expected}"));
        None
    }
}

/// Reads the values from the body.
impl<'de> Visitor<'de> for Body {
    type Value = Self;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(mut self, mut map: A) -> Result<Self, A::Error> {
        let mut is_given = [false; FIELDS.len()];
        while let Some(Name(name)) = map.next_key()? {
            let Some(at) = FIELDS.iter().position(|field| *field == name) else {
                map.next_value::<IgnoredAny>()?;
                self.faults.add_unknown(&excerpt(&name), "field", &FIELDS);
                continue;
            };
            if is_given[at] {
                map.next_value::<IgnoredAny>()?;
                self.faults.add(FIELDS[at], "is there twice; give it once");
            } else {
                is_given[at] = true;
                self.given[at] = map.next_value()?;
            }
        }
        Ok(self)
    }
}

impl<'de> Deserialize<'de> for Given {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Any;

        impl<'de> Visitor<'de> for Any {
            type Value = Given;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a value")
            }

            fn visit_unit<E: Error>(self) -> Result<Given, E> {
                Ok(Given::Nothing)
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<Given, E> {
                Ok(Given::Text(text.to_owned()))
            }

            fn visit_u64<E: Error>(self, number: u64) -> Result<Given, E> {
                Ok(Given::Number(number))
            }

            fn visit_i64<E: Error>(self, number: i64) -> Result<Given, E> {
                Ok(u64::try_from(number).map_or(Given::Other(number.to_string()), Given::Number))
            }

            fn visit_f64<E: Error>(self, number: f64) -> Result<Given, E> {
                Ok(Given::Other(format!("{number:?}")))
            }

            fn visit_bool<E: Error>(self, truth: bool) -> Result<Given, E> {
                Ok(Given::Other(truth.to_string()))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, list: A) -> Result<Given, A::Error> {
                IgnoredAny.visit_seq(list)?;
                Ok(Given::Other("a list".into()))
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Given, A::Error> {
                IgnoredAny.visit_map(map)?;
                Ok(Given::Other("an object".into()))
            }
        }

        deserializer.deserialize_any(Any)
    }
}

// Reads a request from the query of a URL.

/// The names of a query, in the order of [`SCOPES`], and the endpoint last.
const NAMES: [&str; 4] = ["user_id", "ip", "tier", "endpoint"];

/// The scopes of the first names.
const SCOPES: [Scope; 3] = [Scope::User, Scope::Ip, Scope::Tier];

/// The values of a query by the index of their names, decoded.
type QueryValues<'q> = [Option<Cow<'q, str>>; NAMES.len()];

/// Reads a query.
fn read_query(query: &str) -> Result<ScopedRequest, Vec<FieldFault>> {
    let mut faults = FieldFaults::default();
    let mut given: QueryValues<'_> = [const { None }; NAMES.len()];
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        read_pair(pair, &mut given, &mut faults);
    }
    let [user, ip, tier, api] = given;
    if user.is_none() && ip.is_none() {
        faults.add("user_id", "is missing, and so is ip; expected at least one of them");
    }
    if api.is_none() {
        faults.add("endpoint", "is missing; expected text, as in endpoint=/login");
    }
    let callers = SCOPES.into_iter().zip([user, ip, tier]);
    let callers = callers.filter_map(|(scope, it)| Some((scope, it?.into_owned()))).collect();
    faults.or(api.map(|api| ScopedRequest { callers, api: api.into_owned(), cost: 1 }))
}

/// Reads a name and its value.
fn read_pair<'q>(pair: &'q str, given: &mut QueryValues<'q>, faults: &mut FieldFaults) {
    let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
    let known = match decode(name) {
        Ok(name) => NAMES.iter().position(|known| *known == name).ok_or(name),
        Err(why) => return faults.add(name, why),
    };
    let at = match known {
        Ok(at) if given[at].is_some() => {
            return faults.add(NAMES[at], "is there twice; give it once");
        }
        Ok(at) => at,
        Err(name) => return faults.add_unknown(&name, "name of the query", &NAMES),
    };
    given[at] = Some(match decode(value) {
        Ok(value) => {
            faults.check_text(NAMES[at], &value);
            value
        }
        // A faulty value is not missing as well.
        Err(why) => {
            faults.add(NAMES[at], why);
            Cow::Borrowed("")
        }
    });
}

/// Decodes `+` and escapes of bytes.
fn decode(text: &str) -> Result<Cow<'_, str>, String> {
    if let Some(at) = broken_escape(text.as_bytes()) {
        let found = excerpt(text[at..].get(..3).unwrap_or(&text[at..]));
        return Err(format!("has '{found}'; expected % and two hexadecimal digits, %25 for %"));
    }
    let decoded = match text.contains('+') {
        true => {
            let spaced = text.replace('+', " ");
            percent_decode(spaced.as_bytes()).decode_utf8().map(|it| it.into_owned().into())
        }
        false => percent_decode(text.as_bytes()).decode_utf8(),
    };
    decoded.map_err(|_| "is not UTF-8 once its escapes are decoded".to_owned())
}

/// The place of the first `%` that no two hexadecimal digits follow.
fn broken_escape(text: &[u8]) -> Option<usize> {
    let is_digit = |at: usize| text.get(at).is_some_and(u8::is_ascii_hexdigit);
    let escapes = text.iter().enumerate().filter(|(_, byte)| **byte == b'%').map(|(at, _)| at);
    // The digits of an escape are no `%`, so each `%` begins one.
    escapes.into_iter().find(|at| !(is_digit(at + 1) && is_digit(at + 2)))
}

#[cfg(test)]
mod tests;
