//! A dry run on traffic: decides the requests of a log under the draft and under what is published.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock};

use axum::Json;
use axum::extract::State;
use ratelease_replay::{FormatFault, LineFormat, Mapping};
use ratelease_rules::{Options, Rules, Source, load};
use serde::Deserialize;
use tokio::task::spawn_blocking;
use utoipa::ToSchema;

use super::call::{WriteCall, check_domain};
use super::differences::published_hashes;
use super::problem::{CommonProblems, FieldFault, Problem};
use super::publishing::compile_all;
use super::replay_report::{Comparison, ReplayReport};
use super::{App, MIB};
use crate::auth::Caller;
use crate::rates::Places;
use crate::store::StoreError;

/// Maximum bytes of a body: some 100 000 lines.
const REPLAY_BYTES_MAX: usize = 32 * MIB;

/// Maximum number of replays at a time; each keeps a core busy. Further ones wait.
const REPLAYS_MAX: usize = 2;

/// Number of lines between looks at whether the client is still there.
const LINES_PER_CHECK: usize = 1024;

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

/// Set when the client has gone, or its time is over.
struct CancelOnDrop(Arc<AtomicBool>);

impl Drop for CancelOnDrop {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
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
    let place = REPLAYS.take(&call.caller.name).await;
    let is_cancelled = Arc::new(AtomicBool::new(false));
    let cancel = CancelOnDrop(Arc::clone(&is_cancelled));
    let replayed = spawn_blocking(move || {
        let _place = place;
        run(&sets, &input, &mappings, &is_cancelled)
    });
    let report = replayed.await.map_err(|error| StoreError::Internal(error.to_string()))??;
    drop(cancel);
    Ok(Json(report))
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
    let checked = compile_all(documents, changes).await?;
    draft.extend(checked.texts.into_iter().filter_map(|it| Some((it.domain, it.yaml?))));
    let loaded = spawn_blocking(move || Some((rules(published)?, rules(draft)?))).await;
    let loaded = loaded.map_err(|error| StoreError::Internal(error.to_string()))?;
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
    is_cancelled: &AtomicBool,
) -> Result<ReplayReport, Problem> {
    let format = LineFormat {
        domain: input.domain.as_deref(),
        descriptors: mappings,
        time_field: input.time_field.as_deref(),
        needs_time: true,
    };
    let mut comparison = Comparison::new(&sets.published, &sets.draft);
    for (at, line) in input.log.lines().enumerate() {
        if at % LINES_PER_CHECK == 0 && is_cancelled.load(Ordering::Relaxed) {
            break;
        }
        let line = line.trim();
        if line.len() > LINE_BYTES_MAX {
            comparison.note_unreadable(at + 1, || format!("longer than {LINE_BYTES_MAX} bytes"));
        } else if !line.is_empty() {
            comparison.line(at + 1, line, &format).map_err(|fault| no_request(at + 1, &fault))?;
        }
    }
    Ok(comparison.report())
}

/// Answers a log whose lines stand for no request.
fn no_request(line: usize, fault: &FormatFault) -> Problem {
    let field = match fault {
        FormatFault::NoDomain => "domain",
        FormatFault::NoDescriptor | FormatFault::UnknownField { .. } => "descriptors",
    };
    cannot_replay(vec![FieldFault::of(field, format!("line {line} {fault}"))])
}
