//! Describes a rule's settings, under their names in rule files and in words.

use ratelease_engine::algorithm::concurrency::SLOTS_TTL;
use ratelease_engine::algorithm::{Token, counting};
use ratelease_rules::{
    AMOUNT_MAX, FailureMode, Hold, LeaseTerms, Leasing, Limit, Rule, SourceLocation, StoreNames,
    UnlessSettled,
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

/// Describes the answer while the store is unavailable.
pub fn failure(mode: FailureMode) -> &'static str {
    match mode {
        FailureMode::Local => "local: each pod admits its part of the limit by itself",
        FailureMode::Allow => "allow: everything passes, uncounted",
        FailureMode::Deny => "deny: everything is over the limit",
        FailureMode::Error => "error: no verdict, Envoy's failure_mode_deny decides",
    }
}

/// Describes how long the hits of a request are held.
pub fn hold(hold: Hold) -> String {
    let Hold { level, unless_settled, .. } = hold;
    let end = match unless_settled {
        UnlessSettled::Keep => "stays counted",
        UnlessSettled::Release => "is given back",
    };
    format!(
        "by the value of level {}: what a request takes is held for {:?} at most, and {end} unless \
         it is settled",
        usize::from(level) + 1,
        hold.lasts()
    )
}

/// Describes how tokens are leased.
pub fn lent(limit: Limit, leasing: &Leasing) -> String {
    let Leasing::On(terms) = leasing else {
        return "off: every decision asks the store".to_owned();
    };
    let most = match terms.max {
        AMOUNT_MAX => String::new(),
        max => format!(", {max} tokens at most"),
    };
    if counting(limit).token == Token::Permit {
        return format!("on: a pod asks each second for its slots, and keeps them {SLOTS_TTL:?}");
    }
    let of_window = counting(limit).token == Token::OfWindow;
    let span = match terms.ttl {
        None if of_window => "until the window ends".to_owned(),
        None => format!("for {:?} at most", LeaseTerms::TTL),
        Some(ttl) => format!("for {ttl:?} at most"),
    };
    format!("on: a pod holds {} of what remains at most{most}, {span}", terms.fraction)
}
