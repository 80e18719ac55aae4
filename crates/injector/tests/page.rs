//! What is written about the annotations elsewhere: `docs/injection.md`, and the schema of the
//! chart's values.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::fs;
use std::path::Path;

use ratelease_injector::annotation::{KEYS, PREFIX};
use serde_json::Value;

fn read(path: &str) -> String {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    fs::read_to_string(root.join(path)).expect("the file is there")
}

#[test]
fn the_page_lists_every_annotation_with_its_default() {
    let page = read("docs/injection.md");
    let rows = page.lines().filter_map(|line| {
        let mut cells = line.strip_prefix(&format!("| `{PREFIX}"))?.split(" | ");
        let name = cells.next()?.strip_suffix('`')?;
        Some((name, cells.next()?)).filter(|_| cells.next().is_some())
    });
    let listed: Vec<_> = rows.filter(|(name, _)| !name.contains(':')).collect();
    let names: Vec<_> = listed.iter().map(|(name, _)| *name).collect();
    assert_eq!(names, KEYS.each_ref().map(|key| key.name));
    for (key, (_, default)) in KEYS.iter().zip(&listed) {
        let is_same = match key.default {
            "" => !default.contains('`'),
            text => **default == format!("`{text}`"),
        };
        assert!(is_same, "{}: the page says {default}, the default is {:?}", key.name, key.default);
    }
}

#[test]
fn the_chart_knows_every_default() {
    let schema: Value =
        serde_json::from_str(&read("deploy/helm/ratelease/values.schema.json")).unwrap();
    let names =
        &schema["properties"]["injector"]["properties"]["defaults"]["propertyNames"]["enum"];
    let expected: Vec<_> =
        KEYS.iter().map(|key| key.name).filter(|name| *name != "inject").collect();
    assert_eq!(*names, Value::from(expected));
}
