//! Converts a pod's heartbeat to a call of its script, and the reply to a number of pods.

use redis::Value;

use super::call::{Call, Scripts};
use super::fault::Fault;
use crate::store::{Heartbeat, PODS_MAX};

/// Some 143 000 years: doubles represent it exactly, even with the present time added.
const LASTS_MS_MAX: u64 = 1 << 52;

/// The call for `beat`. `key` is the key for the pods of all domains; the key of each domain begins
/// with it.
pub(super) fn call(scripts: &Scripts, beat: Heartbeat, key: String) -> Call<'_> {
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
