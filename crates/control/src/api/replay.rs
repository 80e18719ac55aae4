//! A dry run on traffic: decides the requests of a log under the draft and under what is published.

use std::sync::{Arc, LazyLock};

use axum::Json;
use axum::extract::State;
use ratelease_replay::{FormatFault, LineFormat, Mapping};
use ratelease_rules::{Options, Rules, Source, load};
use serde::Deserialize;
use utoipa::ToSchema;

use super::call::{WriteCall, check_domain};
use super::differences::published_hashes;
use super::problem::{CommonProblems, FieldFault, Problem};
use super::publishing::compile_all;
use super::replay_report::{Comparison, KEYS_MAX, ReplayReport};
use super::{App, MIB};
use crate::auth::Caller;
use crate::rates::Places;
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
static REPLAYS: LazyLock<Places> = LazyLock::new(|| Places::new(REPLAYS_MAX, 1));

/// A log, and how its lines become requests, as for `ratectl replay`.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct ReplayInput {
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

/// Replay a log under the draft
///
/// A dry run on traffic: how many requests of the log the draft decides otherwise than what is
/// published. Each line is decided at its own time, by counts that begin empty.
#[utoipa::path(post, path = "/v1/replay", request_body = ReplayInput, responses(
    (status = 200, description = "What would change", body = ReplayReport), CommonProblems))]
pub(super) async fn replay(
    State(app): State<Arc<App>>,
    call: WriteCall<REPLAY_BYTES_MAX>,
) -> Result<Json<ReplayReport>, Problem> {
    let input: ReplayInput = call.json()?;
    if let Some(domain) = &input.domain {
        check_domain(domain)?;
        call.caller.need_domain(domain)?;
    }
    let mappings = mappings(&input.descriptors)?;
    let sets = rule_sets(&app, &call.caller).await?;
    work::hold(REPLAYS.take(&call.caller.name).await);
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
    Problem::faults("the log cannot be replayed; mend each field", faults)
}

/// Loads what is published and the draft, of the domains that the caller may use.
async fn rule_sets(app: &App, caller: &Caller) -> Result<RuleSets, Problem> {
    let hashes = published_hashes(app, i64::MAX).await?;
    let (mut published, mut draft) = (Vec::new(), Vec::new());
    let (mut documents, mut changes) = (Vec::new(), Vec::new());
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
    let (mut read, mut checked) = (0, 0);
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
