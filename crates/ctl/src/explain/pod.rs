//! `explain --pod`: the answer of a running pod about a request, by its own rules and secret.

use std::fmt::Write;

use ratelease_cli::client::get_with;
use ratelease_cli::out::{CliError, CliResult, Completion, Out, Style};
use ratelease_cli::safe::Safe;
use ratelease_cli::settings::{HostPort, Listeners};
use ratelease_rules::request::json::to_query;
use serde_json::{Value, json};

use super::{ExplainFlags, PAGE_WITHIN, field, shown};
use crate::status_client::checked;

/// Path of the page.
const PATH: &str = "/explain";

/// Asks the pod, and shows its answer.
pub(super) fn run(flags: &ExplainFlags, pod: &HostPort, out: &mut Out) -> CliResult {
    let listeners = flags.listener.read(Listeners::read)?;
    let path = format!("{PATH}?{}", to_query(&request(flags).to_string()));
    let page = get_with(pod, &path, &listeners.debug_token, PAGE_WITHIN)?;
    let said = checked(pod, PATH, page)?;
    let each = said["descriptors"].as_array().cloned().unwrap_or_default();
    if flags.out.json {
        out.json(&said)?;
    } else {
        for (typed, one) in flags.request.descriptors.iter().zip(&each) {
            let heading =
                format!("{}: {}", flags.request.domain, shown(&typed.descriptor().entries));
            out.line(format_args!("{}", out.painter().paint(Style::Strong, Safe(heading))))?;
            descriptor(one, out)?;
        }
        field("rules", &format!("version {} of {pod}", text(&said["version"])), out)?;
    }
    let applies = |one: &Value| one["rule"].is_string();
    Ok(Completion::clean_if(each.iter().any(applies)))
}

/// The request as `/json` takes it.
fn request(flags: &ExplainFlags) -> Value {
    let each = flags.request.descriptors.iter().map(|typed| {
        let descriptor = typed.descriptor();
        let entries = descriptor.entries.iter();
        let entries = entries.map(|entry| json!({ "key": entry.key, "value": entry.value }));
        json!({ "entries": entries.collect::<Vec<_>>() })
    });
    json!({ "domain": flags.request.domain, "descriptors": each.collect::<Vec<_>>() })
}

fn descriptor(one: &Value, out: &mut Out) -> Result<(), CliError> {
    if let Some(rule) = one["rule"].as_str() {
        field("rule", rule, out)?;
    }
    let result = match text(&one["result"]) {
        "unknown_domain" => "the pod has no rules for this domain; it passes".to_owned(),
        "no_rule" => no_rule(one),
        "replaced" => "replaced by the rule of another descriptor; it passes".to_owned(),
        "unlimited" => "everything passes; nothing is counted".to_owned(),
        _ => return count(one, out),
    };
    field("result", &result, out)
}

fn no_rule(one: &Value) -> String {
    let keys = one["keys_here"].as_array().map(|keys| keys.iter().map(text).collect::<Vec<_>>());
    let keys = keys.map(|keys| format!(", whose keys here are: {}", keys.join(", ")));
    format!("no rule of the pod matches{}; it passes", keys.unwrap_or_default())
}

fn count(one: &Value, out: &mut Out) -> Result<(), CliError> {
    let count = &one["count"];
    field("allows", text(&count["allows"]), out)?;
    for name in ["failure_mode", "shadow_mode"] {
        if let Some(value) = one["settings"].get(name) {
            field(name, &value.as_str().map_or_else(|| value.to_string(), str::to_owned), out)?;
        }
    }
    field("key", text(&count["key"]), out)?;
    if let Some(seconds) = count["blocked_seconds"].as_f64() {
        field("blocked", &format!("for {seconds:.3} s, by ratectl key block: denied"), out)?;
    }
    field("pod", &held(count), out)
}

/// Describes the pod's state of the key.
fn held(count: &Value) -> String {
    let held = &count["held"];
    if held.is_null() {
        return "knows nothing of the key: nobody has asked here lately; the next request asks Redis"
            .to_owned();
    }
    let mut line = format!("holds {} tokens", held["tokens"]);
    // Writing to a string cannot fail.
    let _ = match held["left"].as_u64() {
        Some(left) => {
            write!(line, "; {left} of {} left in Redis when it last replied", count["of"])
        }
        None => write!(line, "; what is left in Redis is not known"),
    };
    if let Some(seconds) = held["resets_after_seconds"].as_f64() {
        let _ = write!(line, "; resets in {seconds:.3} s");
    }
    if held["denies"] == true {
        line.push_str("; it denies until then, but for a look from time to time");
    }
    line
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}
