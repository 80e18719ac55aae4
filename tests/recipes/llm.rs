//! Tokens of language models: what a provider counts, beside the limit.

use std::net::SocketAddr;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::task::JoinSet;

use crate::recipe::{Headers, Recipe};
use crate::support::http::{self, Answer, Client};
use crate::support::process::{Process, leashed};

/// Requests of clients that want more than their limit.
#[path = "llm/evasions.rs"]
mod evasions;
/// Starts and ends that Envoy reports, without a ratelease.
#[path = "llm/facts.rs"]
mod facts;
/// A server that records Envoy's access log.
#[path = "llm/log.rs"]
mod log;
/// The commands of the page.
#[path = "llm/page.rs"]
mod page;

/// A provider (`scripts/lib/fake_llm.py`) that counts the tokens that it makes.
pub struct Llm {
    process: Process,
    pub address: SocketAddr,
}

/// A request in one of the forms of providers.
#[derive(Debug, Clone, Copy)]
pub struct Form<'a> {
    pub path: &'a str,
    pub body: &'a str,
}

/// What each request of [`FORMS`] says in `max_tokens`.
const MAX_TOKENS: u64 = 500;

/// OpenAI's and Anthropic's, whole and in events.
pub const FORMS: [Form<'_>; 4] = [
    Form { path: "/v1/chat/completions", body: r#"{"model":"large","max_tokens":500}"# },
    Form {
        path: "/v1/chat/completions",
        body: concat!(
            r#"{"model":"large","max_completion_tokens":500,"stream":true,"#,
            r#""stream_options":{"include_usage":true}}"#
        ),
    },
    Form { path: "/v1/messages", body: r#"{"model":"large","max_tokens":500}"# },
    Form { path: "/v1/messages", body: r#"{"model":"large","max_tokens":500,"stream":true}"# },
];

/// Limit of the recipes, and the number of requests that a test has under way at once.
const LIMIT: u64 = 10_000;
const STREAMS: u64 = 16;

const PATIENCE: Duration = Duration::from_secs(20);

// === impl Llm ===

impl Llm {
    pub async fn start() -> Self {
        let mut command = leashed("python3");
        command.arg(concat!(env!("CARGO_MANIFEST_DIR"), "/scripts/lib/fake_llm.py")).arg("0");
        let process = Process::spawn("fake_llm", command);
        let said = || {
            let log = process.log();
            log.split_once("http://")?.1.lines().next()?.parse().ok()
        };
        process.until("listening", PATIENCE, async || said().is_some()).await;
        let address = said().expect("a line that was logged stays");
        Self { process, address }
    }

    /// Tokens that it has made and read for a user.
    pub async fn used_by(&self, user: &str) -> u64 {
        self.bill().await["by_user"][user].as_u64().unwrap_or(0)
    }

    /// Requests that it has got.
    pub async fn calls(&self) -> u64 {
        self.bill().await["calls"].as_u64().expect("a number")
    }

    async fn bill(&self) -> Value {
        let answer = http::get(self.address, "/used").await.expect("an answer");
        serde_json::from_str(&answer.body).expect("JSON")
    }

    /// Waits until it has begun this call.
    pub async fn until_called(&self, calls: u64) {
        let called = async || self.calls().await >= calls;
        self.process.until(&format!("called {calls} times"), PATIENCE, called).await;
    }
}

// === impl Form ===

impl Form<'_> {
    /// Tokens of the prompt, as the provider counts them.
    pub fn prompt(&self) -> u64 {
        self.body.len() as u64 / 5
    }

    /// What a request may use at most, as the recipes estimate it.
    pub fn estimate(&self) -> u64 {
        self.body.len() as u64 / 4 + MAX_TOKENS
    }

    /// What a request is charged whose answer tells no usage: each byte may have been a token.
    pub fn cut(&self) -> u64 {
        self.body.len() as u64 + MAX_TOKENS
    }

    pub async fn post(&self, to: SocketAddr, headers: Headers<'_>) -> std::io::Result<Answer> {
        let mut client = Client::connect(to).await.expect("Envoy listens");
        client.send("POST", self.path, headers, self.body).await
    }

    /// Sends the request, and returns once the provider has it. Its client leaves when dropped.
    pub async fn begin(&self, to: SocketAddr, headers: Headers<'_>, llm: &Llm) -> Client {
        let before = llm.calls().await;
        let client = self.send(to, headers).await;
        llm.until_called(before + 1).await;
        client
    }

    /// Sends the request, and does not wait for its answer.
    pub async fn send(&self, to: SocketAddr, headers: Headers<'_>) -> Client {
        let mut client = Client::connect(to).await.expect("Envoy listens");
        let headers: String =
            headers.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
        let Self { path, body } = self;
        let length = body.len();
        let request = format!(
            "POST {path} HTTP/1.1\r\nhost: test\r\ncontent-type: application/json\r\n\
             content-length: {length}\r\n{headers}\r\n{body}"
        );
        client.write(request.as_bytes()).await.expect("Envoy reads");
        client
    }
}

/// A recipe with a provider behind it.
struct Rig {
    recipe: Recipe,
    llm: Llm,
    /// Calls that tell of one request: its start, and its end where the access log does not.
    calls_each: u64,
    /// Holds of a request that runs.
    holds_each: u64,
    /// Calls that Envoy has to have made.
    calls: u64,
    /// Requests that run.
    running: u64,
}

impl Rig {
    async fn start(recipe: &str) -> Self {
        Self::start_changed(recipe, &[]).await
    }

    /// Starts a recipe. Another part takes the place of each of these parts of its rules.
    async fn start_changed(recipe: &str, changes: &[(&str, &str)]) -> Self {
        let (calls_each, holds_each) = match recipe {
            "llm-tokens" => (2, 0),
            "llm-holds" => (1, 1),
            _ => (1, 2),
        };
        let llm = Llm::start().await;
        let recipe = Recipe::start_changed(recipe, "ingress", llm.address, changes).await;
        Self { recipe, llm, calls_each, holds_each, calls: 0, running: 0 }
    }

    /// Sends a request of a user, whose answer costs this many tokens; returns its status once what
    /// it has used is counted.
    async fn ask(&mut self, form: &Form<'_>, user: &str, tokens: u64, fault: &str) -> u16 {
        let tokens = tokens.to_string();
        let headers = [("x-user-id", user), ("x-llm-tokens", &*tokens), ("x-llm-fault", fault)];
        let status = match form.post(self.recipe.envoy.ingress, &headers).await {
            Ok(answer) => answer.status,
            Err(_) => 0,
        };
        self.settled(1).await;
        status
    }

    /// Begins a request of a user, which runs until it is dropped.
    async fn begin(&mut self, form: &Form<'_>, user: &str) -> Client {
        let headers = [("x-user-id", user), ("x-llm-delay", "60")];
        let client = form.begin(self.recipe.envoy.ingress, &headers, &self.llm).await;
        self.running += 1;
        self.called(1).await;
        client
    }

    /// Waits until ratelease knows that these requests, which ran, have ended.
    async fn left_by(&mut self, requests: u64) {
        self.running -= requests;
        self.settled(0).await;
    }

    /// Waits until these further requests have ended, and ratelease knows.
    async fn settled(&mut self, requests: u64) {
        self.called(self.calls_each * requests).await;
        let expected = self.running * self.holds_each;
        let holds = async || self.holds().await == expected;
        let process = &self.recipe.pod().process;
        process.until(&format!("with {expected} holds"), PATIENCE, holds).await;
    }

    /// Waits until no request runs, and what those before it have used is counted.
    async fn quiet(&self) {
        let envoy = &self.recipe.envoy;
        let ended = async || {
            let downstream = envoy.stat("http.ingress.downstream_rq_active").await;
            let calls = envoy.stat("cluster.ratelease.upstream_rq_active").await;
            downstream == Some(0) && calls == Some(0) && self.holds().await == 0
        };
        envoy.until("ending", ended).await;
    }

    /// Holds of the pod that are open.
    async fn holds(&self) -> u64 {
        let page = http::get(self.recipe.pod().debug, "/metrics").await.expect("a page").body;
        let holds = page.lines().find_map(|line| line.strip_prefix("ratelease_holds "));
        holds.expect("the metric").parse().expect("a whole number")
    }

    /// Waits until these further calls are answered.
    async fn called(&mut self, calls: u64) {
        self.calls += calls;
        let (envoy, expected) = (&self.recipe.envoy, self.calls);
        let name = "cluster.ratelease.upstream_rq_200";
        let answered = async || envoy.stat(name).await.is_some_and(|calls| calls >= expected);
        envoy.until(&format!("answered {expected} times"), answered).await;
        assert_eq!(envoy.counter(name).await, expected, "calls that no request explains");
    }

    /// What is left of the limit of a user, by Envoy's header on the answer to a request that uses
    /// nothing, but may hold this estimate.
    async fn left(&mut self, user: &str, estimate: u64) -> u64 {
        let headers = [("x-user-id", user), ("x-llm-fault", "503")];
        let answer = FORMS[0].post(self.recipe.envoy.ingress, &headers).await.unwrap();
        self.settled(1).await;
        let held = if answer.status == 429 { 0 } else { estimate };
        answer.header("x-ratelimit-remaining").unwrap().parse::<u64>().unwrap() + held
    }

    /// What is left of the month's budget of a user.
    async fn month_left(&self, user: &str) -> u64 {
        let entry = |key: &str, value: &str| json!({"key": key, "value": value});
        let entries = [entry("user", user), entry("budget", "month"), entry("request_id", "look")];
        let look = json!({"domain": "llm-budgets",
            "descriptors": [{"entries": entries, "hitsAddend": "0"}]});
        let mut client = Client::connect(self.recipe.pod().http).await.unwrap();
        let answer = client.send("POST", "/json", &[], look.to_string()).await.unwrap();
        let answer: Value = serde_json::from_str(&answer.body).unwrap();
        answer["statuses"][0]["limitRemaining"].as_u64().expect("a number")
    }

    /// Sends requests of a user from many streams, each until it is denied; returns what the
    /// provider has made for the user.
    async fn rush(&mut self, user: &'static str) -> u64 {
        let ingress = self.recipe.envoy.ingress;
        let mut streams = JoinSet::new();
        for (form, _) in FORMS.iter().cycle().zip(0..STREAMS) {
            streams.spawn(async move {
                let headers = [("x-user-id", user), ("x-llm-delay", "0.1")];
                for sent in 1.. {
                    let answer = form.post(ingress, &headers).await.unwrap();
                    if answer.status == 429 {
                        return sent;
                    }
                    assert_eq!(answer.status, 200, "{answer:?}");
                }
                unreachable!("a limit ends the loop")
            });
        }
        let sent: u64 = streams.join_all().await.into_iter().sum();
        self.settled(sent).await;
        self.llm.used_by(user).await
    }

    async fn end(self) {
        let verdicts = self.recipe.envoy.verdicts().await;
        let requests = verdicts.ok + verdicts.over_limit;
        assert_eq!(self.calls_each * requests, self.calls, "{verdicts:?}");
        self.recipe.end(verdicts.ok, verdicts.over_limit).await;
    }
}

/// Sends the requests that fail, of one user, and returns what they are charged.
async fn failures(rig: &mut Rig) -> u64 {
    // What is not told is charged as what the request may use; an error is not.
    assert_eq!(rig.ask(&FORMS[0], "carol", 400, "break").await, 502);
    assert_eq!(rig.ask(&FORMS[3], "carol", 200, "break").await, 0);
    // Its client leaves long before the answer.
    let headers = [("x-user-id", "carol"), ("x-llm-delay", "60")];
    drop(FORMS[0].begin(rig.recipe.envoy.ingress, &headers, &rig.llm).await);
    rig.settled(1).await;
    assert_eq!(rig.ask(&FORMS[2], "carol", 400, "503").await, 503);
    // A retry is charged as one answer.
    assert_eq!(rig.ask(&FORMS[2], "carol", 400, "503-once").await, 200);
    2 * FORMS[0].cut() + FORMS[3].cut() + FORMS[2].prompt() + 400
}

#[tokio::test]
async fn llm_tokens() {
    let mut rig = Rig::start("llm-tokens").await;
    // Each form of an answer is charged as the provider counts it.
    let mut used = 0;
    for form in &FORMS {
        assert_eq!(rig.ask(form, "alice", 2400, "").await, 200);
        used += form.prompt() + 2400;
        assert_eq!(rig.llm.used_by("alice").await, used);
        assert_eq!(rig.left("alice", 0).await, LIMIT.saturating_sub(used));
    }
    // The last passed because something was left, and is counted whole: one answer at most is more.
    assert_eq!(rig.ask(&FORMS[0], "alice", 900, "").await, 200);
    assert_eq!(rig.ask(&FORMS[0], "alice", 1, "").await, 429);
    assert_eq!(rig.ask(&FORMS[1], "bob", 100, "").await, 200);

    let charged = failures(&mut rig).await;
    assert_eq!(rig.left("carol", 0).await, LIMIT - charged);
    assert!(rig.llm.used_by("carol").await <= charged);

    // A look bounds nothing that is under way: each stream may add one answer.
    let used = rig.rush("dave").await;
    let longest = FORMS.iter().map(Form::estimate).max().unwrap();
    assert!((LIMIT..=LIMIT + STREAMS * longest).contains(&used), "{used}");
    println!("looks: {used} tokens used of {LIMIT}");
    rig.end().await;
}

#[tokio::test]
async fn llm_holds() {
    let mut rig = Rig::start("llm-holds").await;
    let estimate = FORMS[0].estimate();
    let mut used = 0;
    for form in &FORMS {
        assert_eq!(rig.ask(form, "alice", 400, "").await, 200);
        used += form.prompt() + 400;
        assert_eq!(rig.llm.used_by("alice").await, used);
        assert_eq!(rig.left("alice", estimate).await, LIMIT - used, "{form:?}");
    }
    // An answer that costs more than its estimate is counted whole.
    assert_eq!(rig.ask(&FORMS[0], "alice", LIMIT, "").await, 200);
    assert_eq!(rig.left("alice", estimate).await, 0);
    assert_eq!(rig.ask(&FORMS[1], "bob", 100, "").await, 200);

    let charged = failures(&mut rig).await;
    assert_eq!(rig.left("carol", estimate).await, LIMIT - charged);
    assert!(rig.llm.used_by("carol").await <= charged);

    // However many streams there are, what is under way is held.
    rig.rush("dave").await;
    while rig.ask(&FORMS[0], "dave", 500, "").await == 200 {}
    let used = rig.llm.used_by("dave").await;
    assert!((LIMIT - estimate + 1..=LIMIT).contains(&used), "{used}");
    println!("holds: {used} tokens used of {LIMIT}");
    rig.end().await;
}

/// A cost in millionths of a dollar, by the formulas of the recipe.
fn cost(prompt: u64, tokens: u64) -> u64 {
    3 * (prompt + 5 * tokens)
}

#[tokio::test]
async fn llm_budgets() {
    const DAY: u64 = 30_000_000;
    const MONTH: u64 = 500_000_000;
    let mut rig = Rig::start("llm-budgets").await;
    let estimate = cost(FORMS[0].body.len() as u64 / 4, MAX_TOKENS);
    let mut spent = 0;
    for form in &FORMS {
        assert_eq!(rig.ask(form, "alice", 450_000, "").await, 200);
        spent += cost(form.prompt(), 450_000);
        assert_eq!(rig.left("alice", estimate).await, DAY - spent, "{form:?}");
    }
    // The day has no room for this estimate: the month is not charged with what it refuses.
    let long = Form { path: FORMS[0].path, body: r#"{"model":"large","max_tokens":300000}"# };
    assert_eq!(rig.ask(&long, "alice", 1, "").await, 429);
    assert_eq!(rig.month_left("alice").await, MONTH - spent);
    // A cost beyond the day's limit is charged to the month as a whole.
    assert_eq!(rig.ask(&FORMS[0], "bob", 3_000_000, "").await, 200);
    assert_eq!(rig.left("bob", estimate).await, 0);
    assert_eq!(rig.month_left("bob").await, MONTH - cost(FORMS[0].prompt(), 3_000_000));
    rig.end().await;
}

#[tokio::test]
async fn llm_concurrency() {
    let mut rig = Rig::start("llm-concurrency").await;
    // However many ask at once, five run.
    let ingress = rig.recipe.envoy.ingress;
    let mut streams = JoinSet::new();
    for stream in 0..STREAMS {
        streams.spawn(async move {
            let user = format!("user-{}", stream % 8);
            let headers = [("x-user-id", &*user), ("x-llm-delay", "0.1")];
            for _ in 0..5 {
                FORMS[0].post(ingress, &headers).await.unwrap();
            }
        });
    }
    streams.join_all().await;
    rig.settled(5 * STREAMS).await;
    assert_eq!(rig.llm.bill().await["most_running"], 5);

    let mut running = Vec::new();
    for user in ["alice", "alice", "bob", "bob", "carol"] {
        running.push(rig.begin(&FORMS[1], user).await);
    }
    assert_eq!(rig.ask(&FORMS[0], "alice", 1, "").await, 429, "two of the user run");
    assert_eq!(rig.ask(&FORMS[0], "dave", 1, "").await, 429, "five run");
    // One leaves: its slots are free for others, as often as they end.
    running.pop();
    rig.left_by(1).await;
    assert_eq!(rig.ask(&FORMS[0], "dave", 1, "").await, 200);
    assert_eq!(rig.ask(&FORMS[0], "dave", 1, "503").await, 503);
    assert_eq!(rig.ask(&FORMS[0], "alice", 1, "").await, 429);
    running.clear();
    rig.left_by(4).await;
    assert_eq!(rig.ask(&FORMS[0], "alice", 1, "").await, 200);
    rig.end().await;
}
