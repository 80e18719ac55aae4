//! What the server is told, and which sources are in force.

use prost::Message;
use ratelease_xds::config::{RateLimitConfig, RateLimitDescriptor};

use super::super::*;
use crate::rule_source::xds::resource::read_within;
use crate::rule_source::xds::wire::{Any, Struct};

const OF: ResourceType = ResourceType::RateLimitConfig;

fn resource(name: &str, domain: &str) -> Any {
    let descriptor = RateLimitDescriptor { key: "a".into(), ..Default::default() };
    let (name, domain) = (name.into(), domain.into());
    let config = RateLimitConfig { name, domain, descriptors: vec![descriptor] };
    Any { type_url: OF.url().to_owned(), value: config.encode_to_vec().into() }
}

fn response(version: &str, resources: Vec<Any>) -> DiscoveryResponse {
    DiscoveryResponse {
        version_info: version.into(),
        type_url: OF.url().into(),
        nonce: format!("n{version}"),
        resources,
    }
}

fn at(millis: u64) -> Time {
    Time::default() + Duration::from_millis(millis)
}

fn receive(
    subscription: &mut Subscription,
    version: &str,
    resources: Vec<Any>,
) -> Result<Received, Refused> {
    let response = response(version, resources);
    subscription.note_response(&response);
    read(OF, &response, &subscription.accepted, usize::MAX)
}

/// Receives and accepts a set; returns the names of all that is in force then.
fn take(subscription: &mut Subscription, version: &str, of: &[&str], millis: u64) -> Vec<String> {
    let resources = of.iter().map(|name| resource(name, name)).collect();
    let received = receive(subscription, version, resources);
    subscription.keep(received, &Arc::default());
    subscription.leaving = subscription.leaving_beside(true, at(millis));
    let request = subscription.accept_newest().expect("a good set of this stream");
    assert_eq!((&*request.version_info, request.response_nonce), (version, format!("n{version}")));
    assert_eq!(request.error_detail, None);
    names(subscription)
}

/// Removes what was to leave by then.
fn let_go(subscription: &mut Subscription, millis: u64) {
    subscription.leaving = subscription.still_leaving(at(millis));
}

fn names(subscription: &Subscription) -> Vec<String> {
    let leaving = subscription.leaving.values().map(|(resource, _)| resource);
    let all = subscription.accepted.values().chain(leaving);
    all.map(|resource| resource.source.name.clone()).collect()
}

#[test]
fn a_stream_begins_with_the_node_and_neither_version_nor_nonce() {
    let mut subscription = Subscription::new(OF);
    let node = Node { id: "pod".into(), ..Default::default() };
    assert_eq!(subscription.begin(node.clone()).node, Some(node.clone()));
    take(&mut subscription, "7", &["a"], 0);
    // A further stream may begin before the server has sent a set.
    for _ in 0..2 {
        let request = subscription.begin(node.clone());
        let fields = [("rules_version".to_owned(), text_value("7"))].into();
        let expected = Node { metadata: Some(Struct { fields }), ..node.clone() };
        assert_eq!(request.node, Some(expected), "the version is in its metadata");
        assert_eq!((&*request.version_info, &*request.response_nonce), ("", ""));
        assert_eq!(request.type_url, OF.url());
    }
    assert_eq!(names(&subscription), ["xds:a"], "what is in force stays");
}

#[test]
fn a_refusal_names_the_accepted_version_the_last_nonce_and_few_of_many_faults() {
    let mut subscription = Subscription::new(OF);
    take(&mut subscription, "1", &["a"], 0);
    let garbage = Any { value: vec![0xff; 9].into(), ..resource("b", "b") };
    let stranger = Any { type_url: "type.googleapis.com/other".into(), ..resource("c", "c") };
    let all = vec![resource("d", "d"), garbage, stranger, resource("d", "d")];
    let faults = receive(&mut subscription, "2", all).expect_err("faults").faults;
    assert_eq!(faults.len(), 3, "{faults:?}");
    assert!(faults[0].starts_with("resources[1]: a resource that cannot be decoded"), "{faults:?}");
    assert!(faults[1].starts_with("resources[2]: a resource of another type"), "{faults:?}");
    assert_eq!(faults[2], "resources[3]: a second one of its name");
    let many: Vec<_> = (0..100).map(|at| format!("fault {at}")).collect();
    subscription.keep(Err(Refused { faults: many, is_for_now: false }), &Arc::default());
    let request = subscription.refusal();
    assert_eq!((&*request.version_info, &*request.response_nonce), ("1", "n2"));
    let error = request.error_detail.expect("a reason");
    assert_eq!(error.code, 3);
    assert_eq!(error.message.lines().count(), 21);
    assert!(error.message.ends_with("\nand 80 more"), "{}", error.message);
    assert_eq!(names(&subscription), ["xds:a"]);
}

#[test]
fn what_was_refused_is_known_on_its_stream_until_something_is_accepted() {
    let mut subscription = Subscription::new(OF);
    let bad = vec![Any { value: vec![0xff; 9].into(), ..resource("b", "b") }];
    for next in ["accepted", "another stream"] {
        let read = receive(&mut subscription, "1", bad.clone());
        assert!(read.is_err());
        subscription.keep(read, &Arc::default());
        assert_eq!(subscription.refused(), None, "not before it is refused");
        let digest = blake3::hash(b"");
        subscription.note_refused(Some(digest));
        assert_eq!(subscription.refused(), Some(digest));
        assert!(subscription.refusal().error_detail.is_some());
        if next == "accepted" {
            take(&mut subscription, "3", &["a"], 0);
            assert_eq!(subscription.refused_faults(), None);
        } else {
            subscription.begin(Node::default());
            assert!(subscription.refused_faults().is_some(), "nothing was sent in its place");
        }
        assert_eq!(subscription.refused(), None);
    }
}

#[test]
fn a_set_of_an_earlier_stream_is_accepted_without_a_request() {
    let mut subscription = Subscription::new(OF);
    let received = receive(&mut subscription, "1", vec![resource("a", "a")]);
    subscription.keep(received, &Arc::default());
    subscription.begin(Node::default());
    assert_eq!(subscription.accept_newest(), None, "the server has sent nothing on this one");
    assert_eq!((names(&subscription), &*subscription.running), (vec!["xds:a".to_owned()], "1"));
    assert_eq!(subscription.request().version_info, "");
}

#[test]
fn faults_without_number_are_counted_and_not_kept() {
    let all = vec![Any::default(); 5000];
    let faults = read(OF, &response("1", all), &Resources::new(), usize::MAX);
    let faults = faults.expect_err("faults").faults;
    assert_eq!(faults.len(), 1001);
    assert_eq!(faults[1000], "and 4000 more");
}

#[test]
fn resources_stay_for_a_while_when_the_server_sends_them_no_longer() {
    let mut subscription = Subscription::new(OF);
    assert_eq!(take(&mut subscription, "1", &["a", "b"], 0), ["xds:a", "xds:b"]);
    assert_eq!(subscription.leave_at(), None);
    // As a gateway that was restarted: one set after the other.
    assert_eq!(take(&mut subscription, "1", &["b"], 1000), ["xds:b", "xds:a"]);
    assert_eq!(subscription.leave_at(), Some(at(3000)));
    assert_eq!(take(&mut subscription, "2", &["a", "b"], 1500), ["xds:a", "xds:b"]);
    assert_eq!(subscription.leave_at(), None, "it came back");
    assert_eq!(take(&mut subscription, "3", &["b"], 2000), ["xds:b", "xds:a"]);
    assert_eq!(take(&mut subscription, "4", &[], 3000), ["xds:a", "xds:b"]);
    let_go(&mut subscription, 3999);
    assert_eq!(names(&subscription), ["xds:a", "xds:b"]);
    let_go(&mut subscription, 4000);
    assert_eq!(names(&subscription), ["xds:b"]);
    let_go(&mut subscription, 5000);
    assert_eq!(names(&subscription), [""; 0]);
}

#[test]
fn what_a_snapshot_held_stays_until_the_server_sends_a_set_and_a_while_longer() {
    let mut subscription = Subscription::new(OF);
    let text = b"domain: \"a\"\ndescriptors:\n".to_vec();
    let source = |name: &str| Arc::new(Source { name: name.to_owned(), text: text.clone() });
    subscription.seed(&[source("xds:a"), source("xds-yaml:b"), source("c.yaml")]);
    assert_eq!(names(&subscription), ["xds:a"], "those of its type");
    assert_eq!(take(&mut subscription, "1", &["b"], 0), ["xds:b", "xds:a"]);
    let_go(&mut subscription, 2000);
    assert_eq!(names(&subscription), ["xds:b"]);
}

#[test]
fn a_set_whose_texts_are_too_large_is_refused_at_the_resource_that_exceeds() {
    let all: Vec<_> = ["a", "b", "c"].map(|name| resource(name, name)).into();
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
