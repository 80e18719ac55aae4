//! Converts one ask to a call of its algorithm's script, and the script's reply to a grant.

use ratelease_rules::Algorithm;
use redis::{Cmd, Value};

use crate::algorithm::gcra::{Moved, Pace};
use crate::algorithm::pool::{self, Held, Put};
use crate::algorithm::sliding_log::Logged;
use crate::algorithm::{
    fixed_window, leaky_bucket, sliding_log, sliding_window, token_bucket, window_seconds,
    window_us,
};
use crate::store::redis::fault::Fault;
use crate::store::{Ask, Grant, Heartbeat, PODS_MAX, Return};

/// Amounts are cut to this before they are sent. It is above every limit, so it already means
/// "all", and Lua's doubles represent it exactly.
const AMOUNT_MAX: u64 = 1 << 32;

/// The length of the longest list of arguments: those of a bucket, with a return.
const ARGUMENTS_MAX: usize = 17;

/// The call for `ask`, on the `key` of its count.
pub(super) fn call<'a>(scripts: &'a Scripts, ask: &Ask, key: String) -> Call<'a> {
    if ask.pool.is_some() {
        return call_of_pool(scripts, ask, key);
    }
    let terms = ask.limit;
    // A leaky bucket's slots pass: a denial spends none, and none comes back.
    let slots = matches!(terms.algorithm, Algorithm::LeakyBucket { .. });
    let mut arguments = Vec::with_capacity(ARGUMENTS_MAX);
    let charge_denied = ask.charge_denied && !slots;
    arguments.extend([amount(ask.want), amount(ask.need), u64::from(charge_denied)]);
    let script = match terms.algorithm {
        Algorithm::FixedWindow => {
            let ahead = u64::from(ask.next_window);
            arguments.extend([terms.requests_per_unit.into(), window_seconds(terms), ahead]);
            &scripts.fixed_window
        }
        Algorithm::TokenBucket { .. } | Algorithm::LeakyBucket { .. } => {
            arguments.extend(pace(&Pace::of(terms)));
            arguments.push(token_bucket::ttl_us(ask.ttl));
            &scripts.gcra
        }
        Algorithm::SlidingWindow => {
            let limit = sliding_window::limit_of(terms);
            let part_us = sliding_window::part_us(terms);
            arguments.extend([u64::from(limit), window_seconds(terms), part_us]);
            &scripts.sliding_window
        }
        Algorithm::SlidingLog => {
            let limit = sliding_log::limit_of(terms);
            arguments.extend([u64::from(limit), window_us(terms)]);
            &scripts.sliding_log
        }
    };
    if let Some(Return { tokens, epoch }) = ask.back.filter(|_| !slots) {
        arguments.push(amount(tokens));
        arguments.extend(epoch);
    }
    script.call(key, arguments)
}

fn call_of_pool<'a>(scripts: &'a Scripts, ask: &Ask, key: String) -> Call<'a> {
    let windowed = u64::from(pool::is_windowed(ask));
    let mut arguments = vec![amount(ask.want), amount(ask.need), windowed];
    if let Some(Put { tokens, epoch, lasts_ms }) = pool::put(ask) {
        arguments.extend([tokens.into(), epoch, lasts_ms]);
    }
    scripts.pool.call(key, arguments)
}

fn amount(tokens: u64) -> u64 {
    tokens.min(AMOUNT_MAX)
}

fn pace(pace: &Pace) -> [u64; 11] {
    let Pace { tick_ns, requests, tokens_max, debt_max, tokens_min, window_us, .. } = *pace;
    let ((cost, part), (room, room_part), longest) = (pace.token(), pace.room, pace.longest());
    [
        tick_ns, cost, part, requests, tokens_max, debt_max, room, room_part, tokens_min,
        window_us, longest,
    ]
}

/// Reads the reply. A reply that the script cannot have given is treated as garbled: it is better
/// to lose a lease than to spend tokens that were not debited.
pub fn grant(ask: &Ask, reply: &Value) -> Result<Grant, Fault> {
    let grant = numbers(reply).and_then(|numbers| match ask.limit.algorithm {
        _ if ask.pool.is_some() => of_pool(ask, &numbers),
        Algorithm::FixedWindow => of_fixed_window(ask, &numbers),
        Algorithm::TokenBucket { .. } | Algorithm::LeakyBucket { .. } => of_bucket(ask, &numbers),
        Algorithm::SlidingWindow => of_sliding_window(ask, &numbers),
        Algorithm::SlidingLog => of_sliding_log(ask, &numbers),
    });
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

fn of_fixed_window(ask: &Ask, numbers: &[u64]) -> Option<Grant> {
    let &[tokens, now_unix_us, window, count] = numbers else { return None };
    let limit = u64::from(ask.limit.requests_per_unit);
    let debited = tokens == 0 || (tokens <= count && count <= limit);
    let state = if ask.next_window {
        let (present, next) = (window.checked_sub(1)?, u32::try_from(count).ok()?);
        fixed_window::State { window: present, count: 0, next }
    } else {
        fixed_window::State { window, count, next: 0 }
    };
    let grant = fixed_window::grant(ask, tokens, now_unix_us, state);
    (debited && is_present(ask, now_unix_us, state.window)).then_some(grant)
}

fn of_pool(ask: &Ask, numbers: &[u64]) -> Option<Grant> {
    let &[tokens, left, epoch, lasts_ms] = numbers else { return None };
    let held = Held { epoch, tokens: u32::try_from(left).ok()?, lasts_ms };
    let had = tokens.checked_add(left)?;
    let ends = (had == 0) == (lasts_ms == 0);
    (ends && had <= u32::MAX.into()).then(|| pool::grant(ask, tokens, held))
}

fn of_bucket(ask: &Ask, numbers: &[u64]) -> Option<Grant> {
    let &[tokens, now_unix_us, before, after] = numbers else { return None };
    let pace = Pace::of(ask.limit);
    let debited = match tokens {
        0 => before <= after,
        _ => tokens <= pace.left(before) && before.checked_add(pace.cost(tokens)) == Some(after),
    };
    let moved = Moved { tokens, now_unix_us, before, after };
    let grant = match ask.limit.algorithm {
        Algorithm::LeakyBucket { .. } => leaky_bucket::grant(&pace, &moved),
        _ => token_bucket::grant(&pace, ask, &moved),
    };
    (debited && after <= pace.longest()).then_some(grant)
}

fn of_sliding_window(ask: &Ask, numbers: &[u64]) -> Option<Grant> {
    let &[tokens, now_unix_us, window, count, previous] = numbers else { return None };
    let count_of =
        |count: u64| u32::try_from(count).ok().filter(|count| *count <= sliding_window::COUNT_MAX);
    let limit = u64::from(sliding_window::limit_of(ask.limit));
    let debited = tokens == 0 || (tokens <= count && count <= limit);
    let state =
        sliding_window::State { window, count: count_of(count)?, previous: count_of(previous)? };
    let grant = sliding_window::grant(ask, tokens, now_unix_us, state);
    (debited && is_present(ask, now_unix_us, window)).then_some(grant)
}

fn of_sliding_log(ask: &Ask, numbers: &[u64]) -> Option<Grant> {
    let &[tokens, now_unix_us, at, entries, newest, leaving] = numbers else { return None };
    let limit = u64::from(sliding_log::limit_of(ask.limit));
    let debited = tokens == 0 || (tokens <= entries && entries <= limit && newest == at);
    let lasts = now_unix_us.saturating_add(window_us(ask.limit));
    let in_order = leaving <= newest && newest <= at && (now_unix_us..=lasts).contains(&at);
    let logged = Logged { tokens, now_unix_us, at, entries, newest, leaving };
    (debited && in_order && entries <= sliding_log::ENTRIES_MAX.into())
        .then(|| sliding_log::grant(ask, &logged))
}

/// Whether `window` is the window of the time, or the next one, which a clock that was ahead began.
fn is_present(ask: &Ask, now_unix_us: u64, window: u64) -> bool {
    let present = now_unix_us / window_us(ask.limit);
    window == present || window == present.saturating_add(1)
}

// === A script call on one key, which can be sent several times ===

/// All scripts of the store.
#[derive(Debug)]
pub(super) struct Scripts {
    fixed_window: Script,
    gcra: Script,
    sliding_window: Script,
    sliding_log: Script,
    pool: Script,
    beat: Script,
}

/// A script, and the hash by which servers identify it.
#[derive(Debug)]
struct Script {
    text: &'static str,
    sha: String,
}

/// A call of one script.
#[derive(Debug)]
pub(super) struct Call<'a> {
    script: &'a Script,
    key: String,
    arguments: Vec<u64>,
}

// === impl Scripts ===

impl Default for Scripts {
    fn default() -> Self {
        Self {
            fixed_window: Script::new(include_str!("../fixed_window.lua")),
            gcra: Script::new(include_str!("../gcra.lua")),
            sliding_window: Script::new(include_str!("../sliding_window.lua")),
            sliding_log: Script::new(include_str!("../sliding_log.lua")),
            pool: Script::new(include_str!("../pool.lua")),
            beat: Script::new(include_str!("../beat.lua")),
        }
    }
}

impl Scripts {
    /// The commands that load all scripts into a server, one for each; their replies are not read.
    pub(super) fn loads(&self) -> impl Iterator<Item = Cmd> + use<'_> {
        let Self { fixed_window, gcra, sliding_window, sliding_log, pool, beat } = self;
        let all = [fixed_window, gcra, sliding_window, sliding_log, pool, beat];
        all.into_iter().map(|script| {
            let mut load = redis::cmd("SCRIPT");
            load.arg("LOAD").arg(script.text).set_no_response(true);
            load
        })
    }
}

// === impl Script ===

impl Script {
    fn new(text: &'static str) -> Self {
        Self { text, sha: redis::Script::new(text).get_hash().to_owned() }
    }

    fn call(&self, key: String, arguments: Vec<u64>) -> Call<'_> {
        Call { script: self, key, arguments }
    }
}

// === impl Call ===

impl Call<'_> {
    pub(super) fn key(&self) -> &str {
        &self.key
    }

    /// Calls the script by its hash; a server that does not know it replies NOSCRIPT.
    pub(super) fn by_name(&self) -> Cmd {
        self.command("EVALSHA", &self.script.sha)
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

/// Some 143 000 years: doubles represent it exactly, even with the present time added.
const LASTS_MS_MAX: u64 = 1 << 52;

/// The call for `beat`. `key` is the key for the pods of all domains; the key of each domain begins
/// with it.
pub(super) fn call_of_beat(scripts: &Scripts, beat: Heartbeat, key: String) -> Call<'_> {
    let key = match beat.domain {
        Some(domain) => format!("{key}:{domain}"),
        None => key,
    };
    let lasts_ms = u64::try_from(beat.lasts.as_micros().div_ceil(1_000)).unwrap_or(u64::MAX);
    let arguments =
        vec![beat.pod, lasts_ms.min(LASTS_MS_MAX), u64::from(beat.leaves), PODS_MAX as u64];
    scripts.beat.call(key, arguments)
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
