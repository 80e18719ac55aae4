//! Pods on one cluster, each with a rules directory of its own.

use std::future::Future;
use std::net::SocketAddr;
use std::time::Duration;

use serde_json::Value;
use tempfile::TempDir;

use crate::caller::{Caller, charge, passes, request};
use crate::drive::Said;
use crate::support::files::put;
use crate::support::ratelease::Ratelease;
use crate::support::{http, now};

/// Pods that share counts in one domain.
pub struct Pods {
    pub pods: Vec<Pod>,
    pub domain: String,
}

/// A process, its rules, and a connection to it.
pub struct Pod {
    pub process: Ratelease,
    pub caller: Caller,
    rules: TempDir,
}

/// A change of the rules is live within 1 s; the rest allows for a busy machine.
const LOAD_MAX: Duration = Duration::from_secs(10);

/// See [`Pods::undisturbed`].
const ROUNDS_MAX: usize = 5;

/// A pod remembers for at most 1.5 s that a key is used up, and an unspent lease has been returned
/// before that.
const DENIED_FOR: Duration = Duration::from_millis(2_500);

/// Interval between two attempts at a key that is used up.
const DRAIN_EVERY: Duration = Duration::from_millis(20);

/// The rules of `domain`: a limit for each key, as the text after `rate_limit:`.
pub fn rules(domain: &str, limits: &[(&str, &str)]) -> String {
    let rule = |(key, limit): &(&str, &str)| format!("- {{key: {key}, rate_limit: {{{limit}}}}}\n");
    format!("domain: {domain}\ndescriptors:\n{}", limits.iter().map(rule).collect::<String>())
}

// === impl Pods ===

impl Pods {
    /// Starts pods with these limits in a domain of their own.
    pub async fn start(
        domain: &str,
        pods: usize,
        redis: &[SocketAddr],
        limits: &[(&str, &str)],
        env: &[(&str, &str)],
    ) -> Self {
        Self::start_with(domain, pods, redis, &rules(domain, limits), env).await
    }

    /// Starts pods with a rule file for a domain of their own.
    pub async fn start_with(
        domain: &str,
        pods: usize,
        redis: &[SocketAddr],
        text: &str,
        env: &[(&str, &str)],
    ) -> Self {
        let prefix = format!("{domain}:");
        let env = [&[("CACHE_KEY_PREFIX", prefix.as_str())], env].concat();
        let started: Vec<_> = (0..pods)
            .map(|_| {
                let rules = TempDir::new().expect("a temporary directory");
                write(&rules, text);
                (Ratelease::spawn(rules.path(), redis, &env), rules)
            })
            .collect();
        let mut pods = Vec::new();
        for (process, rules) in started {
            process.ready().await;
            let caller = Caller::open(process.grpc).await;
            pods.push(Pod { process, caller, rules });
        }
        Self { pods, domain: domain.to_owned() }
    }

    /// Sends one hit for a key to one of the pods. Prints the reason if there is no verdict.
    pub fn hit(
        &self,
        pod: usize,
        key: &'static str,
        value: &str,
    ) -> impl Future<Output = Said> + Send + use<> {
        let caller = self.pods[pod].caller.clone();
        let request = request(&self.domain, &[charge(key, value, 1)]);
        async move {
            match caller.ask(request).await {
                Ok(answer) if passes(&answer) => Said::Admitted,
                Ok(_) => Said::Denied,
                Err(error) => {
                    println!("no verdict: {error}");
                    Said::Failed
                }
            }
        }
    }

    /// Gives every pod these limits, and returns once all of them apply the limits.
    pub async fn change(&self, limits: &[(&str, &str)]) {
        for pod in 0..self.pods.len() {
            self.change_one(pod, limits).await;
        }
    }

    /// Gives one pod these limits, and returns once it applies them.
    pub async fn change_one(&self, pod: usize, limits: &[(&str, &str)]) {
        let changed = &self.pods[pod];
        let before = changed.version().await;
        self.write(pod, limits);
        let loaded = async || changed.version().await != before;
        changed.process.process.until("with the new rules", LOAD_MAX, loaded).await;
    }

    /// Writes these limits for one pod to load.
    pub fn write(&self, pod: usize, limits: &[(&str, &str)]) {
        write(&self.pods[pod].rules, &rules(&self.domain, limits));
    }

    /// Repeats `round`, which gets its number, until no pod has answered in it by `failure_mode:
    /// local`: where the machine stalls a process for longer than a request may wait, a pod admits
    /// locally, and `round` is not about that.
    pub async fn undisturbed<T>(&self, round: impl AsyncFn(usize) -> T) -> T {
        for number in 0..ROUNDS_MAX {
            let before = self.local();
            let result = round(number).await;
            let local = self.local() - before;
            if local == 0 {
                return result;
            }
            println!("round {number} does not count: {local} answers without Redis");
        }
        panic!("no round of {ROUNDS_MAX} without answers by the failure mode");
    }

    /// Number of hits that the first `pods` pods admit until none has admitted any for
    /// [`DENIED_FOR`].
    pub async fn drain(&self, pods: usize, key: &'static str, value: &str) -> u64 {
        let (mut admitted, mut last) = (0, now());
        while last.elapsed() < DENIED_FOR {
            let before = admitted;
            for pod in 0..pods {
                match self.hit(pod, key, value).await {
                    Said::Admitted => admitted += 1,
                    Said::Denied => {}
                    Said::Failed => panic!("no verdict"),
                }
            }
            if admitted > before {
                last = now();
            } else {
                tokio::time::sleep(DRAIN_EVERY).await;
            }
        }
        admitted
    }

    /// Number of requests admitted or denied by `failure_mode: local`, over all pods.
    pub fn local(&self) -> u64 {
        self.count("failure_mode_local")
    }

    /// One of the `counts` of `/status`, summed over all pods.
    pub fn count(&self, name: &str) -> u64 {
        self.pods.iter().map(|pod| pod.process.count(name)).sum()
    }

    /// Fails the test if a pod has panicked or violated an invariant.
    pub fn are_unharmed(&self) {
        self.pods.iter().for_each(|pod| pod.process.is_unharmed());
    }
}

// === impl Pod ===

impl Pod {
    /// The version of the rules in force.
    async fn version(&self) -> String {
        let page = http::get(self.process.debug, "/status").await.expect("the status page");
        let status: Value = serde_json::from_str(&page.body).expect("JSON");
        status["rules"]["version"].as_str().expect("rules are in force").to_owned()
    }
}

/// Replaces the rule file atomically.
fn write(rules: &TempDir, text: &str) {
    put(rules.path().join("rules.yaml"), text);
}
