//! Reads the decision samples that a pod logs with `LOG_FORMAT=json` and `LOG_VALUES=true`.
//!
//! A sample is one descriptor of a request. Its entries are `key=value`, separated by commas, and
//! cut at a number of bytes. Commas are not escaped, so a part without `=` belongs to the value
//! before it.

use ratelease_rules::request::json;
use serde_json::{Map, Value, json};

/// What the field `target` of a sample is.
const TARGET: &str = "ratelease::decision";

/// What entries that were cut end with.
const CUT: char = '…';

/// Returns the request of a line, if the line is a sample.
pub(crate) fn request(fields: &Map<String, Value>) -> Option<Result<json::Request, String>> {
    let is_sample = fields.get("target").and_then(Value::as_str) == Some(TARGET);
    is_sample.then(|| read(fields))
}

fn read(fields: &Map<String, Value>) -> Result<json::Request, String> {
    let values = fields.get("values").and_then(Value::as_str).ok_or_else(|| {
        "a decision sample without values; set LOG_VALUES=true on the pod".to_owned()
    })?;
    if values.ends_with(CUT) {
        return Err("a decision sample whose values were cut".to_owned());
    }
    let mut descriptor = json!({"entries": entries(values)});
    if let Some(hits) = fields.get("hits").filter(|hits| hits.is_u64()) {
        descriptor["hitsAddend"] = hits.clone();
    }
    let domain = fields.get("domain").cloned().unwrap_or_default();
    let request = [("domain", domain), ("descriptors", json!([descriptor]))];
    let request = request.into_iter().map(|(name, value)| (name.to_owned(), value));
    json::from_object(request.collect())
}

/// The entries, in order.
fn entries(values: &str) -> Vec<Value> {
    let mut entries: Vec<(String, String)> = Vec::new();
    for part in values.split(',') {
        match (part.split_once('='), entries.last_mut()) {
            (Some((key, value)), _) => entries.push((key.to_owned(), value.to_owned())),
            (None, Some((_, value))) => {
                value.push(',');
                value.push_str(part);
            }
            (None, None) => entries.push((part.to_owned(), String::new())),
        }
    }
    entries.into_iter().map(|(key, value)| json!({"key": key, "value": value})).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A line as `docs/operate.md` shows it.
    const LINE: &str = r#"{"@message": "decided", "@timestamp": "2026-11-21T19:53:46.629469Z",
        "domain": "shop", "hits": 3, "how": "local", "target": "ratelease::decision",
        "values": "card=4111,note=a,b,path=/x=y", "verdict": "over_limit"}"#;

    fn fields(line: &str) -> Map<String, Value> {
        serde_json::from_str(line).unwrap()
    }

    #[test]
    fn a_sample_is_a_request_of_one_descriptor() {
        let request = request(&fields(LINE)).unwrap().unwrap();
        let request = request.borrow();
        let descriptor = &request.descriptors[0];
        let entries: Vec<_> = descriptor.entries.iter().map(|it| (it.key, it.value)).collect();
        assert_eq!(entries, [("card", "4111"), ("note", "a,b"), ("path", "/x=y")]);
        assert_eq!((request.domain, descriptor.hits_addend), ("shop", Some(3)));
    }

    #[test]
    fn a_sample_that_does_not_say_all_is_refused_with_the_reason() {
        assert!(request(&fields(r#"{"values": "a=b"}"#)).is_none());
        let mut sample = fields(LINE);
        sample.insert("values".into(), "card=41…".into());
        assert!(request(&sample).unwrap().unwrap_err().ends_with("were cut"));
        sample.remove("values");
        assert!(request(&sample).unwrap().unwrap_err().ends_with("LOG_VALUES=true on the pod"));
    }
}
