//! The routes that decide: `/json`, for people and scripts, in protobuf's JSON mapping, and
//! `/shouldAllow` and `/api/v1/rate_limit`, by who calls which endpoint.
//!
//! The port asks for no password, so every page open in a browser that reaches the port can send
//! requests to it. A page of another origin may send a form, text or a body without a type
//! anywhere; it may not send JSON unless the server allows it. So the content type has to be JSON
//! where a browser may be the sender, names and origins are checked as on the debug port, and
//! refunds have to be enabled (`docs/decisions/0025`). A query has no type: browsers may not send
//! it at all.

use std::sync::Arc;

use ::http::{Method, StatusCode};
use axum::extract::{Request, State};
use axum::response::Response;
use axum::routing::any;
use axum::{Extension, Router};
use http_body::Body as _;
use ratelease_rules::request::json as request_json;
use ratelease_rules::request::scoped::ScopedRequest;

use super::refusal::Refusal;
use super::{body, json, scoped};
use crate::admin::guard::{self, Guard};
use ratelease_server::request_error::RequestError;
use ratelease_server::service::{Answer, DecisionService, Peer};
use ratelease_server::trace::{Outcome, Span};
use ratelease_server::transport::{Route, Transport};

/// Who may ask for decisions over HTTP, and what for.
#[derive(Debug, Clone, Default)]
pub struct DecisionOptions {
    /// Refuses requests from pages of other origins.
    pub guard: Guard,
    /// Whether hits may be refunded over `/json`.
    pub refunds: bool,
    /// The domain of the rules by who calls which endpoint.
    pub scoped_domain: String,
}

/// The state of a route.
#[derive(Clone)]
struct Decider {
    route: Route,
    service: DecisionService,
    refunds: bool,
    scoped_domain: Arc<str>,
}

/// A request that was read; owns its text.
enum Parsed {
    Json(request_json::Request),
    Scoped(ScopedRequest),
}

/// The routes.
pub(super) fn routes(service: DecisionService, options: DecisionOptions) -> Router {
    let DecisionOptions { guard, refunds, scoped_domain } = options;
    let scoped_domain = Arc::from(scoped_domain);
    let mut routes = Router::new();
    for route in [Route::Json, Route::ShouldAllow, Route::RateLimit] {
        let (service, scoped_domain) = (service.clone(), Arc::clone(&scoped_domain));
        let decider = Decider { route, service, refunds, scoped_domain };
        routes = routes.route(route.path(), any(decide).with_state(decider));
    }
    guard.before(routes)
}

/// Returns 200 or 429 with the answer; else a status and a reason.
async fn decide(
    State(decider): State<Decider>,
    peer: Option<Extension<Peer>>,
    request: Request,
) -> Response {
    let peer = peer.map(|Extension(peer)| peer).unwrap_or_default();
    let (service, transport) = (&decider.service, Transport::Http(decider.route));
    let span = service.begin(transport, request.headers());
    let answered = service.catch_panic(transport, decider.answer(request, &peer, span.as_ref()));
    let answered = match &span {
        None => answered.await,
        Some(span) => Box::pin(span.around(answered)).await,
    };
    let answered = answered.unwrap_or_else(|error| Err(Refusal::from(error)));
    let response = answered.unwrap_or_else(|refusal| match decider.route {
        Route::Json => refusal.into_text(),
        Route::ShouldAllow | Route::RateLimit => refusal.into_problem(),
    });
    if let Some(span) = span {
        span.end(Outcome::Http(response.status().as_u16()));
    }
    response
}

// === impl Decider ===

impl Decider {
    async fn answer(
        &self,
        request: Request,
        peer: &Peer,
        span: Option<&Span>,
    ) -> Result<Response, Refusal> {
        let route = self.route;
        if !self.accepts_method_of(&request) {
            return Err(Refusal::method(route.method()));
        }
        if route == Route::RateLimit {
            if guard::may_be_browser(request.headers()) {
                let reason = "this request charges limits, so no browser may send it; use curl, \
                              or POST /shouldAllow";
                return Err(Refusal::new(StatusCode::FORBIDDEN, reason));
            }
            let query = request.uri().query().unwrap_or_default();
            let parsed = ScopedRequest::from_query(query).map_err(Refusal::faults)?;
            return Box::pin(self.decide(Parsed::Scoped(parsed), peer, span)).await;
        }
        body::check_type(request.headers())?;
        let reservation = self.service.reserve_body(Transport::Http(route), peer);
        let parsed = self.parse(&body::read(request.into_body(), &reservation).await?)?;
        // Boxed, so that an incomplete request does not hold the memory that a decision takes.
        Box::pin(self.decide(parsed, peer, span)).await
    }

    /// `/json` accepts any method with a body, as the reference does. A request to read it, as from
    /// a link, has none.
    fn accepts_method_of(&self, request: &Request) -> bool {
        let method = request.method();
        match self.route {
            Route::Json => {
                let reads = [Method::GET, Method::HEAD].contains(method);
                !reads || !request.body().is_end_stream()
            }
            route => method.as_str() == route.method(),
        }
    }

    fn parse(&self, body: &[u8]) -> Result<Parsed, Refusal> {
        if self.route == Route::ShouldAllow {
            return ScopedRequest::from_body(body).map(Parsed::Scoped).map_err(Refusal::faults);
        }
        let bad = |reason: String| Refusal::new(StatusCode::BAD_REQUEST, reason);
        let parsed = request_json::parse(body).map_err(bad)?;
        let refund = parsed.borrow().descriptors.iter().position(|it| it.refund && !self.refunds);
        match refund {
            None => Ok(Parsed::Json(parsed)),
            Some(at) => Err(Refusal::new(
                StatusCode::FORBIDDEN,
                format!(
                    "descriptor {at} gives hits back, which is refused over /json; \
                     set JSON_REFUNDS=true to allow it, or do so over gRPC"
                ),
            )),
        }
    }

    async fn decide(
        &self,
        parsed: Parsed,
        peer: &Peer,
        span: Option<&Span>,
    ) -> Result<Response, Refusal> {
        let request = match &parsed {
            Parsed::Json(request) => request.borrow(),
            Parsed::Scoped(request) => request.borrow(&self.scoped_domain),
        };
        let respond = |answer: &Answer<'_>| {
            if let Some(span) = span {
                span.note(&request, &answer.verdict);
            }
            match self.route {
                Route::Json => json::respond(answer),
                Route::ShouldAllow | Route::RateLimit => scoped::respond(&answer.verdict),
            }
        };
        // A call that need not wait needs no permit.
        let answered = match self.service.answer_at_once(&request, respond) {
            Some(answered) => answered,
            None => {
                let answer = self.service.answer(&request, |answer| respond(&answer));
                self.service.run(Transport::Http(self.route), peer, answer).await?
            }
        };
        answered.map_err(|error| self.undecided(error))
    }

    /// The answer to a request that could not be decided. The reference's status for an error of
    /// the store is that of `/json` alone.
    fn undecided(&self, error: RequestError) -> Refusal {
        match error {
            RequestError::Store(_) if self.route != Route::Json => {
                Refusal::new(StatusCode::SERVICE_UNAVAILABLE, error.to_string())
            }
            error => error.into(),
        }
    }
}
