//! Starts and ends of requests that Envoy 1.40 reports, however a request goes: by its access log,
//! and by a second call. docs/llm.md has these facts as a table.

use std::fs;
use std::time::Duration;

use envoy_types::pb::envoy::service::ratelimit::v3::RateLimitRequest;
use tempfile::TempDir;

use super::log::{Log, LogEntry};
use super::{FORMS, Form, Llm};
use crate::recipe::{Headers, directory, placed};
use crate::support::asked::Asked;
use crate::support::envoy::Envoy;
use crate::support::http::Client;

/// Routes beside the recipe's, by `x-route`, each with what its `route` has.
const ROUTES: [(&str, &str); 4] = [
    ("timeout", "cluster: app, timeout: 0.3s"),
    ("shadow", "cluster: app, request_mirror_policies: [{cluster: app}]"),
    ("redirect", "cluster: app, internal_redirect_policy: {max_internal_redirects: 1}"),
    ("nowhere", "cluster: nowhere"),
];

/// What the recipes take an answer to have where a request names no maximum.
const MOST: u64 = 4096;

/// Tokens of an answer, unless its fault says otherwise.
const TOKENS: &str = "300";

/// How Envoy reports ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    /// By its access log, as in llm-holds.
    Log,
    /// By a second call of a filter of its own, as in llm-tokens, whose starts have 0 hits.
    Call,
}

/// Hits of the starts and of the ends of a request.
#[derive(Debug, PartialEq, Eq)]
struct Told {
    starts: Vec<u64>,
    ends: Vec<u64>,
}

const WAYS: [Way; 2] = [Way::Log, Way::Call];

#[tokio::test]
async fn an_answer_is_settled_with_its_usage() {
    for way in WAYS {
        let facts = Facts::start(way, true).await;
        for form in &FORMS {
            let told = facts.told(&[form.estimate()], &[form.prompt() + 300]);
            assert_eq!(facts.of(form, "", "").await, (200, told), "{form:?}");
        }
        // Envoy charges 1 000 000 000 at most at once, so a `max_tokens` has to be in range.
        for (max_tokens, estimate) in
            [("-1", MOST), ("0", MOST), ("null", MOST), ("9223372036854775807", 1_000_000)]
        {
            let body = format!(r#"{{"model":"large","max_tokens":{max_tokens},"stream":true}}"#);
            let form = Form { path: FORMS[2].path, body: &body };
            let (_, told) = facts.of(&form, "", "503").await;
            let expected = facts.told(&[estimate + body.len() as u64 / 4], &[0]);
            assert_eq!(told, expected, "{max_tokens}");
        }
        // OpenAI names the usage of a stream only if it is asked to, which Envoy does.
        let form = Form { path: FORMS[1].path, body: r#"{"max_tokens":400,"stream":true}"# };
        let sent = (form.body.len() + r#""stream_options":{"include_usage":true},"#.len()) as u64;
        let told = facts.told(&[sent / 4 + 400], &[sent / 5 + 300]);
        assert_eq!(facts.of(&form, "", "").await, (200, told));
        facts.envoy.stop().await;
    }
}

#[tokio::test]
async fn a_request_that_fails_is_settled_once() {
    for way in WAYS {
        let facts = Facts::start(way, true).await;
        let (whole, stream) = (&FORMS[0], &FORMS[3]);
        let (estimate, of_stream) = (whole.estimate(), stream.estimate());
        let used = whole.prompt() + 300;

        // The provider's errors cost nothing; Envoy's retry is within the one request.
        let nothing = || facts.told(&[estimate], &[0]);
        assert_eq!(facts.of(whole, "", "503").await, (503, nothing()));
        assert_eq!(facts.llm.calls().await, 2);
        let retried = facts.of(whole, "", "503-once").await;
        assert_eq!(retried, (200, facts.told(&[estimate], &[used])));
        assert_eq!(facts.llm.calls().await, 4);
        assert_eq!(facts.of(whole, "nowhere", "").await, (503, nothing()));

        // Where no usage arrives, the end is what the answer may have had.
        let broken = facts.of(whole, "", "break").await;
        assert_eq!(broken, (502, facts.told(&[estimate], &[whole.cut()])));
        let broken = facts.of(stream, "", "break").await;
        assert_eq!(broken, (0, facts.told(&[of_stream], &[stream.cut()])));
        for (form, delay, status) in [(whole, "1", 504), (stream, "1", 0)] {
            let headers = [("x-route", "timeout"), ("x-llm-delay", delay)];
            let told = facts.told(&[form.estimate()], &[form.cut()]);
            assert_eq!(facts.sent(form, &headers, (1, 1)).await, (status, told), "{form:?}");
        }
        for form in [whole, stream] {
            let headers = [("x-user-id", "alice"), ("x-llm-delay", "60")];
            drop(form.begin(facts.envoy.ingress, &headers, &facts.llm).await);
            let told = facts.told(&[form.estimate()], &[form.cut()]);
            assert_eq!(facts.seen((1, 1)).await, told, "{form:?}");
        }

        // A copy is not asked for; a redirect that Envoy follows is a request of its own.
        let before = facts.llm.calls().await;
        let shadowed = facts.of(whole, "shadow", "").await;
        assert_eq!(shadowed, (200, facts.told(&[estimate], &[used])));
        facts.llm.until_called(before + 2).await;
        let headers = [("x-route", "redirect"), ("x-llm-fault", "redirect")];
        let (_, told) = facts.sent(whole, &headers, (2, 2)).await;
        assert_eq!(told, facts.told(&[estimate; 2], &[0; 2]));
        facts.envoy.stop().await;
    }
}

#[tokio::test]
async fn a_request_that_the_limiter_refuses_or_fails_has_an_end_too() {
    let form = &FORMS[0];
    let used = form.prompt() + 300;
    for (way, failure_mode_deny, status, end) in [
        (Way::Log, true, 500, 0),
        (Way::Log, false, 200, used),
        (Way::Call, true, 500, 0),
        (Way::Call, false, 200, used),
    ] {
        let facts = Facts::start(way, failure_mode_deny).await;
        // The log has no entry of a denied request.
        let ends: &[u64] = if way == Way::Log { &[] } else { &[0] };
        let denied = facts.sent(form, &[("x-user-id", "/denied")], (1, ends.len())).await;
        assert_eq!(denied, (429, facts.told(&[form.estimate()], ends)), "{way:?}");
        let headers = [("x-user-id", "/broken"), ("x-llm-tokens", TOKENS)];
        let broken = facts.sent(form, &headers, (1, 1)).await;
        let told = facts.told(&[form.estimate()], &[end]);
        assert_eq!(broken, (status, told), "{way:?} {failure_mode_deny}");
        // Envoy counts the failure at the start, and not the one at the end.
        assert_eq!(facts.envoy.verdicts().await.error, 1);
        facts.envoy.stop().await;
    }
}

#[tokio::test]
async fn a_client_that_leaves_before_the_limiter_answers_costs_nothing() {
    for way in WAYS {
        let facts = Facts::start(way, true).await;
        let client = FORMS[0].send(facts.envoy.ingress, &[("x-user-id", "/slow")]).await;
        facts.envoy.until("asking", async || facts.asked.count() == 1).await;
        drop(client);
        let told = facts.told(&[FORMS[0].estimate()], &[0]);
        assert_eq!(facts.seen((1, 1)).await, told, "{way:?}");
        assert_eq!(facts.llm.calls().await, 0);
        facts.envoy.stop().await;
    }
}

#[tokio::test]
async fn a_client_cannot_choose_the_id_of_a_request() {
    // As in the sidecar of a mesh, where a client chooses `x-request-id`.
    let change = [("use_remote_address: true", "use_remote_address: false")];
    let facts = Facts::start_with(Way::Log, &change).await;
    for _ in 0..2 {
        let headers = [("x-request-id", "chosen"), ("ratelease.id", "chosen")];
        let answer = FORMS[0].post(facts.envoy.ingress, &with_user(&headers)).await.unwrap();
        assert_eq!(answer.status, 200);
    }
    facts.envoy.until("logging", async || facts.log.ends().len() == 2).await;
    let started: Vec<_> = facts.asked.requests().iter().map(id).collect();
    let ended: Vec<_> = facts.log.ends().into_iter().filter_map(|end| end.id).collect();
    assert_eq!(started, ended);
    assert!(started[0] != started[1] && started.iter().all(|id| id != "chosen"), "{started:?}");
    facts.envoy.stop().await;
}

#[tokio::test]
async fn a_request_that_runs_gives_signs_of_life() {
    let often = [("access_log_flush_interval: 10s", "access_log_flush_interval: 0.1s")];
    let facts = Facts::start_with(Way::Log, &often).await;
    let headers = [("x-user-id", "alice"), ("x-llm-delay", "60")];
    let client = FORMS[0].begin(facts.envoy.ingress, &headers, &facts.llm).await;
    let signs = async || facts.log.entries().len() >= 3;
    facts.envoy.until("giving signs of life", signs).await;
    let id = id(&facts.asked.requests()[0]);
    let is_sign = |entry: &LogEntry| !entry.is_end && entry.id.as_ref() == Some(&id);
    assert!(facts.log.entries().iter().all(is_sign), "{:?}", facts.log.entries());
    drop(client);
    facts.envoy.until("logging its end", async || facts.log.ends().len() == 1).await;
    assert_eq!(facts.log.ends()[0].id, Some(id));
    facts.envoy.stop().await;
}

#[tokio::test]
async fn a_request_that_no_filter_has_seen_is_logged_without_an_id() {
    let facts = Facts::start(Way::Log, true).await;
    let mut client = Client::connect(facts.envoy.ingress).await.unwrap();
    client.write(b"GET / HTTP/1.1\r\nhost: test\r\nbad header\r\n\r\n").await.unwrap();
    assert_eq!(client.answer().await.unwrap().status, 400);
    facts.envoy.until("logging", async || !facts.log.entries().is_empty()).await;
    assert_eq!(facts.log.entries(), [LogEntry { id: None, hits: Some(0), is_end: true }]);
    facts.envoy.stop().await;
}

/// The recipe's Envoy, with a limiter that records and a provider.
struct Facts {
    way: Way,
    envoy: Envoy,
    llm: Llm,
    asked: Asked,
    log: Log,
}

impl Facts {
    async fn start(way: Way, failure_mode_deny: bool) -> Self {
        let deny = format!("failure_mode_deny: {failure_mode_deny}");
        Self::start_with(way, &[("failure_mode_deny: true", &deny)]).await
    }

    /// Starts the recipe of this way. Another part takes the place of each of these parts of its
    /// bootstrap.
    async fn start_with(way: Way, changes: &[(&str, &str)]) -> Self {
        let recipe = if way == Way::Log { "llm-holds" } else { "llm-tokens" };
        let (asked, log, llm) = (Asked::default(), Log::default(), Llm::start().await);
        let text = fs::read_to_string(directory(recipe).join("envoy.yaml")).unwrap();
        let server = asked.serve_with(log.routes()).await;
        let mut bootstrap = placed(&with_routes(&text), server, llm.address);
        for (part, other) in changes {
            assert!(bootstrap.contains(part), "{recipe}: {part}");
            bootstrap = bootstrap.replace(part, other);
        }
        let envoy = Envoy::run(TempDir::new().unwrap(), &bootstrap, 1, "ingress").await;
        Self { way, envoy, llm, asked, log }
    }

    /// The hits of these estimates and costs, by the way of these facts.
    fn told(&self, estimates: &[u64], ends: &[u64]) -> Told {
        let start = |estimate: &u64| if self.way == Way::Log { *estimate } else { 0 };
        Told { starts: estimates.iter().map(start).collect(), ends: ends.to_vec() }
    }

    /// Sends a request by a route; returns the status, or 0 of an answer that breaks off, and what
    /// Envoy has told.
    async fn of(&self, form: &Form<'_>, route: &str, fault: &str) -> (u16, Told) {
        let headers = [("x-route", route), ("x-llm-tokens", TOKENS), ("x-llm-fault", fault)];
        self.sent(form, &headers, (1, 1)).await
    }

    async fn sent(
        &self,
        form: &Form<'_>,
        headers: Headers<'_>,
        count: (usize, usize),
    ) -> (u16, Told) {
        let answer = form.post(self.envoy.ingress, &with_user(headers)).await;
        (answer.map_or(0, |answer| answer.status), self.seen(count).await)
    }

    /// Starts and ends of a request that Envoy has reported, once there are so many.
    async fn seen(&self, (starts, ends): (usize, usize)) -> Told {
        let told = async || match self.way {
            Way::Log => self.asked.count() >= starts && self.log.ends().len() >= ends,
            Way::Call => self.asked.count() >= starts + ends,
        };
        self.envoy.until("telling", told).await;
        // One more would be as quick as the last: no event says that none comes.
        tokio::time::sleep(Duration::from_millis(100)).await;
        let calls = self.asked.requests();
        let hits: Vec<_> = calls.iter().map(hits).collect();
        if self.way == Way::Call {
            let every_second = |first| hits.iter().skip(first).step_by(2).copied().collect();
            return Told { starts: every_second(0), ends: every_second(1) };
        }
        let ends = self.log.ends();
        self.log.clear();
        let (mut started, mut ended): (Vec<_>, Vec<_>) = (
            calls.iter().map(id).collect(),
            ends.iter().filter_map(|end| end.id.clone()).collect(),
        );
        started.sort();
        ended.sort();
        started.dedup();
        assert_eq!(started.len(), hits.len(), "each start has an id of its own: {calls:?}");
        assert!(ended.is_empty() || ended == started, "{ended:?} {started:?}");
        let ends = ends.iter().map(|end| end.hits.expect("hits"));
        Told { starts: hits, ends: ends.collect() }
    }
}

/// These headers, and the user alice if they name none.
fn with_user<'h>(headers: &[(&'h str, &'h str)]) -> Vec<(&'h str, &'h str)> {
    let user = ("x-user-id", "alice");
    let has_user = headers.iter().any(|(name, _)| *name == user.0);
    headers.iter().copied().chain((!has_user).then_some(user)).collect()
}

/// The bootstrap of the recipe with [`ROUTES`] before its route.
fn with_routes(bootstrap: &str) -> String {
    const ROUTE: &str = "                        # The APIs whose requests";
    let (before, rest) = bootstrap.split_once(ROUTE).expect("the route");
    let (own, after) = rest.split_once("  clusters:\n").expect("clusters after the route");
    let (_, limits) = own.split_once("typed_per_filter_config:").expect("limits of the route");
    let routes = ROUTES.map(|(name, route)| {
        let header = format!("{{name: x-route, string_match: {{exact: {name}}}}}");
        format!(
            "{indent}- match: {{prefix: /, headers: [{header}]}}\n{indent}  route: {{{route}}}\n\
             {indent}  typed_per_filter_config:{limits}\n",
            indent = " ".repeat(24),
            limits = limits.trim_end(),
        )
    });
    let nowhere = "    - {name: nowhere, type: STATIC, connect_timeout: 1s}\n";
    let routes = routes.concat();
    format!("{before}{routes}{ROUTE}{own}  clusters:\n{nowhere}{after}")
}

/// The hits of a call's only descriptor.
fn hits(request: &RateLimitRequest) -> u64 {
    assert_eq!(request.descriptors.len(), 1, "{request:?}");
    request.descriptors[0].hits_addend.expect("hits of the descriptor").value
}

/// The id of a start.
fn id(request: &RateLimitRequest) -> String {
    let mut entries = request.descriptors.iter().flat_map(|descriptor| &descriptor.entries);
    let entry = entries.find(|entry| entry.key == "request_id").expect("an id");
    entry.value.clone()
}
