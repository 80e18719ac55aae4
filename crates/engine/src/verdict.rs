//! Combines the statuses of a request's descriptors into one answer. Pure.

use std::sync::Arc;
use std::time::Duration;

use ratelease_rules::key::Key;
use ratelease_rules::request::{Descriptor, Few, Request};
use ratelease_rules::{FailureMode, Limit, Rule};
use serde_json::{Map, Value, json};

use crate::algorithm::{Token, counting};
use crate::limiter::owners::StartId;
use crate::time::Time;

/// Stands for a rule's path where the request itself named the limit.
pub const OVERRIDE: &str = "override";

/// The remaining tokens that an answer shows where a rule allows everything, as in the reference
/// implementation.
pub const UNLIMITED: u64 = u32::MAX as u64;

/// The answer to one request.
#[derive(Debug, Clone, PartialEq)]
pub struct Verdict<'r> {
    /// Whether the request may pass.
    pub code: Code,
    /// One status for each descriptor, in the order of the request.
    pub statuses: Few<Status<'r>>,
    /// The status that the rate limit headers show: an index into `statuses`, if any has a limit.
    pub tightest: Option<usize>,
    /// The verdict would deny, but for the global shadow mode.
    pub shadowed: bool,
    /// Dynamic metadata for Envoy, if asked for.
    pub metadata: Option<Map<String, Value>>,
    /// The name of the request's start, if it holds anything until its end.
    pub started: Option<StartId>,
}

/// Whether the request may pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Code {
    /// Within the limit.
    Ok,
    /// Over it.
    OverLimit,
}

/// The answer for one descriptor.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Status<'r> {
    /// Whether the descriptor is within its limit.
    pub code: Code,
    /// The limit that was applied; `None` if there was none, or only one that counts nothing.
    pub limit: Option<AppliedLimit<'r>>,
    /// Tokens that remain: 0 if over the limit, unless the rule leaves them;
    /// [`UNLIMITED`] if its rule allows everything.
    pub remaining: u64,
    /// Time until the window ends, where that is known.
    pub reset_after: Option<Duration>,
    /// The hits that were counted, and the source of that decision; `None` where nothing was
    /// counted.
    pub counted: Option<Counted>,
}

/// The hits that were counted for one descriptor, and the source of that decision, for observers of
/// decisions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Counted {
    /// The key that was charged.
    pub key: Key,
    /// Hits that were charged, or would have been; 0 only looks.
    pub hits: u64,
    /// For a charge over the limit that spends the remaining tokens: their number, as far as is
    /// known.
    pub fitted: u64,
    /// The limit was exceeded, even if the rule's mode lets the request pass.
    pub over: bool,
    /// The source of the decision.
    pub how: DecisionSource,
}

/// The source of a decision.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DecisionSource {
    /// This pod, from the tokens and the information that it held.
    Local,
    /// The store, while the request waited.
    Leased,
    /// The rule's failure mode, since the store did not answer.
    Failure(FailureMode),
    /// This pod, which had no room for a further request that waits or a further ask.
    Shed,
}

/// A limit and where it came from.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AppliedLimit<'r> {
    /// The number of requests in each window.
    pub limit: Limit,
    /// The rule, or `None` for an override.
    pub rule: Option<&'r Arc<Rule>>,
}

/// A request that was decided, for recorders of decisions.
#[derive(Debug, Clone, Copy)]
pub struct Decision<'a, 'q, 'r> {
    /// The request.
    pub request: &'a Request<'q>,
    /// The verdict on it.
    pub verdict: &'a Verdict<'r>,
    /// Time from the decoded request to the verdict, including waits for leases and slots.
    pub took: Duration,
    /// When the verdict was made.
    pub now: Time,
}

/// Settings that change how answers are made.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Modes {
    /// Everything passes; the statuses still show which descriptors are over their limit.
    pub shadow: bool,
    /// Every rule is a quota rule.
    pub quota: bool,
    /// Answers carry dynamic metadata.
    pub metadata: bool,
}

// === impl Verdict ===

impl<'r> Verdict<'r> {
    /// The answer that follows from `statuses`, one for each descriptor of `request`.
    pub fn new(request: &Request<'_>, statuses: Few<Status<'r>>, modes: Modes) -> Self {
        let metadata = modes.metadata.then(|| metadata_of(request, &statuses, modes));
        let tightest = tightest(&statuses, modes);
        let shadowed = modes.shadow && denies(&statuses, modes);
        Self { code: code(&statuses, modes), statuses, tightest, shadowed, metadata, started: None }
    }

    /// The status that the rate limit headers show, and its limit; `None` if no limit applies.
    pub fn tightest_limit(&self) -> Option<(&Status<'r>, AppliedLimit<'r>)> {
        let tightest = self.statuses.get(self.tightest?)?;
        Some((tightest, tightest.limit?))
    }

    /// Seconds, at least one, until every limit that was exceeded has reset; never less than the
    /// reset of the tightest, which is sent beside it.
    pub fn retry_after_seconds(&self) -> u64 {
        let tightest = self.tightest_limit().and_then(|(status, _)| status.reset_seconds());
        let over = self.statuses.iter().filter(|status| status.is_over());
        over.filter_map(Status::reset_seconds).fold(tightest.unwrap_or(0).max(1), u64::max)
    }
}

/// `OverLimit` if the statuses deny, unless the global shadow mode is on.
pub fn code(statuses: &[Status<'_>], modes: Modes) -> Code {
    if !modes.shadow && denies(statuses, modes) { Code::OverLimit } else { Code::Ok }
}

/// The statuses deny if one descriptor is over its limit, quotas aside, or if there are quotas and
/// each is over. The global quota mode also counts descriptors without a limit as quotas that pass,
/// as the reference implementation does; unlimited ones count for neither.
fn denies(statuses: &[Status<'_>], modes: Modes) -> bool {
    let mut quotas = 0;
    let mut quotas_over = 0;
    let mut denied = false;
    for status in statuses.iter().filter(|status| !status.is_unlimited()) {
        if status.is_quota(modes) {
            quotas += 1;
            quotas_over += u32::from(status.is_over());
        } else {
            denied |= status.is_over();
        }
    }
    denied || (quotas > 0 && quotas == quotas_over)
}

/// The statuses that deny the request: those over their limit, without quotas unless each quota is
/// over. None if the request passes.
fn denying<'s, 'r>(
    statuses: &'s [Status<'r>],
    modes: Modes,
) -> impl Iterator<Item = &'s Status<'r>> + use<'s, 'r> {
    let quotas = || statuses.iter().filter(move |it| !it.is_unlimited() && it.is_quota(modes));
    let is_denied = code(statuses, modes) == Code::OverLimit;
    let are_quotas_over = quotas().all(Status::is_over);
    let denies = move |it: &&Status<'r>| it.is_over() && (are_quotas_over || !it.is_quota(modes));
    statuses.iter().filter(move |status| is_denied && denies(status))
}

/// Index of the last descriptor that is over, quotas aside; else of the first with the fewest
/// tokens remaining.
fn tightest(statuses: &[Status<'_>], modes: Modes) -> Option<usize> {
    let limited = || statuses.iter().enumerate().filter(|(_, status)| status.limit.is_some());
    statuses
        .iter()
        .rposition(|status| status.is_over() && !status.is_quota(modes))
        .or_else(|| limited().min_by_key(|(_, status)| status.remaining).map(|(at, _)| at))
}

// === impl Code ===

impl Code {
    /// The name in metrics, logs and files.
    pub fn name(self) -> &'static str {
        match self {
            Code::Ok => "ok",
            Code::OverLimit => "over_limit",
        }
    }
}

// === impl AppliedLimit ===

impl<'r> AppliedLimit<'r> {
    /// The path of the rule, or [`OVERRIDE`].
    pub fn rule_path(&self) -> &'r str {
        self.rule.map_or(OVERRIDE, |rule| &rule.path)
    }
}

// === impl DecisionSource ===

impl DecisionSource {
    /// The name in metrics and logs.
    pub fn name(self) -> &'static str {
        match self {
            DecisionSource::Local => "local",
            DecisionSource::Leased => "leased",
            DecisionSource::Failure(FailureMode::Local) => "failure_local",
            DecisionSource::Failure(FailureMode::Allow) => "failure_allow",
            DecisionSource::Failure(FailureMode::Deny) => "failure_deny",
            DecisionSource::Failure(FailureMode::Error) => "failure_error",
            DecisionSource::Shed => "shed",
        }
    }
}

// === impl Status ===

impl<'r> Status<'r> {
    /// No rule limits the descriptor, or another rule replaced the rule that would have.
    pub const FREE: Self = Self::within(0);

    /// The descriptor's rule allows everything.
    pub const UNLIMITED: Self = Self::within(UNLIMITED);

    const fn within(remaining: u64) -> Self {
        Self { code: Code::Ok, limit: None, remaining, reset_after: None, counted: None }
    }

    /// The descriptor was counted against `limit`, of which this many tokens remain.
    pub fn counted(
        limit: AppliedLimit<'r>,
        counted: Counted,
        remaining: u64,
        reset_after: Option<Duration>,
    ) -> Self {
        let in_shadow = limit.rule.is_some_and(|rule| rule.flags.shadow_mode);
        Self {
            code: if counted.over && !in_shadow { Code::OverLimit } else { Code::Ok },
            limit: Some(limit),
            remaining,
            reset_after: reset_after.map(|after| within_windows(after, limit, remaining)),
            counted: Some(counted),
        }
    }

    /// Whether it is over its limit and its rule is not in shadow mode.
    pub fn is_over(&self) -> bool {
        self.code == Code::OverLimit
    }

    /// The path of its rule, or a word for it: [`OVERRIDE`], or `none` if no limit applies.
    pub fn rule_path(&self) -> &'r str {
        self.limit.map_or("none", |applied| applied.rule_path())
    }

    /// Whether its rule allows everything.
    pub fn is_unlimited(&self) -> bool {
        self.limit.is_none() && self.remaining == UNLIMITED
    }

    fn is_quota(&self, modes: Modes) -> bool {
        let rule = self.limit.and_then(|applied| applied.rule);
        modes.quota || rule.is_some_and(|rule| rule.flags.quota_mode)
    }

    /// Whole seconds until the window ends, rounded up, so that a client that waits this long finds
    /// tokens.
    pub fn reset_seconds(&self) -> Option<u64> {
        self.reset_after.map(|span| span.as_secs() + u64::from(span.subsec_nanos() > 0))
    }
}

/// After a step back of the store's clock, the count may belong to a window that lies in the
/// future. Such a window ends later than clients expect of the unit, so this returns the longest
/// that the limit may take to have a token again, and clients ask again then. A debt that is
/// carried over may take any number of windows.
fn within_windows(reset_after: Duration, applied: AppliedLimit<'_>, remaining: u64) -> Duration {
    let longest = applied.limit.window_max();
    let counting = counting(applied.limit);
    match counting.token {
        _ if !counting.is_windowed => reset_after,
        Token::OfWindow if applied.rule.is_some_and(|rule| rule.flags.carry_debt) => reset_after,
        // A sliding window's count weighs in the window after it too.
        Token::Steady if remaining == 0 => reset_after.min(2 * longest),
        _ => reset_after.min(longest),
    }
}

// Dynamic metadata of an answer: the request, the metadata of the rules that passed, and that of
// the rules that denied.

/// The fields of the reference implementation, which are `domain`, `descriptors`, `hitsAddend` and
/// the merged `metadata`; and `denied`, the merged metadata of the rules that deny the request.
fn metadata_of(request: &Request<'_>, statuses: &[Status<'_>], modes: Modes) -> Map<String, Value> {
    let mut fields = Map::new();
    fields.insert("domain".into(), request.domain.into());
    fields.insert("descriptors".into(), request.descriptors.iter().map(descriptor).collect());
    if request.hits_addend != 0 {
        fields.insert("hitsAddend".into(), request.hits_addend.into());
    }
    let passed = statuses.iter().filter(|status| !status.is_over());
    for (name, merged) in
        [("metadata", merged(passed)), ("denied", merged(denying(statuses, modes)))]
    {
        if !merged.is_empty() {
            fields.insert(name.into(), merged.into());
        }
    }
    fields
}

/// The metadata of the rules of these statuses.
fn merged<'s, 'r: 's>(statuses: impl Iterator<Item = &'s Status<'r>>) -> Map<String, Value> {
    let mut merged = Map::new();
    for rule in statuses.filter_map(|status| status.limit?.rule) {
        if let Some(metadata) = &rule.metadata {
            merge(&mut merged, metadata);
        }
    }
    merged
}

fn descriptor(descriptor: &Descriptor<'_>) -> Value {
    let entries: Vec<_> =
        descriptor.entries.iter().map(|entry| format!("{}={}", entry.key, entry.value)).collect();
    let mut fields = json!({ "entries": entries });
    if let Some(limit) = descriptor.limit {
        let requests = limit.requests_per_unit;
        let unit = limit.unit.name();
        fields["limit"] = format!("requests_per_unit:{requests} unit:{unit}").into();
    }
    if let Some(hits) = descriptor.hits_addend {
        fields["hitsAddend"] = hits.into();
    }
    fields
}

/// Adds the fields of `from` that `into` lacks, at every depth: the first to set a scalar wins.
/// `from` is copied, never linked: the reference implementation links it, and one answer's merge
/// shows in the next.
fn merge(into: &mut Map<String, Value>, from: &Map<String, Value>) {
    for (name, value) in from {
        match (into.get_mut(name), value) {
            (None, value) => drop(into.insert(name.clone(), value.clone())),
            (Some(Value::Object(into)), Value::Object(from)) => merge(into, from),
            (Some(_), _) => {}
        }
    }
}

#[cfg(test)]
mod tests;
