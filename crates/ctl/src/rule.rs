//! Describes a rule's settings, under their names in rule files and in words.

use std::time::Duration;

use ratelease_rules::{
    Algorithm, FailureMode, LeaseTerms, Leasing, Limit, Rule, SourceLocation, StoreNames,
};
use serde_json::{Map, Value, json};

/// Returns every setting of `rule` under its name in rule files, including defaults. Settings that
/// do not apply to its algorithm are left out. `stores` are the names that the rules may use.
pub fn settings(rule: &Rule, stores: &StoreNames) -> Vec<(&'static str, Value)> {
    rule.options(stores).into_iter().map(|option| (option.name, option.value)).collect()
}

/// Like [`settings`], as a JSON object.
pub fn object(rule: &Rule, stores: &StoreNames) -> Map<String, Value> {
    settings(rule, stores).into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
}

/// Returns the place of a rule for a JSON object; null if unknown.
pub fn place(written: Option<SourceLocation<'_>>) -> Value {
    written.map_or(Value::Null, |SourceLocation { file, place }| {
        json!({ "file": file, "line": place.line, "column": place.column })
    })
}

/// Describes a window: `minute`, `5 minutes`.
fn window(limit: Limit) -> String {
    let unit = limit.unit.name().to_ascii_lowercase();
    match limit.unit_multiplier.get() {
        1 => unit,
        units => format!("{units} {unit}s"),
    }
}

/// Describes a limit: `100 requests in each window of 5 minutes, aligned to the Unix epoch`
pub fn allows(limit: Limit) -> String {
    let requests = requests(limit.requests_per_unit.into());
    let window = window(limit);
    match limit.algorithm {
        Algorithm::FixedWindow => {
            let one = if limit.unit_multiplier.get() == 1 { "one " } else { "" };
            format!("{requests} in each window of {one}{window}, aligned to the Unix epoch")
        }
        Algorithm::TokenBucket { burst } => {
            format!("{requests} in each {window}, refilled steadily, at most {burst} at once")
        }
        Algorithm::SlidingWindow => {
            format!("{requests} in any {window}, estimated from this window and the last")
        }
        Algorithm::SlidingLog => format!("{requests} in any {window}, exactly"),
        Algorithm::LeakyBucket { max_delay_us } => {
            let delay = Duration::from_micros(max_delay_us.into());
            format!("{requests} in each {window}, evenly spaced, each held {delay:?} at most")
        }
    }
}

/// Describes the answer while the store is unavailable.
pub fn failure(mode: FailureMode) -> &'static str {
    match mode {
        FailureMode::Local => "local: each pod admits its part of the limit by itself",
        FailureMode::Allow => "allow: everything passes, uncounted",
        FailureMode::Deny => "deny: everything is over the limit",
        FailureMode::Error => "error: no verdict, Envoy's failure_mode_deny decides",
    }
}

/// Describes how tokens are leased.
pub fn lent(limit: Limit, leasing: &Leasing) -> String {
    let Leasing::On(terms) = leasing else {
        return "off: every decision asks the store".to_owned();
    };
    let most = match terms.max {
        u32::MAX => String::new(),
        max => format!(", {max} tokens at most"),
    };
    let aligned = matches!(limit.algorithm, Algorithm::FixedWindow);
    let span = match terms.ttl {
        None if aligned => "until the window ends".to_owned(),
        None => format!("for {:?} at most", LeaseTerms::TTL),
        Some(ttl) => format!("for {ttl:?} at most"),
    };
    format!("on: a pod holds {} of what remains at most{most}, {span}", terms.fraction)
}

/// Formats a number of requests: `1 request`, `100 requests`.
fn requests(count: u64) -> String {
    format!("{count} request{}", if count == 1 { "" } else { "s" })
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU32;

    use ratelease_rules::{StoreId, Unit};

    use super::*;

    #[test]
    fn a_limit_is_described_in_words() {
        let limit = |requests_per_unit, units, algorithm| Limit {
            requests_per_unit,
            unit: Unit::Minute,
            unit_multiplier: NonZeroU32::new(units).unwrap(),
            algorithm,
            store: StoreId::DEFAULT,
        };
        for (limit, words) in [
            (
                limit(1, 1, Algorithm::FixedWindow),
                "1 request in each window of one minute, aligned to the Unix epoch",
            ),
            (
                limit(100, 5, Algorithm::FixedWindow),
                "100 requests in each window of 5 minutes, aligned to the Unix epoch",
            ),
            (
                limit(100, 5, Algorithm::TokenBucket { burst: 20 }),
                "100 requests in each 5 minutes, refilled steadily, at most 20 at once",
            ),
            (
                limit(9, 1, Algorithm::LeakyBucket { max_delay_us: 50_000 }),
                "9 requests in each minute, evenly spaced, each held 50ms at most",
            ),
        ] {
            assert_eq!(allows(limit), words);
        }
    }
}
