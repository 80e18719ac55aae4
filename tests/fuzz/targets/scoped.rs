//! Bodies sent to `/shouldAllow`, and queries of `/api/v1/rate_limit`.

use ratelease_rules::request::scoped::{DOMAIN, FieldFault, ScopedRequest, VALUE_BYTES_MAX};

use crate::run;

const WORDS: [&str; 16] = [
    "\"scope\"",
    "\"scope_value\"",
    "\"api\"",
    "\"cost\"",
    "\"user\"",
    "\"api_key\"",
    "null",
    "-1",
    "[{}]",
    "{\"a\":",
    "user_id=",
    "&ip=",
    "&endpoint=",
    "&tier=",
    "%ff",
    "+",
];

/// Whether it was accepted: then all that it asks for is within the bounds; if not, the faults are
/// few and short.
fn is_good(read: Result<ScopedRequest, Vec<FieldFault>>) -> bool {
    match read {
        Ok(request) => {
            let request = request.borrow(DOMAIN);
            assert!(request.hits_addend > 0 && (2..=8).contains(&request.descriptors.len()));
            let entries = request.descriptors.iter().flat_map(|it| &it.entries);
            for entry in entries {
                assert!((1..=VALUE_BYTES_MAX).contains(&entry.value.len()), "{entry:?}");
            }
            for (at, one) in request.descriptors.iter().enumerate() {
                assert!(!request.descriptors[..at].contains(one), "{one:?} is charged twice");
            }
            true
        }
        Err(faults) => {
            assert!((1..=20).contains(&faults.len()), "{faults:?}");
            for FieldFault { field, message } in faults {
                assert!(!field.is_empty() && !message.is_empty(), "{field}: {message}");
                assert!(field.len() + message.len() < 1_500, "{field}: {message}");
                assert!(!message.contains(char::is_control), "{field}: {message:?}");
            }
            false
        }
    }
}

#[test]
fn any_body_and_any_query_is_a_request_or_has_its_faults() {
    run::mutated("scoped", &WORDS, 20_000, |input| {
        let query = str::from_utf8(input).is_ok_and(|it| is_good(ScopedRequest::from_query(it)));
        is_good(ScopedRequest::from_body(input)) || query
    });
}
