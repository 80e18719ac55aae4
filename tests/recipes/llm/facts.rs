//! What Envoy 1.40 asks at the start and at the end of a request, however it goes. docs/llm.md has
//! these facts as a table.

use std::fs;
use std::time::Duration;

use envoy_types::pb::envoy::service::ratelimit::v3::RateLimitRequest;
use tempfile::TempDir;

use super::{FORMS, Form, Llm};
use crate::recipe::{Headers, directory, placed};
use crate::support::asked::Asked;
use crate::support::envoy::Envoy;

/// Routes beside the recipe's, by `x-route`, each with what its `route` has.
const ROUTES: [(&str, &str); 4] = [
    ("timeout", "cluster: app, timeout: 0.3s"),
    ("shadow", "cluster: app, request_mirror_policies: [{cluster: app}]"),
    ("redirect", "cluster: app, internal_redirect_policy: {max_internal_redirects: 1}"),
    ("nowhere", "cluster: nowhere"),
];

/// Tokens of an answer, unless its fault says otherwise.
const TOKENS: &str = "300";

#[tokio::test]
async fn an_answer_is_settled_with_its_usage() {
    let facts = Facts::start(true).await;
    for form in &FORMS {
        let used = form.prompt() + 300;
        assert_eq!(facts.of(form, "", "").await, (200, asked(form.estimate(), used)), "{form:?}");
    }
    // Envoy charges 1 000 000 000 at most at once, so a `max_tokens` has to be in range.
    for (max_tokens, estimate) in
        [("-1", 1_000_000), ("1e20", 1_000_000), ("null", 1000), ("\"9\"", 9)]
    {
        let body = format!(r#"{{"model":"large","max_tokens":{max_tokens},"stream":true}}"#);
        let form = Form { path: FORMS[2].path, body: &body };
        let (_, calls) = facts.of(&form, "", "503").await;
        assert_eq!(calls, asked(estimate + body.len() as u64 / 4, 0), "{max_tokens}");
    }
    // OpenAI names the usage of a stream only if it is asked to.
    let form = Form { path: FORMS[1].path, body: r#"{"max_tokens":400,"stream":true}"# };
    assert_eq!(facts.of(&form, "", "").await, (200, asked(408, 408)));
    facts.envoy.stop().await;
}

#[tokio::test]
async fn a_request_that_fails_is_settled_once() {
    let facts = Facts::start(true).await;
    let (whole, stream) = (&FORMS[0], &FORMS[3]);
    let (estimate, of_stream) = (whole.estimate(), stream.estimate());

    // The provider's errors cost nothing; Envoy's retry is within the one request.
    assert_eq!(facts.of(whole, "", "503").await, (503, asked(estimate, 0)));
    assert_eq!(facts.llm.calls().await, 2);
    let retried = facts.of(whole, "", "503-once").await;
    assert_eq!(retried, (200, asked(estimate, whole.prompt() + 300)));
    assert_eq!(facts.llm.calls().await, 4);
    assert_eq!(facts.of(whole, "nowhere", "").await, (503, asked(estimate, 0)));

    // Where no usage arrives, the end is the estimate.
    assert_eq!(facts.of(whole, "", "break").await, (502, asked(estimate, estimate)));
    assert_eq!(facts.of(stream, "", "break").await, (0, asked(of_stream, of_stream)));
    for (form, delay, status) in [(whole, "1", 504), (stream, "1", 0)] {
        let headers = [("x-route", "timeout"), ("x-llm-delay", delay)];
        let expected = (status, asked(form.estimate(), form.estimate()));
        assert_eq!(facts.sent(form, &headers, 2).await, expected, "{form:?}");
    }
    for form in [whole, stream] {
        let headers = [("x-user-id", "alice"), ("x-llm-delay", "60")];
        drop(form.begin(facts.envoy.ingress, &headers, &facts.llm).await);
        assert_eq!(facts.calls(2).await, asked(form.estimate(), form.estimate()), "{form:?}");
    }

    // A copy is not asked for; a redirect that Envoy follows is a request of its own.
    let before = facts.llm.calls().await;
    let shadowed = facts.of(whole, "shadow", "").await;
    assert_eq!(shadowed, (200, asked(estimate, whole.prompt() + 300)));
    facts.llm.until_called(before + 2).await;
    let headers = [("x-route", "redirect"), ("x-llm-fault", "redirect")];
    let (_, calls) = facts.sent(whole, &headers, 4).await;
    assert_eq!(calls, [asked(estimate, 0), asked(estimate, 0)].concat());
    facts.envoy.stop().await;
}

#[tokio::test]
async fn a_request_that_the_limiter_refuses_or_fails_has_an_end_too() {
    let form = &FORMS[0];
    let used = form.prompt() + 300;
    for (failure_mode_deny, status, end) in [(true, 500, 0), (false, 200, used)] {
        let facts = Facts::start(failure_mode_deny).await;
        let denied = facts.sent(form, &[("x-user-id", "/denied")], 2).await;
        assert_eq!(denied, (429, asked(form.estimate(), 0)));
        let headers = [("x-user-id", "/broken"), ("x-llm-tokens", TOKENS)];
        let broken = facts.sent(form, &headers, 2).await;
        assert_eq!(broken, (status, asked(form.estimate(), end)), "{failure_mode_deny}");
        // Envoy counts the failure at the start, and not the one at the end.
        assert_eq!(facts.envoy.verdicts().await.error, 1);
        facts.envoy.stop().await;
    }
}

#[tokio::test]
async fn a_client_that_leaves_before_the_limiter_answers_has_no_end() {
    let facts = Facts::start(true).await;
    let client = FORMS[0].send(facts.envoy.ingress, &[("x-user-id", "/slow")]).await;
    facts.envoy.until("asking", async || facts.asked.count() == 1).await;
    drop(client);
    let left = "http.ingress.downstream_cx_destroy_remote_active_rq";
    facts.envoy.until("left", async || facts.envoy.stat(left).await == Some(1)).await;
    assert_eq!(facts.calls(1).await, [format!("start {}", FORMS[0].estimate())]);
    assert_eq!(facts.llm.calls().await, 0);
    facts.envoy.stop().await;
}

/// The calls of a request.
fn asked(start: u64, end: u64) -> Vec<String> {
    vec![format!("start {start}"), format!("end {end}")]
}

/// The recipe's Envoy, with a limiter that records and a provider.
struct Facts {
    envoy: Envoy,
    llm: Llm,
    asked: Asked,
}

impl Facts {
    async fn start(failure_mode_deny: bool) -> Self {
        let (asked, llm) = (Asked::default(), Llm::start().await);
        let text = fs::read_to_string(directory("llm-holds").join("envoy.yaml")).unwrap();
        let bootstrap = placed(&with_routes(&text), asked.serve().await, llm.address);
        let deny = format!("failure_mode_deny: {failure_mode_deny}");
        let bootstrap = bootstrap.replace("failure_mode_deny: true", &deny);
        let envoy = Envoy::run(TempDir::new().unwrap(), &bootstrap, 1, "ingress").await;
        Self { envoy, llm, asked }
    }

    /// Sends a request by a route; returns the status, or 0 of an answer that breaks off, and what
    /// Envoy has asked.
    async fn of(&self, form: &Form<'_>, route: &str, fault: &str) -> (u16, Vec<String>) {
        let headers = [("x-route", route), ("x-llm-tokens", TOKENS), ("x-llm-fault", fault)];
        self.sent(form, &headers, 2).await
    }

    async fn sent(
        &self,
        form: &Form<'_>,
        headers: Headers<'_>,
        calls: usize,
    ) -> (u16, Vec<String>) {
        let user = ("x-user-id", "alice");
        let has_user = headers.iter().any(|(name, _)| *name == user.0);
        let headers: Vec<_> = headers.iter().copied().chain((!has_user).then_some(user)).collect();
        let answer = form.post(self.envoy.ingress, &headers).await;
        (answer.map_or(0, |answer| answer.status), self.calls(calls).await)
    }

    /// The calls of a request, in short, once there are this many.
    async fn calls(&self, calls: usize) -> Vec<String> {
        self.envoy.until("asking", async || self.asked.count() >= calls).await;
        // One more would be as quick as the last: no event says that none comes.
        tokio::time::sleep(Duration::from_millis(50)).await;
        let calls = self.asked.requests();
        assert!(calls.windows(2).all(|two| id(&two[0]) == id(&two[1])), "another id: {calls:?}");
        calls.iter().map(in_short).collect()
    }
}

/// The bootstrap of the recipe with [`ROUTES`] before its route.
fn with_routes(bootstrap: &str) -> String {
    let (before, rest) = bootstrap.split_once("- match: {prefix: /}").expect("the route");
    let (own, after) = rest.split_once("  clusters:\n").expect("clusters after the route");
    let (_, limits) = own.split_once("typed_per_filter_config:").expect("limits of the route");
    let routes = ROUTES.map(|(name, route)| {
        let header = format!("{{name: x-route, string_match: {{exact: {name}}}}}");
        format!(
            "- match: {{prefix: /, headers: [{header}]}}\n{indent}  route: {{{route}}}\n\
             {indent}  typed_per_filter_config:{limits}{indent}",
            indent = " ".repeat(24),
            limits = limits.trim_end().to_owned() + "\n"
        )
    });
    let nowhere = "    - {name: nowhere, type: STATIC, connect_timeout: 1s}\n";
    let routes = routes.concat();
    format!("{before}{routes}- match: {{prefix: /}}{own}  clusters:\n{nowhere}{after}")
}

/// `start` or `end` with the hits of the call's only descriptor.
fn in_short(request: &RateLimitRequest) -> String {
    assert_eq!(request.descriptors.len(), 1, "{request:?}");
    let descriptor = &request.descriptors[0];
    let is_end = descriptor.entries.iter().any(|entry| entry.key == "ratelease.settle");
    let hits = descriptor.hits_addend.expect("hits of the descriptor").value;
    format!("{} {hits}", if is_end { "end" } else { "start" })
}

fn id(request: &RateLimitRequest) -> Option<&str> {
    let mut entries = request.descriptors.iter().flat_map(|descriptor| &descriptor.entries);
    entries.find(|entry| entry.key == "request_id").map(|entry| &*entry.value)
}
