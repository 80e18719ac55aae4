//! What chart, injector, packages, recipes and pages say of the same thing agrees.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use super::read as file;

/// Where operators copy from.
const COPIED: [&str; 5] = ["envoy", "deploy", "docs", "config", "docker-compose.yml"];

/// Types of the files that are read.
const TEXTS: [&str; 7] = ["yaml", "yml", "env", "md", "tpl", "service", "conf"];

fn texts(path: &Path, into: &mut Vec<(PathBuf, String)>) {
    if path.is_dir() {
        for entry in fs::read_dir(path).unwrap() {
            texts(&entry.unwrap().path(), into);
        }
    } else if path.extension().and_then(|it| it.to_str()).is_some_and(|it| TEXTS.contains(&it)) {
        into.push((path.to_owned(), fs::read_to_string(path).unwrap()));
    }
}

/// Every text that is copied from.
fn copied() -> Vec<(PathBuf, String)> {
    let mut all = Vec::new();
    COPIED
        .iter()
        .for_each(|name| texts(&Path::new(env!("CARGO_MANIFEST_DIR")).join(name), &mut all));
    assert!(all.len() > 50, "{} files", all.len());
    all
}

/// What follows `before` in a text, as far as `is_part` says.
fn after<'t>(text: &'t str, before: &str, is_part: impl Fn(char) -> bool) -> Vec<&'t str> {
    let rest = text.match_indices(before).map(|(at, _)| &text[at + before.len()..]);
    rest.map(|rest| rest.split(|it| !is_part(it)).next().unwrap_or_default()).collect()
}

#[test]
fn the_socket_of_ratelease_has_one_path() {
    let mut found = 0;
    for (path, text) in copied() {
        for name in after(&text, "/run/ratelease/", |it| it.is_ascii_alphanumeric() || it == '.') {
            assert_eq!(name.trim_end_matches('.'), "rls.sock", "{}", path.display());
            found += 1;
        }
    }
    assert!(found > 5, "{found} places");
    let injector = file("crates/injector/src/environment.rs");
    assert!(injector.contains("SOCKET: &str = \"/run/ratelease/rls.sock\""));
}

#[test]
fn the_library_of_the_module_has_one_path() {
    let mut found = 0;
    for (path, text) in copied() {
        for name in after(&text, "/opt/ratelease/", |it| it.is_ascii_alphanumeric() || it == '.') {
            assert_eq!(name.trim_end_matches('.'), "libratelease.so", "{}", path.display());
            found += 1;
        }
    }
    assert!(found > 2, "{found} places");
    let injector = file("crates/injector/src/sidecar.rs");
    assert!(injector.contains("LIBRARY: &str = \"/opt/ratelease/libratelease.so\""));
}

/// Envoy asks the port on which the injector has the sidecar listen.
#[test]
fn recipes_of_pods_with_the_injector_ask_its_port() {
    let is_digit = |it: char| it.is_ascii_digit();
    let injector = file("crates/injector/src/annotation.rs");
    let [port] = after(&injector, "\"listen\", \"", is_digit)[..] else { panic!() };
    for recipe in ["istio-loopback", "istio-gateway"] {
        let text = file(&format!("envoy/recipes/{recipe}/envoyfilter.yaml"));
        let asked = after(&text, "address: 127.0.0.1, port_value: ", is_digit);
        assert_eq!(asked, [port], "{recipe}");
    }
}

#[test]
fn images_and_packages_are_named_by_the_version_of_the_program() {
    let version = env!("CARGO_PKG_VERSION");
    let is_version = |it: char| it.is_ascii_digit() || it == '.';
    let mut found = 0;
    for (path, text) in copied() {
        let names = ["", "-injector", "-control", "-module"].map(|it| format!("ratelease{it}:"));
        for before in names.iter().map(String::as_str).chain(["$image:", "ratelease_"]) {
            let named = after(&text, before, is_version);
            for named in named.iter().filter(|it| it.matches('.').count() == 2) {
                assert_eq!(named.trim_end_matches('.'), version, "{}", path.display());
                found += 1;
            }
        }
    }
    assert!(found > 0, "no image is named");
    let chart = file("deploy/helm/ratelease/Chart.yaml");
    assert!(chart.lines().any(|line| line == format!("appVersion: {version}")), "{chart}");
}

#[test]
fn every_page_and_recipe_is_about_one_version_of_envoy() {
    let is_version = |it: char| it.is_ascii_digit() || it == '.';
    let mut versions = BTreeSet::new();
    for (_, text) in copied() {
        let named = after(&text, "envoyproxy/envoy:v", is_version);
        versions.extend(named.iter().map(|it| it.trim_end_matches('.').to_owned()));
    }
    assert_eq!(versions.len(), 1, "{versions:?}");
}

/// The chart and the demo are scraped alike; sidecars of the injector have a port that no proxy of a
/// mesh and no debug port has.
#[test]
fn the_port_of_metrics_is_the_same_wherever_it_is_named() {
    let is_digit = |it: char| it.is_ascii_digit();
    let chart = file("deploy/helm/ratelease/templates/_env.tpl");
    let [chart] = after(&chart, "PROMETHEUS_ADDR, value: \":", is_digit)[..] else { panic!() };
    let demo = file("docker-compose.yml");
    assert_eq!(after(&demo, "PROMETHEUS_ADDR: \":", is_digit), [chart]);
    assert_eq!(after(&file("deploy/README.md"), "PROMETHEUS_ADDR=:", is_digit), [chart]);

    let injector = file("crates/injector/src/annotation.rs");
    let [sidecar] = after(&injector, "\"metrics-port\", \"", is_digit)[..] else { panic!() };
    let page = file("docs/injection.md");
    assert_eq!(after(&page, "`ratelease.io/metrics-port` | `", is_digit), [sidecar]);
    let scraping = file("deploy/README.md");
    assert_eq!(after(&scraping, "named `rl-metrics` (", is_digit), [sidecar]);
}

#[test]
fn annotations_and_labels_that_are_copied_are_known_to_the_injector() {
    let table = file("crates/injector/src/annotation.rs");
    let table: String = table.split_whitespace().collect(); // wherever its lines end
    let is_part = |it: char| it.is_ascii_lowercase() || it == '-';
    let mut names = BTreeSet::new();
    for (_, text) in copied() {
        let text = text.replace("apiVersion: ratelease.io/", ""); // of objects
        let found = after(&text, "ratelease.io/", is_part);
        names.extend(found.into_iter().filter(|it| !it.is_empty()).map(str::to_owned));
    }
    assert!(names.len() > 10, "{names:?}");
    for name in names {
        let is_key = table.contains(&format!("key(\"{name}\""));
        let is_other = table.contains(&format!("(\"ratelease.io/{name}\""))
            || table.contains(&format!("=\"ratelease.io/{name}\""));
        assert!(is_key || is_other, "{name}");
    }
}
