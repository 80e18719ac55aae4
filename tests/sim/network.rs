//! The way between one pod and the store: it delays, loses and refuses.
//!
//! An ask is carried at most once, as the contract of [`Store`] has it, so there is no duplicate of
//! an ask here. What there is: an ask that never arrives, or arrives long after its sender gave up;
//! a reply that is lost although the ask was taken, or comes when its lease has ended; asks of one
//! batch that fail alone; a store that refuses, hangs, or is out of reach for some pods only. A
//! reply cannot be delivered twice through this seam. What a pod might do twice, giving tokens
//! back, its [`Purse`](crate::purse::Purse) catches; that a late return is credited, the books do.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use ratelease::store::{Ask, Beat, Beaten, Grant, Replies, Store, StoreError};
use ratelease::time::Time;
use tokio::sync::oneshot;

use crate::dice::Dice;
use crate::plan::Tamper;
use crate::weather::{Answer, Fate};
use crate::world::{World, tell};

/// One pod's way to the store.
pub struct Network {
    world: Arc<World>,
    pod: u64,
    traffic: Mutex<Traffic>,
}

#[derive(Default)]
struct Traffic {
    /// Sent so far of each count.
    sent: HashMap<u64, u64>,
    /// Batches on their way that the weather struck.
    struck: u32,
    /// When the last such batch ended.
    struck_until: Option<Time>,
}

/// A batch on its way that the weather struck.
struct Struck<'a>(&'a Network);

/// What the store made of an ask, and when.
type Taken = (Time, Result<Grant, StoreError>);

// === impl Network ===

impl Network {
    pub fn new(world: &Arc<World>, pod: u64) -> Self {
        Self { world: Arc::clone(world), pod, traffic: Mutex::default() }
    }

    /// Whether an ask or its reply was struck by the weather at `since` or later.
    pub fn was_struck(&self, since: Time) -> bool {
        let traffic = self.traffic.lock();
        traffic.struck > 0 || traffic.struck_until.is_some_and(|until| until >= since)
    }

    /// The dice of the next ask of a count: asks of different counts may leave in any order within
    /// one instant.
    fn dice(&self, count: u64) -> Dice {
        let mut traffic = self.traffic.lock();
        let sent = traffic.sent.entry(count).or_default();
        *sent += 1;
        Dice::new(self.world.plan.seed, &[1, self.pod, count, *sent])
    }

    /// What is given back leaves the pod here, whether it arrives or not.
    fn note_returns(&self, asks: &[Ask]) {
        let now = self.world.now();
        let mut state = self.world.state();
        for ask in asks {
            let Some(back) = ask.back else { continue };
            if let Err(what) = state.purse(self.pod, ask.key).give_back(back) {
                let key = ask.counter().bits() % 1_000;
                state.fault(now, format!("pod {}, {key}: {what}", self.pod));
            }
        }
    }

    /// Takes a batch to the store, whoever still waits for the reply.
    fn send(&self, asks: Vec<Ask>, fate: &Fate) -> oneshot::Receiver<Vec<Taken>> {
        let (reply, receiver) = oneshot::channel();
        let world = Arc::clone(&self.world);
        let (arrives, refused) = (fate.arrives_after_ms, fate.refused.clone());
        tokio::spawn(async move {
            // An ask that is lost, and whose sender waits: nothing more is heard of it.
            let Some(arrives) = arrives else { return };
            pass(arrives).await;
            let taken = take_all(&world, &asks, &refused);
            // The pod may be gone.
            let _ = reply.send(taken);
        });
        receiver
    }

    /// The batch's replies, when and as the weather lets them through.
    async fn replies(&self, asks: &[Ask], fate: &Fate) -> Vec<Result<Grant, StoreError>> {
        let taken = self.send(asks.to_vec(), fate);
        let error = match fate.answer {
            Answer::Comes { after_ms } => match taken.await {
                Ok(taken) => {
                    pass(after_ms).await;
                    return self.deliver(asks, taken, &fate.garbled);
                }
                Err(_) => StoreError::TimedOut,
            },
            Answer::TimesOut { after_ms } => {
                pass(after_ms).await;
                StoreError::TimedOut
            }
            Answer::Unreachable { after_ms } => {
                pass(after_ms).await;
                StoreError::Unreachable("simulated".into())
            }
            Answer::Never => std::future::pending().await,
        };
        asks.iter().map(|_| Err(error.clone())).collect()
    }

    /// Hands over what the store said, and notes what the pod now holds.
    fn deliver(
        &self,
        asks: &[Ask],
        taken: Vec<Taken>,
        garbled: &[bool],
    ) -> Vec<Result<Grant, StoreError>> {
        let now = self.world.now();
        let mut state = self.world.state();
        let mut replies = Vec::with_capacity(asks.len());
        for ((ask, (taken_at, outcome)), garbled) in asks.iter().zip(taken).zip(garbled) {
            replies.push(match outcome {
                Ok(_) if *garbled => Err(StoreError::Garbled("simulated".into())),
                Ok(grant) => {
                    state.deliver(self.pod, ask, &grant, taken_at, now);
                    tell(&self.world.plan, now, || {
                        let (key, tokens) = (ask.counter().bits() % 1_000, grant.tokens);
                        format!("pod {}: is lent {tokens} of {key}", self.pod)
                    });
                    Ok(self.told(grant))
                }
                Err(error) => Err(error),
            });
        }
        replies
    }

    /// What the pod is told of a grant: the truth, unless the run is there to be caught.
    fn told(&self, grant: Grant) -> Grant {
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
        usize::try_from(ask.counter().bits() % self.world.plan.shards).unwrap()
    }

    fn exchange<'a>(&'a self, asks: &'a [Ask]) -> Replies<'a> {
        Box::pin(async move {
            if self.world.state().wrong().is_some() {
                // The run is over, and may not be kept busy.
                std::future::pending::<()>().await;
            }
            self.note_returns(asks);
            let count = asks.first().map_or(0, |ask| ask.counter().bits());
            let mut dice = self.dice(count);
            let plan = &self.world.plan;
            let fate = plan.weather.fate(self.world.millis(), self.pod, asks.len(), &mut dice);
            let _struck = fate.struck.then(|| Struck::new(self));
            self.replies(asks, &fate).await
        })
    }

    fn beat(&self, beat: Beat) -> Beaten<'_> {
        Box::pin(async move {
            let mut dice = self.dice(u64::MAX);
            let plan = &self.world.plan;
            let fate = plan.weather.fate(self.world.millis(), self.pod, 1, &mut dice);
            let Some(arrives) = fate.arrives_after_ms else { return Err(StoreError::TimedOut) };
            pass(arrives).await;
            let beaten = self.world.beat(beat);
            let Answer::Comes { after_ms } = fate.answer else { return Err(StoreError::TimedOut) };
            pass(after_ms).await;
            beaten
        })
    }

    fn describe(&self) -> String {
        "simulated".into()
    }
}

/// Asks of different counts may be taken in any order, so they are taken in one that does not
/// depend on how the limiter's hash maps lie.
fn take_all(world: &World, asks: &[Ask], refused: &[bool]) -> Vec<Taken> {
    let mut order: Vec<usize> = (0..asks.len()).collect();
    order.sort_by_key(|at| asks[*at].counter());
    let now = world.now();
    let mut taken = vec![(now, Err(StoreError::Refused("simulated".into()))); asks.len()];
    for at in order.into_iter().filter(|at| !refused[*at]) {
        taken[at].1 = world.take(&asks[at]);
        if world.plan.tamper == Some(Tamper::RepeatsReturns) && asks[at].back.is_some() {
            world.credit_again(&asks[at]);
        }
    }
    taken
}

/// Lets so much virtual time pass; none takes no turn of the runtime either.
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
