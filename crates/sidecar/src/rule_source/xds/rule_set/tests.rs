//! Sets of both types in any order: what is in force, and how the server is answered.

use std::sync::atomic::{AtomicUsize, Ordering};

use prost::Message;
use ratelease_engine::rng::mixed;
use ratelease_server::current_rules::CurrentRules;
use ratelease_xds::config::{RateLimitConfig, RateLimitDescriptor, RateLimitPolicy, RateLimitUnit};
use tokio::time::{advance, timeout};

use super::*;
use crate::rule_source::watch::Watcher;
use crate::rule_source::xds::wire::{Any, RulesResource};

mod subscription;

const TYPES: [ResourceType; 2] = [ResourceType::RateLimitConfig, ResourceType::Rules];
const CONFIG: usize = 0;
const RULES: usize = 1;

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
    fn new() -> Self {
        Self::with(Options::default())
    }

    fn with(options: Options) -> Self {
        let (published, clock) = (Arc::<CurrentRules>::default(), Clock::start());
        let merges_domains = options.merge_domains;
        let memory = Arc::new(AtomicUsize::new(usize::MAX));
        let left = MemoryLeft::of_counter(Arc::clone(&memory));
        let (load, pusher) = pushed(options, left.clone());
        let (watcher, wake, _) = Watcher::spawn_pushed(load, Arc::clone(&published), None).unwrap();
        let status = XdsStatus::new("test", clock);
        let mut rules = RuleSet::new(&TYPES, merges_domains, pusher(wake), left, status, clock);
        rules.begin(&Node::default());
        Self { rules, published, memory, responses: 0, _watcher: watcher }
    }

    /// Sends a set, and returns the requests that answer it.
    async fn send(&mut self, of: usize, set: &[Domain]) -> Answer {
        let resources = set.iter().map(|(domain, limit)| resource(TYPES[of], domain, *limit));
        self.send_resources(of, resources.collect()).await
    }

    async fn send_resources(&mut self, of: usize, resources: Vec<Any>) -> Answer {
        self.responses += 1;
        let version = self.responses.to_string();
        let response = DiscoveryResponse {
            nonce: format!("n{version}"),
            version_info: version,
            resources,
            type_url: TYPES[of].url().to_owned(),
        };
        self.rules.take(response).await.expect("an answer: it was asked for")
    }

    /// Waits, and does what is due then. Returns the requests that tell the server of it.
    async fn wait(&mut self, wait: Duration) -> Vec<DiscoveryRequest> {
        advance(wait).await;
        let is_due = timeout(Duration::from_millis(1), self.rules.until_due()).await.is_ok();
        if is_due { self.rules.catch_up().await } else { Vec::new() }
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
        ResourceType::RateLimitConfig => {
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

/// The version of the rules of these sets together; `None` if they have faults.
fn version_of(sets: &[Vec<Domain>; 2]) -> Option<u64> {
    let mut sources = Vec::new();
    for (of, set) in TYPES.into_iter().zip(sets) {
        for (domain, limit) in set {
            let (_, resource) =
                of.read(&resource(of, domain, *limit), &Default::default(), usize::MAX).ok()?;
            sources.push(resource.source);
        }
    }
    sources.sort_by(|a, b| a.name.cmp(&b.name));
    let sources: Vec<Source> = sources.iter().map(|it| Source::clone(it)).collect();
    let loaded = ratelease_rules::load(&sources, Options::default()).ok()?;
    Some(loaded.rules.version())
}

fn is_refused(answer: &Answer) -> bool {
    let first = answer.requests.first().expect("a request that answers the response");
    first.error_detail.is_some()
}

#[tokio::test(start_paused = true)]
async fn nothing_is_in_force_before_a_good_set_of_each_type_has_come() {
    for [first, second] in [[CONFIG, RULES], [RULES, CONFIG]] {
        let mut pod = Pod::new();
        let answer = pod.send(first, &[]).await;
        assert_eq!((answer.kind, is_refused(&answer)), (AnswerKind::AcceptedFirst, false));
        assert_eq!(pod.domains(), None, "half of the rules are none");
        assert!(pod.published.awaits_first());
        let answer = pod.send(first, &[("a", Some(1))]).await;
        assert_eq!(answer.kind, AnswerKind::Accepted, "a further one of its type is paced");
        assert!(is_refused(&pod.send(second, &[("b", None)]).await));
        assert_eq!(pod.domains(), None, "the other half has faults");
        pod.wait(Duration::from_secs(60)).await;
        assert_eq!(pod.domains(), None);
        assert!(!is_refused(&pod.send(second, &[("b", Some(2))]).await));
        assert_eq!(pod.domains(), Some(vec!["a".to_owned(), "b".to_owned()]));
    }
    let mut pod = Pod::new();
    pod.send(RULES, &[]).await;
    pod.send(CONFIG, &[]).await;
    assert_eq!(pod.domains(), Some(Vec::new()), "that there are no rules was said for each type");
}

#[tokio::test(start_paused = true)]
async fn a_refused_set_is_in_force_once_the_other_type_no_longer_contradicts_it() {
    let mut pod = Pod::new();
    pod.send(RULES, &[]).await;
    pod.send(CONFIG, &[("shop", Some(1))]).await;
    // The domain moves, and the type that it moves to comes first.
    assert!(is_refused(&pod.send(RULES, &[("shop", Some(1))]).await));
    let answer = pod.send(CONFIG, &[]).await;
    assert_eq!(answer.kind, AnswerKind::Accepted);
    let told: Vec<_> =
        answer.requests.iter().map(|it| (&*it.type_url, &*it.version_info)).collect();
    let [config, rules] = TYPES.map(ResourceType::url);
    assert_eq!(told, [(config, "4"), (rules, "3")], "the server is told of both");
    assert!(answer.requests.iter().all(|it| it.error_detail.is_none()));
    pod.wait(Duration::from_secs(60)).await;
    assert_eq!(pod.domains(), Some(vec!["shop".to_owned()]));
    assert_eq!(pod.published.last_fault(), None);
}

#[tokio::test(start_paused = true)]
async fn nothing_leaves_while_a_set_is_refused_and_the_fault_stays_in_sight() {
    let mut pod = Pod::new();
    pod.send(RULES, &[]).await;
    pod.send(CONFIG, &[("shop", Some(1))]).await;
    assert!(is_refused(&pod.send(RULES, &[("shop", None)]).await));
    assert!(!is_refused(&pod.send(CONFIG, &[]).await));
    for _ in 0..3 {
        pod.wait(Duration::from_secs(60)).await;
        assert_eq!(pod.domains(), Some(vec!["shop".to_owned()]));
        let fault = pod.published.last_fault().unwrap_or_default();
        assert!(fault.starts_with("xds-yaml:shop:4:22: "), "{fault}: the last load was good");
    }
    // A stream that breaks changes nothing of that.
    pod.rules.begin(&Node::default());
    pod.wait(Duration::from_secs(60)).await;
    assert_eq!(pod.domains(), Some(vec!["shop".to_owned()]));
    assert!(!is_refused(&pod.send(RULES, &[]).await));
    pod.wait(Duration::from_secs(60)).await;
    assert_eq!(pod.domains(), Some(Vec::new()), "now each type says that there is nothing");
}

#[tokio::test(start_paused = true)]
async fn a_resource_stays_while_its_successor_is_refused_though_another_one_is_renamed() {
    let mut pod = Pod::with(Options { merge_domains: true, ..Options::default() });
    let named = |name: &str, domain: &str| {
        let mut resource = resource(ResourceType::RateLimitConfig, domain, Some(1));
        let mut config = RateLimitConfig::decode(&*resource.value).unwrap();
        config.name = name.to_owned();
        resource.value = config.encode_to_vec().into();
        resource
    };
    pod.send_resources(CONFIG, vec![named("a", "shop"), named("b", "bank")]).await;
    pod.send(RULES, &[]).await;
    // `bank` moves to the other type, beside a domain with a fault.
    assert!(is_refused(&pod.send(RULES, &[("bank", Some(1)), ("card", None)]).await));
    // Beside its former name, the new one has a second descriptor of the same key.
    let answer = pod.send_resources(CONFIG, vec![named("a2", "shop")]).await;
    assert_eq!(answer.kind, AnswerKind::Accepted);
    assert_eq!(pod.domains().unwrap(), ["bank", "shop"]);
    pod.send(RULES, &[("bank", Some(1))]).await;
    pod.wait(Duration::from_secs(3)).await;
    assert_eq!(pod.domains().unwrap(), ["bank", "shop"]);
}

#[tokio::test(start_paused = true)]
async fn two_domains_may_change_places() {
    let mut pod = Pod::new();
    pod.send(RULES, &[("a", Some(1))]).await;
    pod.send(CONFIG, &[("b", Some(1))]).await;
    assert!(is_refused(&pod.send(CONFIG, &[("a", Some(1))]).await));
    assert!(!is_refused(&pod.send(RULES, &[("b", Some(1))]).await));
    pod.wait(Duration::from_secs(60)).await;
    let expected = [vec![("a", Some(1))], vec![("b", Some(1))]];
    assert_eq!(pod.published.current().map(|it| it.version()), version_of(&expected));
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
    for (of, left) in [(CONFIG, to_read(TYPES[CONFIG])), (CONFIG, 0), (RULES, 0)] {
        let mut pod = Pod::new();
        pod.send(RULES, &[]).await;
        pod.send(CONFIG, &[]).await;
        pod.set_memory(left);
        let answer = pod.send(of, &[("shop", Some(1))]).await;
        assert_eq!(answer.kind, AnswerKind::Refused, "{left}");
        let fault = pod.published.last_fault().unwrap_or_default();
        assert!(fault.contains("of memory"), "{fault}");
        // Some servers send what was refused again, here as version 4.
        let answer = pod.send(of, &[("shop", Some(1))]).await;
        assert_eq!(answer.kind, AnswerKind::RefusedAgain, "{left}");
        assert!(pod.wait(RETRY_WAIT).await.is_empty(), "the server knows that");
        assert_eq!(pod.domains(), Some(Vec::new()), "there is still too little");
        pod.set_memory(usize::MAX);
        assert!(pod.wait(RETRY_WAIT / 2).await.is_empty());
        assert_eq!(pod.domains(), Some(Vec::new()), "before it is time");
        let requests = pod.wait(RETRY_WAIT / 2).await;
        assert_eq!(pod.domains(), Some(vec!["shop".to_owned()]), "{left}");
        let [request] = &*requests else { panic!("{requests:?}") };
        let accepted = (&*request.type_url, &*request.version_info, &*request.response_nonce);
        assert_eq!(accepted, (TYPES[of].url(), "4", "n4"));
        assert_eq!((&request.error_detail, pod.published.last_fault()), (&None, None));
        assert_eq!(pod.rules.subscriptions[of].retry_at(), None);
    }
}

#[tokio::test(start_paused = true)]
async fn a_set_with_other_faults_is_not_tried_again_and_the_server_is_told_of_them() {
    let mut pod = Pod::new();
    pod.send(RULES, &[]).await;
    pod.send(CONFIG, &[]).await;
    assert!(is_refused(&pod.send(CONFIG, &[("shop", None)]).await));
    assert_eq!(pod.rules.subscriptions[CONFIG].retry_at(), None);
    pod.set_memory(0);
    assert!(is_refused(&pod.send(CONFIG, &[("bank", None)]).await));
    pod.set_memory(usize::MAX);
    let requests = pod.wait(RETRY_WAIT).await;
    let [request] = &*requests else { panic!("{requests:?}") };
    let fault = request.error_detail.as_ref().map(|it| &*it.message).unwrap_or_default();
    assert!(fault.contains("rate_limit"), "{fault}");
    assert_eq!(pod.rules.subscriptions[CONFIG].retry_at(), None);
}

#[tokio::test(start_paused = true)]
async fn a_resource_that_could_not_be_removed_for_lack_of_memory_is_removed_later() {
    // The domain is compiled again without one of its resources.
    let mut pod = Pod::with(Options { merge_domains: true, ..Options::default() });
    let named = |name: &str, key: &str| {
        let mut resource = resource(ResourceType::RateLimitConfig, "shop", Some(1));
        let mut config = RateLimitConfig::decode(&*resource.value).unwrap();
        (config.name, config.descriptors[0].key) = (name.to_owned(), key.to_owned());
        resource.value = config.encode_to_vec().into();
        resource
    };
    let version = |pod: &Pod| pod.published.current().unwrap().version();
    pod.send(RULES, &[]).await;
    let [two, three] = [2, 3].map(|count| ["a", "b", "c"].into_iter().take(count));
    let [two, three] = [two, three].map(|it| it.map(|name| named(name, name)).collect::<Vec<_>>());
    pod.send_resources(CONFIG, two.clone()).await;
    let fewer = version(&pod);
    pod.send_resources(CONFIG, three).await;
    let all = version(&pod);
    pod.send_resources(CONFIG, two).await;
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
    let mut subscription = Subscription::new(ResourceType::Rules);
    subscription.keep(Err(Refused::finally(fault.clone())), &Arc::default());
    let refusal = subscription.refusal().error_detail.expect("a refusal");
    assert_eq!(refusal.message, fault);
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

/// The server sends sets in any order, some with faults and some that contradict each other; it
/// sends what was refused again, or not; streams break, and time passes.
#[tokio::test(start_paused = true)]
async fn in_force_is_what_a_new_pod_would_have_and_no_domain_is_lost_on_the_way() {
    let first: u64 = std::env::var("RATELEASE_SEED").map_or(1, |it| it.parse().unwrap());
    for seed in first..first + SEQUENCES {
        let mut draw = Draw(seed << 32);
        let (mut pod, mut sent) = (Pod::new(), [Vec::new(), Vec::new()]);
        let (mut has_both, mut may_be_empty) = ([false; 2], false);
        let resends = draw.below(2) == 0;
        for step in 0..STEPS {
            let place = format!("RATELEASE_SEED={seed}, step {step}");
            let before = pod.domains().unwrap_or_default();
            match draw.below(8) {
                0 => drop(pod.wait(Duration::from_millis(100 * draw.below(40))).await),
                1 => {
                    pod.rules.begin(&Node::default());
                    let first = usize::try_from(draw.below(2)).unwrap();
                    for of in [first, 1 - first] {
                        if has_both[of] {
                            pod.send(of, &sent[of]).await;
                        }
                    }
                }
                _ => {
                    let of = usize::try_from(draw.below(2)).unwrap();
                    (sent[of], has_both[of]) = (draw.set(), true);
                    let is_empty = sent.iter().all(Vec::is_empty) && has_both == [true; 2];
                    may_be_empty = is_empty || may_be_empty && before.is_empty();
                    let answer = pod.send(of, &sent[of]).await;
                    if is_refused(&answer) && resends {
                        pod.send(of, &sent[of]).await;
                    }
                }
            }
            let now = pod.domains();
            assert!(now.is_none() || has_both == [true; 2], "{place}: half of the rules");
            assert!(now != Some(Vec::new()) || may_be_empty, "{place}: no rules");
            let wanted: BTreeSet<_> = sent.iter().flatten().map(|(domain, _)| *domain).collect();
            let lost = before.iter().find(|it| {
                wanted.contains(&***it) && !now.as_ref().is_some_and(|now| now.contains(it))
            });
            assert_eq!(lost, None, "{place}: of {before:?}, with {sent:?}");
        }
        pod.wait(Duration::from_secs(60)).await;
        if let Some(version) = version_of(&sent).filter(|_| has_both == [true; 2]) {
            let in_force = pod.published.current().map(|it| it.version());
            assert_eq!(in_force, Some(version), "RATELEASE_SEED={seed}: {sent:?}");
        }
    }
}
