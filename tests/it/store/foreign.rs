//! A key under which another program keeps a value: only asks for that key fail, and they are rare.

use std::sync::Arc;
use std::time::Duration;

use ratelease_engine::counter::{Counter, RedisCounter, RedisFailure};
use ratelease_engine::limiter::owners::Owner;
use ratelease_engine::limiter::{Limiter, Options};
use ratelease_engine::store::StoreError;
use ratelease_engine::store::redis::RedisStore;
use ratelease_engine::time::Clock;
use ratelease_engine::verdict::Code;
use ratelease_rules::request::{Descriptor, Entry, Request};
use ratelease_rules::{self as rules, Rules, Source};
use smallvec::smallvec;

use super::{connected, count, patient, until};
use crate::support::now;
use crate::support::redis::Single;

/// Minimum interval between asks for such a key, see `limiter/key`.
const ASKED_EVERY: Duration = Duration::from_millis(500);

/// The limit of the intact key.
const LIMIT: usize = 100;

/// Two keys of one server.
fn two_rules() -> Rules {
    let text = format!(
        "domain: d\ndefaults: {{failure_mode: deny}}\ndescriptors:\n\
         - {{key: poisoned, rate_limit: {{unit: year, requests_per_unit: 100000}}}}\n\
         - {{key: well, rate_limit: {{unit: year, requests_per_unit: {LIMIT}}}}}\n"
    );
    let source = Source { name: "test.yaml".into(), text: text.into() };
    rules::load(&[source], rules::Options::default()).unwrap().rules
}

/// A pod with waits so long that a busy machine does not look like an unavailable store.
fn pod(store: Arc<RedisStore>) -> Limiter {
    let options = Options {
        wait_min: Duration::from_secs(5),
        buffer_bytes_max: 1 << 20,
        pod: 1,
        ..Options::default()
    };
    Limiter::new(store, Clock::start(), options)
}

async fn passes(pod: &Limiter, rules: &Rules, key: &str) -> bool {
    let entries = smallvec![Entry { key, value: "x" }];
    let descriptors = smallvec![Descriptor { entries, ..Descriptor::default() }];
    let request = Request { domain: "d", descriptors, hits_addend: 0 };
    let admit = || Ok::<_, StoreError>(());
    let decided = pod.decide(rules, &request, pod.clock().now(), None, Owner::UNKNOWN, admit).await;
    decided.unwrap().code == Code::Ok
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_that_holds_a_foreign_value_harms_no_neighbour_and_is_seldom_asked_for() {
    let single = Single::start();
    let store = connected(patient(single.config())).await;
    let rules = two_rules();
    assert!(passes(&pod(Arc::clone(&store)), &rules, "poisoned").await);
    let [key] = &single.server.keys()[..] else { panic!("one key") };
    single.server.command::<()>(&["DEL", key]);
    single.server.command::<()>(&["RPUSH", key, "mine"]);

    let pod = pod(Arc::clone(&store));
    let (began, mut passed) = (now(), 0);
    for _ in 0..300 {
        assert!(!passes(&pod, &rules, "poisoned").await, "by its failure mode");
        passed += usize::from(passes(&pod, &rules, "well").await);
    }
    // Several at a time as well.
    let many = (0..100).map(|_| passes(&pod, &rules, "poisoned"));
    assert!(futures_util::future::join_all(many).await.iter().all(|passed| !passed));
    let took = began.elapsed();
    assert_eq!(passed, LIMIT, "to the token");
    let asked = count(&*store, RedisFailure::ForeignValue);
    println!("asked for {asked} times in {took:?}");
    let most = 1 + took.as_millis() / ASKED_EVERY.as_millis();
    assert!((1..=most).contains(&u128::from(asked)), "{asked} in {took:?}");
    let opened = (Counter::BreakerOpened, 0);
    assert!(pod.counts().contains(&opened));
    assert_eq!(single.server.command::<Vec<String>>(&["LRANGE", key, "0", "-1"]), ["mine"]);
    assert_eq!(count(&*store, RedisCounter::Connects), 1, "the connection is kept");

    single.server.command::<()>(&["DEL", key]);
    until(20, "the key is served again", async || passes(&pod, &rules, "poisoned").await).await;
}
