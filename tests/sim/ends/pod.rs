//! A pod: a limiter with its maintenance, the calls that wait, and the messages that Envoys have
//! sent while the pod was frozen. Beside it, the model's knowledge of the Envoys that the pod has
//! heard of.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use parking_lot::Mutex;
use ratelease_engine::counter::{Counter, HoldCounter};
use ratelease_engine::limiter::owners::{ClosedBy, Node, Owner};
use ratelease_engine::limiter::{Limiter, Options, START_GRACE};
use ratelease_engine::store::StoreError;
use ratelease_engine::verdict::Modes;
use ratelease_rules::Rules;
use ratelease_rules::key::KeyHasher;
use ratelease_rules::request::Request;
use tokio::sync::{Notify, oneshot};
use tokio::task::JoinHandle;
use tokio::time::timeout;

use super::gate::Gate;
use super::link::Link;
use super::rules::{CANDIDATE, Charges, Version, request};
use super::script::{EndPlan, RequestPlan};
use super::start::{Answer, Keys};
use super::store::{Redis, UNIX_START};

/// A pod answers a call within this time, or not at all.
const CALL_MAX: Duration = Duration::from_millis(40);

pub struct Pod {
    pub number: u64,
    pub place: usize,
    pub limiter: Limiter,
    pub gate: Arc<Gate>,
    upkeep: JoinHandle<()>,
    calls: BTreeMap<usize, Call>,
    pub rules: Arc<Rules>,
    pub version: Version,
    /// Messages that came while the pod was frozen.
    pub inbox: VecDeque<Message>,
    pub conns: BTreeMap<u64, Owner>,
    pub owners: BTreeMap<Owner, Presence>,
    /// The logs of Envoys.
    pub logs: BTreeMap<usize, Log>,
    /// Whether an Envoy has ever sent its log.
    pub has_logs: bool,
    /// Starts that the pod knows of.
    pub starts: BTreeSet<usize>,
    /// Hits that candidate rules may hold, by start.
    pub asides: BTreeMap<usize, Aside>,
    /// Ids of which an end came that may be of another start than it was sent for.
    pub tainted: BTreeSet<u64>,
    /// Ends that came before their starts: the cost, if the start is to be charged for it, and
    /// when.
    pub early: BTreeMap<u64, (Option<u64>, u64)>,
    pub thawed_ms: u64,
    /// Since when the store counts more slots than are explained.
    pub excess: Option<Excess>,
    /// Costs that it was to report.
    pub due: u64,
}

/// A span in which the store counts more slots of a pod than that has.
#[derive(Debug, Clone, Copy)]
pub struct Excess {
    pub since_ms: u64,
    /// Since when, in the time of the count.
    pub since_time_ms: u64,
    /// `true`: something kept the pod from stating its slots, shortly before or since.
    pub is_disturbed: bool,
}

/// The hits that candidate rules hold for a start.
#[derive(Debug, Clone, Copy)]
pub struct Aside {
    pub holds: u64,
    pub hits: u64,
    /// Since the start, or its last sign of life.
    pub seen_ms: u64,
}

/// A call that waits for its answer.
struct Call {
    /// Dropped to reset the call.
    reset: Option<oneshot::Sender<()>>,
    task: JoinHandle<()>,
}

/// A message of an Envoy to a pod.
#[derive(Debug, Clone)]
pub enum Message {
    Open {
        conn: u64,
        envoy: usize,
    },
    Close {
        conn: u64,
        by: ClosedBy,
    },
    OpenLog {
        envoy: usize,
    },
    CloseLog {
        envoy: usize,
        by: ClosedBy,
    },
    Start {
        at: usize,
        conn: u64,
    },
    Reset {
        at: usize,
    },
    End {
        at: usize,
        end: EndPlan,
    },
    /// An entry of the log says that the request was denied.
    Denied {
        at: usize,
    },
    Signs {
        envoy: usize,
        of: Vec<usize>,
    },
}

/// The connections of an owner, as the pod has heard of them.
#[derive(Debug, Clone, Copy, Default)]
pub struct Presence {
    pub open: u32,
    /// When the last one was closed by its Envoy, unless something has proved since that it lives.
    pub left_ms: Option<u64>,
    /// Something may have proved it since then.
    pub may_be_proved: bool,
}

/// The log of an Envoy.
#[derive(Debug, Clone, Copy)]
pub struct Log {
    pub node: Node,
    pub is_open: bool,
    pub closed_ms: u64,
    pub heard_ms: u64,
}

/// The end of a call.
pub struct Outcome {
    pub at: usize,
    pub pod: u64,
    pub answer: CallEnd,
}

pub enum CallEnd {
    Answered(Answer),
    Failed,
    /// The call was reset.
    Dropped,
}

/// Where calls put their ends.
#[derive(Default)]
pub struct Outcomes {
    ended: Mutex<Vec<Outcome>>,
    /// Notified of each.
    more: Notify,
}

impl Outcomes {
    fn push(&self, outcome: Outcome) {
        self.ended.lock().push(outcome);
        self.more.notify_one();
    }

    pub fn take(&self) -> Vec<Outcome> {
        std::mem::take(&mut *self.ended.lock())
    }

    /// Waits for the next one.
    pub async fn wait(&self) {
        self.more.notified().await;
    }
}

// === impl Pod ===

impl Pod {
    /// Starts a pod that hashes by `hasher`.
    pub fn start(
        redis: &Arc<Redis>,
        (number, place): (u64, usize),
        hasher: KeyHasher,
        (version, rules): (Version, Arc<Rules>),
        seed: u64,
    ) -> Self {
        let gate = Arc::new(Gate::default());
        let link = Link::new(redis, place, number, &gate, seed);
        let options = Options {
            wait_min: Duration::from_millis(10),
            wait_max: Duration::from_millis(15),
            buffer_bytes_max: 1 << 20,
            pod: number,
            name: Box::default(),
            start_grace: START_GRACE,
            pods_expected: 2,
            hasher,
            modes: Modes::default(),
            unix_start: UNIX_START,
        };
        let limiter = Limiter::new(Arc::new(link), redis.clock, options);
        let (kept, behind) = (limiter.clone(), Arc::clone(&gate));
        let upkeep = tokio::spawn(async move { behind.pass(kept.run()).await });
        Self {
            number,
            place,
            limiter,
            gate,
            upkeep,
            calls: BTreeMap::new(),
            rules,
            version,
            inbox: VecDeque::new(),
            conns: BTreeMap::new(),
            owners: BTreeMap::new(),
            logs: BTreeMap::new(),
            has_logs: false,
            starts: BTreeSet::new(),
            asides: BTreeMap::new(),
            tainted: BTreeSet::new(),
            early: BTreeMap::new(),
            thawed_ms: 0,
            excess: None,
            due: 0,
        }
    }

    /// Applies other rules.
    pub fn apply(&mut self, version: Version, rules: &Arc<Rules>) {
        (self.version, self.rules) = (version, Arc::clone(rules));
        let (limiter, rules, gate) =
            (self.limiter.clone(), Arc::clone(rules), Arc::clone(&self.gate));
        tokio::spawn(async move { gate.pass(limiter.apply_rules(&rules)).await });
    }

    /// Decides a start. A start that has to wait is decided later.
    pub fn decide(
        &mut self,
        at: usize,
        plan: &RequestPlan,
        owner: Owner,
        keys: &Keys,
        outcomes: &Arc<Outcomes>,
    ) -> Option<Answer> {
        let id = id_of(plan);
        let now = self.limiter.clock().now();
        {
            let start = request(&id, charges_of(plan), false);
            let verdict = self.limiter.decide_at_once(&self.rules, &start, now, owner);
            if let Some(verdict) = verdict {
                let answer = Answer::of(&verdict, plan, keys);
                return Some(try_candidate(&self.limiter, &self.rules, plan, owner, answer));
            }
        }
        let (reset, cancelled) = oneshot::channel::<()>();
        let (limiter, rules, gate) =
            (self.limiter.clone(), Arc::clone(&self.rules), Arc::clone(&self.gate));
        let (plan, keys, outcomes) = (plan.clone(), keys.clone(), Arc::clone(outcomes));
        let pod = self.number;
        let call = async move {
            let request = request(&id, charges_of(&plan), false);
            let admit = || Ok::<_, StoreError>(());
            let decided = limiter.decide(&rules, &request, now, None, owner, admit);
            let mut decided = pin!(timeout(CALL_MAX, decided));
            // The server does so too: a reset that is known goes first, but not before the first
            // poll.
            let first = poll_fn(|cx| Poll::Ready(decided.as_mut().poll(cx))).await;
            let decided = match first {
                Poll::Ready(decided) => Some(decided),
                Poll::Pending => tokio::select! {
                    biased;
                    _ = cancelled => None,
                    decided = decided => Some(decided),
                },
            };
            let answer = match decided {
                None => CallEnd::Dropped,
                Some(Ok(Ok(verdict))) => {
                    let answer = Answer::of(&verdict, &plan, &keys);
                    CallEnd::Answered(try_candidate(&limiter, &rules, &plan, owner, answer))
                }
                Some(Ok(Err(_)) | Err(_)) => CallEnd::Failed,
            };
            outcomes.push(Outcome { at, pod, answer });
        };
        let task = tokio::spawn(async move { gate.pass(call).await });
        self.calls.insert(at, Call { reset: Some(reset), task });
        None
    }

    /// Resets a call that waits.
    pub fn reset(&mut self, at: usize) {
        if let Some(call) = self.calls.get_mut(&at) {
            call.reset = None;
        }
    }

    pub fn forget_call(&mut self, at: usize) {
        self.calls.remove(&at);
    }

    /// Something may have proved that this owner lives, or any other one.
    pub fn may_be_proved(&mut self, owner: Owner, any: bool) {
        for (of, presence) in &mut self.owners {
            presence.may_be_proved |= (any || *of == owner) && presence.left_ms.is_some();
        }
    }

    /// Tries the candidate rules on an end.
    pub fn try_end(&self, id: &str, charges: Charges, owner: Owner) {
        if self.rules.candidate_of("d").is_some() {
            let end = Request { domain: CANDIDATE, ..request(id, charges, true) };
            let now = self.limiter.clock().now();
            self.limiter.decide_aside(&self.rules, &end, now, owner, true);
        }
    }

    /// One of its counters.
    pub fn count(&self, of: Counter) -> u64 {
        let counts = self.limiter.counts();
        counts.iter().find(|(counter, _)| *counter == of).map(|pair| pair.1).unwrap()
    }

    /// Holds in force, and their hits.
    pub fn held(&self) -> (u64, u64) {
        let counts = self.limiter.counts();
        let of = |it| counts.iter().find(|(counter, _)| *counter == Counter::Holds(it));
        let [holds, hits] = [HoldCounter::InForce, HoldCounter::Hits].map(|it| of(it).unwrap().1);
        (holds, hits)
    }

    /// Ends its tasks, and hands out its limiter.
    pub fn into_limiter(mut self) -> Limiter {
        self.end_tasks();
        self.limiter.clone()
    }

    fn end_tasks(&mut self) {
        self.upkeep.abort();
        self.calls.values().for_each(|call| call.task.abort());
    }
}

impl Drop for Pod {
    fn drop(&mut self) {
        self.end_tasks();
    }
}

/// Tries the candidate rules on a start, and notes the hits that they hold for it.
fn try_candidate(
    limiter: &Limiter,
    rules: &Rules,
    plan: &RequestPlan,
    owner: Owner,
    answer: Answer,
) -> Answer {
    if rules.candidate_of("d").is_none() {
        return answer;
    }
    let (id, now) = (id_of(plan), limiter.clock().now());
    let start = Request { domain: CANDIDATE, ..request(&id, charges_of(plan), false) };
    let verdict = limiter.decide_aside(rules, &start, now, owner, answer.passes);
    let Some(verdict) = verdict.filter(|it| it.started.is_some()) else { return answer };
    let counted = verdict.statuses.iter().filter_map(|status| status.counted);
    let held: Vec<_> = counted.filter(|it| !it.over).map(|it| it.hits).collect();
    Answer { aside: (held.len() as u64, held.iter().sum()), ..answer }
}

pub fn id_of(plan: &RequestPlan) -> String {
    plan.id.to_string()
}

/// The charges of a start.
pub fn charges_of(plan: &RequestPlan) -> Charges {
    let some = |hits: u64| (hits > 0).then_some(hits);
    Charges { slots: some(plan.slots), tokens: some(plan.tokens) }
}
