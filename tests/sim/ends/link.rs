//! The link of one pod to Redis, with the faults of the way there and back.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use ratelease_engine::order::Follow;
use ratelease_engine::store::{
    Ask, Grant, GrantFuture, Heartbeat, PodCountFuture, ReadyFuture, Store, StoreError,
};
use tokio::sync::oneshot;
use tokio::time::{sleep, timeout};

use super::gate::Gate;
use super::script::Trouble;
use super::store::{Redis, is_reset};
use crate::rng::Rng;

/// A link gives up an ask after this long.
const GIVES_UP: Duration = Duration::from_millis(100);

/// The link of one pod to Redis.
pub struct Link {
    redis: Arc<Redis>,
    place: usize,
    pod: u64,
    gate: Arc<Gate>,
    seed: u64,
    /// Number of asks so far.
    asks: AtomicU64,
}

/// The way of one ask.
struct Way {
    /// When Redis takes it, if ever.
    out_ms: Option<u64>,
    back_ms: u64,
    /// The reply is lost.
    is_deaf: bool,
    /// Redis cannot be reached.
    is_away: bool,
}

impl Link {
    pub fn new(redis: &Arc<Redis>, place: usize, pod: u64, gate: &Arc<Gate>, seed: u64) -> Self {
        let (redis, gate) = (Arc::clone(redis), Arc::clone(gate));
        Self { redis, place, pod, gate, seed, asks: AtomicU64::new(0) }
    }

    /// Draws the number and the way of the next ask.
    fn begin(&self) -> (u64, Way) {
        let trouble = self.redis.trouble_of(self.place);
        let nth = self.asks.fetch_add(1, Ordering::Relaxed) + 1;
        let mut rng = Rng::new(self.seed, &[9, self.pod, self.redis.now_ms()]);
        let mut way = Way {
            out_ms: Some(rng.below(3)),
            back_ms: rng.below(3),
            is_deaf: false,
            is_away: false,
        };
        let drawn = [
            Trouble::Slow { ms: 30 },
            Trouble::Away,
            Trouble::Hangs,
            Trouble::Deaf,
            Trouble::Late,
            Trouble::Slow { ms: 0 },
        ];
        let trouble = match trouble {
            Some(Trouble::Mixed) => Some(rng.pick(&drawn)),
            trouble => trouble,
        };
        match trouble {
            None | Some(Trouble::Mixed) => {}
            Some(Trouble::Slow { ms }) => {
                way.out_ms = way.out_ms.map(|out| out + rng.below(ms + 1));
                way.back_ms += rng.below(ms + 1);
            }
            Some(Trouble::Away) => (way.out_ms, way.is_away) = (None, true),
            Some(Trouble::Hangs) => way.out_ms = None,
            Some(Trouble::Deaf) => way.is_deaf = true,
            Some(Trouble::Late) => {
                let gives_up = u64::try_from(GIVES_UP.as_millis()).unwrap();
                way.out_ms = Some(gives_up + rng.below(1_500));
            }
        }
        (nth, way)
    }

    /// Sends an ask, which Redis takes whatever becomes of the pod.
    fn send(&self, nth: u64, ask: Ask, way: &Way) -> oneshot::Receiver<Grant> {
        let (reply, receiver) = oneshot::channel();
        let (redis, pod) = (Arc::clone(&self.redis), self.pod);
        let (out, back, is_deaf) = (way.out_ms, way.back_ms, way.is_deaf);
        let Some(out) = out else { return receiver };
        tokio::spawn(async move {
            pass(out).await;
            let grant = redis.take(pod, nth, &ask);
            pass(back).await;
            if !is_deaf {
                // The pod may have given up, or be gone.
                let _ = reply.send(grant);
            }
        });
        receiver
    }

    async fn carry(&self, ask: &Ask, resets: u64) -> Result<Grant, StoreError> {
        let (nth, way) = self.begin();
        let is_of_tokens = self.redis.note_sent(ask);
        if way.is_away {
            pass(1).await;
            return Err(StoreError::Unreachable("simulated".into()));
        }
        let mut reply = self.send(nth, *ask, &way);
        let waited = timeout(GIVES_UP, async {
            match (&mut reply).await {
                Ok(grant) => grant,
                Err(_) => std::future::pending().await,
            }
        });
        let grant = waited.await.map_err(|_| StoreError::TimedOut)?;
        if is_of_tokens {
            self.redis.note_heard(ask, &grant, resets);
        }
        Ok(grant)
    }
}

impl Store for Link {
    fn shard(&self, _ask: &Ask) -> usize {
        0
    }

    fn lend<'a>(&'a self, ask: &'a Ask) -> GrantFuture<'a> {
        // If the pod has not followed an order yet, the order may drop the tokens leased now.
        let resets = if self.redis.has_orders(self.pod) { 0 } else { self.redis.resets() };
        Box::pin(self.gate.pass(self.carry(ask, resets)))
    }

    fn beat(&self, _beat: Heartbeat) -> PodCountFuture<'_> {
        Box::pin(self.gate.pass(async {
            pass(1).await;
            match self.redis.trouble_of(self.place) {
                None | Some(Trouble::Slow { .. } | Trouble::Mixed) => Ok(2),
                Some(_) => Err(StoreError::TimedOut),
            }
        }))
    }

    fn follow_orders<'a>(&'a self, follow: Follow<'a>) -> ReadyFuture<'a> {
        Box::pin(self.gate.pass(async move {
            let mut orders = self.redis.follow(self.pod);
            while let Some(ordered) = orders.recv().await {
                let is_reset = is_reset(&ordered);
                follow.hear(0, ordered);
                self.redis.note_followed(self.pod, is_reset);
            }
            std::future::pending::<()>().await;
        }))
    }

    fn describe(&self) -> String {
        "simulated".into()
    }
}

/// Lets `millis` of virtual time pass; 0 does not yield to the runtime either.
async fn pass(millis: u64) {
    if millis > 0 {
        sleep(Duration::from_millis(millis)).await;
    }
}
