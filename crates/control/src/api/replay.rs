//! A dry run on traffic: decides the requests of a log under the draft and under what is published.

use std::collections::{BTreeMap, HashSet};
use std::sync::{Arc, LazyLock};

use axum::extract::State;
use axum::routing::post;
use axum::{Json, Router};
use ratelease_replay::{
    Decided, FormatFault, LineFormat, Mapping, Replay, ReplayCounts, RuleCounts, show_time,
};
use ratelease_rules::request::Request;
use ratelease_rules::{Options, Rules, Source, load};
use serde::{Deserialize, Serialize};
use utoipa::{OpenApi, ToSchema};

use super::call::{CommonProblems, DryCall, Problem, check_domain};
use super::publish::{compile_all, published_hashes};
use super::{App, MIB};
use crate::auth::Caller;
use crate::document::FieldFault;
use crate::permits::Permits;
use crate::work::{self, Cancel, heavy};

/// Maximum bytes of a body: some 100 000 lines.
const REPLAY_BYTES_MAX: usize = 32 * MIB;

/// Maximum number of replays at a time; each keeps a core busy. Further ones wait.
const REPLAYS_MAX: usize = 2;

/// Maximum work of a replay, which takes some seconds: some ten times that of a whole body of lines
/// with four descriptors each. And the work between looks at whether the client is still there.
const WORK_MAX: u64 = 2 << 30;
const WORK_PER_CHECK: u64 = 4 << 20;

/// Maximum bytes of a line: JSON takes up to a hundred times its bytes while it is read.
const LINE_BYTES_MAX: usize = 64 << 10;

/// One of each token, so that none keeps all others waiting.
static REPLAYS: LazyLock<Permits> = LazyLock::new(|| Permits::new(REPLAYS_MAX, 1));

/// A log, and how its lines become requests, as for `ratectl replay`.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct ReplayInput {
    /// Its lines: decision samples of pods in JSON, requests in JSON, or an access log of Envoy.
    log: String,
    /// The domain of lines that name none.
    domain: Option<String>,
    /// For access logs: each makes one descriptor of a line, as in `path=%path%`.
    #[serde(default)]
    descriptors: Vec<String>,
    /// The name of the field with the time of JSON lines; by default, those that loggers use.
    time_field: Option<String>,
}

/// Both sets of rules.
struct RuleSets {
    published: Rules,
    draft: Rules,
}

/// Describes the calls.
#[derive(OpenApi)]
#[openapi(paths(replay))]
pub struct Calls;

/// The calls about whole domains.
pub fn long_calls() -> Router<Arc<App>> {
    Router::new().route("/v1/replay", post(replay))
}

/// Replay a log under the draft
///
/// A dry run on traffic: how many requests of the log the draft decides otherwise than what is
/// published. Each line is decided at its own time, by counts that begin empty. A token that may read
/// is enough.
#[utoipa::path(post, tag = "replay", path = "/v1/replay", request_body = ReplayInput, responses(
    (status = 200, description = "What would change", body = ReplayReport), CommonProblems))]
async fn replay(
    State(app): State<Arc<App>>,
    call: DryCall<REPLAY_BYTES_MAX>,
) -> Result<Json<ReplayReport>, Problem> {
    let input: ReplayInput = call.json()?;
    if let Some(domain) = &input.domain {
        check_domain(domain)?;
        call.caller.need_domain(domain)?;
    }
    let mappings = mappings(&input.descriptors)?;
    let sets = rule_sets(&app, &call.caller).await?;
    work::hold(REPLAYS.take(&call.caller.id).await);
    let replayed = heavy(move |cancel| run(&sets, &input, &mappings, cancel));
    Ok(Json(replayed.await??))
}

fn mappings(descriptors: &[String]) -> Result<Vec<Mapping>, Problem> {
    let mut faults = Vec::new();
    let max = ratelease_rules::request::DESCRIPTORS_MAX;
    if descriptors.len() > max {
        let message = format!("{} descriptors; expected at most {max}", descriptors.len());
        faults.push(FieldFault::of("descriptors", message));
    }
    let mut mappings = Vec::new();
    for (at, text) in descriptors.iter().enumerate().take(max) {
        match Mapping::parse(text) {
            Ok(mapping) => mappings.push(mapping),
            Err(why) => faults.push(FieldFault::of(&format!("descriptors[{at}]"), why)),
        }
    }
    if faults.is_empty() { Ok(mappings) } else { Err(cannot_replay(faults)) }
}

fn cannot_replay(faults: Vec<FieldFault>) -> Problem {
    Problem::faults("the log cannot be replayed; fix each field", faults)
}

/// Loads what is published and the draft, of the domains that the caller may use.
async fn rule_sets(app: &App, caller: &Caller) -> Result<RuleSets, Problem> {
    let hashes = published_hashes(app, i64::MAX).await?;
    let mut published = Vec::new();
    let mut draft = Vec::new();
    let mut documents = Vec::new();
    let mut changes = Vec::new();
    for domain in app.store.domains().await?.into_iter().filter(|it| caller.may_use(&it.name)) {
        let text = match hashes.get(&domain.name) {
            Some(hash) => Some(app.store.text(hash).await?),
            None => None,
        };
        published.extend(text.clone().map(|text| (domain.name.clone(), text)));
        if domain.is_changed {
            documents.push(app.store.draft(&domain.name).await?.document);
            changes.push(domain.changed);
        } else {
            draft.extend(text.map(|text| (domain.name, text)));
        }
    }
    let checked = compile_all(app, documents, changes).await?;
    draft.extend(checked.texts.into_iter().filter_map(|it| Some((it.domain, it.yaml?))));
    let loaded = heavy(move |_| Some((rules(published)?, rules(draft)?))).await?;
    let (published, draft) = loaded.ok_or_else(|| {
        let detail = "the rules of all domains together exceed what a pod loads; remove some";
        Problem::conflict("too-many-rules", detail)
    })?;
    Ok(RuleSets { published, draft })
}

/// Compiles texts that were compiled before, each alone. `None` if they are too many together.
fn rules(texts: Vec<(String, String)>) -> Option<Rules> {
    let source = |(name, text): (String, String)| Source { name, text: text.into_bytes() };
    let sources: Vec<_> = texts.into_iter().map(source).collect();
    load(&sources, Options::default()).ok().map(|loaded| loaded.rules)
}

/// Decides each line under both sets.
fn run(
    sets: &RuleSets,
    input: &ReplayInput,
    mappings: &[Mapping],
    cancel: &Cancel,
) -> Result<ReplayReport, Problem> {
    let format = LineFormat {
        domain: input.domain.as_deref(),
        descriptors: mappings,
        time_field: input.time_field.as_deref(),
        needs_time: true,
    };
    let mut comparison = Comparison::new(&sets.published, &sets.draft);
    let mut read = 0;
    let mut checked = 0;
    for (number, line) in (1..).zip(input.log.lines()) {
        let line = line.trim();
        if line.len() > LINE_BYTES_MAX {
            comparison.note_unreadable(number, || format!("longer than {LINE_BYTES_MAX} bytes"));
        } else if !line.is_empty() {
            read += format.work(line);
            comparison.line(number, line, &format).map_err(|fault| no_request(number, &fault))?;
        }
        let work = read + comparison.work();
        if work > WORK_MAX || comparison.is_full() {
            return Err(too_much(number, comparison.is_full()));
        }
        if work - checked > WORK_PER_CHECK {
            checked = work;
            if cancel.is_cancelled() {
                break;
            }
        }
    }
    Ok(comparison.report())
}

/// Answers a log that asks for more than one replay does. What was counted until then would not be
/// of the log.
fn too_much(line: usize, is_full: bool) -> Problem {
    let what = match is_full {
        true => format!("needs more than {KEYS_MAX} counts at a time"),
        false => "and those before it take more work than one replay does".to_owned(),
    };
    let message = format!("line {line} {what}; send fewer lines or descriptors at once");
    cannot_replay(vec![FieldFault::of("log", message)])
}

/// Answers a log whose lines stand for no request.
fn no_request(line: usize, fault: &FormatFault) -> Problem {
    let field = match fault {
        FormatFault::NoDomain => "domain",
        FormatFault::NoDescriptor | FormatFault::UnknownField { .. } => "descriptors",
    };
    cannot_replay(vec![FieldFault::of(field, format!("line {line} {fault}"))])
}

// The result of a replay under two sets of rules.

/// Rules and requests that a report lists.
const RULES_MAX: usize = 20;
const EXAMPLES_MAX: usize = 10;

/// Maximum number of keys that have counts at a time, of each set: about 100 bytes each.
const KEYS_MAX: usize = 1 << 18;

/// Maximum characters of a value in an example.
const VALUE_CHARS_MAX: usize = 200;

/// What the draft decides otherwise than what is published.
#[derive(Debug, Serialize, ToSchema)]
struct ReplayReport {
    /// Lines read, without blank ones.
    lines: u64,
    /// Requests decided.
    requests: u64,
    /// Of these, requests of domains in which neither set has a rule for the token.
    other_domains: u64,
    /// Requests that pass now and that the draft denies.
    newly_denied: u64,
    /// Requests that are denied now and that the draft passes.
    newly_passed: u64,
    /// Results of what is published.
    published: Totals,
    /// Results of the draft.
    draft: Totals,
    /// Rules whose results differ, those with the largest difference first; at most 20.
    rules: Vec<RuleResults>,
    /// The first different requests that are decided otherwise, at most 10.
    examples: Vec<Example>,
    /// Lines that could not be read.
    unreadable: u64,
    /// The first of them.
    first_unreadable: Vec<UnreadableLine>,
    /// Lines that lack a field of each descriptor, so that Envoy would not have asked.
    without_descriptor: u64,
    /// Lines that are older than one before them; they are decided at the newest time so far.
    out_of_order: u64,
    /// Time of the first request.
    #[schema(value_type = Option<String>, format = DateTime)]
    from: Option<String>,
    /// Time of the last request.
    #[schema(value_type = Option<String>, format = DateTime)]
    to: Option<String>,
}

/// Results of one set of rules.
#[derive(Debug, Serialize, ToSchema)]
struct Totals {
    /// Requests that passed.
    passed: u64,
    /// Requests that were denied.
    denied: u64,
}

/// Results of one rule in both sets.
#[derive(Debug, Serialize, ToSchema)]
struct RuleResults {
    /// Its path: domain and keys.
    rule: String,
    /// In what is published; null if no request met it there.
    published: Option<RuleTotals>,
    /// In the draft; null if no request met it there.
    draft: Option<RuleTotals>,
}

/// Descriptors that met a rule.
#[derive(Debug, PartialEq, Eq, Serialize, ToSchema)]
struct RuleTotals {
    /// Within the limit.
    passed: u64,
    /// Denied.
    denied: u64,
    /// Over the limit, but passed in shadow mode.
    shadow: u64,
}

/// Requests of the same descriptors that are decided otherwise.
#[derive(Debug, Serialize, ToSchema)]
struct Example {
    /// The number of the line of the first one, from 1.
    line: usize,
    /// Number of these requests.
    requests: u64,
    /// Its domain.
    domain: String,
    /// The entries of each descriptor, as in `user_id=7, path=/`.
    descriptors: Vec<String>,
    /// Whether the draft denies them.
    is_denied: bool,
}

/// A line that could not be read.
#[derive(Debug, Serialize, ToSchema)]
struct UnreadableLine {
    /// Its number, from 1.
    line: u64,
    /// What is wrong with it.
    why: String,
}

/// A replay under both sets.
struct Comparison<'r> {
    published: Replay<'r>,
    draft: Replay<'r>,
    domains: HashSet<&'r str>,
    other_domains: u64,
    newly_denied: u64,
    newly_passed: u64,
    examples: Vec<Example>,
}

// === impl Comparison ===

impl<'r> Comparison<'r> {
    fn new(published: &'r Rules, draft: &'r Rules) -> Self {
        Self {
            domains: published.domains().chain(draft.domains()).collect(),
            published: Replay::within(published, KEYS_MAX),
            draft: Replay::within(draft, KEYS_MAX),
            other_domains: 0,
            newly_denied: 0,
            newly_passed: 0,
            examples: Vec::new(),
        }
    }

    /// Decides a line under both sets.
    ///
    /// # Errors
    /// The format does not say which request the line stands for.
    fn line(
        &mut self,
        number: usize,
        line: &str,
        format: &LineFormat<'_>,
    ) -> Result<(), FormatFault> {
        let read = format.request(line, |at, request| self.request(number, at, request))?;
        if let Err(why) = read {
            self.note_unreadable(number, || why);
        }
        Ok(())
    }

    /// The work of deciding so far.
    fn work(&self) -> u64 {
        self.published.work + self.draft.work
    }

    /// Whether there was no room for a key.
    fn is_full(&self) -> bool {
        self.published.counts.uncounted + self.draft.counts.uncounted > 0
    }

    /// Notes a line that stands for no request.
    fn note_unreadable(&mut self, number: usize, why: impl FnOnce() -> String) {
        self.draft.counts.note_unreadable("", number as u64, why);
    }

    fn request(&mut self, number: usize, at: u64, request: &Request<'_>) {
        let before = self.published.request(at, request);
        let after = self.draft.request(at, request);
        self.other_domains += u64::from(!self.domains.contains(request.domain));
        match (before, after) {
            (Decided::Passed, Decided::Denied) => self.newly_denied += 1,
            (Decided::Denied, Decided::Passed) => self.newly_passed += 1,
            _ => return,
        }
        self.note_example(Example::new(number, request, after == Decided::Denied));
    }

    /// Counts a request with those of its descriptors, if there are some or there is room.
    fn note_example(&mut self, example: Example) {
        if let Some(known) = self.examples.iter_mut().find(|known| known.is_like(&example)) {
            known.requests += 1;
        } else if self.examples.len() < EXAMPLES_MAX {
            self.examples.push(example);
        }
    }

    fn report(self) -> ReplayReport {
        let published = &self.published.counts;
        let draft = &self.draft.counts;
        let unreadable = draft.first_unreadable.iter();
        let unreadable =
            unreadable.map(|it| UnreadableLine { line: it.line, why: it.why.clone() }).collect();
        ReplayReport {
            lines: draft.lines,
            requests: draft.requests,
            other_domains: self.other_domains,
            newly_denied: self.newly_denied,
            newly_passed: self.newly_passed,
            published: Totals::of(published),
            draft: Totals::of(draft),
            rules: compared(published, draft),
            unreadable: draft.unreadable,
            first_unreadable: unreadable,
            without_descriptor: draft.without_descriptor,
            out_of_order: draft.out_of_order,
            from: draft.span.map(|(from, _)| show_time(from)),
            to: draft.span.map(|(_, to)| show_time(to)),
            examples: self.examples,
        }
    }
}

/// The rules whose results differ.
fn compared(published: &ReplayCounts, draft: &ReplayCounts) -> Vec<RuleResults> {
    let mut rules: BTreeMap<&str, (Option<&RuleCounts>, Option<&RuleCounts>)> = BTreeMap::new();
    for (path, counts) in published.rules() {
        rules.entry(path).or_default().0 = Some(counts);
    }
    for (path, counts) in draft.rules() {
        rules.entry(path).or_default().1 = Some(counts);
    }
    let denied = |it: Option<&RuleCounts>| it.map_or(0, |it| it.over_limit);
    let mut rules: Vec<_> = rules.into_iter().filter(|(_, (a, b))| a != b).collect();
    rules.sort_by_key(|(_, (a, b))| std::cmp::Reverse(denied(*a).abs_diff(denied(*b))));
    rules.truncate(RULES_MAX);
    let totals =
        |it: &RuleCounts| RuleTotals { passed: it.ok, denied: it.over_limit, shadow: it.shadow };
    let results = rules.into_iter().map(|(rule, (published, draft))| RuleResults {
        rule: rule.to_owned(),
        published: published.map(totals),
        draft: draft.map(totals),
    });
    results.collect()
}

// === impl Totals ===

impl Totals {
    fn of(counts: &ReplayCounts) -> Self {
        Self { passed: counts.ok, denied: counts.over_limit }
    }
}

// === impl Example ===

impl Example {
    fn new(line: usize, request: &Request<'_>, is_denied: bool) -> Self {
        let short = |text: &str| text.chars().take(VALUE_CHARS_MAX).collect::<String>();
        let descriptors = request.descriptors.iter().map(|descriptor| {
            let entry = |it: &ratelease_rules::request::Entry<'_>| {
                format!("{}={}", short(it.key), short(it.value))
            };
            descriptor.entries.iter().map(entry).collect::<Vec<_>>().join(", ")
        });
        let domain = request.domain.to_owned();
        let descriptors = descriptors.collect();
        Self { line, requests: 1, domain, descriptors, is_denied }
    }

    fn is_like(&self, other: &Self) -> bool {
        let Self { domain, descriptors, is_denied, .. } = other;
        (&self.domain, &self.descriptors, &self.is_denied) == (domain, descriptors, is_denied)
    }
}
