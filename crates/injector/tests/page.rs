//! What is written about the injector elsewhere: `docs/injection.md`, the schema of the chart's
//! values, the recipes and the pages about monitoring.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::fs;
use std::path::Path;

use ratelease_injector::{Cluster, Injection, NativeSidecars, Verdict, inject};
use ratelease_injector::{Defaults, KEYS, PREFIX};
use serde_json::{Value, json};

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

/// A pod as it is injected with these defaults.
fn injected(pairs: &[String]) -> Injection {
    let defaults = Defaults::read(pairs).unwrap();
    let cluster = Cluster { native_sidecars: NativeSidecars::OnAllNodes };
    let pod = json!({
        "metadata": {"name": "web"},
        "spec": {"containers": [{"name": "envoy", "image": "envoy"}]},
    });
    inject(pod, &defaults, cluster)
}

/// The words of a text that begin like this, without that.
fn after(text: &str, start: &str) -> Vec<String> {
    let words = text.split_whitespace();
    words.filter_map(|word| word.split_once(start).map(|(_, rest)| rest.to_owned())).collect()
}

#[test]
fn a_pod_gets_the_sidecar_with_the_commands_of_the_pages_and_their_rules() {
    let pages = [("docs/install.md", "## In Istio"), ("docs/injection.md", "## By files")];
    let pages = pages.map(|(page, title)| (read(page), title));
    let [webhook, files] = pages.each_ref().map(|(page, title)| {
        let section = page.split_once(title).expect("the section").1;
        section.split("```").nth(1).expect("the commands")
    });
    let of_chart = after(webhook, "injector.defaults.");
    let words: Vec<_> = files.split_whitespace().collect();
    let of_files = words.windows(2).filter(|pair| pair[0] == "--default");
    let of_files: Vec<_> = of_files.map(|pair| pair[1].to_owned()).collect();
    for pairs in [of_chart, of_files] {
        assert!(pairs.len() > 1, "{pairs:?}");
        let Injection { verdict, faults, pod, .. } = injected(&pairs);
        assert_eq!((verdict, faults.len()), (Verdict::Injected, 0), "{pairs:?}: {faults:?}");
        let config_map = &pod["spec"]["volumes"][0]["configMap"]["name"];
        let made = after(webhook, "shop-rules");
        assert_eq!((config_map.as_str(), made.is_empty()), (Some("shop-rules"), false));
    }
    assert!(webhook.contains("create configmap shop-rules --namespace shop"), "{webhook}");
}

/// The files below a directory that may name a socket or a port.
fn texts(directory: &str) -> Vec<(String, String)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let (mut texts, mut directories) = (Vec::new(), vec![root.join(directory)]);
    while let Some(directory) = directories.pop() {
        for entry in fs::read_dir(&directory).expect("a directory") {
            let path = entry.unwrap().path();
            if path.is_dir() {
                directories.push(path);
            } else if let Ok(text) = fs::read_to_string(&path) {
                texts.push((path.display().to_string(), text));
            }
        }
    }
    texts
}

#[test]
fn the_socket_has_one_path_wherever_it_is_named() {
    let pairs = ["redis=redis:6379", "rules=r", "listen=uds"].map(str::to_owned);
    let pod = injected(&pairs).pod.to_string();
    let (_, rest) = pod.split_once("/run/ratelease/").expect("the socket");
    let socket = rest.split('"').next().unwrap();
    let directories = ["docs", "envoy", "deploy", "tests/recipes", "tests/kubernetes"];
    let mut found = 0;
    for (path, text) in directories.iter().flat_map(|it| texts(it)) {
        for name in text.split("/run/ratelease/").skip(1) {
            let end = name.find(|it: char| !it.is_ascii_alphanumeric() && !"._-".contains(it));
            let name = name[..end.unwrap_or(name.len())].trim_end_matches('.');
            if name.ends_with(".sock") {
                found += 1;
                assert_eq!(name, socket, "{path}");
            }
        }
    }
    assert!(found > 5, "{found}");
}

#[test]
fn the_pages_about_monitoring_name_the_port_of_the_metrics() {
    let pod = injected(&["redis=redis:6379", "rules=r"].map(str::to_owned)).pod;
    let port = &pod["spec"]["initContainers"][0]["ports"][0];
    let (name, number) = (port["name"].as_str().unwrap(), port["containerPort"].to_string());
    let page = read("deploy/README.md");
    assert!(page.contains(&format!("- port: {name}\n")), "{page}");
    assert!(page.contains(&format!("excludeInboundPorts: \"{number}\"")), "{page}");
    assert!(page.contains(&format!("`{name}` ({number},")), "{page}");
    // No label has to be set for it: the injector sets none.
    assert!(page.contains("  selector: {} #"), "{page}");
}
