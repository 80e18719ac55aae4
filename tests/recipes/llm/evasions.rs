//! Requests of clients that want more than their limit. Each is repeated until it is refused, at a
//! provider that takes what vLLM and OpenAI take. `evasions.json` has their forms.

use std::collections::BTreeMap;
use std::io::Write;
use std::time::Duration;

use flate2::Compression;
use flate2::write::GzEncoder;
use serde::Deserialize;

use super::{LIMIT, Rig};
use crate::support::http::Client;
use crate::support::windows::early_in_a_window;

/// A form of a request.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Evasion {
    /// What the request is or does.
    request: String,
    path: String,
    #[serde(default = "post")]
    method: String,
    /// Those beside a JSON content type and a user; `null` is none.
    headers: BTreeMap<String, Option<String>>,
    /// `$SPACES` is another number of them each time, `$TEXT` 400 words, `$MEBIBYTE` one of them.
    body: String,
    coded: Option<Coded>,
    #[serde(default)]
    chunked: bool,
    /// Whether the request names a user.
    #[serde(default = "yes")]
    user: bool,
    /// The number of requests, unless they are refused before.
    #[serde(default = "many")]
    tries: usize,
    /// Limits that together bound the form, where its model has several names.
    #[serde(default = "one")]
    limits: u64,
    /// The tokens of an answer that no recipe can expect: those of a model whose answers are longer
    /// than the recipe says, or of which the request names no maximum.
    #[serde(default)]
    answer: u64,
    /// The status of a form that is never sent upstream.
    refused: Option<u16>,
}

/// How the bytes of a body stand for its text.
#[derive(Debug, Clone, Copy, Deserialize)]
enum Coded {
    #[serde(rename = "gzip")]
    Gzip,
    #[serde(rename = "utf-16")]
    Utf16,
    /// With a byte order mark.
    #[serde(rename = "utf-8-sig")]
    Marked,
}

/// How a recipe bounds what is made.
#[derive(Debug, Clone, Copy)]
enum Bound {
    /// The limit.
    Limit,
    /// The limit, and the answer that was under way when it was reached.
    LimitAndAnswer,
    /// A limit of costs, of which an output token has 15 and one of the prompt 3.
    Cost(u64),
}

/// What came of a form.
#[derive(Debug, Default)]
struct Outcome {
    statuses: BTreeMap<u16, usize>,
    /// Tokens that the provider has made and read, and those of them that it has read.
    tokens: u64,
    read: u64,
    /// The largest number of tokens that one request added.
    longest: u64,
}

/// Refusals in a row after which a form is given up.
const REFUSALS: usize = 3;

/// The window of the recipes, and the maximum duration of a test here.
const WINDOW: Duration = Duration::from_secs(3600);
const TEST_MAX: Duration = Duration::from_secs(240);

/// The tokens of `$TEXT` for the provider; the bytes of one of its tokens.
const BYTES_OF_TOKEN: u64 = 5;

#[tokio::test]
async fn no_form_of_a_request_exceeds_a_limit_that_is_held() {
    all("llm-holds", Bound::Limit).await;
}

#[tokio::test]
async fn no_form_of_a_request_exceeds_a_looked_at_limit_by_more_than_an_answer() {
    all("llm-tokens", Bound::LimitAndAnswer).await;
}

#[tokio::test]
async fn no_form_of_a_request_exceeds_a_budget() {
    // As many output tokens as the other recipes limit.
    all("llm-budgets", Bound::Cost(15 * LIMIT)).await;
}

/// Sends each form through a recipe, and requires its bound.
async fn all(recipe: &str, bound: Bound) {
    early_in_a_window(WINDOW, TEST_MAX).await;
    let rules = ("requests_per_unit: 30000000", "requests_per_unit: 150000");
    let rig = Rig::start_changed(recipe, &[rules]).await;
    let mut faults = Vec::new();
    for form in forms() {
        let outcome = form.repeat(&rig).await;
        let line = format!("{:55} {:?} {}", form.request, outcome.statuses, outcome.tokens);
        println!("{line}");
        if let Err(fault) = form.judge(&outcome, bound) {
            faults.push(format!("{line}: {fault}"));
        }
    }
    rig.recipe.envoy.stop().await;
    assert_eq!(rig.recipe.pod.expect("a pod").stop().await, 0);
    assert!(faults.is_empty(), "{recipe}:\n{}", faults.join("\n"));
}

fn forms() -> Vec<Evasion> {
    serde_json::from_str(include_str!("evasions.json")).expect("forms")
}

fn post() -> String {
    "POST".to_owned()
}

fn yes() -> bool {
    true
}

fn many() -> usize {
    60
}

fn one() -> u64 {
    1
}

// === impl Evasion ===

impl Evasion {
    /// Sends the request again and again, each time once the end of the last is counted.
    async fn repeat(&self, rig: &Rig) -> Outcome {
        let user = if self.user { &*self.request } else { "" };
        let (mut outcome, mut refusals, mut calls) = (Outcome::default(), 0, rig.llm.calls().await);
        let before = rig.llm.used_by(user).await;
        for number in 0..self.tries {
            let status = self.send(rig, number).await;
            rig.quiet().await;
            let called = rig.llm.calls().await;
            outcome.read += (called - calls) * self.body(number).len() as u64 / BYTES_OF_TOKEN;
            calls = called;
            let tokens = rig.llm.used_by(user).await - before;
            outcome.longest = outcome.longest.max(tokens - outcome.tokens);
            outcome.tokens = tokens;
            *outcome.statuses.entry(status).or_default() += 1;
            refusals = if (400..500).contains(&status) { refusals + 1 } else { 0 };
            if refusals == REFUSALS {
                break;
            }
        }
        outcome
    }

    fn judge(&self, outcome: &Outcome, bound: Bound) -> Result<(), String> {
        let Outcome { statuses, tokens, read, longest } = outcome;
        if let Some(refused) = self.refused {
            let is_so = statuses.keys().eq([&refused]) && *tokens == 0;
            return is_so.then_some(()).ok_or_else(|| format!("not refused with {refused}"));
        }
        let (used, max) = match bound {
            Bound::Limit => (*tokens, self.limits * LIMIT + self.answer),
            Bound::LimitAndAnswer => (*tokens, self.limits * LIMIT + longest),
            Bound::Cost(limit) => {
                let cost = 3 * read + 15 * (tokens.saturating_sub(*read));
                (cost, limit + 15 * self.answer)
            }
        };
        if used > max { Err(format!("{used} used of {max}")) } else { Ok(()) }
    }

    /// The status of one request; 0 if the answer broke off.
    async fn send(&self, rig: &Rig, number: usize) -> u16 {
        let mut headers: BTreeMap<&str, &str> =
            BTreeMap::from([("content-type", "application/json")]);
        if self.user {
            headers.insert("x-user-id", &self.request);
        }
        for (name, value) in &self.headers {
            headers.retain(|of, _| !of.eq_ignore_ascii_case(name));
            if let Some(value) = value {
                headers.insert(name, value);
            }
        }
        let body = self.bytes(number);
        let mut request = format!("{} {} HTTP/1.1\r\nhost: test\r\n", self.method, self.path);
        for (name, value) in headers {
            request += &format!("{name}: {value}\r\n");
        }
        let mut request = request.into_bytes();
        if self.chunked {
            let head = format!("transfer-encoding: chunked\r\n\r\n{:x}\r\n", body.len());
            request.extend([head.as_bytes(), &body, b"\r\n0\r\n\r\n"].concat());
        } else {
            let head = format!("content-length: {}\r\n\r\n", body.len());
            request.extend([head.as_bytes(), &body].concat());
        }
        let mut client = Client::connect(rig.recipe.envoy.ingress).await.expect("Envoy listens");
        // Envoy may answer, and close, before it has read a long body.
        let _ = client.write(&request).await;
        client.answer().await.map_or(0, |answer| answer.status)
    }

    fn body(&self, number: usize) -> String {
        let body = self.body.replace("$SPACES", &" ".repeat(number));
        body.replace("$TEXT", &"word ".repeat(400)).replace("$MEBIBYTE", &"x".repeat(1 << 20))
    }

    fn bytes(&self, number: usize) -> Vec<u8> {
        let body = self.body(number);
        match self.coded {
            None => body.into_bytes(),
            Some(Coded::Gzip) => {
                let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
                encoder.write_all(body.as_bytes()).expect("memory");
                encoder.finish().expect("memory")
            }
            Some(Coded::Utf16) => {
                ['\u{feff}'].into_iter().chain(body.chars()).flat_map(utf_16).collect()
            }
            Some(Coded::Marked) => format!("\u{feff}{body}").into_bytes(),
        }
    }
}

fn utf_16(of: char) -> Vec<u8> {
    of.encode_utf16(&mut [0; 2]).iter().flat_map(|unit| unit.to_le_bytes()).collect()
}
