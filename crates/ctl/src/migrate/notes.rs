//! What differs for a deployment as a whole, beyond single variables and rules.

use std::path::Path;

use ratelease_cli::migration::EnvironmentReview;
use ratelease_cli::safe;
use ratelease_engine::store::StoreSettings;
use ratelease_engine::store::redis::RedisKind;

use super::deployment::Deployment;

/// Maximum number of characters of a command that a note shows.
const SHOWN_MAX: usize = 200;

/// A difference, and what to do about it.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Note {
    /// What it is about, in a word or two.
    pub(super) topic: &'static str,
    pub(super) text: String,
    /// Empty if nothing has to be done.
    pub(super) action: String,
}

/// Returns what differs, the most important first.
pub(super) fn notes(deployment: &Deployment, environment: &EnvironmentReview) -> Vec<Note> {
    let note = |topic, text: &str| Note { topic, text: text.to_owned(), action: String::new() };
    let mut notes = Vec::new();
    let store = environment.settings.as_ref().map(|settings| &settings.store);
    if let Some(StoreSettings::Redis { main, per_second, .. }) = store {
        notes.push(note(
            "counts",
            "begin again: keys in Redis have other names. While both programs run, each admits the \
             whole limit",
        ));
        if main.kind == RedisKind::Cluster {
            notes.push(note(
                "cluster",
                "set cluster-require-full-coverage no on its nodes, else the loss of one shard \
                 makes every key fall back to its failure_mode",
            ));
        }
        if per_second.is_some() {
            notes.push(note(
                "per second",
                "limits with unit second stay in the Redis of REDIS_PERSECOND_URL, whose keys have \
                 other names too",
            ));
        }
    }
    if let (Some(replicas), Some(StoreSettings::Memory)) = (deployment.replicas, store) {
        notes.push(Note {
            topic: "replicas",
            text: format!("{replicas} pods without a Redis each admit the whole limit"),
            action: "set REDIS_URL, or run one pod".to_owned(),
        });
    }
    notes.extend(command(&deployment.command));
    notes.push(note(
        "Redis away",
        "a rule's failure_mode answers, by default each pod's part of the limit; the reference \
         answers with an error after Envoy's timeout",
    ));
    notes.push(note(
        "denials",
        "a request that one rule denies does not spend from its other rules",
    ));
    notes
}

/// What to do about a command that the image of ratelease does not have, or its arguments.
fn command(words: &[String]) -> Option<Note> {
    let (program, arguments) = words.split_first()?;
    let shown = |text: &str| safe::cut(&safe::line(text), SHOWN_MAX);
    let arguments = shown(&arguments.join(" "));
    let (topic, text, action) = match Path::new(program).file_name() {
        Some(name) if name == "ratelimit" && arguments.is_empty() => return None,
        Some(name) if name == "ratelimit" => (
            "arguments",
            format!(
                "the reference ignores {arguments}; ratelease ignores what is no flag of it, and \
                 logs a warning"
            ),
            "remove them",
        ),
        _ => (
            "command",
            format!(
                "{} {arguments}: the image of ratelease has no shell, and only the programs \
                 ratelimit and ratelease",
                shown(program)
            ),
            "start /bin/ratelimit without arguments",
        ),
    };
    Some(Note { topic, text, action: action.to_owned() })
}
