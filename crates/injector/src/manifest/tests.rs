//! Streams of documents.

use proptest::prelude::*;
use serde_json::json;

use super::Format;
use super::*;
use crate::inject::NativeSidecars;

const NEW: Cluster = Cluster { native_sidecars: NativeSidecars::OnAllNodes };

fn run(text: &str) -> Result<Manifest, Vec<Fault>> {
    let defaults = Defaults::read(&["redis=redis:6379".into(), "rules=shop-rules".into()]);
    inject_all(("a.yaml", text), &defaults.unwrap(), NEW)
}

fn parse(yaml: &str) -> Value {
    let document = Document { text: yaml, line: 1, format: Format::Yaml };
    document.parse("a.yaml", |_| true).unwrap().unwrap()
}

const DEPLOYMENT: &str = "\
apiVersion: apps/v1
kind: Deployment
metadata: {name: web, namespace: shop}
spec:
  template:
    spec:
      containers: [{name: envoy, image: envoy}]
";

#[test]
fn every_kind_with_a_pod_template_is_injected() {
    for (group, kind, at) in WORKLOADS {
        let version = if group.is_empty() { "v1".to_owned() } else { format!("{group}/v1") };
        let mut object = json!({"apiVersion": version, "kind": kind, "metadata": {"name": "a"}});
        let pod = json!({"metadata": {}, "spec": {"containers": [{"name": "envoy"}]}});
        let path: Vec<&str> = at.split('/').skip(1).chain(["x"]).collect();
        let inner = pod.as_object().unwrap();
        for (field, value) in inner {
            let mut to = &mut object;
            for name in &path[..path.len() - 1] {
                to = &mut to[*name];
            }
            if !(at.is_empty() && field == "metadata") {
                to[field.as_str()] = value.clone();
            }
        }
        let made = run(&object.to_string()).unwrap();
        assert_eq!(made.pods.len(), 1, "{kind}");
        assert_eq!(made.pods[0].place, format!("a.yaml:1: {kind} a"));
        assert_eq!(made.pods[0].verdict, Verdict::Injected, "{kind} {:?}", made.pods[0].faults);
        let after: Value = serde_json::from_str(&made.text).unwrap();
        let spec = after.pointer(&format!("{at}/spec/initContainers/0/name"));
        assert_eq!(spec.unwrap(), "ratelease", "{kind}");
    }
}

#[test]
fn other_documents_stay_byte_by_byte() {
    let before =
        "# a comment\n\n---\n# ours: 'x'   # odd  spacing\nkind:   ConfigMap\ndata: {a: |x}\n";
    let after = "--- # the last\napiVersion: v1\nkind: Service\nmetadata:\n  name: \"Pod\"\n...\n";
    let made = run(&format!("{before}---\n# The web.\n{DEPLOYMENT}{after}")).unwrap();
    assert!(made.text.starts_with(&format!("{before}---\n# The web.\napiVersion: apps/v1\n")));
    assert!(made.text.ends_with(&format!("\n{after}")), "{}", made.text);
    assert_eq!(made.pods[0].place, "a.yaml:8: Deployment shop/web");
}

#[test]
fn a_stream_without_workloads_is_not_even_parsed() {
    for text in
        ["", "\n\n", "a: [", "--- {a: b}\n--- \nx\n", "{\"a\": 1}\r\n{\"b\": [2]}\n\n", "\u{0}"]
    {
        assert_eq!(run(text).unwrap().text, text);
    }
}

#[test]
fn a_second_injection_changes_no_byte() {
    let once = run(DEPLOYMENT).unwrap();
    let twice = run(&once.text).unwrap();
    assert_eq!(twice.text, once.text);
    assert_eq!(twice.pods[0].verdict, Verdict::Kept);
}

#[test]
fn values_of_json_follow_each_other() {
    let pod = r#"{"apiVersion":"v1","kind":"Pod","metadata":{"name":"a"},
        "spec":{"containers":[{"name":"b"}]}}"#;
    let made = run(&format!("{{\"kind\": \"Other\"}}\n{pod}\n")).unwrap();
    assert!(made.text.starts_with("{\"kind\": \"Other\"}\n"), "{}", made.text);
    assert_eq!(made.pods[0].place, "a.yaml:1: Pod a");
    let values: Result<Vec<Value>, _> =
        serde_json::Deserializer::from_str(&made.text).into_iter().collect();
    assert_eq!(values.unwrap()[1]["spec"]["initContainers"][0]["name"], "ratelease");
}

#[test]
fn lists_are_searched() {
    let text = format!(
        "kind: List\napiVersion: v1\nitems:\n- kind: Service\n- {}",
        DEPLOYMENT.trim_end().replace('\n', "\n  ")
    );
    let made = run(&text).unwrap();
    assert_eq!(made.pods[0].verdict, Verdict::Injected);
    let typed = "{kind: PodList, apiVersion: v1, items: [
        {metadata: {name: a}, spec: {containers: [{name: b}]}}]}";
    assert_eq!(run(typed).unwrap().pods[0].place, "a.yaml:1: Pod a");
}

#[test]
fn scalars_are_those_of_kubernetes() {
    let read = parse("a: 0400\nb: yes\nc: \"0400\"\nd: 1e3\ne: ~\nf: 'no'\ng: 12:30\nh: 0o17\n");
    let expected = json!({
        "a": 256, "b": true, "c": "0400", "d": 1000.0, "e": null, "f": "no", "g": "12:30", "h": 15,
    });
    assert_eq!(read, expected);
}

#[test]
fn a_pod_with_a_fault_stays_as_it_is() {
    let text = DEPLOYMENT.replace(
        "    spec:\n",
        "    metadata: {annotations: {ratelease.io/listen: x}}\n    spec:\n",
    );
    let made = run(&text).unwrap();
    assert_eq!(made.text, text);
    assert_eq!(made.pods[0].verdict, Verdict::Refused);
    assert_eq!(made.pods[0].faults[0].place, "ratelease.io/listen");
}

#[test]
fn every_document_that_cannot_be_parsed_is_reported_with_its_line() {
    let faults = run("kind: Pod\na: [\n---\nkind: Job\nb: {\n---\nc: Pod\nc: Pod\n").unwrap_err();
    let places: Vec<_> = faults.iter().map(|fault| fault.place.clone()).collect();
    assert_eq!(places.len(), 3, "{faults:?}");
    assert_eq!(places[2], "a.yaml:8", "{faults:?}");
    assert!(faults[0].problem.starts_with("no YAML that can be read: "), "{faults:?}");
}

/// Texts that a parser could take for something else.
fn text() -> impl Strategy<Value = String> {
    let odd = [
        "",
        "yes",
        "0400",
        "1_000",
        "~",
        "null",
        "-",
        "a: b",
        "#x",
        "2026-01-01",
        "1:30",
        "\n",
        "a\n b\n",
        " x",
        "x ",
        "---",
        "'",
        "\"",
        "{{a}}",
        "%x",
        "@x",
        "`x",
        "1e3",
        "0x1",
        "=",
        "<<",
    ];
    prop_oneof![
        proptest::sample::select(odd.to_vec()).prop_map(str::to_owned),
        "[ -~\n]{0,100}",
        ".{0,12}"
    ]
}

fn any_value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        text().prop_map(Value::from),
    ];
    leaf.prop_recursive(4, 32, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::btree_map(text(), inner, 0..4)
                .prop_map(|map| Value::Object(map.into_iter().collect())),
        ]
    })
}

proptest! {
    #[test]
    fn what_is_written_is_read_as_the_same(value in any_value()) {
        prop_assert_eq!(parse(&to_yaml(&json!({"a": value}))), json!({"a": value}));
    }

    #[test]
    fn all_pieces_together_are_the_stream(text in "(---|[-a{}\"1: #\n\t])*") {
        let joined: String = pieces(&text).iter().map(|piece| match piece {
            Piece::Separator(text) => *text,
            Piece::Document(document) => document.text,
        }).collect();
        prop_assert_eq!(joined, text);
    }

    #[test]
    fn no_text_makes_it_panic(text in "(---\n|kind: Pod|Deployment|[-a{}\\[\\]\"1: #\n&*!|>])*") {
        let _ = run(&text);
    }
}
