//! How requests end. The module sees each stream end, so the access log that reports ends to
//! ratelease is removed, with the id that connects its entries with calls.

use serde_json::{Value, json};

use super::{Findings, Trail, get, get_mut, items, items_mut, path, take, text, type_of};

/// The type of a gRPC access log.
const GRPC_LOG: &str = "envoy.extensions.access_loggers.grpc.v3.HttpGrpcAccessLogConfig";

/// The type of the filter that sets objects of filter state.
const SET_FILTER_STATE: &str = "envoy.extensions.filters.http.set_filter_state.v3.Config";

/// The type of a descriptor that is an expression in CEL.
const EXPRESSION: &str = "envoy.extensions.rate_limit_descriptors.expr.v3.Descriptor";

/// The object of filter state, and the custom tag, with the id of a request.
const ID: &str = "ratelease.id";

/// The custom tag with the cost of a request.
const HITS: &str = "ratelease.hits";

/// A value that the module replaces by an id of the stream.
const STREAM: &str = "ratelease.stream";

/// Removes the access logs for ratelease from a connection manager. Returns their clusters.
pub(super) fn leave_logs(
    manager: &mut Value,
    at: &Trail,
    findings: &mut Findings,
) -> Vec<Option<String>> {
    let mut clusters = Vec::new();
    for (number, log) in items(manager, "access_log").iter().enumerate() {
        let Some(common) = log_of_ends(log) else { continue };
        let cluster = path(common, &["grpc_service", "envoy_grpc", "cluster_name"]);
        clusters.push(cluster.and_then(Value::as_str).map(str::to_owned));
        let at = at.field("access_log").item(number);
        if has_tag(common, HITS) {
            let text = "the module reads no cost from an access log; charge it at the end, by a \
                        rate limit with apply_on_stream_done, hits_addend, the entries of the start \
                        and a last one with the key ratelease.settle";
            findings.left(at, text);
        } else {
            findings.remark(at, "left out: the module sees each request end");
        }
    }
    retain(manager, "access_log", |log| log_of_ends(log).is_none());
    if !clusters.is_empty() && items(manager, "access_log").is_empty() {
        take(manager, "access_log_options");
    }
    clusters
}

/// The common configuration of an access log for ratelease.
fn log_of_ends(log: &Value) -> Option<&Value> {
    let config = get(log, "typed_config").filter(|config| type_of(config) == GRPC_LOG)?;
    let common = get(config, "common_config")?;
    (text(common, "log_name") == "ratelease" || has_tag(common, ID)).then_some(common)
}

fn has_tag(common: &Value, name: &str) -> bool {
    items(common, "custom_tags").iter().any(|tag| text(tag, "tag") == name)
}

/// Makes an action that reads the id one that the module gives an id of the stream.
pub(super) fn name_stream(action: &mut Value) {
    let config = get(action, "extension").and_then(|it| get(it, "typed_config"));
    let Some(config) = config.filter(|config| type_of(config) == EXPRESSION) else { return };
    let expression: String = text(config, "text").chars().filter(|it| *it != ' ').collect();
    if [format!("filter_state['{ID}']"), format!("filter_state[\"{ID}\"]")].contains(&expression) {
        *action = json!({"generic_key": {
            "descriptor_key": text(config, "descriptor_key"),
            "descriptor_value": STREAM,
        }});
    }
}

/// Removes the action that sets the id, if nothing reads the id any more.
pub(super) fn leave_id(manager: &mut Value) {
    let mut without = manager.clone();
    remove_id(&mut without);
    if !without.to_string().contains(ID) {
        *manager = without;
    }
}

fn remove_id(manager: &mut Value) {
    let mut emptied = Vec::new();
    for (number, filter) in items_mut(manager, "http_filters") {
        let config = get_mut(filter, "typed_config").filter(|it| type_of(it) == SET_FILTER_STATE);
        let Some(config) = config else { continue };
        if retain(config, "on_request_headers", |set| text(set, "object_key") != ID)
            && config.as_object().is_some_and(|fields| fields.len() == 1)
        {
            emptied.push(number);
        }
    }
    if let Some(filters) = get_mut(manager, "http_filters").and_then(Value::as_array_mut) {
        for number in emptied.into_iter().rev() {
            filters.remove(number);
        }
    }
}

/// Keeps items of a list; one without any leaves. Returns whether an item has left.
fn retain(of: &mut Value, name: &str, keeps: impl FnMut(&Value) -> bool) -> bool {
    let Some(items) = get_mut(of, name).and_then(Value::as_array_mut) else { return false };
    let before = items.len();
    items.retain(keeps);
    let (left, is_empty) = (items.len() < before, items.is_empty());
    if left && is_empty {
        take(of, name);
    }
    left
}
