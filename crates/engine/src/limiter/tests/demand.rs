//! The effects of steady demand of some pods, in virtual time: how much passes, compared with one
//! exact server, and how many asks it takes.

use super::*;

/// Requests of one hit for `a`, by all pods together.
pub(super) struct Demand {
    pub(super) rate: f64,
    pub(super) pods: u32,
    pub(super) span: Duration,
    /// At random times; otherwise at equal distances.
    pub(super) random: bool,
}

/// The result of a demand.
#[derive(Debug)]
pub(super) struct Outcome {
    pub(super) offered: u32,
    pub(super) passed: u32,
    /// The number that one server would have let pass that counts each request.
    pub(super) exact: u32,
    pub(super) asks: usize,
}

impl Demand {
    pub(super) fn evenly(rate: f64, pods: u32) -> Self {
        Self { rate, pods, span: Duration::from_secs(6), random: false }
    }

    /// When requests arrive, and at which pod each arrives.
    fn arrivals(&self) -> Vec<(Duration, usize)> {
        let mut seed = 1_u64;
        let mut fraction = || {
            seed = crate::rng::mixed(seed.wrapping_add(0x9E37_79B9_7F4A_7C15));
            (seed >> 11) as f64 / (1_u64 << 53) as f64
        };
        let (mut at, mut arrivals) = (Duration::ZERO, Vec::new());
        while at < self.span {
            let pod = arrivals.len() % self.pods as usize;
            let gaps = if self.random { -(1.0 - fraction()).ln() } else { 1.0 };
            arrivals.push((at, pod));
            at += Duration::from_secs_f64(gaps / self.rate);
        }
        arrivals
    }

    pub(super) async fn meets(&self, rig: &Rig) -> Outcome {
        let pods: Vec<_> = (0..self.pods).map(|number| rig.pod_numbered(number.into())).collect();
        for pod in &pods {
            pod.shared.pods.set(self.pods);
            let kept = pod.clone();
            tokio::spawn(async move { tokio::join!(kept.run_eviction(), kept.run_idle_returns()) });
        }
        let (clock, start) = (rig.clock, rig.clock.now());
        let wall = move || START + clock.now().since(Time::default());
        let exact = MemoryStore::new(Arc::new(wall), 10);
        let resolved = resolve(&rig.rules, &request(&["a"]), &KeyHasher::new(""));
        let Resolved::Charged(charge) = &resolved[0] else { unreachable!("it has a limit") };
        let look = Ask::look(charge.own, charge.applied.limit);
        let ask = Ask { need: 1, charge_denied: charge.charge_denied(), ..look };
        let (mut decisions, rules) = (tokio::task::JoinSet::new(), Arc::clone(&rig.rules));
        let mut outcome = Outcome { offered: 0, passed: 0, exact: 0, asks: 0 };
        for (at, pod) in self.arrivals() {
            tokio::time::sleep_until(rig.clock.instant(start + at)).await;
            outcome.exact += u32::from(exact.take(&ask).unwrap().tokens == 1);
            outcome.offered += 1;
            let (pod, rules) = (pods[pod].clone(), Arc::clone(&rules));
            decisions.spawn(async move {
                pod.decided(&rules, &request(&["a"])).await.unwrap().code == Code::Ok
            });
        }
        while let Some(passed) = decisions.join_next().await {
            outcome.passed += u32::from(passed.unwrap());
        }
        outcome.asks = rig.asks();
        outcome
    }
}

fn rule(limit: &str) -> Rig {
    Rig::new(&limits(limit, "unit: hour, requests_per_unit: 1"))
}

#[tokio::test(start_paused = true)]
async fn buckets_of_any_rate_and_burst_let_pass_what_one_server_would() {
    for (rate, burst, offered) in
        [(1_000, 10, 950.0), (200, 10, 190.0), (100, 1, 50.0), (100, 1, 95.0), (20, 20, 19.0)]
    {
        for pods in [1, 4] {
            for random in [false, true] {
                let rig = rule(&format!(
                    "unit: second, requests_per_unit: {rate}, algorithm: token_bucket, \
                     burst: {burst}"
                ));
                let demand = Demand { random, ..Demand::evenly(offered, pods) };
                let outcome = demand.meets(&rig).await;
                println!("{rate}/s burst {burst}, {pods} pods, random {random}: {outcome:?}");
                let floor = outcome.exact * 95 / 100;
                assert!(outcome.passed >= floor, "{rate}/s burst {burst}, {pods}: {outcome:?}");
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn an_over_subscribed_bucket_lends_what_it_earns() {
    for (rate, burst) in [(1_000, 10), (100, 1), (100, 100)] {
        for pods in [1, 4] {
            let rig = rule(&format!(
                "unit: second, requests_per_unit: {rate}, algorithm: token_bucket, burst: {burst}"
            ));
            let outcome = Demand::evenly(3.0 * f64::from(rate), pods).meets(&rig).await;
            println!("{rate}/s burst {burst}, {pods} pods: {outcome:?}");
            assert!(outcome.passed >= outcome.exact * 95 / 100, "{rate}/s: {outcome:?}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_lukewarm_key_costs_at_most_six_calls_in_ten_decisions() {
    for random in [false, true] {
        let rig = rule("unit: hour, requests_per_unit: 1000");
        let span = Duration::from_secs(80);
        let demand = Demand { random, span, ..Demand::evenly(12.0, 4) };
        let outcome = demand.meets(&rig).await;
        println!("random {random}: {outcome:?}");
        assert!(outcome.asks * 10 <= 6 * outcome.offered as usize, "{outcome:?}");
        assert!(outcome.passed >= outcome.exact * 99 / 100, "{outcome:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_key_of_any_rate_costs_at_most_one_call_a_decision() {
    for rate in [0.3_f64, 0.7, 1.0, 2.0, 5.0, 10.0, 30.0] {
        let rig = rule("unit: hour, requests_per_unit: 400");
        let span = Duration::from_secs_f64(f64::min(200.0 / rate, 400.0));
        let demand = Demand { random: true, span, ..Demand::evenly(rate, 2) };
        let outcome = demand.meets(&rig).await;
        println!("{rate}/s: {outcome:?}");
        assert!(outcome.asks <= outcome.offered as usize + 4, "{rate}/s: {outcome:?}");
    }
}
