use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::{sleep, timeout};

use crate::route::Replicas;
use crate::support::rng::Rng;
use crate::support::{Answer, Call, now};

/// A call without an answer after so long is made again.
const CALL_MAX: Duration = Duration::from_secs(10);

/// A write that no replica acknowledges for so long fails the test.
const WRITE_MAX: Duration = Duration::from_secs(60);

/// Pause before a write is repeated.
const RETRY: Duration = Duration::from_millis(200);

/// One change in so many is rolled out.
const ROLLOUTS: u64 = 5;

/// A team that changes its domains, one at a time.
pub(crate) struct Team {
    domains: Vec<String>,
    /// The limit that is published, by domain.
    published: BTreeMap<String, u32>,
    replicas: Arc<Replicas>,
    token: String,
    rng: Rng,
    /// The number of the last write, for its idempotency key.
    writes: u64,
    last_limit: u32,
    pub(crate) versions: Vec<i64>,
    pub(crate) publications: usize,
    pub(crate) finished: usize,
    pub(crate) aborted: usize,
    pub(crate) refused: usize,
}

// === impl Team ===

impl Team {
    pub(crate) fn new(
        domains: Vec<String>,
        replicas: &Arc<Replicas>,
        token: &str,
        rng: Rng,
    ) -> Self {
        Self {
            domains,
            published: BTreeMap::new(),
            replicas: Arc::clone(replicas),
            token: token.to_owned(),
            rng,
            writes: 0,
            last_limit: 0,
            versions: Vec::new(),
            publications: 0,
            finished: 0,
            aborted: 0,
            refused: 0,
        }
    }

    /// The limits that are published, by domain.
    pub(crate) fn limits(&self) -> BTreeMap<String, u32> {
        self.published.clone()
    }

    /// Publishes each domain for the first time.
    pub(crate) async fn publish_all(&mut self) {
        for domain in self.domains.clone() {
            self.publish(&domain).await;
        }
    }

    /// Changes domains until `is_over`.
    pub(crate) async fn work(&mut self, pause: Duration, is_over: &AtomicBool) {
        while !is_over.load(Ordering::Relaxed) {
            let at = usize::try_from(self.rng.below(self.domains.len() as u64)).unwrap();
            let domain = self.domains[at].clone();
            match self.rng.below(ROLLOUTS) {
                0 => self.roll_out(&domain, pause).await,
                _ => self.publish(&domain).await,
            }
            sleep(pause.mul_f64(2.0 * self.rng.fraction())).await;
        }
    }

    /// The JSON that a replica answers; `None` without a good answer.
    pub(crate) async fn get(&self, path: &str) -> Option<Value> {
        let http = self.replicas.any()?.http;
        let call = Call::new("GET", path).token(&self.token);
        let answer = timeout(CALL_MAX, call.to(http)).await.ok()?.ok()?;
        (answer.status == 200).then(|| answer.json())
    }

    async fn publish(&mut self, domain: &str) {
        let limit = self.next_limit();
        let answer = self.import(domain, limit, "?publish=true").await;
        if self.note(&answer) {
            self.published.insert(domain.to_owned(), limit);
            self.publications += 1;
        }
    }

    /// Rolls a change out to some pods, and then to all or to none.
    async fn roll_out(&mut self, domain: &str, pause: Duration) {
        let limit = self.next_limit();
        let answer = self.import(domain, limit, "").await;
        assert_eq!(answer.status, 200, "{answer:?}");
        let percent = 10 + self.rng.below(50);
        let begin = json!({
            "domains": [domain], "pods": {"percent": percent}, "stage": "enforced",
        });
        let begun = self.write("/v1/rollouts", &begin).await;
        let Some(id) = self.note(&begun).then(|| begun.json()["rollout"].to_string()) else {
            // Another team's is under way: the draft is published instead.
            let answer = self.write("/v1/publish", &json!({"domains": [domain]})).await;
            if self.note(&answer) {
                self.published.insert(domain.to_owned(), limit);
            }
            return;
        };
        sleep(pause).await;
        if self.rng.below(2) == 0 {
            let all = json!({"stage": "all", "force": true});
            let answer = self.write(&format!("/v1/rollouts/{id}/advance"), &all).await;
            assert!(self.note(&answer), "{answer:?}");
            self.published.insert(domain.to_owned(), limit);
            self.finished += 1;
        } else {
            let answer = self.write(&format!("/v1/rollouts/{id}/abort"), &Value::Null).await;
            assert!(self.note(&answer), "{answer:?}");
            self.aborted += 1;
        }
    }

    async fn import(&mut self, domain: &str, limit: u32, query: &str) -> Answer {
        let yaml = format!(
            "domain: {domain}\ndescriptors:\n- key: user\n  rate_limit: {{unit: hour, \
             requests_per_unit: {limit}}}\n"
        );
        let files = json!({"files": [{"name": format!("{domain}.yaml"), "yaml": yaml}]});
        self.write(&format!("/v1/import{query}"), &files).await
    }

    /// Notes the version that a write made. Returns false if the write was refused.
    fn note(&mut self, answer: &Answer) -> bool {
        if !(200..300).contains(&answer.status) {
            assert_eq!(answer.status, 409, "{answer:?}");
            self.refused += 1;
            return false;
        }
        self.versions.extend(answer.json()["version"].as_i64());
        true
    }

    /// Makes a write until a replica says what has become of it.
    async fn write(&mut self, path: &str, body: &Value) -> Answer {
        self.writes += 1;
        let key = format!("{}-{}", self.domains[0], self.writes);
        let end = now() + WRITE_MAX;
        loop {
            if let Some(answer) = self.try_write(path, body, &key).await {
                return answer;
            }
            assert!(now() < end, "no replica acknowledges {path}");
            sleep(RETRY).await;
        }
    }

    async fn try_write(&self, path: &str, body: &Value, key: &str) -> Option<Answer> {
        let http = self.replicas.any()?.http;
        let call = Call::new("POST", path).token(&self.token).header("idempotency-key", key);
        let call = if body.is_null() { call } else { call.json(body) };
        let answer = timeout(CALL_MAX, call.to(http)).await.ok()?.ok()?;
        (answer.status < 500 && answer.status != 429).then_some(answer)
    }

    fn next_limit(&mut self) -> u32 {
        self.last_limit += 1;
        self.last_limit
    }
}
