//! Pods in this process, each with connections of its own to a real cluster.

#![allow(dead_code, reason = "the tests and the bench use a part each")]

use std::collections::HashMap;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use ratelease_engine::limiter::owners::Owner;
use ratelease_engine::limiter::{Limiter, Options};
use ratelease_engine::store::redis::RedisStore;
use ratelease_engine::store::{Ask, GrantFuture, Heartbeat, PodCountFuture, Store, StoreError};
use ratelease_engine::time::Clock;
use ratelease_engine::verdict::Code;
use ratelease_rules::key::{Key, KeyHasher, KeyPart};
use ratelease_rules::request::{Descriptor, Entry, Request};
use ratelease_rules::{self as rules, Allowance, Limit, Lookup, Rules, Source};
use smallvec::smallvec;
use tokio::task::JoinHandle;

use super::drive::Said;
use crate::support::redis::Cluster;

/// Pods that share counts under one set of rules: one key per rule, in the domain [`DOMAIN`].
pub struct Fleet {
    pub pods: Vec<Pod>,
    pub rules: Arc<Rules>,
    hasher: KeyHasher,
}

/// A limiter with a store of its own.
pub struct Pod {
    pub limiter: Limiter,
    pub reported: Arc<Told>,
    keeper: JoinHandle<()>,
}

/// The store of one pod, which records the asks that pass through it.
pub struct Told {
    store: Arc<RedisStore>,
    asks: Mutex<HashMap<Key, u64>>,
    /// Number of living pods in the store's last reply.
    pods: AtomicU32,
}

pub const DOMAIN: &str = "accuracy";

/// Maximum wait for connections and heartbeats, which take a second or two.
const PATIENCE: Duration = Duration::from_secs(15);

// === impl Fleet ===

impl Fleet {
    /// Starts `pods` pods on `cluster` under `prefix`, and returns once each of them knows of all
    /// the others. `rules` are the lines of a `rate_limit` for each key.
    pub async fn start(
        cluster: &Cluster,
        prefix: &str,
        pods: usize,
        rules: &[(String, String)],
        max_wait: Duration,
    ) -> Self {
        let hasher = KeyHasher::new(prefix);
        let pod = |number| Pod::start(cluster, prefix, number as u64, &hasher, max_wait);
        let pods: Vec<_> = (0..pods).map(pod).collect();
        let fleet = Self { rules: Arc::new(load(rules)), hasher: hasher.clone(), pods };
        tokio::time::timeout(PATIENCE, fleet.settled()).await.expect("the pods know of each other");
        fleet
    }

    async fn settled(&self) {
        for pod in &self.pods {
            pod.reported.store.ready().await;
        }
        let all = u32::try_from(self.pods.len()).unwrap();
        while self.pods.iter().any(|pod| pod.reported.pods.load(Ordering::Relaxed) < all) {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    /// The answer of one pod to a request for `key`.
    pub fn decide(&self, pod: usize, key: &str) -> impl Future<Output = Said> + Send + use<> {
        self.decide_for(pod, key, VALUE)
    }

    /// The answer of one pod to a request for this value of `key`, which has a count of its own.
    pub fn decide_for(
        &self,
        pod: usize,
        key: &str,
        value: &str,
    ) -> impl Future<Output = Said> + Send + use<> {
        let limiter = self.pods[pod].limiter.clone();
        let rules = Arc::clone(&self.rules);
        let (key, value) = (key.to_owned(), value.to_owned());
        async move {
            let (request, now) = (request(&key, &value), limiter.clock().now());
            let admit = || Ok::<_, StoreError>(());
            match limiter
                .decide(&rules, &request, now, None, Owner::UNKNOWN, admit)
                .await
                .map(|it| it.code)
            {
                Ok(Code::Ok) => Said::Admitted,
                Ok(Code::OverLimit) => Said::Denied,
                Err(_) => Said::Failed,
            }
        }
    }

    /// The limit of `key`.
    pub fn limit(&self, key: &str) -> Limit {
        match self.rules.find(DOMAIN, &[Entry { key, value: VALUE }]) {
            Lookup::Rule(rule) => match rule.allowance {
                Allowance::Limited(limit) => limit,
                Allowance::Unlimited => panic!("{key} is unlimited"),
            },
            other => panic!("{key}: {other:?}"),
        }
    }

    /// Number of asks for `key` that reached the stores of all pods. Each is one EVALSHA, or two
    /// commands after a NOSCRIPT.
    pub fn asks(&self, key: &str) -> u64 {
        let parts = std::iter::once((key, KeyPart::Value(VALUE)));
        let key = self.hasher.key(DOMAIN, self.limit(key).identity(), parts);
        self.pods.iter().map(|pod| pod.reported.asks.lock().get(&key).copied().unwrap_or(0)).sum()
    }

    /// Number of asks for all keys.
    pub fn all_asks(&self) -> u64 {
        self.pods.iter().map(|pod| pod.reported.asks.lock().values().sum::<u64>()).sum()
    }
}

const VALUE: &str = "x";

fn request<'a>(key: &'a str, value: &'a str) -> Request<'a> {
    let entries = vec![Entry { key, value }];
    let entries = entries.into();
    let descriptors = smallvec![Descriptor { entries, ..Descriptor::default() }];
    Request { domain: DOMAIN, descriptors, hits_addend: 0 }
}

fn load(rules: &[(String, String)]) -> Rules {
    let mut text = format!("domain: {DOMAIN}\ndefaults: {{failure_mode: error}}\ndescriptors:\n");
    for (key, limit) in rules {
        text += &format!("- {{key: {key}, rate_limit: {{{limit}}}}}\n");
    }
    let source = Source { name: "accuracy.yaml".into(), text: text.into() };
    let loaded = rules::load(&[source], rules::Options::default());
    loaded.unwrap_or_else(|faults| panic!("{faults}")).rules
}

// === impl Pod ===

impl Pod {
    fn start(
        cluster: &Cluster,
        prefix: &str,
        number: u64,
        hasher: &KeyHasher,
        max_wait: Duration,
    ) -> Self {
        let mut settings = cluster.config();
        settings.timeout = settings.timeout.max(max_wait);
        let store = RedisStore::spawn(settings, prefix);
        let reported = Arc::new(Told { store, asks: Mutex::default(), pods: AtomicU32::new(0) });
        let options = Options {
            wait_min: max_wait,
            pod: number,
            hasher: hasher.clone(),
            ..Options::default()
        };
        let store = Arc::clone(&reported) as Arc<dyn Store>;
        let limiter = Limiter::new(store, Clock::start(), options);
        let kept = limiter.clone();
        let keeper = tokio::spawn(async move { kept.run().await });
        Self { limiter, reported, keeper }
    }

    /// Does what SIGTERM does, once no decision is under way.
    pub async fn close(&self) {
        self.keeper.abort();
        self.limiter.close().await;
    }
}

impl Drop for Pod {
    fn drop(&mut self) {
        self.keeper.abort();
    }
}

// === impl Told ===

impl Store for Told {
    fn shard(&self, ask: &Ask) -> usize {
        self.store.shard(ask)
    }

    fn lend<'a>(&'a self, ask: &'a Ask) -> GrantFuture<'a> {
        *self.asks.lock().entry(ask.key).or_default() += 1;
        self.store.lend(ask)
    }

    fn beat(&self, beat: Heartbeat) -> PodCountFuture<'_> {
        Box::pin(async move {
            let beaten = self.store.beat(beat).await;
            self.pods.store(beaten.clone().unwrap_or(0), Ordering::Relaxed);
            beaten
        })
    }

    fn describe(&self) -> String {
        self.store.describe()
    }
}
