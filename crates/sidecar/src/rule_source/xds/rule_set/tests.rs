//! Sets of either type in any order: the rules in force, and the answers to the server.

use std::sync::atomic::{AtomicUsize, Ordering};

use prost::Message;
use ratelease_engine::rng::mixed;
use ratelease_rules::Options;
use ratelease_server::current_rules::CurrentRules;
use ratelease_xds::config::{RateLimitConfig, RateLimitDescriptor, RateLimitPolicy, RateLimitUnit};
use tokio::time::{advance, timeout};

use super::*;
use crate::rule_source::watch::Watcher;
use crate::rule_source::xds::pushed::pushed;
use crate::rule_source::xds::wire::{Any, RulesResource};

mod answers;

const CONFIG: ResourceType = ResourceType::RateLimitConfig { settles_own_hits: true };
const RULES: ResourceType = ResourceType::Rules;

/// Sequences of the property, and steps of each.
const SEQUENCES: u64 = 300;
const STEPS: u64 = 14;

/// A domain with a limit; `None` for a resource that compiles to a fault.
type Domain = (&'static str, Option<u32>);

/// A pod that follows a server, which the test plays.
struct Pod {
    rules: RuleSet,
    published: Arc<CurrentRules>,
    /// The bytes that rules may take.
    memory: Arc<AtomicUsize>,
    responses: u64,
    _watcher: Watcher,
}

// === impl Pod ===

impl Pod {
    fn new(of: ResourceType) -> Self {
        Self::with(of, Options::default())
    }

    fn with(of: ResourceType, options: Options) -> Self {
        let (published, clock) = (Arc::<CurrentRules>::default(), Clock::start());
        let merges_domains = options.merge_domains;
        let memory = Arc::new(AtomicUsize::new(usize::MAX));
        let left = MemoryLeft::of_counter(Arc::clone(&memory));
        let (load, pusher) = pushed(options, left.clone());
        let (watcher, wake, _) = Watcher::spawn_pushed(load, Arc::clone(&published), None).unwrap();
        let status = XdsStatus::new("test", of, clock);
        let mut rules = RuleSet::new(of, merges_domains, pusher(wake), left, status, clock);
        rules.begin(Node::default());
        Self { rules, published, memory, responses: 0, _watcher: watcher }
    }

    /// Sends a set, and returns the requests that answer it.
    async fn send(&mut self, set: &[Domain]) -> Answer {
        let of = self.rules.wanted;
        let resources = set.iter().map(|(domain, limit)| resource(of, domain, *limit));
        self.send_resources(resources.collect()).await
    }

    async fn send_resources(&mut self, resources: Vec<Any>) -> Answer {
        let response = self.response(self.rules.wanted, resources);
        self.rules.take(response).await.expect("an answer: it was asked for")
    }

    fn response(&mut self, of: ResourceType, resources: Vec<Any>) -> DiscoveryResponse {
        self.responses += 1;
        let version = self.responses.to_string();
        let (nonce, type_url) = (format!("n{version}"), of.url().to_owned());
        DiscoveryResponse { nonce, version_info: version, resources, type_url }
    }

    /// Waits, and catches up. Returns the request that tells the server of it.
    async fn wait(&mut self, wait: Duration) -> Option<DiscoveryRequest> {
        advance(wait).await;
        let is_due = timeout(Duration::from_millis(1), self.rules.until_due()).await.is_ok();
        if is_due { self.rules.catch_up().await } else { None }
    }

    /// The memory that rules may take from now on.
    fn set_memory(&self, bytes: usize) {
        self.memory.store(bytes, Ordering::Relaxed);
    }

    /// The domains in force; `None` without rules.
    fn domains(&self) -> Option<Vec<String>> {
        let rules = self.published.current()?;
        Some(rules.domains().map(str::to_owned).collect())
    }
}

fn resource(of: ResourceType, domain: &str, limit: Option<u32>) -> Any {
    let unit = if limit.is_some() { RateLimitUnit::Year } else { RateLimitUnit::Unknown };
    let requests_per_unit = limit.unwrap_or_default();
    let value = match of {
        ResourceType::RateLimitConfig { .. } => {
            let policy =
                RateLimitPolicy { unit: unit.into(), requests_per_unit, ..Default::default() };
            let descriptor = RateLimitDescriptor {
                key: "user".into(),
                rate_limit: Some(policy),
                ..Default::default()
            };
            let (name, domain) = (domain.into(), domain.into());
            RateLimitConfig { name, domain, descriptors: vec![descriptor] }.encode_to_vec()
        }
        ResourceType::Rules => {
            let unit = if limit.is_some() { "year" } else { "eon" };
            let yaml = format!(
                "domain: {domain}\ndescriptors:\n- key: user\n  rate_limit: {{unit: {unit}, \
                 requests_per_unit: {requests_per_unit}}}\n"
            );
            let yaml = yaml.into_bytes().into();
            RulesResource { name: domain.into(), yaml }.encode_to_vec()
        }
    };
    Any { type_url: of.url().to_owned(), value: value.into() }
}

/// The version of the rules of this set; `None` if it has faults.
fn version_of(of: ResourceType, set: &[Domain]) -> Option<u64> {
    let mut sources = Vec::new();
    for (domain, limit) in set {
        let (_, resource) =
            of.read(&resource(of, domain, *limit), &Default::default(), usize::MAX).ok()?;
        sources.push(Source::clone(&resource.source));
    }
    sources.sort_by(|a, b| a.name.cmp(&b.name));
    let loaded = ratelease_rules::load(&sources, Options::default()).ok()?;
    Some(loaded.rules.version())
}

fn is_refused(answer: &Answer) -> bool {
    answer.request.error_detail.is_some()
}

#[tokio::test(start_paused = true)]
async fn the_first_good_set_is_in_force_and_no_other_type_counts() {
    for [of, other] in [[CONFIG, RULES], [RULES, CONFIG]] {
        let mut pod = Pod::new(of);
        let unasked = resource(other, "shop", Some(1));
        let unasked = pod.response(other, vec![unasked]);
        assert!(pod.rules.take(unasked).await.is_none(), "it is not answered");
        assert!(pod.published.awaits_first());
        let status = pod.rules.status.json();
        let why = status["last_failure"].as_str().unwrap_or_default();
        assert!(
            why.contains(other.url().rsplit('/').next().unwrap())
                && why.contains("CONFIG_GRPC_XDS_RATELEASE"),
            "{why}"
        );
        assert_eq!(status["type"], of.url());
        assert!(is_refused(&pod.send(&[("a", None)]).await));
        assert_eq!(pod.domains(), None, "it has a fault");
        assert_eq!(pod.send(&[("a", Some(1))]).await.kind, AnswerKind::Accepted);
        assert_eq!(pod.domains(), Some(vec!["a".to_owned()]));
        assert_eq!(pod.rules.status.json()["last_failure"], serde_json::Value::Null);
    }
    let mut pod = Pod::new(RULES);
    pod.send(&[]).await;
    assert_eq!(pod.domains(), Some(Vec::new()), "that there are no rules was said");
}

#[tokio::test(start_paused = true)]
async fn nothing_leaves_while_a_set_is_refused_and_the_fault_stays_in_sight() {
    let mut pod = Pod::new(RULES);
    pod.send(&[("shop", Some(1)), ("bank", Some(1))]).await;
    assert!(!is_refused(&pod.send(&[("bank", Some(1))]).await));
    assert!(is_refused(&pod.send(&[("bank", None)]).await));
    for _ in 0..3 {
        pod.wait(Duration::from_secs(60)).await;
        assert_eq!(pod.domains().unwrap(), ["bank", "shop"]);
        let fault = pod.published.last_fault().unwrap_or_default();
        assert!(fault.starts_with("xds-yaml:bank:4:22: "), "{fault}");
    }
    // A stream that breaks changes nothing of that.
    pod.rules.begin(Node::default());
    pod.wait(Duration::from_secs(60)).await;
    assert_eq!(pod.domains().unwrap(), ["bank", "shop"]);
    assert!(!is_refused(&pod.send(&[]).await));
    pod.wait(Duration::from_secs(60)).await;
    assert_eq!(pod.domains(), Some(Vec::new()), "now the server says that there is nothing");
}

/// A resource of this name, with a limit of this key.
fn named(name: &str, domain: &str, key: &str) -> Any {
    let mut resource = resource(CONFIG, domain, Some(1));
    let mut config = RateLimitConfig::decode(&*resource.value).unwrap();
    (config.name, config.descriptors[0].key) = (name.to_owned(), key.to_owned());
    resource.value = config.encode_to_vec().into();
    resource
}

#[tokio::test(start_paused = true)]
async fn a_renamed_resource_goes_at_once_and_others_stay() {
    let mut pod = Pod::with(CONFIG, Options { merge_domains: true, ..Options::default() });
    pod.send_resources(vec![named("a", "shop", "user"), named("b", "bank", "user")]).await;
    // Beside its former name, the new one would have a second descriptor of the same key.
    let answer = pod.send_resources(vec![named("a2", "shop", "user")]).await;
    assert_eq!(answer.kind, AnswerKind::Accepted);
    assert_eq!(pod.domains().unwrap(), ["bank", "shop"]);
    pod.wait(Duration::from_secs(3)).await;
    assert_eq!(pod.domains().unwrap(), ["shop"]);
}

/// As little memory as a resource needs in order to be read, which is too little to compile it.
fn to_read(of: ResourceType) -> usize {
    let resource = resource(of, "shop", Some(1));
    let is_enough = |memory: &usize| of.read(&resource, &Resources::new(), *memory).is_ok();
    (0..).find(is_enough).unwrap()
}

#[tokio::test(start_paused = true)]
async fn a_set_that_was_refused_for_lack_of_memory_is_in_force_once_there_is_enough() {
    // Without any, a `RateLimitConfig` cannot even be read.
    for (of, left) in [(CONFIG, to_read(CONFIG)), (CONFIG, 0), (RULES, 0)] {
        let mut pod = Pod::new(of);
        pod.send(&[]).await;
        pod.set_memory(left);
        let answer = pod.send(&[("shop", Some(1))]).await;
        assert_eq!(answer.kind, AnswerKind::Refused, "{left}");
        let fault = pod.published.last_fault().unwrap_or_default();
        assert!(fault.contains("of memory"), "{fault}");
        // Some servers send a refused set again, here as version 3.
        let answer = pod.send(&[("shop", Some(1))]).await;
        assert_eq!(answer.kind, AnswerKind::RefusedAgain, "{left}");
        assert_eq!(pod.wait(RETRY_WAIT).await, None, "the server knows that");
        assert_eq!(pod.domains(), Some(Vec::new()), "there is still too little");
        pod.set_memory(usize::MAX);
        assert_eq!(pod.wait(RETRY_WAIT / 2).await, None);
        assert_eq!(pod.domains(), Some(Vec::new()), "before it is time");
        let request = pod.wait(RETRY_WAIT / 2).await.expect("an answer");
        assert_eq!(pod.domains(), Some(vec!["shop".to_owned()]), "{left}");
        let accepted = (&*request.type_url, &*request.version_info, &*request.response_nonce);
        assert_eq!(accepted, (of.url(), "3", "n3"));
        assert_eq!((&request.error_detail, pod.published.last_fault()), (&None, None));
        assert_eq!(pod.rules.retry_at(), None);
    }
}

#[tokio::test(start_paused = true)]
async fn a_set_with_other_faults_is_not_tried_again_and_the_server_is_told_of_them() {
    let mut pod = Pod::new(CONFIG);
    pod.send(&[]).await;
    assert!(is_refused(&pod.send(&[("shop", None)]).await));
    assert_eq!(pod.rules.retry_at(), None);
    pod.set_memory(0);
    assert!(is_refused(&pod.send(&[("bank", None)]).await));
    pod.set_memory(usize::MAX);
    let request = pod.wait(RETRY_WAIT).await.expect("an answer");
    let fault = request.error_detail.as_ref().map(|it| &*it.message).unwrap_or_default();
    assert!(fault.contains("rate_limit"), "{fault}");
    assert_eq!(pod.rules.retry_at(), None);
}

#[tokio::test(start_paused = true)]
async fn a_resource_that_could_not_be_removed_for_lack_of_memory_is_removed_later() {
    // The domain is compiled again without one of its resources.
    let mut pod = Pod::with(CONFIG, Options { merge_domains: true, ..Options::default() });
    let version = |pod: &Pod| pod.published.current().unwrap().version();
    let [two, three] = [2, 3].map(|count| ["a", "b", "c"].into_iter().take(count));
    let [two, three] = [two, three].map(|it| it.map(|name| named(name, "shop", name)));
    let two: Vec<_> = two.collect();
    pod.send_resources(two.clone()).await;
    let fewer = version(&pod);
    pod.send_resources(three.collect()).await;
    let all = version(&pod);
    pod.send_resources(two).await;
    pod.set_memory(0);
    pod.wait(Duration::from_secs(3)).await;
    assert_eq!(version(&pod), all);
    pod.set_memory(usize::MAX);
    pod.wait(Duration::from_secs(3)).await;
    assert_eq!(version(&pod), all, "not at once again");
    pod.wait(RETRY_WAIT).await;
    assert_eq!(version(&pod), fewer);
}

#[tokio::test(start_paused = true)]
async fn a_panic_while_a_response_is_read_is_a_fault_that_the_server_is_told() {
    let fault = unless_it_panics(|| -> () { panic!("deliberate") }).await.unwrap_err();
    assert!(fault.starts_with("internal error: "), "{fault}");
    let mut pod = Pod::new(RULES);
    let refused = Refused::finally(fault.clone());
    pod.rules.refuse(pod.rules.refused(refused, Content::Unread(Arc::default())));
    assert_eq!(pod.rules.refusal().error_detail.expect("a refusal").message, fault);
}

/// Draws numbers from a seed.
struct Draw(u64);

impl Draw {
    fn below(&mut self, count: u64) -> u64 {
        self.0 = self.0.wrapping_add(1);
        mixed(self.0) % count
    }

    fn set(&mut self) -> Vec<Domain> {
        let mut set = Vec::new();
        for domain in ["a", "b", "c"] {
            match self.below(8) {
                0..=3 => {}
                4 => set.push((domain, None)),
                _ => set.push((domain, Some(u32::try_from(self.below(3)).unwrap()))),
            }
        }
        set
    }
}

/// The server sends sets in any order, some with faults; it sends refused sets again, or not;
/// streams break, and time passes.
#[tokio::test(start_paused = true)]
async fn in_force_is_what_a_new_pod_would_have_and_no_domain_is_lost_on_the_way() {
    let first: u64 = std::env::var("RATELEASE_SEED").map_or(1, |it| it.parse().unwrap());
    for seed in first..first + SEQUENCES {
        let mut draw = Draw(seed << 32);
        let of = [CONFIG, RULES][usize::try_from(seed % 2).unwrap()];
        let (mut pod, mut sent, mut may_be_empty) = (Pod::new(of), None::<Vec<Domain>>, false);
        let resends = draw.below(2) == 0;
        for step in 0..STEPS {
            let place = format!("RATELEASE_SEED={seed}, step {step}");
            let before = pod.domains().unwrap_or_default();
            match draw.below(8) {
                0 => drop(pod.wait(Duration::from_millis(100 * draw.below(40))).await),
                1 => {
                    pod.rules.begin(Node::default());
                    if let Some(sent) = &sent {
                        pod.send(sent).await;
                    }
                }
                _ => {
                    let set = draw.set();
                    may_be_empty = set.is_empty() || may_be_empty && before.is_empty();
                    let answer = pod.send(&set).await;
                    if is_refused(&answer) && resends {
                        pod.send(&set).await;
                    }
                    sent = Some(set);
                }
            }
            let now = pod.domains();
            assert!(now != Some(Vec::new()) || may_be_empty, "{place}: no rules");
            let wanted: BTreeSet<_> = sent.iter().flatten().map(|(domain, _)| *domain).collect();
            let lost = before.iter().find(|it| {
                wanted.contains(&***it) && !now.as_ref().is_some_and(|now| now.contains(it))
            });
            assert_eq!(lost, None, "{place}: of {before:?}, with {sent:?}");
        }
        pod.wait(Duration::from_secs(60)).await;
        if let Some(version) = sent.as_ref().and_then(|it| version_of(of, it)) {
            let in_force = pod.published.current().map(|it| it.version());
            assert_eq!(in_force, Some(version), "RATELEASE_SEED={seed}: {sent:?}");
        }
    }
}
