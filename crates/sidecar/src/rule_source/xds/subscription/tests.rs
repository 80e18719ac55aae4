//! What the server is told, and which sources are in force.

use super::super::wire::RateLimitDescriptor;
use super::*;

fn resource(name: &str, domain: &str) -> Any {
    let descriptor = RateLimitDescriptor { key: "a".into(), ..Default::default() };
    let config =
        RateLimitConfig { name: name.into(), domain: domain.into(), descriptors: vec![descriptor] };
    let type_url = ResourceType::RateLimitConfig.url().to_owned();
    Any { type_url, value: config.encode_to_vec() }
}

fn response(version: &str, resources: Vec<Any>) -> DiscoveryResponse {
    DiscoveryResponse {
        version_info: version.into(),
        type_url: ResourceType::RateLimitConfig.url().into(),
        nonce: format!("n{version}"),
        resources,
        ..Default::default()
    }
}

fn at(millis: u64) -> Time {
    Time::default() + Duration::from_millis(millis)
}

/// Receives and accepts a set.
fn take(subscription: &mut Subscription, version: &str, of: &[&str], millis: u64) -> Vec<String> {
    let resources = of.iter().map(|name| resource(name, name)).collect();
    let received = subscription.receive(response(version, resources)).expect("a good set");
    let request = subscription.accept(received, true, at(millis));
    assert_eq!((&*request.version_info, request.response_nonce), (version, format!("n{version}")));
    assert_eq!(request.error_detail, None);
    names(subscription)
}

fn names(subscription: &Subscription) -> Vec<String> {
    subscription.sources().map(|source| source.name.clone()).collect()
}

#[test]
fn a_stream_begins_with_the_node_and_neither_version_nor_nonce() {
    let mut subscription = Subscription::new(ResourceType::RateLimitConfig);
    take(&mut subscription, "7", &["a"], 0);
    let node = Node { id: "pod".into(), ..Default::default() };
    let request = subscription.begin(node.clone());
    assert_eq!(request.node, Some(node));
    assert_eq!((&*request.version_info, &*request.response_nonce), ("", ""));
    assert_eq!(request.type_url, ResourceType::RateLimitConfig.url());
    assert_eq!(names(&subscription), ["xds:a"], "what is in force stays");
}

#[test]
fn a_refusal_names_the_accepted_version_the_last_nonce_and_few_of_many_faults() {
    let mut subscription = Subscription::new(ResourceType::RateLimitConfig);
    take(&mut subscription, "1", &["a"], 0);
    let garbage = Any { value: vec![0xff; 9], ..resource("b", "b") };
    let stranger = Any { type_url: "type.googleapis.com/other".into(), ..resource("c", "c") };
    let all = vec![resource("d", "d"), garbage, stranger, resource("d", "d")];
    let faults = subscription.receive(response("2", all)).expect_err("faults");
    assert_eq!(faults.len(), 3, "{faults:?}");
    assert!(faults[0].starts_with("resources[1]: a resource that cannot be decoded"), "{faults:?}");
    assert!(faults[1].starts_with("resources[2]: a resource of another type"), "{faults:?}");
    assert_eq!(faults[2], "resources[3]: a second one of its name");
    let many: Vec<_> = (0..100).map(|at| format!("fault {at}")).collect();
    let request = subscription.refuse(&many);
    assert_eq!((&*request.version_info, &*request.response_nonce), ("1", "n2"));
    let error = request.error_detail.expect("a reason");
    assert_eq!(error.code, 3);
    assert_eq!(error.message.lines().count(), 21);
    assert!(error.message.ends_with("\nand 80 more"), "{}", error.message);
    assert_eq!(names(&subscription), ["xds:a"]);
}

#[test]
fn resources_stay_for_a_while_when_the_server_sends_them_no_longer() {
    let mut subscription = Subscription::new(ResourceType::RateLimitConfig);
    assert_eq!(take(&mut subscription, "1", &["a", "b"], 0), ["xds:a", "xds:b"]);
    assert_eq!(subscription.leave_at(), None);
    // As a gateway that was restarted: one set after the other.
    assert_eq!(take(&mut subscription, "1", &["b"], 1000), ["xds:b", "xds:a"]);
    assert_eq!(subscription.leave_at(), Some(at(3000)));
    assert_eq!(take(&mut subscription, "2", &["a", "b"], 1500), ["xds:a", "xds:b"]);
    assert_eq!(subscription.leave_at(), None, "it came back");
    assert_eq!(take(&mut subscription, "3", &["b"], 2000), ["xds:b", "xds:a"]);
    assert_eq!(take(&mut subscription, "4", &[], 3000), ["xds:a", "xds:b"]);
    assert!(!subscription.drop_leaving(at(3999)));
    assert!(subscription.drop_leaving(at(4000)));
    assert_eq!(names(&subscription), ["xds:b"]);
    assert!(subscription.drop_leaving(at(5000)));
    assert_eq!(names(&subscription), [""; 0]);
}

#[test]
fn a_resource_goes_at_once_if_another_one_has_its_domain() {
    let mut subscription = Subscription::new(ResourceType::RateLimitConfig);
    take(&mut subscription, "1", &["a"], 0);
    let renamed = subscription.receive(response("2", vec![resource("z", "a")])).expect("good");
    assert_eq!(subscription.sources_leaving(&renamed).count(), 0);
    subscription.accept(renamed, true, at(10));
    assert_eq!(names(&subscription), ["xds:z"]);
}

#[test]
fn names_are_safe_to_show() {
    let mut subscription = Subscription::new(ResourceType::RateLimitConfig);
    assert_eq!(take(&mut subscription, "1", &["a\n\u{1b}[31m"], 0), ["xds:a\\n\\u{1b}[31m"]);
}
