//! The network between one pod and the store: it delays, loses and refuses asks.
//!
//! Each ask has a fate of its own, which follows from the seed, the pod, the count and how often
//! the pod asked for it: asks that travel together fare as those that travel alone, and the order
//! in which they leave changes nothing. A batch is answered when its last ask is.
//!
//! An ask is delivered at most once, as the contract of [`Store`] requires, so no ask is
//! duplicated. An ask may never arrive, or arrive long after its sender gave up; a reply may be
//! lost although the ask was taken, or arrive after its lease has ended; and a store may refuse,
//! hang, be busy, or be unreachable for some pods only. The trait cannot deliver a reply twice. A
//! pod that returns tokens twice is caught by its [`Purse`](crate::purse::Purse), and a late return
//! that is credited by the books.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use ratelease_engine::store::{
    Ask, Grant, GrantFuture, Heartbeat, PodCountFuture, Store, StoreError,
};
use ratelease_engine::time::Time;
use ratelease_rules::key::Key;
use tokio::sync::oneshot;

use crate::plan::Tamper;
use crate::rng::Rng;
use crate::weather::{Answer, Fate};
use crate::world::{World, tell};

/// The connection of one pod to the store.
pub struct Network {
    world: Arc<World>,
    pod: u64,
    traffic: Mutex<Traffic>,
}

#[derive(Default)]
struct Traffic {
    /// Asks sent so far for each count; `None` for heartbeats.
    sent: HashMap<Option<Key>, u64>,
    /// Asks under way that the weather affected.
    struck: u32,
    /// When the last such ask ended.
    struck_until: Option<Time>,
}

/// An ask under way that the weather affected.
struct Struck<'a>(&'a Network);

/// The time at which the store took an ask, and its reply.
type Taken = (Time, Result<Grant, StoreError>);

// === impl Network ===

impl Network {
    pub fn new(world: &Arc<World>, pod: u64) -> Self {
        Self { world: Arc::clone(world), pod, traffic: Mutex::default() }
    }

    /// Whether the weather affected an ask or its reply at `since` or later.
    pub fn was_struck(&self, since: Time) -> bool {
        let traffic = self.traffic.lock();
        traffic.struck > 0 || traffic.struck_until.is_some_and(|until| until >= since)
    }

    /// The fate of the next ask of `counter`.
    fn fate(&self, counter: Option<Key>) -> Fate {
        let nth = {
            let mut traffic = self.traffic.lock();
            let sent = traffic.sent.entry(counter).or_default();
            *sent += 1;
            *sent
        };
        let plan = &self.world.plan;
        let (bits, shard) = counter.map_or((0, 0), |of| (of.bits(), plan.shard_of(of)));
        let mut rng = Rng::new(plan.seed, &[1, self.pod, bits, nth]);
        plan.weather.fate(self.world.millis(), self.pod, shard, &mut rng)
    }

    /// Returned tokens leave the pod here, whether they arrive or not.
    fn note_returns(&self, ask: &Ask) {
        let now = self.world.now();
        let mut state = self.world.state();
        if let Err(what) = state.note_returns(self.pod, ask) {
            let key = ask.counter().bits() % 1_000;
            state.fault(now, format!("pod {}, {key}: {what}", self.pod));
        }
    }

    /// Delivers one ask, and its reply if the weather allows it.
    async fn carry(&self, ask: &Ask) -> Result<Grant, StoreError> {
        self.note_returns(ask);
        let fate = self.fate(Some(ask.counter()));
        let _struck = fate.struck.then(|| Struck::new(self));
        if fate.arrives_after_ms.is_none() || fate.refused {
            self.world.state().note_lost(ask);
        }
        let taken = self.send(*ask, &fate);
        match fate.answer {
            Answer::Comes { after_ms } => match taken.await {
                Ok((taken_at, outcome)) => {
                    pass(after_ms).await;
                    self.deliver(ask, taken_at, outcome, fate.garbled)
                }
                Err(_) => Err(StoreError::TimedOut),
            },
            Answer::TimesOut { after_ms } => {
                pass(after_ms).await;
                Err(StoreError::TimedOut)
            }
            Answer::Unreachable { after_ms } => {
                pass(after_ms).await;
                Err(StoreError::Unreachable("simulated".into()))
            }
            Answer::Never => std::future::pending().await,
        }
    }

    /// Delivers an ask to the store, even if its sender no longer waits for the reply.
    fn send(&self, ask: Ask, fate: &Fate) -> oneshot::Receiver<Taken> {
        let (reply, receiver) = oneshot::channel();
        let world = Arc::clone(&self.world);
        let Fate { arrives_after_ms, refused, .. } = *fate;
        tokio::spawn(async move {
            // A lost ask, whose sender waits: there is no reply.
            let Some(arrives) = arrives_after_ms else { return };
            pass(arrives).await;
            world.queue(&ask).await;
            let outcome = if refused {
                Err(StoreError::Refused("simulated".into()))
            } else {
                world.take(&ask)
            };
            // The pod may be gone.
            let _ = reply.send((world.now(), outcome));
        });
        receiver
    }

    /// Delivers the store's reply, and records the tokens that the pod now holds.
    fn deliver(
        &self,
        ask: &Ask,
        taken_at: Time,
        outcome: Result<Grant, StoreError>,
        garbled: bool,
    ) -> Result<Grant, StoreError> {
        if outcome.as_ref().is_err_and(StoreError::is_not_applied) {
            self.world.state().note_kept(self.pod, ask);
        }
        let grant = outcome?;
        if garbled {
            return Err(StoreError::MalformedReply("simulated".into()));
        }
        let now = self.world.now();
        let mut state = self.world.state();
        state.deliver(self.pod, ask, &grant, taken_at, now);
        if let Err(what) = state.note_reported(self.pod, ask) {
            let key = ask.counter().bits() % 1_000;
            state.fault(now, format!("pod {}, {key}: {what}", self.pod));
        }
        drop(state);
        tell(&self.world.plan, now, || {
            let (key, tokens) = (ask.counter().bits() % 1_000, grant.tokens);
            format!("pod {}: is lent {tokens} of {key}", self.pod)
        });
        Ok(self.reported(grant))
    }

    /// The grant as the pod receives it: unchanged, unless the run has a fault that must be caught.
    fn reported(&self, grant: Grant) -> Grant {
        let longer = |span: Duration| span * 2 + Duration::from_secs(1);
        match self.world.plan.tamper {
            Some(Tamper::TellsOfMore) => Grant { tokens: grant.tokens * 2, ..grant },
            Some(Tamper::TellsOfLongerLeases) => Grant {
                ends_after: longer(grant.ends_after),
                reset_after: longer(grant.reset_after),
                ..grant
            },
            Some(Tamper::TellsOfNone) => Grant { tokens: 0, left: 0, overdrawn: true, ..grant },
            _ => grant,
        }
    }
}

impl Store for Network {
    fn shard(&self, ask: &Ask) -> usize {
        self.world.plan.shard_of(ask.counter())
    }

    fn lend<'a>(&'a self, ask: &'a Ask) -> GrantFuture<'a> {
        Box::pin(async move {
            if self.world.state().wrong().is_some() {
                // The run is over, and must not continue with new asks.
                std::future::pending::<()>().await;
            }
            self.carry(ask).await
        })
    }

    fn beat(&self, beat: Heartbeat) -> PodCountFuture<'_> {
        Box::pin(async move {
            let fate = self.fate(None);
            let Some(arrives) = fate.arrives_after_ms else { return Err(StoreError::TimedOut) };
            pass(arrives).await;
            let beaten = self.world.beat(beat);
            let Answer::Comes { after_ms } = fate.answer else { return Err(StoreError::TimedOut) };
            pass(after_ms).await;
            if let Ok(pods) = beaten {
                let now = self.world.now();
                self.world.state().note_heard(self.pod, pods, now);
            }
            beaten
        })
    }

    fn describe(&self) -> String {
        "simulated".into()
    }
}

/// Lets `millis` of virtual time pass; 0 does not yield to the runtime either.
async fn pass(millis: u64) {
    if millis > 0 {
        tokio::time::sleep(Duration::from_millis(millis)).await;
    }
}

// === impl Struck ===

impl<'a> Struck<'a> {
    fn new(network: &'a Network) -> Self {
        network.traffic.lock().struck += 1;
        Self(network)
    }
}

impl Drop for Struck<'_> {
    fn drop(&mut self) {
        let now = self.0.world.now();
        let mut traffic = self.0.traffic.lock();
        traffic.struck -= 1;
        traffic.struck_until = Some(now);
    }
}
