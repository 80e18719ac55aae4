//! Approvals: an administrator has a domain ask for them, and then its drafts are published only
//! after people other than their authors have approved exactly that content.

use std::sync::Arc;

use axum::extract::State;
use axum::response::Response;
use axum::routing::get;
use axum::{Json, Router};
use http::StatusCode;
use serde::{Deserialize, Serialize};
use utoipa::{OpenApi, ToSchema};

use super::App;
use super::call::{
    CommonProblems, Ending, Problem, QueryOf, WriteCall, WriteQuery, check_new_domain, check_text,
};
use super::pages::{PAGE_MAX, Page, PageQuery, page_size};
use super::publish::draft_etag;
use crate::auth::{Access, Caller};
use crate::document::FieldFault;
use crate::store::{APPROVALS_MAX, ApprovalRow, DraftApprovals, DraftAuthor};

/// The approvals of the draft of a domain.
#[derive(Debug, Serialize, ToSchema)]
struct DomainApprovals {
    /// The domain.
    domain: String,
    /// How many approvals it asks for.
    approvals: i64,
    /// Whether the draft has changes that are not published.
    is_changed: bool,
    /// The `If-Match` with which exactly this draft is approved; `/v1/check` of this domain alone
    /// has the same.
    etag: String,
    /// Who changed the draft since it was published.
    authors: Vec<String>,
    /// Who approved the draft as it is now.
    approved_by: Vec<ApprovalRow>,
    /// Whether these are enough.
    is_approved: bool,
}

/// The domains that ask for approvals.
#[derive(Debug, Serialize, ToSchema)]
struct ApprovalList {
    /// By name.
    domains: Vec<DomainApprovals>,
    /// `after` of the next page, if there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    next: Option<String>,
}

/// Domains that are read together.
const PART: usize = 50;

/// The draft that is approved.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct ApprovalInput {
    /// The domain.
    domain: String,
}

/// How many approvals a domain asks for.
#[derive(Debug, Deserialize, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct ApprovalsInput {
    /// The domain, which need not have rules yet.
    domain: String,
    /// How many, from 0 to 5.
    #[schema(minimum = 0, maximum = 5)]
    approvals: i64,
}

/// Describes the calls.
#[derive(OpenApi)]
#[openapi(paths(list, approve, set))]
pub struct Calls;

/// The calls.
pub fn calls() -> Router<Arc<App>> {
    Router::new().route("/v1/approvals", get(list).post(approve).put(set))
}

/// List domains that ask for approvals
#[utoipa::path(get, operation_id = "list_approvals", tag = "approvals", path = "/v1/approvals",
    params(PageQuery), responses((status = 200, description = "Those of the domains of the token",
    body = ApprovalList), CommonProblems))]
async fn list(
    State(app): State<Arc<App>>,
    caller: Caller,
    QueryOf(query): QueryOf<PageQuery>,
) -> Result<Json<ApprovalList>, Problem> {
    let mut page = Page::new(page_size(query.limit.or(Some(PAGE_MAX)))?);
    let after = query.after.unwrap_or_default();
    check_text("after", &after)?;
    let store = app.lists();
    while let Some(asked) = page.wants(PART) {
        let last = page.last().map_or(&*after, |it: &DomainApprovals| &*it.domain);
        let found = store.domains_with_approvals(caller.domains(), last, asked).await?;
        page.note_part(asked, found.len());
        for domain in found {
            if !page.has_room() {
                break;
            }
            let found = store.approvals(&domain.name).await?.unwrap_or_default();
            page.add(DomainApprovals::new(domain.name, domain.is_changed, found));
        }
    }
    let (domains, next) = page.end(|it| it.domain.clone());
    Ok(Json(ApprovalList { domains, next }))
}

/// Approve a draft
///
/// `If-Match` names the approved draft; a later change of the draft voids the approval. The authors
/// of the draft cannot approve it, nor can tokens that they had the API make.
#[utoipa::path(post, operation_id = "approve", tag = "approvals", path = "/v1/approvals",
    params(("If-Match" = String, Header), WriteQuery), request_body = ApprovalInput,
    responses((status = 200, description = "Approved", body = DomainApprovals), CommonProblems))]
async fn approve(State(app): State<Arc<App>>, call: WriteCall) -> Result<Response, Ending> {
    let ApprovalInput { domain } = call.json()?;
    call.caller.need_domain(&domain)?;
    call.matches_exactly("")?; // without the header the request is refused at once
    let mut write = call.begin(&app).await?;
    let is_changed = write.draft_state(&domain).await?.0;
    let found = write.approvals(&domain).await?.filter(|_| is_changed);
    let found = found.ok_or_else(|| {
        let name = ratelease_rules::excerpt(&domain);
        let detail = format!("the draft of '{name}' has no changes that could be approved");
        Problem::conflict("nothing-to-approve", detail)
    })?;
    let etag = draft_etag([(&*domain, found.changed)]);
    if !call.matches_exactly(&etag)? {
        let detail = "the draft changed since you looked at it; look at it again";
        return Err(Problem::new(StatusCode::PRECONDITION_FAILED, "changed", detail).into());
    }
    refuse_authors(&call.caller, &found.authors)?;
    write.approve(&domain, found.changed).await?;
    let subject = format!("{domain}: change {}", found.changed);
    write.note_action("draft.approve", &subject).await?;
    let found = write.approvals(&domain).await?.unwrap_or_default();
    let view = DomainApprovals::new(domain, is_changed, found);
    call.finish(&app, write, StatusCode::OK, None, &view).await
}

/// Refuses an approval by an author of the draft, with whatever token.
fn refuse_authors(caller: &Caller, authors: &[DraftAuthor]) -> Result<(), Problem> {
    if authors.iter().all(|it| it.person != caller.person) {
        return Ok(());
    }
    let detail = "you changed this draft, or a token did that you made; another person has to \
                  approve it";
    Err(Problem::forbidden(detail))
}

/// Have a domain ask for approvals
#[utoipa::path(put, operation_id = "set_approvals", tag = "approvals", path = "/v1/approvals",
    params(WriteQuery), request_body = ApprovalsInput, responses(
    (status = 200, description = "Set; for access admin", body = ApprovalsInput), CommonProblems))]
async fn set(State(app): State<Arc<App>>, call: WriteCall) -> Result<Response, Ending> {
    call.caller.need(Access::Admin)?;
    let input: ApprovalsInput = call.json()?;
    check_new_domain(&input.domain)?;
    if !(0..=APPROVALS_MAX).contains(&input.approvals) {
        let fault = format!("expected a whole number from 0 to {APPROVALS_MAX}");
        let fault = FieldFault::of("approvals", fault);
        return Err(Problem::faults("nothing was set", vec![fault]).into());
    }
    let mut write = call.begin(&app).await?;
    let owner = write.approvals(&input.domain).await?.map(|it| it.owner).unwrap_or_default();
    if !owner.is_empty() && input.approvals > 0 {
        let detail = format!(
            "the domain is defined by the RateLimitRules {owner} of Kubernetes: who may write that \
             object publishes it, and reviews are where the object comes from"
        );
        return Err(Problem::conflict("defined-by-object", detail).into());
    }
    write.set_approvals(&input.domain, input.approvals).await?;
    let subject = format!("{}: {}", input.domain, input.approvals);
    write.note_action("approvals.set", &subject).await?;
    call.finish(&app, write, StatusCode::OK, None, &input).await
}

// === impl DomainApprovals ===

impl DomainApprovals {
    fn new(domain: String, is_changed: bool, found: DraftApprovals) -> Self {
        let given = i64::try_from(found.given.len()).unwrap_or(i64::MAX);
        Self {
            approvals: found.needed,
            is_changed,
            etag: draft_etag([(&*domain, found.changed)]),
            authors: found.authors.into_iter().map(|it| it.name).collect(),
            is_approved: given >= found.needed,
            approved_by: found.given,
            domain,
        }
    }
}
