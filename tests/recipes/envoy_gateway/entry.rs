//! Entries of descriptors: the action that sends each, and the node of the rules that it finds.

use serde_json::{Value, json};

/// A descriptor's entry: the action that sends it, and the node of the rules that it finds.
pub struct Entry {
    pub action: Value,
    key: String,
    value: Option<String>,
}

// === impl Entry ===

impl Entry {
    pub fn generic(value: &str) -> Self {
        let action = json!({"descriptor_key": value, "descriptor_value": value});
        let action = json!({"generic_key": action});
        Self { action, key: value.to_owned(), value: Some(value.to_owned()) }
    }

    pub fn header(name: &Value, key: String) -> Self {
        let action = json!({"request_headers": {"header_name": name, "descriptor_key": key}});
        Self { action, key, value: None }
    }

    pub fn value_match(of: &str, key: String, matcher: Value, expect: bool) -> Self {
        let list = if of == "header" { "headers" } else { "query_parameters" };
        let action = json!({
            "descriptor_key": key,
            "descriptor_value": key,
            "expect_match": expect.to_string(),
            list: [matcher],
        });
        let action = json!({format!("{of}_value_match"): action});
        Self { action, key: key.clone(), value: Some(key) }
    }

    pub fn node(&self) -> Value {
        let mut node = json!({"key": self.key});
        if let Some(value) = &self.value {
            node["value"] = value.as_str().into();
        }
        node
    }
}

pub fn matches(name: &Value, string_match: Value) -> Value {
    json!({"name": name, "string_match": string_match})
}

/// The network, and the address if each address counts apart.
pub fn addresses(cidr: &Value) -> Vec<Entry> {
    let Some((prefix, length)) = cidr["value"].as_str().and_then(|it| it.split_once('/')) else {
        return Vec::new();
    };
    let mut matcher = json!({"ranges": [{"address_prefix": prefix, "prefix_len": length}]});
    let is_inverted = cidr["invert"] == "true";
    if is_inverted {
        matcher["invert_match"] = "true".into();
    }
    let entry = |key: &str, sent: &str, value: Option<&str>| {
        let action = json!({
            "descriptor_key": key, "descriptor_value": sent, "address_matcher": matcher,
        });
        let action = json!({"remote_address_match": action});
        Entry { action, key: key.to_owned(), value: value.map(str::to_owned) }
    };
    let network = format!("{}{prefix}/{length}", if is_inverted { "invert:" } else { "" });
    let mut entries = vec![entry("masked_remote_address", &network, Some(&network))];
    if cidr["type"] == "Distinct" {
        entries.push(entry("remote_address", "%DOWNSTREAM_REMOTE_ADDRESS_WITHOUT_PORT%", None));
    }
    entries
}
