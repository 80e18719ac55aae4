//! The queries of a Grafana dashboard.

use serde_json::Value;

/// A variable that Grafana fills from Prometheus.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Variable {
    pub(super) label: String,
    pub(super) selector: String,
}

/// Grafana chooses at least four scrape intervals.
const RATE_INTERVAL: &str = "10s";

/// Each query of each panel, with "All" chosen for every variable.
pub(super) fn queries(board: &Value) -> Vec<String> {
    let panels = board["panels"].as_array().expect("panels");
    let targets = panels.iter().filter_map(|panel| panel["targets"].as_array()).flatten();
    targets.map(|target| replaced(board, target["expr"].as_str().expect("an expression"))).collect()
}

/// The variables whose values come from a query.
pub(super) fn variables(board: &Value) -> Vec<Variable> {
    let list = board["templating"]["list"].as_array().expect("variables");
    let queried = list.iter().filter(|variable| variable["type"] == "query");
    let split = |variable: &Value| {
        let query = replaced(board, variable["definition"].as_str()?);
        let (selector, label) =
            query.strip_prefix("label_values(")?.strip_suffix(')')?.rsplit_once(", ")?;
        Some(Variable { label: label.to_owned(), selector: selector.to_owned() })
    };
    queried.map(|variable| split(variable).expect("label_values(selector, label)")).collect()
}

fn replaced(board: &Value, text: &str) -> String {
    let mut text = text.replace("$__rate_interval", RATE_INTERVAL);
    for variable in board["templating"]["list"].as_array().expect("variables") {
        let name = variable["name"].as_str().expect("a name");
        text = text.replace(&format!("${name}"), variable["allValue"].as_str().unwrap_or_default());
    }
    assert!(!text.contains('$'), "an undefined variable: {text}");
    text
}

#[test]
fn a_query_is_asked_with_its_variables_replaced() {
    let board = serde_json::json!({
        "templating": {"list": [
            {"name": "datasource", "type": "datasource"},
            {"name": "job", "type": "query", "allValue": ".*", "definition": "label_values(a, b)"},
        ]},
        "panels": [
            {"type": "row"},
            {"targets": [{"expr": "a{b=~\"$job\"}[$__rate_interval]"}, {"expr": "c"}]},
        ],
    });
    assert_eq!(queries(&board), ["a{b=~\".*\"}[10s]", "c"]);
    assert_eq!(variables(&board), [Variable { label: "b".to_owned(), selector: "a".to_owned() }]);
}
