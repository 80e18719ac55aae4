//! Writes that are repeated with their Idempotency-Key after all else has changed.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::rollouts::to_zone_a;
use super::support::{Answer, Call, Place, Server, hourly, places, rule};

/// Routes that take a body and write nothing.
const READS: [&str; 2] = ["POST /v1/check", "POST /v1/replay"];

/// Writes whose repeat has another answer: a token is shown once (a test of `tokens`), and a session
/// that has ended does not end again.
const ONCE: [&str; 2] = ["POST /v1/tokens", "POST /v1/sign-out"];

/// A write of the table: its route as the OpenAPI document names it, and the request.
struct Write {
    route: &'static str,
    path: String,
    body: Value,
    if_match: Option<String>,
}

/// The writes that were made so far, with their first answers.
struct Made<'s> {
    server: &'s Server,
    all: Vec<(Write, Answer)>,
}

// === impl Made ===

impl Made<'_> {
    async fn send(&self, key: usize, write: &Write) -> Answer {
        let Write { route, path, body, if_match } = write;
        let (method, _) = route.split_once(' ').unwrap();
        let call = Call::new(method, path).header("idempotency-key", &format!("key-{key}"));
        let call = if_match.iter().fold(call, |call, etag| call.header("if-match", etag));
        self.server.send(if body.is_null() { call } else { call.json(body) }).await
    }

    /// Makes a write for the first time. Returns its answer's body. After a space, `id` names a rule.
    async fn first(&mut self, route: &'static str, id: &str, query: &str, body: Value) -> Value {
        let any = ["/v1/rules/{id}", "/v1/discard"].iter().any(|it| route.contains(it));
        self.first_of((route, any.then_some("*")), id, query, body).await
    }

    /// Makes a write for the first time, of the draft with this entity tag.
    async fn first_of(
        &mut self,
        (route, etag): (&'static str, Option<&str>),
        id: &str,
        query: &str,
        body: Value,
    ) -> Value {
        let (id, rule) = id.split_once(' ').unwrap_or((id, ""));
        let path = route.split_once(' ').unwrap().1.replace("{id}", id).replace("{rule}", rule);
        let path = path + query;
        let write = Write { route, path, body, if_match: etag.map(str::to_owned) };
        let answer = self.send(self.all.len(), &write).await;
        assert!((200..300).contains(&answer.status), "{route}: {answer:?}");
        let body = serde_json::from_str(&answer.text).unwrap_or_default();
        self.all.push((write, answer));
        body
    }

    /// A set of changes that is submitted and discarded, and one that is deleted.
    async fn change_sets(&mut self) {
        let name = json!({"name": "own"});
        let set = self.first("POST /v1/change-sets", "", "", name.clone()).await;
        let set = set["id"].as_str().unwrap().to_owned();
        let change = json!({"domain": "own", "entries": [{"key": "a"}],
            "settings": {"rate_limit": hourly(6)}});
        let put = "PUT /v1/change-sets/{id}/rules";
        let changed = self.first(put, &set, "", change.clone()).await;
        let changed = format!("{set} {}", changed["rule"].as_str().unwrap());
        let take_out = "DELETE /v1/change-sets/{id}/rules/{rule}";
        self.first(take_out, &changed, "", Value::Null).await;
        self.first(put, &set, "?reason=again", change).await;
        self.first("POST /v1/change-sets/{id}/submit", &set, "", Value::Null).await;
        self.first("POST /v1/discard", "", "", json!({"domains": ["own"]})).await;
        let other = self.first("POST /v1/change-sets", "", "?reason=other", name).await;
        let other = other["id"].as_str().unwrap().to_owned();
        self.first("DELETE /v1/change-sets/{id}", &other, "", Value::Null).await;
    }

    /// The draft of another person, which is approved.
    async fn approvals(&mut self, place: &Place) {
        let writer = place.token(&["create", "--name", "eve", "--access", "write"]).await.unwrap();
        let call = Call::new("POST", "/v1/rules").token(&writer);
        let added = self.server.send(call.json(&rule("reviewed", "user", "", 5))).await;
        assert_eq!(added.status, 201, "{added:?}");
        let asked = json!({"domain": "reviewed", "approvals": 1});
        self.first("PUT /v1/approvals", "", "", asked).await;
        let etag = self.server.json("/v1/approvals").await["domains"][0]["etag"].clone();
        let approve = ("POST /v1/approvals", etag.as_str());
        self.first_of(approve, "", "", json!({"domain": "reviewed"})).await;
        let id = writer.split('_').nth(1).unwrap();
        self.first("DELETE /v1/tokens/{id}", id, "", Value::Null).await;
    }

    /// Repeats all of them.
    async fn again(&self) {
        for (key, (write, first)) in self.all.iter().enumerate() {
            let again = self.send(key, write).await;
            let both = (again.status, &again.text);
            assert_eq!(both, (first.status, &first.text), "{} {}", write.route, write.path);
            for name in ["etag", "location"] {
                assert_eq!(again.header(name), first.header(name), "{name} of {}", write.route);
            }
            assert_eq!(again.header("idempotency-replayed").as_deref(), Some("true"));
        }
    }
}

/// All routes of the OpenAPI document that write.
fn routes() -> BTreeSet<String> {
    let document = json!(ratelease_control::openapi());
    let of_path = |(path, methods): (&String, &Value)| {
        let methods = methods.as_object().unwrap().keys().filter(|it| *it != "get");
        methods.map(|it| format!("{} {path}", it.to_uppercase())).collect::<Vec<_>>()
    };
    let all = document["paths"].as_object().unwrap().iter().flat_map(of_path);
    // Another name of a path of the document.
    let alias = "PUT /api/v1/policies/{id}".to_owned();
    let is_left_out = |route: &str| READS.contains(&route) || ONCE.contains(&route);
    all.filter(|route| !is_left_out(route)).chain([alias]).collect()
}

#[tokio::test]
async fn each_write_that_is_repeated_gets_its_first_answer_whatever_has_changed() {
    for place in places().await {
        let server = place.serve().await;
        let mut made = Made { server: &server, all: Vec::new() };
        // A burst is refused for a fixed window, which is the default again later.
        let defaults = json!({"files": [{"name": "a.yaml", "yaml": "domain: defaulted\n\
            defaults: {algorithm: token_bucket}\ndescriptors:\n- key: a\n  rate_limit: {unit: \
            hour, requests_per_unit: 9}\n"}]});
        made.first("POST /v1/import", "", "", defaults).await;
        let burst = json!({"domain": "defaulted", "entries": [{"key": "b"}],
            "rate_limit": {"unit": "hour", "requests_per_unit": 9, "burst": 3}});
        made.first("POST /v1/rules", "", "", burst.clone()).await;
        let added = made.first("POST /v1/rules", "", "", rule("shop", "user", "", 5)).await;
        let id = added["id"].as_str().unwrap().to_owned();
        let limit = json!({"rate_limit": hourly(6)});
        made.first("PUT /v1/rules/{id}", &id, "", limit.clone()).await;
        made.first("POST /v1/publish", "", "", Value::Null).await;
        let policy = json!({"keyType": "user", "ratePerSec": 5});
        made.first("PUT /v1/policies/{id}", "p", "", policy.clone()).await;
        made.first("PUT /api/v1/policies/{id}", "q", "", policy).await;
        let scoped = json!({"scope": "user", "max_requests": 5, "window_seconds": 60});
        let scoped_id = made.first("POST /rules", "", "", scoped.clone()).await;
        let scoped_id = scoped_id["rule_id"].as_str().unwrap().to_owned();
        made.first("PUT /rules/{id}", &scoped_id, "", scoped).await;
        made.first("DELETE /rules/{id}", &scoped_id, "", Value::Null).await;
        made.first("PUT /v1/rules/{id}", &id, "?reason=again", json!({"rate_limit": hourly(7)}))
            .await;
        let rollout = made.first("POST /v1/rollouts", "", "", to_zone_a("enforced")).await;
        let rollout = rollout["rollout"].to_string();
        made.first(
            "POST /v1/rollouts/{id}/advance",
            &rollout,
            "",
            json!({"stage": "all", "force": true}),
        )
        .await;
        made.first("PUT /v1/rules/{id}", &id, "?reason=third", json!({"rate_limit": hourly(8)}))
            .await;
        let second = made.first("POST /v1/rollouts", "", "?reason=2", to_zone_a("enforced")).await;
        let second = second["rollout"].to_string();
        made.first("POST /v1/rollouts/{id}/abort", &second, "", Value::Null).await;
        let back = json!({"version": 1, "discard_draft": true});
        made.first("POST /v1/rollback", "", "", back).await;
        made.first("DELETE /v1/rules/{id}", &id, "", Value::Null).await;
        made.change_sets().await;
        made.approvals(&place).await;

        let covered: BTreeSet<_> = made.all.iter().map(|(it, _)| it.route.to_owned()).collect();
        assert_eq!(covered, routes(), "each route that writes is in this table");
        // The defaults are others, the rules have gone, and all of that is published.
        for domain in ["defaulted", "shop", "default"] {
            server.import(&format!("domain: {domain}\ndescriptors: []\n")).await;
        }
        server.publish().await;
        let refused = server.post("/v1/rules", &burst).await;
        assert_eq!(refused.status, 422, "{refused:?}");
        made.again().await;
        server.stop().await;
    }
}
