use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::time::sleep;

use crate::pod::Pod;
use crate::route::Replicas;
use crate::support::Place;
use crate::support::rng::Rng;

/// Restarts parts at random: a replica, a pod, or PostgreSQL.
pub(crate) struct Chaos {
    place: Place,
    replicas: Arc<Replicas>,
    pods: Vec<Arc<Pod>>,
    calm: Duration,
    rng: Rng,
    /// The number of restarts, by part.
    pub(crate) done: BTreeMap<&'static str, usize>,
}

// === impl Chaos ===

impl Chaos {
    pub(crate) fn new(
        place: Place,
        replicas: Arc<Replicas>,
        pods: Vec<Arc<Pod>>,
        calm: Duration,
        rng: Rng,
    ) -> Self {
        Self { place, replicas, pods, calm, rng, done: BTreeMap::new() }
    }

    /// Restarts parts until `is_over`.
    pub(crate) async fn work(&mut self, is_over: &AtomicBool) {
        while !is_over.load(Ordering::Relaxed) {
            let part = match self.rng.below(10) {
                0..3 => self.replica(true, "replica killed").await,
                3..5 => self.replica(false, "replica ended").await,
                5 => self.postgres().await,
                _ => self.pod().await,
            };
            *self.done.entry(part).or_default() += 1;
            sleep(self.calm.mul_f64(2.0 * self.rng.fraction())).await;
        }
    }

    /// Starts what does not run.
    pub(crate) async fn mend(&mut self) {
        for at in 0..self.replicas.count() {
            self.replicas.restart(at, &self.place);
        }
    }

    async fn replica(&mut self, at_once: bool, part: &'static str) -> &'static str {
        let at = usize::try_from(self.rng.below(self.replicas.count() as u64)).unwrap();
        self.replicas.end(at, at_once).await;
        sleep(self.calm.mul_f64(self.rng.fraction() / 4.0)).await;
        self.replicas.restart(at, &self.place);
        part
    }

    async fn postgres(&mut self) -> &'static str {
        let postgres = self.place.postgres.as_mut().expect("a PostgreSQL");
        postgres.kill();
        sleep(self.calm.mul_f64(self.rng.fraction() / 8.0)).await;
        postgres.restart().await;
        "postgres"
    }

    async fn pod(&mut self) -> &'static str {
        let at = usize::try_from(self.rng.below(self.pods.len() as u64)).unwrap();
        self.pods[at].restart().await;
        "pod"
    }
}
