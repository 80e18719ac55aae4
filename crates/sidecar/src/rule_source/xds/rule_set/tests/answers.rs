//! The requests that answer the server, and the sources in force.

use super::*;
use crate::rule_source::xds::resource::read_within;
use crate::rule_source::xds::wire::Struct;

const OF: ResourceType = CONFIG;

fn good(name: &str) -> Any {
    resource(OF, name, Some(1))
}

fn response(version: &str, resources: Vec<Any>) -> DiscoveryResponse {
    DiscoveryResponse {
        version_info: version.into(),
        type_url: OF.url().into(),
        nonce: format!("n{version}"),
        resources,
    }
}

/// Has the pod accept a set, and returns the domains that are in force then.
async fn take(pod: &mut Pod, of: &[&str]) -> Vec<String> {
    let resources = of.iter().map(|name| good(name)).collect();
    let answer = pod.send_resources(resources).await;
    let version = pod.responses.to_string();
    assert_eq!(answer.request.version_info, version);
    assert_eq!(answer.request.response_nonce, format!("n{version}"));
    assert_eq!((answer.kind, &answer.request.error_detail), (AnswerKind::Accepted, &None));
    pod.domains().unwrap()
}

#[tokio::test(start_paused = true)]
async fn a_stream_begins_with_the_node_and_neither_version_nor_nonce() {
    let mut pod = Pod::new(OF);
    let node = Node { id: "pod".into(), ..Default::default() };
    assert_eq!(pod.rules.begin(node.clone()).node, Some(node.clone()));
    take(&mut pod, &["a"]).await;
    // A further stream may begin before the server has sent a set.
    for _ in 0..2 {
        let request = pod.rules.begin(node.clone());
        let fields = [("rules_version".to_owned(), text_value("1"))].into();
        let expected = Node { metadata: Some(Struct { fields }), ..node.clone() };
        assert_eq!(request.node, Some(expected), "the version is in its metadata");
        assert_eq!((&*request.version_info, &*request.response_nonce), ("", ""));
        assert_eq!(request.type_url, OF.url());
    }
    assert_eq!(pod.domains().unwrap(), ["a"], "what is in force stays");
}

#[tokio::test(start_paused = true)]
async fn a_refusal_names_version_nonce_and_few_of_many_faults() {
    let mut pod = Pod::new(OF);
    take(&mut pod, &["a"]).await;
    let garbage = Any { value: vec![0xff; 9].into(), ..good("b") };
    let stranger = Any { type_url: "type.googleapis.com/other".into(), ..good("c") };
    let mut all = vec![good("d"), garbage.clone(), stranger, good("d")];
    all.extend(vec![garbage; 97]);
    let answer = pod.send_resources(all).await;
    assert_eq!(answer.kind, AnswerKind::Refused);
    let request = answer.request;
    assert_eq!((&*request.version_info, &*request.response_nonce), ("1", "n2"));
    let error = request.error_detail.expect("a reason");
    assert_eq!(error.code, 3);
    let faults: Vec<_> = error.message.lines().collect();
    assert_eq!(faults.len(), 21, "{faults:?}");
    assert!(faults[0].starts_with("resources[1]: a resource that cannot be decoded"), "{faults:?}");
    assert!(faults[1].starts_with("resources[2]: a resource of another type"), "{faults:?}");
    assert_eq!(faults[2], "resources[3]: a second one of its name");
    assert_eq!(faults[20], "and 80 more");
    assert_eq!(pod.domains().unwrap(), ["a"]);
}

#[tokio::test(start_paused = true)]
async fn what_was_refused_is_known_on_its_stream_until_something_is_accepted() {
    let mut pod = Pod::new(OF);
    let bad = vec![Any { value: vec![0xff; 9].into(), ..good("b") }];
    for next in ["accepted", "another stream"] {
        let first = pod.send_resources(bad.clone()).await;
        assert_eq!(first.kind, AnswerKind::Refused, "{next}");
        let again = pod.send_resources(bad.clone()).await;
        assert_eq!(again.kind, AnswerKind::RefusedAgain, "{next}");
        assert_eq!(again.request.error_detail, first.request.error_detail);
        if next == "accepted" {
            take(&mut pod, &["a"]).await;
            assert!(pod.rules.newest.is_none());
        } else {
            pod.rules.begin(Node::default());
            assert!(pod.rules.newest.is_some(), "nothing was sent in its place");
            let read_again = pod.send_resources(bad.clone()).await;
            assert_eq!(read_again.kind, AnswerKind::Refused);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_set_of_an_earlier_stream_is_accepted_without_a_request() {
    let mut pod = Pod::new(OF);
    pod.set_memory(0);
    assert_eq!(pod.send_resources(vec![good("a")]).await.kind, AnswerKind::Refused);
    pod.rules.begin(Node::default());
    pod.set_memory(usize::MAX);
    assert_eq!(pod.wait(RETRY_WAIT).await, None, "the server has sent nothing on this one");
    assert_eq!((pod.domains().unwrap(), &*pod.rules.accepted.version), (vec!["a".into()], "1"));
    assert_eq!(pod.rules.request().version_info, "");
}

#[test]
fn faults_without_number_are_counted_and_not_kept() {
    let all = vec![Any::default(); 5000];
    let faults = read(OF, &response("1", all), &Resources::new(), usize::MAX);
    let faults = faults.expect_err("faults").faults;
    assert_eq!(faults.len(), 1001);
    assert_eq!(faults[1000], "and 4000 more");
}

#[tokio::test(start_paused = true)]
async fn resources_stay_for_a_while_when_the_server_sends_them_no_longer() {
    let mut pod = Pod::new(OF);
    let millis = Duration::from_millis;
    assert_eq!(take(&mut pod, &["a", "b"]).await, ["a", "b"]);
    assert_eq!(pod.rules.leave_at(), None);
    // As a gateway that was restarted: one set after the other.
    assert_eq!(take(&mut pod, &["b"]).await, ["a", "b"]);
    assert!(pod.rules.leave_at().is_some());
    pod.wait(millis(500)).await;
    assert_eq!(take(&mut pod, &["a", "b"]).await, ["a", "b"]);
    assert_eq!(pod.rules.leave_at(), None, "it came back");
    assert_eq!(take(&mut pod, &["b"]).await, ["a", "b"]);
    pod.wait(millis(1000)).await;
    assert_eq!(take(&mut pod, &[]).await, ["a", "b"]);
    pod.wait(millis(900)).await;
    assert_eq!(pod.domains().unwrap(), ["a", "b"]);
    pod.wait(millis(150)).await;
    assert_eq!(pod.domains().unwrap(), ["b"]);
    pod.wait(millis(1000)).await;
    assert_eq!(pod.domains(), Some(Vec::new()));
}

#[tokio::test(start_paused = true)]
async fn rules_of_a_snapshot_stay_for_a_while_after_the_first_set() {
    let mut pod = Pod::new(OF);
    let text = |name: &str| format!("domain: {name}\ndescriptors:\n- key: user\n").into_bytes();
    let source =
        |name: &str, domain| Arc::new(Source { name: name.to_owned(), text: text(domain) });
    pod.rules.seed(&[source("xds:a", "a"), source("xds-yaml:b", "b"), source("c.yaml", "c")]);
    let names: Vec<_> = pod.rules.accepted.resources.keys().collect();
    assert_eq!(names, ["a"], "those of its type");
    assert_eq!(take(&mut pod, &["d"]).await, ["a", "d"]);
    pod.wait(REMOVAL_WAIT).await;
    assert_eq!(pod.domains().unwrap(), ["d"]);
}

#[test]
fn too_large_a_set_is_refused_at_the_resource_that_exceeds() {
    let all: Vec<_> = ["a", "b", "c"].map(good).into();
    let none = Resources::new();
    let within = |max, count: usize| {
        let response = response("1", all[..count].to_vec());
        read_within(max, OF, &response, &none, usize::MAX)
    };
    let one = within(usize::MAX, 1).unwrap();
    let bytes: usize = one.resources.values().map(|it| it.source.text.len()).sum();
    assert!(within(3 * bytes, 3).is_ok(), "{bytes} bytes each");
    let faults = within(3 * bytes - 1, 3).unwrap_err();
    let fault = format!(
        "resources[2]: the rules up to here take more than {} bytes; send fewer",
        3 * bytes - 1
    );
    assert_eq!(faults, Refused::finally(fault));
}
