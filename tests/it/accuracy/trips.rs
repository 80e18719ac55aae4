//! The cost of decisions for Redis, by Redis's own counts.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::Instant;

use super::MAX_WAIT;
use super::demand::Demand;
use super::drive::{Said, count, drive};
use super::fleet::Fleet;
use crate::support::now;
use crate::support::redis::Cluster;
use crate::support::rng::Rng;
use crate::support::windows::early_in_a_window;

const MINUTE: Duration = Duration::from_secs(60);
const RULE: &str = "unit: minute, requests_per_unit: 600000";

/// Commands that pods send. Commands called by a script are not counted separately.
const SENT: [&str; 3] = ["eval", "evalsha", "script|load"];

#[tokio::test(flavor = "multi_thread")]
async fn a_thousand_decisions_on_a_hot_key_cost_at_most_5_commands() {
    const DECISIONS: u32 = 120_000;
    let span = Duration::from_secs(8);
    let (cluster, fleet) = alone(4).await;
    early_in_a_window(MINUTE, span + Duration::from_secs(2)).await;
    let rate = f64::from(DECISIONS) / span.as_secs_f64();
    let demand = Demand { rate, weights: vec![1.0; 4], moves_every: None };
    let arrivals = demand.arrivals(Rng::new().next_u64(), Duration::MAX).take(DECISIONS as usize);
    let before = sent(&cluster);
    let start = Instant::from_std(now());
    let answers = drive(arrivals, start, Duration::MAX, |pod| fleet.decide(pod, "key")).await;
    assert_eq!(count(&answers, Said::Admitted), u64::from(DECISIONS));
    let cost = f64::from(sent(&cluster) - before) * 1_000.0 / f64::from(DECISIONS);
    println!("a hot key, four pods, {rate} decisions a second: {cost:.2} commands for 1000");
    assert!(cost > 0.0 && cost <= 5.0, "{cost:.2}");
}

/// One pod, since each pod needs a first lease of every key that it serves: for 500 000 decisions
/// on 10 000 keys, that alone is 20 commands per 1000.
#[tokio::test(flavor = "multi_thread")]
async fn a_thousand_decisions_on_ten_thousand_cold_keys_cost_at_most_30_commands() {
    const DECISIONS: u32 = 500_000;
    const AT_ONCE: u32 = 8;
    let keys = Arc::new(Zipf::new(10_000));
    let (cluster, fleet) = alone(1).await;
    let fleet = Arc::new(fleet);
    early_in_a_window(MINUTE, Duration::from_secs(30)).await;
    let seed = Rng::new().next_u64();
    let (before, start) = (sent(&cluster), now());
    let mut asking = JoinSet::new();
    for task in 0..AT_ONCE {
        let (fleet, keys) = (Arc::clone(&fleet), Arc::clone(&keys));
        let mut rng = Rng::seeded(seed.wrapping_add(u64::from(task)));
        asking.spawn(async move {
            let mut seen = BTreeMap::new();
            for number in 0..DECISIONS / AT_ONCE {
                // Requests that are answered at once otherwise leave the connections no time.
                if number % 32 == 0 {
                    tokio::task::yield_now().await;
                }
                let key = keys.pick(&mut rng);
                let said = fleet.decide_for(0, "key", &format!("user-{key}")).await;
                assert_eq!(said, Said::Admitted, "user-{key}");
                *seen.entry(key).or_insert(0_u32) += 1;
            }
            seen
        });
    }
    let mut seen = BTreeMap::new();
    asking.join_all().await.into_iter().for_each(|task| seen.extend(task));
    let took = start.elapsed();
    let cost = f64::from(sent(&cluster) - before) * 1_000.0 / f64::from(DECISIONS);
    println!(
        "{DECISIONS} decisions by one pod in {took:.1?} over {} of 10 000 Zipf keys: {cost:.2} \
         commands for 1000",
        seen.len()
    );
    assert!(seen.len() > 9_500, "{} keys", seen.len());
    assert!(cost > 0.0 && cost <= 30.0, "{cost:.2}");
}

/// A cluster that only this test uses, and pods on it.
async fn alone(pods: usize) -> (Cluster, Fleet) {
    let cluster = Cluster::start(3, 1);
    let rules = [("key".to_owned(), RULE.to_owned())];
    let fleet = Fleet::start(&cluster, "trips", pods, &rules, MAX_WAIT).await;
    (cluster, fleet)
}

fn sent(cluster: &Cluster) -> u32 {
    u32::try_from(SENT.map(|name| cluster.calls(name)).iter().sum::<u64>()).unwrap()
}

/// Numbers from 0 whose n-th is 1/n times as likely as the first.
struct Zipf {
    /// Cumulative weights.
    up_to: Vec<f64>,
}

impl Zipf {
    fn new(size: u32) -> Self {
        let mut sum = 0.0;
        let weights = (1..=size).map(|rank| {
            sum += 1.0 / f64::from(rank);
            sum
        });
        Self { up_to: weights.collect() }
    }

    fn pick(&self, rng: &mut Rng) -> usize {
        let at = rng.fraction() * self.up_to.last().unwrap();
        self.up_to.partition_point(|sum| *sum <= at)
    }
}
