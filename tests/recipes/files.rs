//! What every recipe has, without starting it.

use std::fs;
use std::path::Path;

use crate::objects;
use crate::recipe::all;

/// Recipes whose bootstrap Envoy Gateway makes: `scripts/test-envoy-gateway` runs them.
const RUN_BY_ENVOY_GATEWAY: &str = "envoy-gateway-";

#[test]
fn each_recipe_has_its_files_and_a_section_in_the_page() {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/recipes.md");
    let page = fs::read_to_string(page).unwrap();
    let mut faults = Vec::new();
    for entry in fs::read_dir(all()).unwrap() {
        let dir = entry.unwrap().path();
        let name = dir.file_name().and_then(|name| name.to_str()).unwrap().to_owned();
        for file in ["envoy.yaml", "rules"] {
            if !dir.join(file).exists() && !name.starts_with(RUN_BY_ENVOY_GATEWAY) {
                faults.push(format!("envoy/recipes/{name} has no {file}"));
            }
        }
        if !page.contains(&format!("](../envoy/recipes/{name})")) {
            faults.push(format!("docs/recipes.md has no link to envoy/recipes/{name}"));
        }
        for file in fs::read_dir(&dir).unwrap() {
            let file = file.unwrap().file_name().into_string().unwrap();
            if !page.contains(&file) {
                faults.push(format!("docs/recipes.md does not say what {name}/{file} is"));
            }
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[test]
fn the_demos_tell_clients_when_to_retry() {
    for demo in ["envoy/envoy.yaml", "envoy/compose.yaml"] {
        let demo = objects::document(&Path::new(env!("CARGO_MANIFEST_DIR")).join(demo));
        let filters = objects::all(&demo, "http_filters").into_iter().flat_map(objects::items);
        let filters: Vec<_> =
            filters.filter(|filter| filter["name"] == "envoy.filters.http.ratelimit").collect();
        assert_eq!(filters.len(), 1);
        assert_eq!(filters[0]["typed_config"]["enable_retry_after_header"], "true");
    }
}
