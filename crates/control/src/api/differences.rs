//! What two states of the rules differ in: a version, or the draft.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::App;
use super::call::{QueryOf, check_text};
use super::paging::page_size;
use super::problem::{CommonProblems, Problem};
use super::publishing::read_text;
use crate::auth::Caller;
use crate::document::{Difference, Document, RuleChange, difference};

/// Which states to compare.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(super) struct DifferencesQuery {
    /// The earlier state: a version, 0 for no rules; by default, the version that is published.
    from: Option<i64>,
    /// The later state: a version; by default, the draft.
    to: Option<i64>,
    /// Only this domain.
    domain: Option<String>,
    /// At most so many rules, up to 1000; 100 by default.
    #[param(minimum = 1, maximum = 1000)]
    limit: Option<usize>,
}

/// What differs.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct Differences {
    /// The domains that differ.
    domains: Vec<DomainDifference>,
    /// Whether there are more rules that differ than are listed.
    is_truncated: bool,
}

/// What differs in one domain.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct DomainDifference {
    /// The domain.
    domain: String,
    /// Number of rules that the later state alone has.
    added: usize,
    /// Number of rules with other settings.
    changed: usize,
    /// Number of rules that the earlier state alone has.
    removed: usize,
    /// Whether rules that both states have are in another order, or `defaults` differ.
    defaults_or_order: bool,
    /// The rules; fewer than the numbers say if the answer has reached its limit.
    rules: Vec<RuleChange>,
}

/// The rules of one domain in one state.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Content {
    /// A text that is or was published, by its hash.
    Published(String),
    /// A draft that is not published.
    Draft,
}

/// The domains of a state that have rules.
type Contents = BTreeMap<String, Content>;

/// Compare versions, or a version with the draft
#[utoipa::path(get, path = "/v1/differences", params(DifferencesQuery), responses(
    (status = 200, description = "What differs", body = Differences), CommonProblems))]
pub(super) async fn read(
    State(app): State<Arc<App>>,
    caller: Caller,
    QueryOf(query): QueryOf<DifferencesQuery>,
) -> Result<Json<Differences>, Problem> {
    if let Some(domain) = &query.domain {
        check_text("domain", domain)?;
        caller.need_domain(domain)?;
    }
    let mut room = page_size(query.limit)?;
    check_version(&app, query.from, 0).await?;
    check_version(&app, query.to, 1).await?;
    let before = version_contents(&app, query.from.unwrap_or(i64::MAX)).await?;
    let after = match query.to {
        Some(version) => version_contents(&app, version).await?,
        None => draft_contents(&app).await?,
    };
    let is_wanted = |domain: &String| match &query.domain {
        Some(wanted) => wanted == domain,
        None => caller.may_use(domain),
    };
    let names: BTreeSet<_> = before.keys().chain(after.keys()).filter(|it| is_wanted(it)).collect();
    let mut found = Differences { domains: Vec::new(), is_truncated: false };
    for name in names {
        let (before, after) = (before.get(name), after.get(name));
        if before == after {
            continue;
        }
        let before = document(&app, name, before).await?;
        let difference = difference(&before, &document(&app, name, after).await?);
        if !difference.is_empty() {
            found.add(difference, &mut room);
        }
    }
    Ok(Json(found))
}

/// Refuses a version that there is not.
async fn check_version(app: &App, version: Option<i64>, first: i64) -> Result<(), Problem> {
    match version {
        Some(version) if !(first..=app.store.last_version().await?).contains(&version) => {
            Err(Problem::not_found(format!("there is no version {version}")))
        }
        _ => Ok(()),
    }
}

/// What a version published.
pub(super) async fn published_hashes(
    app: &App,
    version: i64,
) -> Result<BTreeMap<String, String>, Problem> {
    let state = app.store.state_at(version).await?.into_iter();
    Ok(state.filter_map(|row| Some((row.domain, row.hash?))).collect())
}

async fn version_contents(app: &App, version: i64) -> Result<Contents, Problem> {
    let hashes = published_hashes(app, version).await?.into_iter();
    Ok(hashes.map(|(domain, hash)| (domain, Content::Published(hash))).collect())
}

/// The draft: of domains without changes, what is published.
async fn draft_contents(app: &App) -> Result<Contents, Problem> {
    let mut contents = version_contents(app, i64::MAX).await?;
    let changed = app.store.domains().await?.into_iter().filter(|it| it.is_changed);
    contents.extend(changed.map(|domain| (domain.name, Content::Draft)));
    Ok(contents)
}

async fn document(app: &App, domain: &str, content: Option<&Content>) -> Result<Document, Problem> {
    match content {
        None => Ok(Document { domain: domain.to_owned(), ..Document::default() }),
        Some(Content::Published(hash)) => read_text(app.store.text(hash).await?).await,
        Some(Content::Draft) => Ok(app.store.draft(domain).await?.document),
    }
}

// === impl Differences ===

impl Differences {
    /// Adds a domain, with as many of its rules as there is `room` for.
    fn add(&mut self, difference: Difference, room: &mut usize) {
        let Difference { domain, mut rules, defaults_or_order } = difference;
        let count = |is: fn(&RuleChange) -> bool| rules.iter().filter(|it| is(it)).count();
        let (added, removed) = (count(|it| it.before.is_none()), count(|it| it.after.is_none()));
        let changed = rules.len() - added - removed;
        self.is_truncated |= rules.len() > *room;
        rules.truncate(*room);
        *room -= rules.len();
        let domain = DomainDifference { domain, added, changed, removed, defaults_or_order, rules };
        self.domains.push(domain);
    }
}
