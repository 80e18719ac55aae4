//! Two Envoys with modules, on one Redis Cluster, admit what the cells of `docs/accuracy.md` with
//! such a limit say.

use std::time::Duration;

use crate::stand::{Options, Rules, end, file, rule};
use crate::support::envoy::Envoy;
use crate::support::load::{Load, Tally};
use crate::support::now;
use crate::support::redis_cluster::Cluster;

const L: u64 = 20;

/// Algorithms, each with the least part that its cells show of what one exact server admits.
const CELLS: [(&str, f64); 4] = [
    ("fixed_window", 1.0),
    ("token_bucket", 0.9822),
    ("sliding_window", 0.9941),
    ("sliding_log", 0.9984),
];

/// The same of the leaky bucket, one of whose slots begins after each interval.
const LEAST_OF_SLOTS: f64 = 0.9912;
const INTERVAL: Duration = Duration::from_millis(50);
const SLOTS: u64 = 3 * L;

/// Maximum number of rounds, one of which must use so many slots: a busy machine may stall a process
/// for longer than a slot. A shortfall of the module would show in each round.
const ROUNDS_MAX: usize = 20;

async fn two(domain: &str, rules: &Rules) -> [Envoy; 2] {
    let options = Options::new(domain, rules).on_cluster(&Cluster::shared().places());
    [options.start().await, options.start().await]
}

/// Offers both so many requests at once.
async fn offer(envoys: &[Envoy; 2], path: &str, each: u64) -> Tally {
    let loads = envoys.each_ref().map(|envoy| envoy.load(Load::new(path, 4, each)));
    let mut all = Tally::default();
    for load in loads {
        all.add(load.finish().await);
    }
    assert_eq!((all.faults(), all.passed() + all.limited()), (0, 2 * each), "{all:?}");
    all
}

#[tokio::test]
async fn two_envoys_admit_a_small_limit_by_each_algorithm_that_denies_at_once() {
    let of = |(name, _)| rule(&format!("path, value: /{name}"), L, &format!(", algorithm: {name}"));
    let rules = Rules::new(&file("module-cells", &CELLS.map(of)));
    let envoys = two("module-cells", &rules).await;
    for (name, least) in CELLS {
        let admitted = offer(&envoys, &format!("/{name}"), 5 * L / 2).await.passed();
        println!("{name}: {admitted} of {L} admitted, {} offered", 5 * L);
        let least = least * L as f64;
        assert!(admitted as f64 >= least && admitted <= L, "{name}: {admitted} of {least} to {L}");
    }
    for envoy in envoys {
        end(envoy).await;
    }
}

#[tokio::test]
async fn two_envoys_admit_one_request_in_each_slot_of_a_leaky_bucket() {
    let rules = Rules::new(
        "domain: module-slots\ndescriptors:\n- key: path\n  rate_limit: {algorithm: leaky_bucket, \
         unit: second, requests_per_unit: 20, max_delay: 10s}\n",
    );
    let envoys = two("module-slots", &rules).await;
    let mut used = Vec::new();
    while used.len() < ROUNDS_MAX && used.last().is_none_or(|part| *part < LEAST_OF_SLOTS) {
        let begun = now();
        let all = offer(&envoys, &format!("/{}", used.len()), SLOTS / 2).await;
        let took = begun.elapsed();
        assert_eq!(all.passed(), SLOTS, "each waits for its slot");
        let slots = 1.0 + took.as_secs_f64() / INTERVAL.as_secs_f64();
        assert!(slots >= SLOTS as f64, "{SLOTS} passed within {took:?}");
        used.push(SLOTS as f64 / slots);
    }
    println!("parts of the slots that were used, by round: {used:.4?}");
    assert!(used.last() >= Some(&LEAST_OF_SLOTS), "{used:.4?}");
    for envoy in envoys {
        end(envoy).await;
    }
}
