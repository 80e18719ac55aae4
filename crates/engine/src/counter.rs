//! The counts that the engine keeps about itself.

use ratelease_rules::FailureMode;

/// A counter of the engine, or a level that it reports.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Counter {
    /// Keys held at present.
    Keys,
    /// Memory that keys take at present.
    BufferBytes,
    /// Memory that keys may take.
    BufferBudgetBytes,
    /// Memory beside that, of waiting requests and of state that few keys have.
    BufferWaitingBytes,
    /// Keys that were evicted to make room for others.
    BufferEvictions,
    /// Charges of keys without room, to a count that they share.
    BufferOverflows,
    /// Tokens whose lease ended before they were spent.
    TokensExpired,
    /// Charges that a failure mode answered.
    FailureMode(FailureMode),
    /// Hits that the failure mode `allow` let pass without counting them.
    UnmeteredHits,
    /// The holds of requests, until their cost is known.
    Holds(HoldCounter),
    /// Asks that an open breaker refused.
    AsksRejectedOpen,
    /// Asks that were dropped because the budget was spent.
    AsksShed,
    /// Breakers that opened.
    BreakerOpened,
    /// Replies that flagged their key as hot.
    HotKeyRelieved,
    /// Panics of the store, and of the function that receives replies.
    LeasePanics,
    /// A counter of the store in Redis.
    Redis(RedisCounter),
}

ratelease_rules::named! {
    /// The holds of requests, until their cost is known: levels, and events.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum HoldCounter {
        /// Requests that hold something at present.
        InForce = "holds",
        /// Hits that they hold at present.
        Hits = "held_hits",
        /// Memory that they take at present.
        Bytes = "holds_bytes",
        /// Holds that were settled.
        Settled = "holds_settled",
        /// Holds that ended, because nothing settled them in time.
        Expired = "holds_expired",
        /// Holds that ended because the Envoy of their request was gone.
        OwnerGone = "holds_released_envoy_gone",
        /// Holds that ended because their request gave no more signs of life.
        Silent = "holds_released_silent",
        /// Starts that took nothing, because their end had come before them.
        EndedBefore = "starts_after_their_end",
        /// Starts that are charged and hold nothing, for lack of room.
        NotKept = "holds_not_kept",
        /// Settlements of requests that hold nothing, which count whole.
        WithoutHold = "settlements_without_hold",
        /// Starts and settlements whose id is empty.
        WithoutId = "holds_without_id",
        /// Hits that were held and not used.
        OverEstimated = "holds_over_estimated_hits",
        /// Hits that were used beyond the held ones.
        UnderEstimated = "holds_under_estimated_hits",
    }
}

/// A counter of the store in Redis.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RedisCounter {
    /// Asks that were sent, or that failed before.
    Asks,
    /// Asks that ended in an error.
    Errors,
    /// Attempts to connect.
    Connects,
    /// Attempts to connect that failed.
    ConnectErrors,
    /// Entries of the streams of orders that are no orders, as often as they were read.
    OrdersSkipped,
    /// Commands without a result, for this reason.
    Failure(RedisFailure),
}

ratelease_rules::named! {
    /// The reasons why a command to Redis has no result. Each is counted apart; the store's table
    /// says what to do about each.
    ///
    /// A server's error reply means that the command changed nothing: a script that takes an ask
    /// writes last, after everything that can fail. Only `Lost`, `TimedOut` and `MalformedReply`
    /// leave the outcome unknown, and then nothing is sent again.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum RedisFailure {
        /// The server has not seen the script yet, or forgot it.
        NoScript = "redis_noscript",
        /// Another node owns the slot now.
        Moved = "redis_moved",
        /// Another node is taking over the slot: ask that node for this command only.
        AskRedirect = "redis_ask",
        /// Some keys of the command have moved already and some have not.
        TryAgain = "redis_tryagain",
        /// The slot has no owner, or the node is cut off from most of the cluster.
        ClusterDown = "redis_clusterdown",
        /// The server is loading its data.
        Loading = "redis_loading",
        /// The server is a replica that is not in sync with its master.
        MasterDown = "redis_masterdown",
        /// The server is a replica.
        ReadOnly = "redis_readonly",
        /// The server's memory is full, and it evicts nothing.
        OutOfMemory = "redis_oom",
        /// A script has blocked the server for a long time.
        Busy = "redis_busy",
        /// We are not logged in, or lack the permission.
        Denied = "redis_denied",
        /// The key holds a value of another program: other keys are served.
        ForeignValue = "redis_foreign",
        /// The count has moved to its name under another secret, where the ask follows it.
        Renamed = "redis_renamed",
        /// Any other error reply.
        Refused = "redis_refused",
        /// There is no connection: the command was not sent.
        NotSent = "redis_not_sent",
        /// The connection broke with the command on its way.
        Lost = "redis_lost",
        /// No reply in time.
        TimedOut = "redis_timed_out",
        /// The reply is not one that this command can have.
        MalformedReply = "redis_garbled",
    }
}

/// A counter and its value: the number of events since the process began, or the present level.
pub type Count = (Counter, u64);

// === impl Counter ===

impl Counter {
    /// The name on the status page, unique and in `snake_case`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Keys => "keys",
            Self::BufferBytes => "buffer_bytes",
            Self::BufferBudgetBytes => "buffer_budget_bytes",
            Self::BufferWaitingBytes => "buffer_waiting_bytes",
            Self::BufferEvictions => "buffer_evictions",
            Self::BufferOverflows => "buffer_overflows",
            Self::TokensExpired => "tokens_expired",
            Self::FailureMode(FailureMode::Local) => "failure_mode_local",
            Self::FailureMode(FailureMode::Allow) => "failure_mode_allow",
            Self::FailureMode(FailureMode::Deny) => "failure_mode_deny",
            Self::FailureMode(FailureMode::Error) => "failure_mode_error",
            Self::UnmeteredHits => "unmetered_hits",
            Self::Holds(counter) => counter.name(),
            Self::AsksRejectedOpen => "asks_kept_back",
            Self::AsksShed => "asks_shed",
            Self::BreakerOpened => "breaker_opened",
            Self::HotKeyRelieved => "hot_key_relieved",
            Self::LeasePanics => "lease_panics",
            Self::Redis(counter) => counter.name(),
        }
    }
}

// === impl RedisCounter ===

impl RedisCounter {
    const fn name(self) -> &'static str {
        match self {
            Self::Asks => "redis_asks",
            Self::Errors => "redis_errors",
            Self::Connects => "redis_connects",
            Self::ConnectErrors => "redis_connect_errors",
            Self::OrdersSkipped => "redis_orders_skipped",
            Self::Failure(failure) => failure.name(),
        }
    }
}

impl From<RedisFailure> for RedisCounter {
    fn from(failure: RedisFailure) -> Self {
        Self::Failure(failure)
    }
}
