//! Keys that are split into pools (`shards`): the bound is the whole limit's, whatever the number
//! of pools.

use super::demand::Demand;
use super::*;

fn rule(limit: u32, shards: u8) -> String {
    let a = format!("unit: hour, requests_per_unit: {limit}, shards: {shards}");
    limits(&a, "unit: hour, requests_per_unit: 1")
}

fn of_pools(rig: &Rig) -> usize {
    rig.store.pool_asks.load(Ordering::Relaxed)
}

#[tokio::test(start_paused = true)]
async fn most_leases_of_a_split_key_come_from_its_pools() {
    let rig = Rig::new(&rule(100_000, 2));
    let outcome = Demand::evenly(10_000.0, 32).meets(&rig).await;
    println!("{outcome:?}, {} asks of pools", of_pools(&rig));
    assert_eq!(outcome.passed, outcome.offered);
    let own = outcome.asks - of_pools(&rig);
    assert!(own * 2 < outcome.asks, "{own} asks of the own count: {outcome:?}");
}

#[tokio::test(start_paused = true)]
async fn a_split_key_admits_its_limit_exactly() {
    for (limit, pods) in [(20, 4), (1_000, 16), (20_000, 32)] {
        let rig = Rig::new(&rule(limit, 4));
        let outcome = Demand::evenly(f64::from(limit) / 3.0, pods).meets(&rig).await;
        println!("{limit}, {pods} pods: {outcome:?}, {} asks of pools", of_pools(&rig));
        assert!(outcome.passed <= limit, "{outcome:?}");
        assert!(outcome.passed * 100 >= limit * 99, "{outcome:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_change_of_shards_keeps_the_bound_and_leaves_nothing_behind() {
    const LIMIT: u32 = 10_000;
    let rig = Rig::new(&rule(LIMIT, 1));
    let pods: Vec<_> = (0..12).map(|number| rig.pod_numbered(number)).collect();
    for pod in &pods {
        pod.shared.pods.set(12);
        let kept = pod.clone();
        tokio::spawn(async move { tokio::join!(kept.run_eviction(), kept.run_idle_returns()) });
    }
    let mut passed = 0;
    for (step, shards) in [1, 4, 2, 1, 3, 1].into_iter().enumerate() {
        let rules = compile(&rule(LIMIT, shards));
        for pod in &pods {
            pod.apply_rules(&rules).await;
        }
        for request_number in 0..2_500 {
            let pod = &pods[request_number % pods.len()];
            let verdict = pod.decided(&rules, &request(&["a"])).await.unwrap();
            passed += u32::from(verdict.code == Code::Ok);
            tokio::time::sleep(Duration::from_micros(200)).await;
        }
        println!("after {} steps: {passed}", step + 1);
        assert!(passed <= LIMIT);
    }
    assert!(of_pools(&rig) > 0, "pools were used");
    assert!(passed * 100 >= LIMIT * 99, "{passed}");
}

#[tokio::test(start_paused = true)]
async fn a_pool_that_cannot_be_reached_leaves_the_whole_count() {
    let rig = Rig::new(&rule(1_000, 8));
    let pod = rig.pod();
    pod.shared.pods.set(100);
    let mut passed = 0;
    for _ in 0..1_200 {
        let verdict = pod.decided(&rig.rules, &request(&["a"])).await.unwrap();
        passed += u32::from(verdict.code == Code::Ok);
    }
    assert_eq!(passed, 1_000);
}
