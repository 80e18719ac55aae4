//! Deployments in the shapes that people write, and the parts of them that are read.

use std::fs;
use std::path::{Path, PathBuf};

use ratelease_cli::out::CliError;
use ratelease_rules::Source;
use tempfile::TempDir;

use crate::migrate::deployment;
use crate::migrate::deployment::{Deployment, expand};

fn dir(files: &[(&str, &str)]) -> TempDir {
    let dir = TempDir::new().unwrap();
    for (name, text) in files {
        fs::write(dir.path().join(name), text).unwrap();
    }
    dir
}

fn manifests(text: &str, container: Option<&str>) -> Result<Deployment, CliError> {
    let dir = dir(&[("a.yaml", text)]);
    deployment::of_kubernetes(&[dir.path().join("a.yaml")], container)
}

fn value<'d>(deployment: &'d Deployment, name: &str) -> Option<&'d str> {
    let found = deployment.environment.get(name);
    found.unwrap_or_else(|| panic!("no {name} in {deployment:?}")).as_deref()
}

const WORKLOAD: &str = "
apiVersion: apps/v1
kind: Deployment
metadata: {name: ratelimit}
spec:
  replicas: 3
  template:
    spec:
      containers:
        - name: exporter
          image: statsd-exporter
        - name: main
          image: envoyproxy/ratelimit:master
          command: [/bin/ratelimit]
          envFrom:
            - configMapRef: {name: settings}
            - configMapRef: {name: elsewhere}
            - secretRef: {name: redis}
              prefix: REDIS_
          env:
            - {name: LOG_LEVEL, value: debug}
            - {name: POD_IP, valueFrom: {fieldRef: {fieldPath: status.podIP}}}
            - {name: HOST, value: $(POD_IP)}
            - {name: CACHE_KEY_PREFIX, value: \"$(LOG_LEVEL)-$$-$(NONE)\"}
            - {name: PORT, valueFrom: {configMapKeyRef: {name: settings, key: PORT}}}
            - {name: EMPTY}
          volumeMounts:
            - {name: rules, mountPath: /data/ratelimit/config}
            - {name: one, mountPath: /etc/one.yaml, subPath: one.yaml}
      volumes:
        - {name: rules, configMap: {name: rules}}
        - {name: one, configMap: {name: rules, items: [{key: b.yaml, path: one.yaml}]}}
---
apiVersion: v1
kind: List
items:
  - kind: ConfigMap
    metadata: {name: settings}
    data: {LOG_LEVEL: warn, PORT: '9080'}
  - kind: Secret
    metadata: {name: redis}
    stringData: {AUTH: sesame}
---
kind: ConfigMap
metadata: {name: rules}
data:
  a.yaml: |
    domain: a
  b.yaml: |
    domain: b
";

#[test]
fn the_environment_of_a_container_is_read_with_its_config_maps_and_without_secrets() {
    let read = manifests(WORKLOAD, None).unwrap();
    assert!(read.origin.ends_with("a.yaml, container main of Deployment ratelimit"), "{read:?}");
    assert_eq!(read.replicas, Some(3));
    for (name, expected) in [
        ("LOG_LEVEL", Some("debug")),
        ("PORT", Some("9080")),
        ("POD_IP", None),
        ("HOST", None),
        ("CACHE_KEY_PREFIX", Some("debug-$-$(NONE)")),
        ("REDIS_AUTH", None),
        ("EMPTY", Some("")),
    ] {
        assert_eq!(value(&read, name), expected, "{name}");
    }
    assert!(!format!("{read:?}").contains("sesame"));
    let [unread] = &*read.unread else { panic!("{read:?}") };
    assert!(unread.starts_with("ConfigMap elsewhere is not in the manifests"), "{unread}");
}

#[test]
fn rule_files_are_found_in_mounted_config_maps() {
    let read = manifests(WORKLOAD, None).unwrap();
    let files: Vec<_> = read
        .files
        .iter()
        .map(|file| (file.path.to_str().unwrap(), String::from_utf8_lossy(&file.source.text)))
        .collect();
    let expected = [
        ("/data/ratelimit/config/a.yaml", "domain: a\n"),
        ("/data/ratelimit/config/b.yaml", "domain: b\n"),
        ("/etc/one.yaml", "domain: b\n"),
    ];
    assert_eq!(files, expected.map(|(path, text)| (path, text.into())));
    assert!(read.files[0].source.name.ends_with("a.yaml: ConfigMap rules: a.yaml"));
}

#[test]
fn where_several_containers_may_be_meant_one_has_to_be_named() {
    let read = manifests(WORKLOAD, Some("exporter")).unwrap();
    assert!(read.environment.is_empty());
    for (text, container, reason) in [
        (WORKLOAD.to_owned(), Some("nope"), "no container nope; it has exporter, main"),
        (WORKLOAD.replace("statsd-exporter", "my-ratelimit"), None, "several containers may run"),
        (WORKLOAD.replace("ratelimit", "limits"), None, "no image or command says ratelimit"),
        ("kind: Namespace\nmetadata: {name: a}\n".to_owned(), None, "no container with an"),
        ("a: [b\n".to_owned(), None, "a.yaml:"),
    ] {
        let error = manifests(&text, container).unwrap_err().to_string();
        assert!(error.contains(reason), "{reason}: {error}");
    }
}

#[test]
fn a_compose_file_has_variables_as_a_map_or_a_list_and_in_env_files() {
    let dir = dir(&[
        (
            "docker-compose.yml",
            "
services:
  redis: {image: redis}
  limits:
    image: envoyproxy/ratelimit:master
    env_file: [base.env, {path: gone.env}]
    environment:
      LOG_LEVEL: ${LEVEL:-debug}
      REDIS_URL: ${REDIS}
      CACHE_KEY_PREFIX: a$$b
      PORT: 8080
    volumes: ['./rules:/data/ratelimit/config:ro', 'named:/var', {source: /a, target: /b}]
  listed:
    image: other
    environment: [A=b, C]
",
        ),
        ("base.env", "LOG_LEVEL=warn\nUSE_STATSD=false\n"),
    ]);
    let path = dir.path().join("docker-compose.yml");
    let read = deployment::of_compose(&path, None).unwrap();
    for (name, expected) in [
        ("LOG_LEVEL", Some("debug")),
        ("USE_STATSD", Some("false")),
        ("REDIS_URL", None),
        ("CACHE_KEY_PREFIX", Some("a$b")),
        ("PORT", Some("8080")),
    ] {
        assert_eq!(value(&read, name), expected, "{name}");
    }
    assert!(read.unread[0].contains("gone.env: not there"), "{read:?}");
    let here = read.here(Path::new("/data/ratelimit/config/deep"));
    assert_eq!(here, Some(dir.path().join("./rules/deep")));
    assert_eq!(read.here(Path::new("/b")), Some(PathBuf::from("/a")));
    assert_eq!(read.here(Path::new("/var")), None);
    let listed = deployment::of_compose(&path, Some("listed")).unwrap();
    assert_eq!((value(&listed, "A"), value(&listed, "C")), (Some("b"), None));
}

#[test]
fn lines_of_an_environment_are_read_and_all_faulty_ones_named() {
    let parse = |text: &str| {
        deployment::parse(&Source { name: "a.env".to_owned(), text: text.as_bytes().to_vec() })
    };
    let read = parse("\u{feff}# a\n\nA=1\nexport B='x y'\nC=\"z\"\nD\nE=\nF=a=b # c\n").unwrap();
    let expected = [
        ("A", Some("1")),
        ("B", Some("x y")),
        ("C", Some("z")),
        ("D", None),
        ("E", Some("")),
        ("F", Some("a=b # c")),
    ];
    let found: Vec<_> = read.iter().map(|(name, value)| (&**name, value.as_deref())).collect();
    assert_eq!(found, expected);
    let error = parse("A=1\n1B=2\n-c\n=x\n").unwrap_err().to_string();
    assert_eq!(error.lines().count(), 3, "{error}");
    assert!(error.starts_with("a.env:2: expected KEY=value"), "{error}");
}

#[test]
fn references_are_replaced_and_one_without_a_value_makes_the_whole_unknown() {
    let resolve = |name: &str| (name == "A").then(|| "x".to_owned());
    for (text, expected) in [
        ("a", Some("a")),
        ("$(A)$(A)b", Some("xxb")),
        ("$$(A)", Some("$(A)")),
        ("$(A", Some("$(A")),
        ("$A", Some("$A")),
        ("$", Some("$")),
        ("$(B)", None),
    ] {
        assert_eq!(expand(text, ("(", ')'), resolve).as_deref(), expected, "{text}");
    }
}
