//! A headless Chromium with one page, driven by its DevTools protocol over a pair of named pipes.
//!
//! It reads commands from descriptor 3 and writes answers to descriptor 4, as JSON followed by a
//! zero byte, so that no port is opened and no other process can connect.

use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::unix::pipe;
use tokio::time::timeout;

use super::process::{Process, leashed};

/// A browser. Killed when dropped; [`Browser::close`] lets it exit by itself.
pub(crate) struct Browser {
    process: Process,
    commands: pipe::Sender,
    answers: BufReader<pipe::Receiver>,
    last: u64,
    session: Option<String>,
    /// Events of the page, as the protocol reports them.
    events: Vec<Value>,
    _home: TempDir,
}

/// The appearance of the page.
#[derive(Debug, Clone, Copy)]
pub(crate) struct View {
    /// `light` or `dark`.
    pub(crate) scheme: &'static str,
    /// Width in CSS pixels.
    pub(crate) width: u32,
}

/// Limit for each step, on a machine that also compiles: a start alone takes some seconds of CPU.
const STEP_MAX: Duration = Duration::from_secs(60);

/// Presses of the tabulator after which a page was gone through.
const TABS_MAX: usize = 80;

const POLL: Duration = Duration::from_millis(50);

/// What Chromium reports if the page of a script was replaced before the script had a value.
const REPLACED: [&str; 2] =
    ["Inspected target navigated or closed", "Execution context was destroyed."];

/// The sandbox does not work for root, and the `/dev/shm` of a container is often too small.
const FLAGS: [&str; 9] = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-breakpad",
    "--no-first-run",
    "--remote-debugging-pipe",
    "about:blank",
];

// === impl Browser ===

impl Browser {
    pub(crate) async fn start() -> Self {
        let home = TempDir::new().unwrap();
        let (to, from) = (fifo(home.path(), "commands"), fifo(home.path(), "answers"));
        let (mut writing, mut reading) = (pipe::OpenOptions::new(), pipe::OpenOptions::new());
        // Opened for reading and writing, so that neither end waits for the other.
        let commands = writing.read_write(true).open_sender(&to).unwrap();
        let answers = reading.read_write(true).open_receiver(&from).unwrap();
        let mut command = leashed("/bin/sh");
        command.arg("-c").arg(r#"to=$0 from=$1; shift; exec "$@" 3<"$to" 4>"$from""#);
        command.arg(&to).arg(&from).arg("chromium").args(FLAGS);
        command.arg(format!("--user-data-dir={}", home.path().join("profile").display()));
        command.env("HOME", home.path());
        let process = Process::spawn("chromium", command);
        let (answers, events) = (BufReader::new(answers), Vec::new());
        let (last, session) = (0, None);
        let mut browser = Self { process, commands, answers, last, session, events, _home: home };
        browser.attach().await;
        browser
    }

    async fn attach(&mut self) {
        let target = self.ask("Target.createTarget", json!({"url": "about:blank"})).await;
        let to = json!({"targetId": target["targetId"], "flatten": true});
        let attached = self.ask("Target.attachToTarget", to).await;
        self.session = attached["sessionId"].as_str().map(str::to_owned);
        for domain in ["Page", "Runtime", "Log", "Network"] {
            self.ask(&format!("{domain}.enable"), json!({})).await;
        }
    }

    /// Opens a page, and returns once it has loaded completely.
    pub(crate) async fn open(&mut self, url: &str, view: View) {
        self.view(view).await;
        // The answer arrives when the document has been replaced, of which much may still be
        // loading.
        self.ask("Page.navigate", json!({"url": url})).await;
        self.until("document.readyState", &"complete".into()).await;
    }

    /// Shows the open page with another appearance.
    pub(crate) async fn view(&mut self, View { scheme, width }: View) {
        let features = json!([{"name": "prefers-color-scheme", "value": scheme}]);
        self.ask("Emulation.setEmulatedMedia", json!({"features": features})).await;
        let size = json!({"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": false});
        self.ask("Emulation.setDeviceMetricsOverride", size).await;
    }

    /// The value of an expression in the page; for a promise, once it is resolved.
    pub(crate) async fn evaluate(&mut self, script: &str) -> Value {
        let answer = self.ask("Runtime.evaluate", evaluation(script)).await;
        self.value_of(script, answer)
    }

    fn value_of(&mut self, script: &str, mut answer: Value) -> Value {
        if !answer["exceptionDetails"].is_null() {
            self.process.fail(&format!("{script}: {}", answer["exceptionDetails"]));
        }
        answer["result"]["value"].take()
    }

    /// Evaluates until the value is `wanted`. A page that is replaced meanwhile has no value.
    pub(crate) async fn until(&mut self, script: &str, wanted: &Value) {
        let mut found = Value::Null;
        let asked = async {
            loop {
                found = match self.try_ask("Runtime.evaluate", evaluation(script)).await {
                    Ok(answer) => self.value_of(script, answer),
                    Err(error) if REPLACED.iter().any(|it| error["message"] == *it) => Value::Null,
                    Err(error) => self.process.fail(&format!("{script}: {error}")),
                };
                if found == *wanted {
                    return;
                }
                tokio::time::sleep(POLL).await;
            }
        };
        if timeout(STEP_MAX, asked).await.is_err() {
            self.process.fail(&format!("{script} is {found}, not {wanted}, after {STEP_MAX:?}"));
        }
    }

    /// Types a text where the focus is.
    pub(crate) async fn enter(&mut self, text: &str) {
        self.ask("Input.insertText", json!({"text": text})).await;
    }

    /// Presses a key, as in `Enter`, `j` or `Control+s`.
    pub(crate) async fn press(&mut self, chord: &str) {
        let (with, key) = chord.rsplit_once('+').unwrap_or(("", chord));
        let modifiers = if with == "Control" { 2 } else { 0 };
        let (code, text) = match key {
            "Tab" => (9, ""),
            "Enter" => (13, "\r"),
            "Escape" => (27, ""),
            " " => (32, " "),
            "ArrowUp" => (38, ""),
            "ArrowDown" => (40, ""),
            letter => (u32::from(letter.to_ascii_uppercase().as_bytes()[0]), letter),
        };
        let text = if modifiers == 0 { text } else { "" };
        let kind = if text.is_empty() { "rawKeyDown" } else { "keyDown" };
        let mut event = json!({"type": kind, "key": key, "modifiers": modifiers, "text": text,
            "windowsVirtualKeyCode": code});
        self.ask("Input.dispatchKeyEvent", event.clone()).await;
        event["type"] = "keyUp".into();
        self.ask("Input.dispatchKeyEvent", event).await;
    }

    /// Moves the focus forward with the tabulator until it is at what `selector` matches.
    pub(crate) async fn tab_to(&mut self, selector: &str) {
        let is_there = format!("document.activeElement.matches({})", json!(selector));
        for _ in 0..TABS_MAX {
            if self.evaluate(&is_there).await == true {
                return;
            }
            self.press("Tab").await;
        }
        self.process.fail(&format!("{selector} cannot be reached by keyboard"));
    }

    /// The addresses that the page has requested.
    pub(crate) fn requests(&self) -> Vec<&str> {
        let sent =
            self.events.iter().filter(|event| event["method"] == "Network.requestWillBeSent");
        sent.filter_map(|event| event["params"]["request"]["url"].as_str()).collect()
    }

    /// Errors of the page: exceptions, and everything written to its console.
    pub(crate) fn complaints(&self) -> Vec<&Value> {
        let complains = ["Runtime.exceptionThrown", "Runtime.consoleAPICalled", "Log.entryAdded"];
        let is_one = |event: &&Value| complains.iter().any(|method| event["method"] == *method);
        self.events.iter().filter(is_one).collect()
    }

    /// Ends the browser and all processes that it has started, and waits for it.
    pub(crate) async fn close(mut self) {
        self.session = None;
        self.send("Browser.close", json!({})).await;
        self.process.exit(STEP_MAX).await;
    }

    /// Sends one command and returns its result. Records the events that arrive meanwhile.
    async fn ask(&mut self, method: &str, params: Value) -> Value {
        let answer = self.try_ask(method, params).await;
        answer.unwrap_or_else(|error| self.process.fail(&format!("{method}: {error}")))
    }

    /// The answer, or the error that Chromium reports.
    async fn try_ask(&mut self, method: &str, params: Value) -> Result<Value, Value> {
        let id = self.send(method, params).await;
        let answered = async {
            loop {
                let mut message = self.next().await;
                if message["id"] != id {
                    self.events.push(message);
                } else if message["error"].is_null() {
                    return Ok(message["result"].take());
                } else {
                    return Err(message["error"].take());
                }
            }
        };
        let answer = timeout(STEP_MAX, answered).await;
        answer.unwrap_or_else(|_| self.process.fail(&format!("{method}: no answer")))
    }

    async fn send(&mut self, method: &str, params: Value) -> u64 {
        self.last += 1;
        let mut message = json!({"id": self.last, "method": method, "params": params});
        if let Some(session) = &self.session {
            message["sessionId"] = session.as_str().into();
        }
        self.commands.write_all(format!("{message}\0").as_bytes()).await.unwrap();
        self.last
    }

    async fn next(&mut self) -> Value {
        let mut message = Vec::new();
        self.answers.read_until(0, &mut message).await.unwrap();
        message.pop();
        serde_json::from_slice(&message).unwrap()
    }
}

/// Creates a named pipe.
fn fifo(dir: &Path, name: &str) -> PathBuf {
    let path = dir.join(name);
    let made = std::process::Command::new("mkfifo").arg("-m600").arg(&path).status();
    assert!(made.is_ok_and(|status| status.success()), "mkfifo {}", path.display());
    path
}

/// The parameters of an evaluation whose value is returned, and awaited if it is a promise.
fn evaluation(script: &str) -> Value {
    json!({"expression": script, "returnByValue": true, "awaitPromise": true})
}
