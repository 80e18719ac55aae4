//! Networks that are slow, silent or broken, by a proxy in front of each master.

use std::sync::OnceLock;
use std::time::{Duration, Instant};

use tokio::sync::Mutex;

use crate::row::Row;
use crate::stage::{Plan, Scale, Stage, judge_errors, scripts, status, time_until, turn};
use crate::stand::Asker;
use crate::support::now;
use crate::support::paced::Samples;
use crate::support::proxy::{Fault, Proxy};
use crate::support::redis_cluster::{Cluster, ClusterOptions};

/// From the end of a fault until leases are as before: the longest wait between two attempts to
/// connect, or between two probes of a breaker, is 2 s.
const RECOVERED_MAX: Duration = Duration::from_secs(3);

const MIB: u64 = 1 << 20;

/// From the beginning of a black hole to a new connection, at full scale.
const NOTICED_MAX: Duration = Duration::from_millis(500);

/// Maximum growth of a pod's memory by a slow Redis.
const GROWTH_MAX: u64 = 16 * MIB;

/// Three masters behind proxies, for every test that does not break them.
fn proxied() -> &'static Cluster {
    static SHARED: OnceLock<Cluster> = OnceLock::new();
    SHARED.get_or_init(|| Cluster::start_with(&ClusterOptions::new(3, 0).proxied()))
}

/// Held by a test that sets faults on these proxies.
static PROXIED: Mutex<()> = Mutex::const_new(());

fn set_all(cluster: &Cluster, fault: Fault) {
    cluster.proxies.iter().for_each(|proxy| proxy.set(fault));
}

/// Time until the nodes have run `more` additional scripts, which must exceed the number held up on
/// the way.
async fn leases_resume(cluster: &Cluster, more: u64) -> Duration {
    let all = || cluster.nodes.iter().map(scripts).sum::<u64>();
    let before = all();
    let resumed = time_until(3 * RECOVERED_MAX, async || all() > before + more).await;
    resumed.unwrap_or(3 * RECOVERED_MAX)
}

/// A fault that starts and ends under load; a test may have several.
struct Spell {
    row: Row,
    began: Instant,
    ended: Instant,
    errors: u64,
}

impl Spell {
    /// Applies `fault` at every node for `lasts`, and waits until leases resume.
    async fn pass(mut row: Row, stage: &Stage, fault: Fault, lasts: Duration) -> Self {
        let cluster = proxied();
        let (errors, memory) = (stage.errors().await, stage.resident());
        let connections = || cluster.proxies.iter().map(Proxy::accepted).sum::<u64>();
        let before = connections();
        let began = now();
        set_all(cluster, fault);
        if fault == Fault::Hole {
            // A busy machine may be late.
            let max = stage.scale.pick(10 * NOTICED_MAX, NOTICED_MAX);
            let replaced = time_until(lasts.max(max), async || connections() > before).await;
            let took = replaced.unwrap_or(Duration::MAX);
            row.note(&format!("connection replaced after {} ms", took.as_millis()));
            row.holds(took <= max, "noticed too late");
        }
        tokio::time::sleep(lasts.saturating_sub(began.elapsed())).await;
        set_all(cluster, Fault::None);
        let ended = now();
        row.recovered(leases_resume(cluster, 20).await, RECOVERED_MAX);
        let growth = stage.resident().saturating_sub(memory);
        row.holds(growth <= GROWTH_MAX, &format!("memory grew by {} MiB", growth / MIB));
        Self { row, began, ended, errors: stage.errors().await - errors }
    }

    fn judged(mut self, stage: &Stage, samples: &Samples) -> Row {
        let spell = samples.between(self.began, self.ended);
        judge_errors(&mut self.row, &spell, self.errors);
        stage.judge_latency(&mut self.row, samples, self.began, self.ended);
        self.row.admitted(samples.of(|path| path == 0).passed(), 2 * stage.tight);
        self.row
    }
}

async fn check(name: &str, promise: &str, spells: &[(&str, Fault)]) {
    let _proxied = PROXIED.lock().await;
    let _turn = turn().await;
    let cluster = proxied();
    let stage = Plan::new(&name.to_lowercase(), cluster).start().await;
    let load = stage.load(cluster).await;
    let mut passed = Vec::new();
    for (what, fault) in spells {
        let lasts = stage.scale.pick(Duration::from_millis(1500), Duration::from_secs(5));
        let row = Row::new(name, what, promise);
        passed.push(Spell::pass(row, &stage, *fault, lasts).await);
    }
    let samples = load.stop().await;
    if let Some(last) = passed.last_mut() {
        stage.stop(&mut last.row).await;
    }
    let rows = passed.into_iter().map(|spell| spell.judged(&stage, &samples));
    Row::end_all(rows.collect());
}

#[tokio::test(flavor = "multi_thread")]
async fn r6_redis_is_slow() {
    let ms = Duration::from_millis;
    let promise = "0 errors; p99 < 5 ms on warm keys; memory flat; at most 2 L";
    let spells = [
        ("replies 5 ± 1 ms late", Fault::Latency { delay: ms(5), jitter: ms(1) }),
        ("replies 50 ± 10 ms late", Fault::Latency { delay: ms(50), jitter: ms(10) }),
        ("replies 500 ± 100 ms late", Fault::Latency { delay: ms(500), jitter: ms(100) }),
        ("replies drip at 8 KB/s", Fault::Drip { bytes_per_second: 8000 }),
    ];
    check("R6", promise, &spells).await;
}

/// Tokens and grants so far, over all leases of the only pod.
async fn lent(stage: &Stage) -> (u64, u64) {
    let page = status(&stage.pods[0]).await.expect("the status page");
    let of = |name: &str| page["leases"][name].as_u64().expect("a number");
    (of("tokens_granted"), of("grants"))
}

/// The mean size of the next few leases.
async fn lease_size(stage: &Stage) -> f64 {
    const GRANTS: u64 = 3;
    let before = lent(stage).await;
    let come = async || lent(stage).await.1 >= before.1 + GRANTS;
    assert!(time_until(Duration::from_secs(30), come).await.is_some(), "no leases come");
    let after = lent(stage).await;
    (after.0 - before.0) as f64 / (after.1 - before.1) as f64
}

/// Where less than half of a key's limit is left, a lease is sized to last a quarter of a second;
/// with a Redis half a second away, it is spent before the next one can arrive.
#[tokio::test(flavor = "multi_thread")]
async fn r6_leases_grow_with_the_round_trip() {
    let _turn = turn().await;
    const STEADY: &str = "/steady";
    let promise = "leases last as long as two round trips, and are never more than a quarter of \
                   what is left; 0 errors; at most L, for less is asked";
    let _proxied = PROXIED.lock().await;
    let mut row = Row::new("R6", "replies 500 ms late: the size of leases", promise);
    let limit: u32 = Scale::of_env().pick(8_000, 80_000);
    let more = format!(
        "- {{key: path, value: {STEADY}, rate_limit: {{unit: day, requests_per_unit: {limit}}}}}\n"
    );
    let stage = Plan { pods: 1, more, ..Plan::new("r6-size", proxied()) }.start().await;
    let charged = limit * 6 / 10;
    let asker = Asker::connect(&stage.pods[0]).await;
    let answer = asker.ask("r6-size", &[("path", STEADY)], charged).await;
    assert_eq!(answer.overall_code, 1, "{answer:?}");
    let load = stage.load_of(&[STEADY.to_owned()], proxied()).await;
    let near = lease_size(&stage).await;
    let began = now();
    let delay = Duration::from_millis(500);
    set_all(proxied(), Fault::Latency { delay, jitter: Duration::ZERO });
    // Until the pod has learnt the delay, by a connection or two that are given up and the first
    // replies.
    let (_, grants) = lent(&stage).await;
    let learnt = async || lent(&stage).await.1 >= grants + 2;
    row.holds(time_until(Duration::from_secs(30), learnt).await.is_some(), "no leases come");
    let far = lease_size(&stage).await;
    let ended = now();
    set_all(proxied(), Fault::None);
    row.recovered(leases_resume(proxied(), 3).await, RECOVERED_MAX);
    let samples = load.stop().await;

    let demand = samples.between(began, ended).passed() as f64 / (ended - began).as_secs_f64();
    row.note(&format!("{near:.0} tokens a lease at first, {far:.0} then, for {demand:.0}/s"));
    // Leases of a quarter of a second have a quarter of this size. The size at first is not the
    // measure: a load that comes in bursts makes those leases larger.
    let two_round_trips = demand * (2 * delay).as_secs_f64();
    row.holds(far >= 0.75 * two_round_trips, "leases do not grow with the round trip");
    row.holds(far <= f64::from(limit - charged) / 4.0, "a lease of more than its part");
    judge_errors(&mut row, &samples.between(began, now()), stage.errors().await);
    row.admitted(u64::from(charged) + samples.passed(), limit.into());
    stage.stop(&mut row).await;
    row.end();
}

#[tokio::test(flavor = "multi_thread")]
async fn r7_connections_to_redis_break() {
    let promise = "0 errors; a black hole noticed within 500 ms; a cut reply never taken for a \
                   whole one; at most 2 L";
    let spells = [
        ("black hole: connections open, nothing comes", Fault::Hole),
        ("every connection reset", Fault::Reset),
        ("every connection cut within a reply, after 13 bytes", Fault::Cut { after: 13 }),
        ("connections refused", Fault::Refuse),
    ];
    check("R7", promise, &spells).await;
}
