//! The limits that the containers of a pod have.

use serde_json::Value;

use super::{LISTS, containers};
use crate::quantity::Quantity;

/// The largest limit of CPU of the containers, init containers included; `None` if one of them has
/// no limit.
pub(super) fn largest_cpu_limit(pod: &Value) -> Option<Quantity> {
    let all = LISTS.iter().flat_map(|list| containers(pod, list));
    let limits: Option<Vec<_>> =
        all.map(|it| cpu_limit(&it["resources"]["limits"]["cpu"])).collect();
    limits?.into_iter().max_by_key(|limit| limit.nanos)
}

/// The API server writes quantities as text; manifests may have numbers.
fn cpu_limit(value: &Value) -> Option<Quantity> {
    match value {
        Value::String(text) => Quantity::parse(text).ok(),
        Value::Number(number) => Quantity::parse(&number.to_string()).ok(),
        _ => None,
    }
}
