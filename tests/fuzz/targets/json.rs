//! Bodies sent to `/json`.

use crate::run;

const WORDS: [&str; 14] = [
    "\"domain\"",
    "\"descriptors\"",
    "\"entries\"",
    "\"key\"",
    "\"value\"",
    "\"limit\"",
    "\"unit\"",
    "\"hitsAddend\"",
    "\"isNegativeHits\"",
    "null",
    "true",
    "[{}]",
    "{\"a\":",
    "\\ud800",
];

#[test]
fn any_body_is_a_request_or_a_reason_in_one_line() {
    run::mutated("json", &WORDS, 20_000, |body| {
        match ratelease_rules::request::json::parse(body) {
            Ok(_) => true,
            Err(why) => {
                assert!(why.starts_with("Bad Request"), "{why}");
                false
            }
        }
    });
}
