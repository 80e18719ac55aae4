//! Token buckets that move while asks of several pods are under way.

use futures_util::future::join_all;
use tokio::time::{Instant, sleep};

use super::*;

/// Number of pods that draw on one key.
const PODS: u64 = 6;
/// The longest way to a store, or back, in milliseconds.
const WAY_MS: u64 = 8;
/// Windows until every pod knows of the move, and from the first one to the last one that knows of
/// its end.
const SPREAD: u64 = 2;

/// A store that asks reach, and whose replies arrive, after a while.
struct Far {
    memory: MemoryStore,
    seed: u64,
    drawn: AtomicU64,
}

impl Far {
    fn new(start: Instant, ahead_ms: u64, seed: u64) -> Self {
        let epoch = Duration::from_millis(90_000 + ahead_ms);
        let memory = MemoryStore::new(Arc::new(move || epoch + start.elapsed()), 100);
        Self { memory, seed, drawn: 0.into() }
    }

    async fn travel(&self) {
        let drawn = self.drawn.fetch_add(1, Ordering::Relaxed);
        sleep(Duration::from_micros(mixed(self.seed ^ mixed(drawn)) % (WAY_MS * 1000))).await;
    }
}

impl Store for Far {
    fn shard(&self, _ask: &Ask) -> usize {
        0
    }

    fn lend<'a>(&'a self, ask: &'a Ask) -> GrantFuture<'a> {
        Box::pin(async move {
            self.travel().await;
            let grant = self.memory.take(ask);
            self.travel().await;
            grant
        })
    }

    fn beat(&self, beat: Heartbeat) -> PodCountFuture<'_> {
        self.memory.beat(beat)
    }

    fn describe(&self) -> String {
        "far".into()
    }
}

/// A fleet that draws on one bucket while it moves.
struct Fleet {
    from: Far,
    to: Far,
    start: Instant,
    burst: u32,
    seed: u64,
}

impl Fleet {
    fn new(burst: u32, seed: u64) -> Self {
        #[allow(clippy::disallowed_methods, reason = "the test reads tokio's paused clock")]
        let start = Instant::now();
        let (from, to) = (Far::new(start, 0, seed), Far::new(start, seed % 7 * 100, !seed));
        Self { from, to, start, burst, seed }
    }

    fn elapsed_ms(&self) -> u64 {
        u64::try_from(self.start.elapsed().as_millis()).unwrap()
    }

    /// When every pod has known of the move for as long as the bucket takes to fill, and asks that
    /// were under way have ended.
    fn held_until_ms(&self) -> u64 {
        let fills = u64::from(self.burst) * WINDOW_MS / u64::from(LIMIT);
        (1 + SPREAD) * WINDOW_MS + fills + 8 * WAY_MS
    }

    fn ends_at_ms(&self) -> u64 {
        self.held_until_ms() + (SPREAD + 3) * WINDOW_MS
    }

    /// What one pod spends, each with the time.
    async fn spent(&self, pod: u64) -> Vec<(u64, u64)> {
        let own = mixed(self.seed ^ mixed(pod + 1));
        let moves_at = WINDOW_MS + own % (SPREAD * WINDOW_MS);
        let ends_at = self.held_until_ms() + own / 8192 % (SPREAD * WINDOW_MS);
        let mut spent = Vec::new();
        for step in 0.. {
            let now = self.elapsed_ms();
            if now >= self.ends_at_ms() {
                break;
            }
            let random = mixed(own ^ mixed(step));
            let ask = ask(limit(Algorithm::TokenBucket { burst: self.burst }), 1 + random % 4, 0);
            let moving = Moving { from: &self.from, to: &self.to };
            let grant = match now {
                _ if now < moves_at => self.from.lend(&ask).await,
                _ if now < ends_at => moving.lend(&ask).await,
                _ => self.to.lend(&ask).await,
            };
            spent.push((self.elapsed_ms(), grant.unwrap().tokens));
            sleep(Duration::from_millis(random / 8 % 4)).await;
        }
        spent
    }
}

#[tokio::test(start_paused = true)]
async fn a_bucket_of_pods_whose_asks_overtake_each_other_admits_no_more_while_it_moves() {
    for burst in [LIMIT / 5, 2 * LIMIT] {
        for seed in 0..20 {
            let fleet = Fleet::new(burst, seed);
            let mut spent = join_all((0..PODS).map(|pod| fleet.spent(pod))).await.concat();
            spent.sort_unstable();
            // Tokens are spent when the replies arrive: up to seven ways after the debit.
            let late = 7 * WAY_MS * u64::from(LIMIT);
            let (most, bound) = (most_above_the_rate(&spent), (u64::from(burst) + 1) * 1000 + late);
            assert!(
                most <= bound,
                "seed {seed}: {most} thousandths above the rate, {bound} at most"
            );
            let all: u64 = spent.iter().map(|(_, tokens)| tokens).sum();
            let flows_in = fleet.ends_at_ms() * u64::from(LIMIT) / 1000;
            assert!(all >= flows_in * 3 / 4, "seed {seed}: {all} of {flows_in} that flow in");
        }
    }
}
