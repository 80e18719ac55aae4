//! One `RateLimit` message: what the module refuses in it. The module itself checks more, such as
//! regular expressions, and says the place of each fault.

use serde_json::{Value, json};

use super::edit::{get, items, items_mut, path, text, type_of};
use super::{Findings, Trail};

/// Extensions that the module knows.
const INPUTS: [&str; 2] = [
    "envoy.type.matcher.v3.HttpRequestHeaderMatchInput",
    "envoy.type.matcher.v3.HttpRequestQueryParamMatchInput",
];

/// Operators of formats that the module knows.
const OPERATORS: [&str; 9] = [
    "REQ",
    "REQUEST_HEADER",
    "RESP",
    "RESPONSE_HEADER",
    "DYNAMIC_METADATA",
    "DOWNSTREAM_REMOTE_ADDRESS_WITHOUT_PORT",
    "BYTES_RECEIVED",
    "BYTES_SENT",
    "RESPONSE_CODE",
];

/// The action that names Envoy's own cluster.
const SOURCE_CLUSTER: &str = "source_cluster";

/// Notes what the module refuses. The name of Envoy's own cluster, which it cannot see, is written
/// out if `node_cluster` says it.
pub(super) fn review(
    limit: &mut Value,
    at: &Trail,
    node_cluster: Option<&str>,
    findings: &mut Findings,
) {
    for (number, action) in items_mut(limit, "actions") {
        let at = at.field("actions").item(number);
        if get(action, SOURCE_CLUSTER).is_some()
            && let Some(name) = node_cluster
        {
            *action = json!({"generic_key": {
                "descriptor_key": SOURCE_CLUSTER,
                "descriptor_value": name,
            }});
            let text = format!(
                "a module cannot see Envoy's own cluster; written out as node.cluster, {name}: \
                 change it if --service-cluster gives another"
            );
            findings.remark(at.field(SOURCE_CLUSTER), text);
        }
        for (field, text) in refused(action) {
            findings.left(at.field(field), text);
        }
    }
    if path(limit, &["limit", "dynamic_metadata"]).is_some() {
        let text = "a module cannot read a struct of metadata; write the limit as a rule";
        findings.left(at.field("limit").field("dynamic_metadata"), text);
    }
    let hits = get(limit, "hits_addend").map_or("", |hits| text(hits, "format"));
    if let Some(operator) = unknown_operator(hits) {
        findings.left(at.field("hits_addend").field("format"), no_operator(operator));
    }
}

/// What the module refuses in an action.
fn refused(action: &Value) -> Vec<(&'static str, String)> {
    let mut refused = Vec::new();
    if get(action, SOURCE_CLUSTER).is_some() {
        let text = "a module cannot see Envoy's own cluster; write its name as a generic_key with \
                    descriptor_key source_cluster";
        refused.push((SOURCE_CLUSTER, text.to_owned()));
    }
    if let Some(extension) = get(action, "extension") {
        let kind = get(extension, "typed_config").map_or("", type_of);
        if !INPUTS.contains(&kind) {
            let text = format!("a module cannot run {kind}");
            refused.push(("extension", text));
        }
    }
    for kind in ["metadata", "dynamic_metadata"] {
        let segments = get(action, kind).and_then(|it| get(it, "metadata_key"));
        if segments.is_some_and(|key| !is_reached(items(key, "path"))) {
            let text = "a module reaches a key of the namespace, and an item of a list there; \
                        copy the value to such a key";
            refused.push((kind, text.to_owned()));
        }
    }
    for (kind, list) in
        [("header_value_match", "headers"), ("query_parameter_value_match", "query_parameters")]
    {
        let matchers = get(action, kind).map_or(&[][..], |it| items(it, list));
        if matchers.iter().any(|it| path(it, &["string_match", "custom"]).is_some()) {
            refused.push((kind, "a module cannot run a custom string_match".to_owned()));
        }
    }
    let value = get(action, "remote_address_match").map_or("", |it| text(it, "descriptor_value"));
    if let Some(operator) = unknown_operator(value) {
        refused.push(("remote_address_match", no_operator(operator)));
    }
    refused
}

fn is_reached(path: &[Value]) -> bool {
    match path {
        [key] => get(key, "key").is_some(),
        [key, index] => get(key, "key").is_some() && get(index, "index").is_some(),
        _ => false,
    }
}

/// The first operator of a format that the module does not know.
fn unknown_operator(format: &str) -> Option<&str> {
    let is_name = |byte: char| byte.is_ascii_uppercase() || byte.is_ascii_digit() || byte == '_';
    let mut rest = format;
    while let Some((_, after)) = rest.split_once('%') {
        if let Some(literal) = after.strip_prefix('%') {
            rest = literal;
            continue;
        }
        let name = &after[..after.find(|it| !is_name(it)).unwrap_or(after.len())];
        if !OPERATORS.contains(&name) {
            return Some(name);
        }
        rest = after.split_once('%').map_or("", |(_, rest)| rest);
    }
    None
}

fn no_operator(operator: &str) -> String {
    format!("a module cannot tell %{operator}%")
}
