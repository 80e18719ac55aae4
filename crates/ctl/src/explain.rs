//! `ratectl explain`: shows how the rules match a request, level by level, and where it is counted.

mod pod;

use std::fmt::Write;
use std::time::Duration;

use clap::Args;
use futures_util::future::join_all;
use ratelease_cli::client::host_port;
use ratelease_cli::out::{CliError, CliResult, Completion, Out, OutFlags, Style};
use ratelease_cli::safe::Safe;
use ratelease_cli::settings::{DebugListener, Flags, HostPort, Role, key_prefix_of};
use ratelease_cli::source;
use ratelease_engine::limiter::{Charge, Resolved, resolve};
use ratelease_engine::store;
use ratelease_engine::store::redis::slot_of;
use ratelease_engine::store::{Ask, Grant, StoreError, StoreSettings};
use ratelease_rules::key::KeyHasher;
use ratelease_rules::request::Request;
use ratelease_rules::{
    Allowance, Candidate, Leasing, Limit, Lookup, MatchKind, Rule, RuleLocations, Rules,
    SourceLocation, Step, StoreNames, Trace, request,
};
use serde_json::{Map, Value, json};

use crate::descriptor::{CountFlags, DescriptorArg, RequestFlags};
use crate::rule;

pub const NOTES: &str = "\
The descriptors are those of one request, so the rule of one may replace the rule of another.
If a Redis is configured, its current counts are read and shown; nothing is spent. Set KEY_SECRET,
CACHE_KEY_PREFIX and the rules as the pods have them, or their counts are not found. With --pod the
pod explains, by its rules in force, wherever they come from, and says what it knows of the key; it
asks no Redis. It needs the DEBUG_TOKEN of the pod, if that has one.

Exit status: 0 a rule applies, 1 none does, 2 the rules are faulty or could not be read.

Examples:
  ratectl explain --domain shop user_id=alice
  ratectl explain --domain shop path=/checkout campaign=summer --json
  ratectl explain --domain shop user_id=alice --pod 127.0.0.1:6070
  ratectl explain --domain shop user_id=7 --redis-type cluster --redis-url redis-0:6379";

/// Flags of `explain`.
#[derive(Debug, Args)]
pub struct ExplainFlags {
    #[command(flatten)]
    request: RequestFlags,
    /// Debug address of a pod, whose rules and secret explain instead of those below
    #[arg(long, value_name = "HOST:PORT", value_parser = host_port)]
    pod: Option<HostPort>,
    #[command(flatten)]
    out: OutFlags,
    #[command(flatten)]
    count: CountFlags,
    #[command(flatten)]
    listener: Flags<DebugListener>,
}

/// Longest time for the answer of a pod.
const PAGE_WITHIN: Duration = Duration::from_secs(5);

/// How the rules match one descriptor.
struct Explained<'r> {
    typed: &'r DescriptorArg,
    /// `None` if the domain has no rules.
    trace: Option<Trace<'r>>,
    /// Whether the hits of the last entry settle the charge of the entries before it.
    settles: bool,
    conclusion: Conclusion<'r>,
    /// Place of the rule, if one was found.
    location: Option<SourceLocation<'r>>,
}

/// The result for a descriptor.
enum Conclusion<'r> {
    UnknownDomain,
    NoRule,
    /// The rule of another descriptor replaced the rule.
    Replaced {
        rule: &'r Rule,
        by: &'r Rule,
    },
    Unlimited(&'r Rule),
    Counted {
        rule: &'r Rule,
        count: Box<Count>,
    },
}

// === impl Conclusion ===

impl<'r> Conclusion<'r> {
    fn rule(&self) -> Option<&'r Rule> {
        match self {
            Self::UnknownDomain | Self::NoRule => None,
            Self::Replaced { rule, .. } | Self::Unlimited(rule) | Self::Counted { rule, .. } => {
                Some(rule)
            }
        }
    }
}

/// Loads the rules, matches each descriptor, and reads counts and pools if a Redis is given.
pub fn run(flags: &ExplainFlags, role: Role, out: &mut Out) -> CliResult {
    if let Some(pod) = &flags.pod {
        return pod::run(flags, pod, out);
    }
    let (dir, store, leases) = flags.count.read(role)?;
    let dirs = std::slice::from_ref(&dir.dir);
    let (rules, places) = source::load_with_locations(dirs, &dir.reading)?;
    let request = flags.request.request();
    let hasher = leases.hasher();
    let mut explained = explain((&rules, &places), &request, &flags.request.descriptors, &hasher);
    let counts = explained.iter_mut().filter_map(|one| match &mut one.conclusion {
        Conclusion::Counted { count, .. } => Some(&mut **count),
        _ => None,
    });
    let mut entries: Vec<&mut StoredCount> = counts.flat_map(Count::stored).collect();
    read_store(store, &key_prefix_of(flags.count.store.values()), &mut entries)?;
    let shown = (rules.stores(), !leases.key_secret.is_empty());
    if flags.out.json {
        out.json(&json(&request, &explained, shown))?;
    } else {
        text(&request, &explained, shown, out)?;
    }
    let applies = |one: &Explained<'_>| {
        !matches!(one.conclusion, Conclusion::UnknownDomain | Conclusion::NoRule)
    };
    Ok(Completion::clean_if(explained.iter().any(applies)))
}

/// Resolves the request as the limiter does, and lists the candidates of each level.
fn explain<'r>(
    (rules, places): (&'r Rules, &'r RuleLocations),
    request: &Request<'_>,
    typed: &'r [DescriptorArg],
    hasher: &KeyHasher,
) -> Vec<Explained<'r>> {
    let resolved = resolve(rules, request, hasher);
    let each = request.descriptors.iter().zip(&resolved).zip(typed);
    each.map(|((descriptor, resolved), typed)| {
        let charged = rules.charged(request.domain, descriptor);
        let conclusion = match (charged.lookup, resolved) {
            (Lookup::UnknownDomain, _) => Conclusion::UnknownDomain,
            (Lookup::NoRule, _) => Conclusion::NoRule,
            (Lookup::Rule(rule), Resolved::Charged(charge)) => {
                Conclusion::Counted { rule, count: Box::new(Count::of(charge)) }
            }
            (Lookup::Rule(rule), Resolved::Unlimited) => Conclusion::Unlimited(rule),
            // A rule that was found but does not limit the request has been replaced.
            (Lookup::Rule(rule), Resolved::Free) => {
                let by = replacer(rules, request, rule).unwrap_or(rule);
                Conclusion::Replaced { rule, by }
            }
        };
        let trace = rules.trace(request.domain, charged.entries);
        let location = conclusion.rule().and_then(|rule| places.of(&rule.path));
        Explained { typed, trace, settles: charged.settles, conclusion, location }
    })
    .collect()
}

/// Returns the first rule of the request that has `rule` in its `replaces`.
fn replacer<'r>(rules: &'r Rules, request: &Request<'_>, rule: &Rule) -> Option<&'r Rule> {
    request.descriptors.iter().find_map(|other| match rules.charged(request.domain, other).lookup {
        Lookup::Rule(other) if other.replaces.contains(&rule.name) => Some(&**other),
        _ => None,
    })
}

// === Count ===
//
// The count of one rule for one descriptor, and the pools of its key: where they are stored, and
// their contents.

/// A key's own count, which holds the whole limit, and its pools, which hold tokens leased from it.
struct Count {
    /// The limit of the count.
    limit: Limit,
    own: StoredCount,
    /// The pools in order of their numbers; empty if the key has none.
    pools: Vec<StoredCount>,
}

/// The store's state of one key.
struct StoredCount {
    ask: Ask,
    /// The key in Redis, once [`read_store`] has filled it in.
    in_store: String,
    /// Slot of the cluster.
    slot: usize,
    /// Address of the server that owns the slot, if a Redis was given and the owner is known.
    server: Option<String>,
    /// The state in the store, if a Redis was given.
    now: Option<Result<Grant, StoreError>>,
}

// === impl Count ===

impl Count {
    /// Returns the count to which `charge` is charged.
    fn of(charge: &Charge<'_>) -> Self {
        let limit = charge.applied.limit;
        let look = charge.look();
        let pools = 0..charge.applied.rule.map_or(0, |rule| pools(rule));
        let pools = pools.map(|pool| StoredCount::of(Ask { pool: Some(pool), ..look }));
        Self { limit, own: StoredCount::of(look), pools: pools.collect() }
    }

    /// Returns the count, then its pools.
    fn stored(&mut self) -> impl Iterator<Item = &mut StoredCount> {
        std::iter::once(&mut self.own).chain(&mut self.pools)
    }
}

/// Returns the number of pools that pods use under `rule`: none without leases, because pools hold
/// leased tokens.
pub fn pools(rule: &Rule) -> u8 {
    if rule.leasing == Leasing::Off { 0 } else { rule.pools() }
}

// === impl StoredCount ===

impl StoredCount {
    fn of(ask: Ask) -> Self {
        Self { ask, in_store: String::new(), slot: 0, server: None, now: None }
    }

    /// Returns the key without the prefix and braces that it has in Redis.
    fn key(&self) -> String {
        self.ask.counter().to_string()
    }
}

/// Fills in the place of each of `entries` in the store and, if `store` is a Redis, the state of
/// its key. Spends no tokens. `prefix` is the prefix of keys if the store has none of its own.
fn read_store(
    store: StoreSettings,
    prefix: &str,
    entries: &mut [&mut StoredCount],
) -> Result<(), CliError> {
    for entry in entries.iter_mut() {
        entry.in_store = entry.ask.counter().in_store(prefix);
        entry.slot = slot_of(entry.in_store.as_bytes());
    }
    if store == StoreSettings::Memory || entries.is_empty() {
        return Ok(());
    }
    let asks: Vec<Ask> = entries.iter().map(|entry| entry.ask).collect();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime =
        runtime.map_err(|error| CliError::new(format_args!("cannot read from Redis: {error}")))?;
    let (replies, servers): (Vec<_>, Vec<_>) = runtime.block_on(async {
        let store = store::open(store);
        let replies = join_all(asks.iter().map(|ask| store.lend(ask))).await;
        (replies, asks.iter().map(|ask| store.server(store.shard(ask))).collect())
    });
    for ((entry, reply), server) in entries.iter_mut().zip(replies).zip(servers) {
        entry.now = Some(reply);
        entry.server = server;
    }
    Ok(())
}

// === Report ===
//
// Reports an explanation, as text and as JSON.

/// Prints each descriptor's path through the rules, its result, and its count.
fn text(
    request: &Request<'_>,
    explained: &[Explained<'_>],
    (stores, has_secret): (&StoreNames, bool),
    out: &mut Out,
) -> Result<(), CliError> {
    for (at, one) in explained.iter().enumerate() {
        let descriptor = one.typed.descriptor();
        let gap = if at > 0 { "\n" } else { "" };
        let heading = format!("{}: {}", request.domain, shown(&descriptor.entries));
        out.line(format_args!("{gap}{}", out.painter().paint(Style::Strong, Safe(heading))))?;
        for (number, (entry, step)) in
            (1..).zip(descriptor.entries.iter().zip(one.trace.iter().flat_map(|t| &t.steps)))
        {
            level(number, entry, step, out)?;
        }
        out.line("")?;
        conclusion(request, &descriptor.entries, one, (stores, has_secret), out)?;
    }
    Ok(())
}

fn level(
    number: usize,
    entry: &request::Entry<'_>,
    step: &Step<'_>,
    out: &mut Out,
) -> Result<(), CliError> {
    out.line(format_args!("  level {number}: {}", Safe(shown(&[*entry]))))?;
    for (at, candidate) in step.candidates.iter().enumerate() {
        let (what, style) = match step.chosen {
            Some(chosen) if chosen == at => ("taken", Style::Good),
            _ if !candidate.matches_entry => ("does not match", Style::Faint),
            _ => ("matches, but the one taken comes first", Style::Faint),
        };
        let node = format!("{:<9}{:<30}", fit(candidate.kind), node(candidate));
        out.line(format_args!("    {} {}", Safe(node), out.painter().paint(style, what)))?;
    }
    if step.unlisted > 0 {
        out.line(format_args!("    and {} more patterns that do not match", step.unlisted))?;
    }
    if step.chosen.is_none() {
        let (names, count, what) = match &step.values {
            (values, count) if *count > 0 => (values, *count, "values of this key"),
            _ => (&step.keys.0, step.keys.1, "keys"),
        };
        let line = format!("nothing matches; {what} here: {}", some(names, count));
        out.line(format_args!("    {}", out.painter().paint(Style::Doubtful, Safe(line))))?;
    }
    Ok(())
}

/// Lists names, and how many are left out.
fn some(names: &[&str], count: usize) -> String {
    let mut text = names.join(", ");
    match count - names.len() {
        0 if names.is_empty() => text.push_str("none"),
        0 => {}
        more => {
            let _ = write!(text, " and {more} more");
        }
    }
    text
}

fn conclusion(
    request: &Request<'_>,
    entries: &[request::Entry<'_>],
    one: &Explained<'_>,
    (stores, has_secret): (&StoreNames, bool),
    out: &mut Out,
) -> Result<(), CliError> {
    if let Some(rule) = one.conclusion.rule() {
        field("rule", &rule.path, out)?;
    }
    if let Some(location) = one.location {
        field("file", &location.to_string(), out)?;
    }
    if one.settles {
        field(
            "settles",
            "its hits are a cost that is known now: counted whole, never denied",
            out,
        )?;
    }
    match &one.conclusion {
        Conclusion::UnknownDomain => {
            field("result", "no rule file names this domain; it passes", out)
        }
        Conclusion::NoRule => {
            let steps = one.trace.as_ref().map_or(&[][..], |trace| &trace.steps);
            field("result", &why_no_rule(entries, steps), out)
        }
        Conclusion::Replaced { by, .. } => {
            let by = format!("replaced by {} in this request; it passes", by.path);
            field("result", &by, out)
        }
        Conclusion::Unlimited(_) => field("allows", "everything; nothing is counted", out),
        Conclusion::Counted { rule, count: counted } => {
            let stats = rule.stats_key(request.domain, entries);
            settings(rule, &stats, stores, out)?;
            count(counted, has_secret, out)
        }
    }
}

/// Explains why no rule was found.
fn why_no_rule(entries: &[request::Entry<'_>], steps: &[Step<'_>]) -> String {
    let why = match steps.last() {
        Some(step) if step.chosen.is_none() => "no node matches",
        Some(_) if steps.len() < entries.len() => "the last node has no descriptors below it",
        Some(step) if step.has_children => {
            "the node that matches has no rate_limit, only descriptors below it"
        }
        Some(_) => "the node that matches has no rate_limit",
        None => "it has no entries",
    };
    format!("no rule: {why}; it passes")
}

fn settings(rule: &Rule, stats: &str, stores: &StoreNames, out: &mut Out) -> Result<(), CliError> {
    // Without `..`, so that a new field of a rule does not compile until it is described here.
    let Rule {
        path: _,
        name,
        allowance,
        replaces,
        flags,
        leasing,
        failure_mode,
        shards,
        hold,
        metadata,
        levels,
        meter: _,
    } = rule;
    if !name.is_empty() {
        field("name", name, out)?;
    }
    let Allowance::Limited(limit) = *allowance else { return Ok(()) };
    field("allows", &limit.words(), out)?;
    field("algorithm", limit.algorithm.name(), out)?;
    field("lease", &rule::lent(limit, leasing), out)?;
    if !stores.is_empty() {
        field("store", stores.name(limit.store), out)?;
    }
    field("store away", rule::failure(*failure_mode), out)?;
    if let Some(hold) = hold {
        field("hold", &rule::hold(*hold), out)?;
    }
    for (row, is) in flags.iter() {
        let (label, words) = row.shown;
        if is != row.default {
            field(label, words, out)?;
        }
    }
    if shards.get() > 1 {
        field("shards", &format!("one count, and tokens of it in {shards} pools"), out)?;
    }
    if !replaces.is_empty() {
        field("replaces", &replaces.join(", "), out)?;
    }
    for (level, number) in levels.iter().zip(1..) {
        if let Some(pattern) = &level.shared {
            let text = format!("level {number}: all values that match {pattern} share one count");
            field("shared", &text, out)?;
        }
    }
    if let Some(metadata) = metadata {
        field("metadata", &Value::Object((**metadata).clone()).to_string(), out)?;
    }
    field("stats key", stats, out)
}

/// A remark on a limit of which, as far as the store knows, no token is leased under this key: pods
/// may count under another key. `None` if tokens are leased.
pub fn unused(limit: Limit, grant: &Grant, has_secret: bool) -> Option<&'static str> {
    if grant.left < limit.capacity() || grant.overdrawn {
        return None;
    }
    Some(if has_secret {
        "nothing is counted under this key: it was not used lately, or the pods have another \
         KEY_SECRET, CACHE_KEY_PREFIX or other rules"
    } else {
        "nothing is counted under this key, and KEY_SECRET is not set: pods that have one count \
         under another key; set KEY_SECRET to theirs to see it"
    })
}

fn count(
    Count { limit, own, pools }: &Count,
    has_secret: bool,
    out: &mut Out,
) -> Result<(), CliError> {
    field("key", &own.key(), out)?;
    field("redis", &place(own), out)?;
    match &own.now {
        None => {}
        Some(Ok(grant)) => {
            field("now", &standing(*limit, grant), out)?;
            if let Some(note) = unused(*limit, grant, has_secret) {
                field("", note, out)?;
            }
        }
        Some(Err(error)) => field("now", &format!("unknown: {error}"), out)?,
    }
    pools.iter().enumerate().try_for_each(|(at, pool)| {
        let held = match &pool.now {
            None => String::new(),
            Some(Ok(grant)) => format!(": {}", pool_content(grant)),
            Some(Err(error)) => format!(": unknown: {error}"),
        };
        field(&format!("pool {at}"), &format!("{}{held}", place(pool)), out)
    })
}

/// Formats a place: `rl:{…}, slot 7, on 127.0.0.1:7000`
fn place(stored: &StoredCount) -> String {
    let server = stored.server.as_ref().map(|server| format!(", on {server}")).unwrap_or_default();
    format!("{}, slot {}{server}", stored.in_store, stored.slot)
}

/// Describes the tokens of a pool.
fn pool_content(grant: &Grant) -> String {
    match grant.left {
        0 => "empty".to_owned(),
        1 => format!("1 token for {}", seconds(grant.ends_after)),
        tokens => format!("{tokens} tokens for {}", seconds(grant.ends_after)),
    }
}

/// Describes the tokens that are left of a limit.
pub fn standing(limit: Limit, grant: &Grant) -> String {
    let mut text = format!("{} of {} left", grant.left, limit.capacity());
    if grant.overdrawn {
        text.push_str(", over the limit");
    }
    if grant.reset_after > Duration::ZERO {
        let _ = write!(text, "; resets in {}", seconds(grant.reset_after));
    }
    if grant.retry_after > Duration::ZERO {
        let _ = write!(text, "; the next token in {}", seconds(grant.retry_after));
    }
    text
}

/// Formats a time, in seconds.
pub fn seconds(span: Duration) -> String {
    format!("{:.3} s", span.as_secs_f64())
}

fn field(name: &str, value: &str, out: &mut Out) -> Result<(), CliError> {
    out.line(format_args!("  {name:<11} {}", Safe(value)))
}

/// Formats entries: `(key, value)(key, value)`
pub fn shown(entries: &[request::Entry<'_>]) -> String {
    entries.iter().map(|request::Entry { key, value }| format!("({key}, {value})")).collect()
}

fn node(candidate: &Candidate<'_>) -> String {
    match candidate.kind {
        MatchKind::Key => format!("{}: any value", candidate.key),
        MatchKind::Value | MatchKind::Pattern if candidate.value.is_empty() => {
            candidate.key.to_owned()
        }
        MatchKind::Value | MatchKind::Pattern => format!("{}: {}", candidate.key, candidate.value),
    }
}

fn fit(fit: MatchKind) -> &'static str {
    match fit {
        MatchKind::Value => "value",
        MatchKind::Pattern => "pattern",
        MatchKind::Key => "key",
    }
}

fn json(
    request: &Request<'_>,
    explained: &[Explained<'_>],
    (stores, has_secret): (&StoreNames, bool),
) -> Value {
    let each = explained.iter().map(|one| {
        let descriptor = one.typed.descriptor();
        let entries = &descriptor.entries;
        let steps = one.trace.as_ref().map_or(&[][..], |trace| &trace.steps);
        let levels: Vec<Value> = entries.iter().zip(steps).map(level_json).collect();
        let rule = one.conclusion.rule();
        let (result, by, count) = match &one.conclusion {
            Conclusion::UnknownDomain => ("unknown_domain", None, None),
            Conclusion::NoRule => ("no_rule", None, None),
            Conclusion::Replaced { by, .. } => ("replaced", Some(&by.path), None),
            Conclusion::Unlimited(_) => ("unlimited", None, None),
            Conclusion::Counted { count, .. } => ("counted", None, Some(count)),
        };
        json!({
            "entries": entries.iter().map(entry_json).collect::<Vec<_>>(),
            "levels": levels,
            "settles": one.settles,
            "result": result,
            "rule": rule.map(|rule| &rule.path),
            "place": rule::place(one.location),
            "settings": rule.map(|rule| rule::object(rule, stores)),
            "stats_key": rule.map(|rule| rule.stats_key(request.domain, entries)),
            "replaced_by": by,
            "count": count.map(|count| count_json(count, has_secret)),
        })
    });
    json!({ "domain": request.domain, "descriptors": each.collect::<Vec<_>>() })
}

fn entry_json(entry: &request::Entry<'_>) -> Value {
    json!({ "key": entry.key, "value": entry.value })
}

fn level_json((entry, step): (&request::Entry<'_>, &Step<'_>)) -> Value {
    let candidates = step.candidates.iter().enumerate().map(|(at, candidate)| {
        let Candidate { key, value, matches_entry, .. } = candidate;
        json!({ "by": fit(candidate.kind), "key": key, "value": value, "matches": matches_entry,
            "taken": step.chosen == Some(at) })
    });
    json!({
        "entry": entry_json(entry),
        "candidates": candidates.collect::<Vec<_>>(),
        "patterns_not_listed": step.unlisted,
        "has_children": step.has_children,
    })
}

fn count_json(Count { limit, own, pools }: &Count, has_secret: bool) -> Value {
    let content = |grant: &Grant| {
        json!({
            "note": unused(*limit, grant, has_secret),
            "left": grant.left,
            "of": limit.capacity(),
            "overdrawn": grant.overdrawn,
            "reset_after_seconds": grant.reset_after.as_secs_f64(),
            "retry_after_seconds": grant.retry_after.as_secs_f64(),
        })
    };
    let held = |grant: &Grant| {
        let ends = grant.ends_after.as_secs_f64();
        json!({ "tokens": grant.left, "ends_after_seconds": ends })
    };
    let mut count = entry_in_store(own, content);
    let pools = pools.iter().map(|pool| Value::Object(entry_in_store(pool, held)));
    count.insert("pools".into(), pools.collect());
    Value::Object(count)
}

fn entry_in_store(stored: &StoredCount, shown: impl Fn(&Grant) -> Value) -> Map<String, Value> {
    let now = match &stored.now {
        Some(Ok(grant)) => shown(grant),
        Some(Err(error)) => json!({ "error": error.to_string() }),
        None => Value::Null,
    };
    let members = [
        ("key", json!(stored.key())),
        ("redis_key", json!(stored.in_store)),
        ("slot", json!(stored.slot)),
        ("server", json!(stored.server)),
        ("now", now),
    ];
    members.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
}
