//! A control plane on a database of its own, and calls of it.

#[allow(dead_code)] // of the tests of objects only
#[path = "support/cluster.rs"]
pub(crate) mod cluster;
// Those of `tests/it`, of which these tests use a part.
#[allow(dead_code)]
#[path = "../../../../tests/it/support/faketime.rs"]
pub(crate) mod faketime;
#[allow(dead_code)] // of the tests of approvals, change sets and tokens only
#[path = "support/people.rs"]
pub(crate) mod people;
#[allow(dead_code)]
#[path = "../../../../tests/it/support/ports.rs"]
mod ports;
#[path = "support/postgres.rs"]
mod postgres;
#[path = "support/process.rs"]
mod process;
#[allow(dead_code)]
#[path = "../../../../tests/it/support/proxy.rs"]
pub(crate) mod proxy;
#[allow(dead_code)]
#[path = "../../../../tests/it/support/rng.rs"]
pub(crate) mod rng;

use std::ffi::OsString;
use std::fmt::Display;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use ratelease_control::settings::{self, Command, Settings};
use ratelease_control::{Control, Database, RateSettings, Selection};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

pub(crate) use ports::free_port;
pub(crate) use postgres::{Postgres, url};
#[allow(unused_imports)] // of the attacks only
pub(crate) use process::{Process, resident};

/// Maximum time of a call, on a machine that also compiles.
const CALL_MAX: Duration = Duration::from_secs(90);

/// Limit for what takes milliseconds.
pub(crate) const SOON: Duration = Duration::from_secs(20);

/// A database, and the files beside it.
pub(crate) struct Place {
    pub(crate) dir: TempDir,
    pub(crate) postgres: Option<Postgres>,
}

/// A control plane of this process.
pub(crate) struct Server {
    pub(crate) http: SocketAddr,
    pub(crate) pods: SocketAddr,
    pub(crate) probes: Option<SocketAddr>,
    /// A token of access admin.
    pub(crate) token: String,
    stop: Option<oneshot::Sender<()>>,
    task: JoinHandle<()>,
}

/// An answer.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) head: String,
    pub(crate) text: String,
}

/// A request.
pub(crate) struct Call<'c> {
    method: &'c str,
    path: String,
    headers: String,
    body: Vec<u8>,
}

/// One place with each database.
pub(crate) async fn places() -> [Place; 2] {
    [Place::sqlite(), Place::postgres().await]
}

/// The settings of a rule: at most this number an hour.
pub(crate) fn hourly(requests: u32) -> Value {
    json!({"unit": "hour", "requests_per_unit": requests})
}

/// A rule of one entry.
pub(crate) fn rule(domain: &str, key: &str, value: &str, requests: u32) -> Value {
    let entries = json!([{"key": key, "value": value}]);
    json!({"domain": domain, "entries": entries, "rate_limit": hourly(requests)})
}

/// The monotonic clock.
pub(crate) fn now() -> Instant {
    // Tests on real sockets run in real time.
    #[allow(clippy::disallowed_methods)]
    Instant::now()
}

/// Waits until `probe` returns a value.
pub(crate) async fn wait_for<T>(what: &str, mut probe: impl AsyncFnMut() -> Option<T>) -> T {
    wait_for_seen(what, async || probe().await.ok_or("nothing")).await
}

/// Waits until `probe` returns a value; until then it returns what it has seen.
pub(crate) async fn wait_for_seen<T, S: Display>(
    what: &str,
    mut probe: impl AsyncFnMut() -> Result<T, S>,
) -> T {
    let end = now() + SOON;
    loop {
        match probe().await {
            Ok(value) => return value,
            Err(seen) => {
                assert!(now() < end, "after {SOON:?}, there is still no {what}, but {seen}");
            }
        }
        sleep(Duration::from_millis(20)).await;
    }
}

// === impl Place ===

impl Place {
    pub(crate) fn sqlite() -> Self {
        Self { dir: tempfile::tempdir().unwrap(), postgres: None }
    }

    pub(crate) async fn postgres() -> Self {
        let dir = tempfile::tempdir().unwrap();
        Self { postgres: Some(Postgres::start().await), dir }
    }

    pub(crate) fn database(&self) -> Database {
        match &self.postgres {
            Some(postgres) => Database::Postgres(postgres.url()),
            None => Database::Sqlite(self.dir.path().join("rules.db")),
        }
    }

    /// Runs `ratelease-control token …` on the database of this place.
    pub(crate) async fn token(&self, args: &[&str]) -> Result<String, String> {
        let file = self.dir.path().join("rules.db");
        let at = match &self.postgres {
            Some(postgres) => ["--database-url".to_owned(), postgres.url()],
            None => ["--database-file".to_owned(), file.display().to_string()],
        };
        let all = ["ratelease-control", "token"].iter().chain(args).map(|it| (*it).to_owned());
        let all = all.chain(at).map(OsString::from);
        match settings::parse(all, &|_| None).unwrap() {
            Command::Token(command) => ratelease_control::tokens::run(command).await,
            Command::Serve(_) => unreachable!(),
        }
    }

    pub(crate) fn token_file(&self) -> PathBuf {
        self.dir.path().join("token")
    }

    pub(crate) async fn serve(&self) -> Server {
        self.serve_with(|_| ()).await
    }

    /// Starts a control plane with other settings.
    pub(crate) async fn serve_with(&self, change: impl FnOnce(&mut Settings)) -> Server {
        let any = SocketAddr::from(([127, 0, 0, 1], 0));
        let mut settings = Settings {
            database: self.database(),
            http_listen: any,
            pods_listen: any,
            probe_listen: None,
            pods_tls: None,
            sign_in: None,
            token_file: Some(self.token_file()),
            selection: Selection::default(),
            kubernetes_rules: None,
            push_bytes_max: 15 << 20,
            pod_memory: 64 << 20,
            domain_bytes_max: 4 << 20,
            token_bytes_max: 1 << 30,
            rates: RateSettings::default(),
        };
        change(&mut settings);
        let control = Control::start(settings).await.unwrap_or_else(|error| panic!("{error}"));
        let token = std::fs::read_to_string(self.token_file()).unwrap();
        let (http, pods, probes) = (control.http, control.pods, control.probes);
        let (stop, stopped) = oneshot::channel();
        let run = control.run(async move { drop(stopped.await) });
        let task = tokio::spawn(async move { run.await.unwrap() });
        Server { http, pods, probes, token, stop: Some(stop), task }
    }
}

// === impl Server ===

impl Server {
    pub(crate) async fn stop(mut self) {
        drop(self.stop.take());
        let ended = timeout(SOON, &mut self.task).await;
        ended.expect("it ends").expect("without a panic");
    }

    pub(crate) async fn get(&self, path: &str) -> Answer {
        self.send(Call::new("GET", path)).await
    }

    /// Sends JSON, or no body for null.
    pub(crate) async fn post(&self, path: &str, body: &Value) -> Answer {
        let call = Call::new("POST", path);
        self.send(if body.is_null() { call } else { call.json(body) }).await
    }

    /// Sends a request with the first token, unless it has a token or a session of its own.
    pub(crate) async fn send(&self, call: Call<'_>) -> Answer {
        let call = match ["authorization:", "cookie:"].iter().any(|it| call.headers.contains(it)) {
            true => call,
            false => call.header("authorization", &format!("Bearer {}", self.token)),
        };
        call.to(self.http).await.unwrap()
    }

    /// The JSON of a page that is there.
    pub(crate) async fn json(&self, path: &str) -> Value {
        let answer = self.get(path).await;
        assert_eq!(answer.status, 200, "{answer:?}");
        answer.json()
    }

    /// Adds a rule, and returns it with its entity tag.
    pub(crate) async fn add(&self, rule: &Value) -> (Value, String) {
        let answer = self.post("/v1/rules", rule).await;
        assert_eq!(answer.status, 201, "{answer:?}");
        (answer.json(), answer.header("etag").unwrap())
    }

    /// Imports a rule file.
    pub(crate) async fn import(&self, yaml: &str) -> Value {
        let call = Call::new("POST", "/v1/import").body("application/yaml", yaml.as_bytes());
        let answer = self.send(call).await;
        assert_eq!(answer.status, 200, "{answer:?}");
        answer.json()
    }

    /// Publishes all changes, and returns the version.
    pub(crate) async fn publish(&self) -> i64 {
        let answer = self.post("/v1/publish", &json!({})).await;
        assert_eq!(answer.status, 200, "{answer:?}");
        answer.json()["version"].as_i64().unwrap()
    }
}

// === impl Call ===

impl<'c> Call<'c> {
    pub(crate) fn new(method: &'c str, path: &str) -> Self {
        Self { method, path: path.to_owned(), headers: String::new(), body: Vec::new() }
    }

    pub(crate) fn header(mut self, name: &str, value: &str) -> Self {
        self.headers.push_str(&format!("{name}: {value}\r\n"));
        self
    }

    pub(crate) fn body(mut self, kind: &str, body: &[u8]) -> Self {
        self.body = body.to_vec();
        self.header("content-type", kind)
    }

    pub(crate) fn json(self, body: &Value) -> Self {
        self.body("application/json", body.to_string().as_bytes())
    }

    /// Bytes of the body.
    #[allow(dead_code)] // of the attacks only
    pub(crate) fn bytes(&self) -> usize {
        self.body.len()
    }

    pub(crate) fn token(self, token: &str) -> Self {
        self.header("authorization", &format!("Bearer {token}"))
    }

    /// Sends it. The body is written while the answer is awaited, since a server may refuse it.
    pub(crate) async fn to(self, addr: SocketAddr) -> std::io::Result<Answer> {
        let Self { method, path, headers, body } = self;
        let exchange = async {
            let (mut read, mut write) = TcpStream::connect(addr).await?.into_split();
            let head = format!(
                "{method} {path} HTTP/1.1\r\nhost: test\r\nconnection: close\r\n\
                 content-length: {}\r\n{headers}\r\n",
                body.len()
            );
            let sending = tokio::spawn(async move {
                let _ = write.write_all(head.as_bytes()).await;
                let _ = write.write_all(&body).await;
                write // stays open until the answer is read
            });
            let mut answer = Vec::new();
            let read = read.read_to_end(&mut answer).await;
            sending.abort();
            // A server that refuses a body may reset the connection after its answer.
            if answer.is_empty() {
                read?;
            }
            let answer = String::from_utf8(answer).expect("text");
            let (head, text) = answer.split_once("\r\n\r\n").unwrap_or((&answer, ""));
            let status = head.split(' ').nth(1).and_then(|it| it.parse().ok());
            let status = status.ok_or(std::io::ErrorKind::UnexpectedEof)?;
            Ok(Answer { status, head: head.to_owned(), text: text.to_owned() })
        };
        timeout(CALL_MAX, exchange).await.expect("an answer in time")
    }
}

// === impl Answer ===

impl Answer {
    #[track_caller]
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.text).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    pub(crate) fn header(&self, name: &str) -> Option<String> {
        let lines = self.head.lines().filter_map(|line| line.split_once(": "));
        let mut found = lines.filter(|(it, _)| it.eq_ignore_ascii_case(name));
        found.next().map(|(_, value)| value.to_owned())
    }

    /// The fields of a problem, in order.
    #[track_caller]
    pub(crate) fn fields(&self) -> Vec<String> {
        assert_eq!(self.header("content-type").unwrap(), "application/problem+json", "{self:?}");
        let problem = self.json();
        assert_eq!(problem["status"], self.status, "{self:?}");
        let errors = problem["errors"].as_array().cloned().unwrap_or_default();
        errors.iter().map(|it| it["field"].as_str().unwrap().to_owned()).collect()
    }
}
