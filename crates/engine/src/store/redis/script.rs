//! Converts one ask to a call of its algorithm's script, and the script's reply to a grant.

use redis::{Cmd, Value};

use crate::algorithm::{self, Script, steps};
use crate::store::redis::fault::Fault;
use crate::store::{Ask, Grant, Heartbeat, PODS_MAX};

/// The call for `ask`, on the `key` of its count.
pub(super) fn call(ask: &Ask, key: String) -> Call {
    let steps = steps(ask);
    Call { script: steps.script, key, arguments: (steps.arguments)(ask) }
}

/// Reads the reply. A reply that the script cannot have given is treated as garbled: it is better
/// to lose a lease than to spend tokens that were not debited.
pub fn grant(ask: &Ask, reply: &Value) -> Result<Grant, Fault> {
    let grant = numbers(reply).and_then(|numbers| (steps(ask).reply)(ask, &numbers));
    let possible = |grant: &Grant| {
        grant.tokens <= ask.want.max(ask.need)
            && (grant.tokens == 0 || grant.tokens >= ask.need)
            && !(grant.overdrawn && grant.left > 0)
    };
    grant.filter(possible).ok_or_else(|| Fault::malformed(reply))
}

fn numbers(reply: &Value) -> Option<Vec<u64>> {
    let Value::Array(values) = reply else { return None };
    let number = |value: &Value| match value {
        Value::Int(number) => u64::try_from(*number).ok(),
        _ => None,
    };
    values.iter().map(number).collect()
}

/// A call of one script on one key, which can be sent several times.
#[derive(Debug)]
pub(super) struct Call {
    script: &'static Script,
    key: String,
    arguments: Vec<u64>,
}

/// The commands that load all scripts into a server, one for each; their replies are not read.
pub(super) fn loads() -> impl Iterator<Item = Cmd> {
    algorithm::scripts().into_iter().chain([&BEAT]).map(|script| {
        let mut load = redis::cmd("SCRIPT");
        load.arg("LOAD").arg(script.text).set_no_response(true);
        load
    })
}

// === impl Call ===

impl Call {
    pub(super) fn key(&self) -> &str {
        &self.key
    }

    /// Calls the script by its hash; a server that does not know it replies NOSCRIPT.
    pub(super) fn by_name(&self) -> Cmd {
        let hash = |text: &str| redis::Script::new(text).get_hash().to_owned();
        self.command("EVALSHA", self.script.hash(hash))
    }

    /// Calls the script with its text, after which the server knows it by hash too.
    pub(super) fn in_full(&self) -> Cmd {
        self.command("EVAL", self.script.text)
    }

    fn command(&self, name: &str, script: &str) -> Cmd {
        let mut command = redis::cmd(name);
        command.arg(script).arg(1).arg(&self.key).arg(&self.arguments);
        command
    }
}

// === Converts a pod's heartbeat to a call of its script, and the reply to a number of pods ===

static BEAT: Script = Script::new(include_str!("../beat.lua"));

/// Some 143 000 years: doubles represent it exactly, even with the present time added.
const LASTS_MS_MAX: u64 = 1 << 52;

/// The call for `beat`. `key` is the key for the pods of all domains; the key of each domain begins
/// with it.
pub(super) fn call_of_beat(beat: Heartbeat, key: String) -> Call {
    let key = match beat.domain {
        Some(domain) => format!("{key}:{domain}"),
        None => key,
    };
    let lasts_ms = u64::try_from(beat.lasts.as_micros().div_ceil(1_000)).unwrap_or(u64::MAX);
    let arguments =
        vec![beat.pod, lasts_ms.min(LASTS_MS_MAX), u64::from(beat.leaves), PODS_MAX as u64];
    Call { script: &BEAT, key, arguments }
}

/// Reads the reply: the number of live pods.
pub(super) fn pods(reply: &Value) -> Result<u32, Fault> {
    let alive = match reply {
        Value::Int(alive) => u32::try_from(*alive).ok(),
        _ => None,
    };
    alive.filter(|alive| *alive as usize <= PODS_MAX).ok_or_else(|| Fault::malformed(reply))
}

#[cfg(test)]
mod tests;
