//! Reads a request from the query of a URL.

use std::borrow::Cow;

use percent_encoding::percent_decode;

use super::{FieldFault, FieldFaults, Scope, ScopedRequest};
use crate::fault::excerpt;

/// The names of a query, in the order of [`SCOPES`], and the endpoint last.
const NAMES: [&str; 4] = ["user_id", "ip", "tier", "endpoint"];

/// The scopes of the first names.
const SCOPES: [Scope; 3] = [Scope::User, Scope::Ip, Scope::Tier];

/// The values of a query by the index of their names, decoded.
type Given<'q> = [Option<Cow<'q, str>>; NAMES.len()];

/// Reads a query.
pub(super) fn read(query: &str) -> Result<ScopedRequest, Vec<FieldFault>> {
    let mut faults = FieldFaults::default();
    let mut given: Given<'_> = [const { None }; NAMES.len()];
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
fn read_pair<'q>(pair: &'q str, given: &mut Given<'q>, faults: &mut FieldFaults) {
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
