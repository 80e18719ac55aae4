//! The schema of rule files, and the page that is written from it.

use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::schema::schema;

/// Set to write the files instead of comparing them.
const UPDATE: &str = "UPDATE_DOCS";

const HEAD: &str = "\
# All keys of rule files

Each key with what it takes. [rules.md](rules.md) explains them; [rules.schema.json] is the same as
a JSON Schema, from which `UPDATE_DOCS=1 cargo test -p ratelease-rules --lib schema` writes this
page. A key may be left out, or be null, unless it is required.

[rules.schema.json]: ../config/rules.schema.json
";

/// The maps of a file, by the names of their definitions.
const MAPS: [(&str, &str); 8] = [
    ("", "The file"),
    ("descriptor", "A descriptor"),
    ("rate_limit", "`rate_limit`"),
    ("replaced", "An item of `replaces`"),
    ("defaults", "`defaults`"),
    ("lease", "`lease`"),
    ("hold", "`hold`"),
    ("anchor", "`anchor`"),
];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Compares a file with its text, or writes it.
fn is_up_to_date(path: &str, text: &str) {
    let path = root().join(path);
    if std::env::var_os(UPDATE).is_some() {
        fs::write(&path, text).expect("the file can be written");
    }
    let written = fs::read_to_string(&path).unwrap_or_default();
    assert!(written == text, "{} is not up to date: run this test with {UPDATE}=1", path.display());
}

#[test]
fn the_schema_is_up_to_date() {
    let text = serde_json::to_string_pretty(&schema()).expect("a schema is JSON");
    is_up_to_date("config/rules.schema.json", &format!("{text}\n"));
}

#[test]
fn the_page_of_all_keys_is_up_to_date() {
    let schema = schema();
    let mut page = HEAD.to_owned();
    for (definition, heading) in MAPS {
        let map = match definition {
            "" => &schema,
            name => &schema["definitions"][name],
        };
        let properties = map["properties"].as_object().expect("properties");
        let _ = write!(page, "\n## {heading}\n\n");
        if definition == "defaults" {
            let options = &schema["definitions"]["rate_limit"]["properties"];
            assert!(properties.iter().all(|(key, value)| &options[key] == value));
            let keys: Vec<_> = properties.keys().map(|key| format!("`{key}`")).collect();
            let _ = writeln!(page, "As in `rate_limit`: {}.", keys.join(", "));
            continue;
        }
        page.push_str("| key | takes | meaning |\n|---|---|---|\n");
        for (key, value) in properties {
            let is_required =
                map["required"].as_array().is_some_and(|it| it.contains(&key.as_str().into()));
            let required = if is_required { "; required" } else { "" };
            let meaning = value["description"].as_str().expect("a description");
            let meaning = meaning.replace('*', "\\*");
            let _ = writeln!(page, "| `{key}` | {}{required} | {meaning} |", takes(value));
        }
    }
    is_up_to_date("docs/rules-list.md", &page);
}

/// Returns the values that an option takes, in words.
fn takes(value: &Value) -> String {
    if let Some(reference) = value["$ref"].as_str() {
        let name = reference.rsplit('/').next().unwrap_or_default();
        return format!("a map, see `{name}` below");
    }
    if let Some(words) = value["enum"].as_array() {
        let words = words.iter().filter_map(Value::as_str).map(|word| format!("`{word}`"));
        return words.collect::<Vec<_>>().join(", ");
    }
    if let Some(any) = value["anyOf"].as_array() {
        let is_listed = |it: &&Value| it.get("pattern").is_none() && it["type"] != "null";
        let parts = any.iter().filter(is_listed).map(takes).filter(|it| it != "true or false");
        return parts.collect::<Vec<_>>().join(", or ");
    }
    let kind = value["type"].as_array().and_then(|types| types.first()).unwrap_or(&value["type"]);
    match kind.as_str().unwrap_or_default() {
        "boolean" => "true or false".to_owned(),
        "object" => "any map".to_owned(),
        "array" => "a list of maps, see below".to_owned(),
        "integer" => format!("a whole number from {} to {}", value["minimum"], value["maximum"]),
        "number" => "a number above 0 and at most 1".to_owned(),
        _ => match value["pattern"].as_str() {
            Some(pattern) if pattern.contains("ms|s") => "a duration, such as `50ms`".to_owned(),
            Some(pattern) if pattern.contains(":[0-5]") => {
                "a time of day, such as `09:00`".to_owned()
            }
            _ => "text".to_owned(),
        },
    }
}
