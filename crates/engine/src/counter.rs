//! What the engine counts about itself.

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

/// A counter of the store in Redis.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum RedisCounter {
    /// Asks that were sent, or that failed before.
    Asks,
    /// Asks that ended in an error.
    Errors,
    /// Attempts to connect.
    Connects,
    /// Of these, those that failed.
    ConnectErrors,
    /// Replies NOSCRIPT.
    NoScript,
    /// Replies MOVED.
    Moved,
    /// Replies ASK.
    Ask,
    /// Replies TRYAGAIN.
    TryAgain,
    /// Replies CLUSTERDOWN.
    ClusterDown,
    /// Replies LOADING.
    Loading,
    /// Replies MASTERDOWN.
    MasterDown,
    /// Replies READONLY.
    ReadOnly,
    /// Replies OOM.
    OutOfMemory,
    /// Replies BUSY.
    Busy,
    /// Refused logins and missing permissions.
    Denied,
    /// Keys that hold a value of another program.
    ForeignValue,
    /// Other error replies.
    Refused,
    /// Commands that were not sent, for lack of a connection.
    NotSent,
    /// Commands whose connection broke.
    Lost,
    /// Commands without a reply in time.
    TimedOut,
    /// Replies that the command cannot have.
    MalformedReply,
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
            Self::NoScript => "redis_noscript",
            Self::Moved => "redis_moved",
            Self::Ask => "redis_ask",
            Self::TryAgain => "redis_tryagain",
            Self::ClusterDown => "redis_clusterdown",
            Self::Loading => "redis_loading",
            Self::MasterDown => "redis_masterdown",
            Self::ReadOnly => "redis_readonly",
            Self::OutOfMemory => "redis_oom",
            Self::Busy => "redis_busy",
            Self::Denied => "redis_denied",
            Self::ForeignValue => "redis_foreign",
            Self::Refused => "redis_refused",
            Self::NotSent => "redis_not_sent",
            Self::Lost => "redis_lost",
            Self::TimedOut => "redis_timed_out",
            Self::MalformedReply => "redis_garbled",
        }
    }
}
