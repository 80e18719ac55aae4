//! One start, as the model knows it: the hits that it may hold in its pod's table, and those that
//! it surely holds.

use ratelease_engine::limiter::owners::{Node, Owner, StartId};
use ratelease_engine::verdict::{Code, DecisionSource, Verdict};
use ratelease_rules::key::Key;

use super::script::{RequestPlan, TokensRule};

/// The shortest interval of signs of life that a pod assumes.
const SIGN_INTERVAL_MIN_MS: u64 = 10_000;

/// The state of a start, at its pod and at its Envoy.
#[derive(Debug, Clone)]
pub struct Start {
    /// The number of its item in the script.
    pub nth: u64,
    pub plan: RequestPlan,
    /// The call of the other filter for the same request.
    pub other: Option<usize>,
    /// `true`: this start is the call of the second filter, so `other` is the call of the first
    /// one.
    pub is_second: bool,
    /// The number of the pod that the start was sent to.
    pub pod: u64,
    /// The connection of the Envoy to that pod.
    pub conn: u64,
    pub owner: Owner,
    pub stage: Stage,
    pub slots: Option<Held>,
    pub tokens: Option<Held>,
    /// The start that can be undone.
    pub started: Option<StartId>,
    /// When the pod had its verdict, or the last sign of life.
    pub seen_ms: u64,
    /// The longest time without a sign of life; 0 before the first one that is surely its own.
    pub longest_ms: u64,
    /// Since when the signs of others say that it has ended.
    pub silent_since: Option<u64>,
    /// `true`: something may have released the start, and it is open whether it did.
    pub is_unsure: bool,
    /// The end that came while leases for the start were asked for.
    pub ended: Option<Ended>,
    /// The rule that decides which tokens the start takes.
    pub rule: TokensRule,
    /// `true`: a call has ended the start.
    pub has_ended: bool,
    /// `true`: the reset of the start's stream has reached the pod.
    pub is_reset: bool,
    /// Since when the pod keeps the start, which has no answer, for the cost that the log may
    /// state.
    pub blank_ms: Option<u64>,
    /// When an entry of the log told the pod the cost of the request.
    pub logged_ms: Option<u64>,
    /// When an entry of the log ended the start without a cost, and the hits that stay charged.
    pub kept: Option<(u64, u64)>,
    /// When the start was denied, or failed, while its end was still to come.
    pub denied_ms: Option<u64>,
    /// The state of the request at its Envoy.
    pub envoy: AtEnvoy,
    /// `true`: the Envoy has read the answer.
    pub is_read: bool,
    /// `true`: the Envoy has read that the request is denied.
    pub is_refused: bool,
    /// The log that sent the start's last sign of life.
    pub node: Option<Node>,
    /// When the Envoy next logs that the request runs.
    pub sign_ms: u64,
}

/// How far a start has come at its pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    Unsent,
    Asking,
    Answered,
    /// The pod knows nothing of it any more.
    Gone,
}

/// How far a request has come at its Envoy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AtEnvoy {
    /// The request waits for its answer.
    Waits,
    /// The answer let the request pass, and it runs.
    Runs,
    /// The request runs without an answer.
    RunsOn,
    Over,
    /// The Envoy is gone.
    Dead,
}

/// The hits that a start holds of a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Held {
    pub hits: u64,
    /// `true`: leased tokens pay for the hits. `false`: a failure mode admitted them.
    pub is_leased: bool,
    /// `true`: the start began before an operator reset the key.
    pub is_of_before: bool,
    /// `true`: the hits belong to a count that the model watches. `false`: they belong to the count
    /// that a changed rule has begun.
    pub is_watched: bool,
}

/// An end that came while leases were asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ended {
    /// The call charged its cost at once.
    ByCall,
    ByLog(Option<u64>),
}

/// The verdict of a pod.
#[derive(Debug, Clone, Copy)]
pub struct Answer {
    pub passes: bool,
    pub started: Option<StartId>,
    /// The hits that were charged to each of the watched keys.
    pub slots: Option<Held>,
    pub tokens: Option<Held>,
    /// The number of holds of candidate rules, and their hits.
    pub aside: (u64, u64),
}

// === impl Answer ===

impl Answer {
    /// Reads a verdict on a request that charges slots, tokens, or both, in this order. The keys
    /// are those that the model watches, under each secret.
    pub fn of(verdict: &Verdict<'_>, plan: &RequestPlan, keys: &Keys) -> Self {
        let passes = verdict.code == Code::Ok;
        let charged = |at: usize, keys: &[Key]| {
            let counted = verdict.statuses.get(at)?.counted?;
            let is_leased = !matches!(counted.how, DecisionSource::Failure(_));
            let is_watched = keys.contains(&counted.key);
            let is_held = verdict.statuses[at].limit?.rule?.hold.is_some();
            let held = Held { hits: counted.hits, is_leased, is_of_before: false, is_watched };
            (passes && !counted.over && is_held).then_some(held)
        };
        let slots = (plan.slots > 0).then(|| charged(0, &keys.slots)).flatten();
        let at = usize::from(plan.slots > 0);
        let tokens = (plan.tokens > 0).then(|| charged(at, &keys.tokens)).flatten();
        Self { passes, started: verdict.started, slots, tokens, aside: (0, 0) }
    }
}

/// The names of the watched counts, under each secret.
#[derive(Debug, Clone)]
pub struct Keys {
    pub slots: [Key; 2],
    pub tokens: [Key; 2],
}

// === impl Start ===

impl Start {
    pub fn new(nth: u64, plan: &RequestPlan) -> Self {
        Self {
            nth,
            plan: plan.clone(),
            other: None,
            is_second: false,
            pod: 0,
            conn: 0,
            owner: Owner::UNKNOWN,
            stage: Stage::Unsent,
            slots: None,
            tokens: None,
            started: None,
            seen_ms: 0,
            longest_ms: 0,
            silent_since: None,
            is_unsure: false,
            ended: None,
            rule: TokensRule::Present,
            has_ended: false,
            is_reset: false,
            blank_ms: None,
            logged_ms: None,
            kept: None,
            denied_ms: None,
            envoy: AtEnvoy::Waits,
            is_read: false,
            is_refused: false,
            node: None,
            sign_ms: 0,
        }
    }

    pub fn is_at(&self, pod: u64) -> bool {
        self.pod == pod && matches!(self.stage, Stage::Asking | Stage::Answered)
    }

    /// Whether it holds something, as far as is known.
    pub fn holds(&self) -> bool {
        self.stage == Stage::Answered && (self.slots.is_some() || self.tokens.is_some())
    }

    /// Notes a sign of life that came to its pod.
    pub fn note_sign(&mut self, node: Node, now: u64) {
        self.node = Some(node);
        self.longest_ms = self.longest_ms.max(now - self.seen_ms).max(SIGN_INTERVAL_MIN_MS);
        (self.seen_ms, self.silent_since) = (now, None);
    }
}
