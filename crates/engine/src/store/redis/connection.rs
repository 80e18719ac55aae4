//! An open connection, shared by all asks of its server, and how its end is detected.

use std::future::Future;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use redis::{Cmd, RedisResult, Value};

use super::adaptive_timeout::AdaptiveTimeout;
use super::context::StoreContext;
use super::fault::{ConnectionFate, Fault, Kind};
use super::open::{Opened, fault_of};
use super::stages::{Stage, Stages};
use crate::store::redis::settings::Address;
use crate::time::Time;

/// An open connection; redis-rs pipelines what its users send.
#[derive(Debug)]
pub(super) struct Connection {
    pub(super) address: Address,
    opened: Opened,
    context: Arc<StoreContext>,
    timeout: Arc<AdaptiveTimeout>,
    /// When data last arrived, in nanoseconds of the context's clock.
    heard: AtomicU64,
    /// Whether the scripts were sent at all.
    has_scripts: AtomicBool,
    /// When the scripts were last sent again, on the same clock; 0 means never.
    reloaded: AtomicU64,
    owed: Owed,
    stage: Stages,
    /// The reason why it is replaced.
    end: OnceLock<Fault>,
}

/// The number of replies that a server has yet to send.
#[derive(Debug, Default)]
struct Owed {
    replies: AtomicUsize,
    /// When the first of them was requested, in nanoseconds of the context's clock.
    since: AtomicU64,
}

/// A connection that has lasted this long counts as proven too.
const PROOF: Duration = Duration::from_secs(2);
/// Grace time after too long a silence: if the pod itself was held up, replies are waiting in the
/// socket and are read within this time.
const GRACE: Duration = Duration::from_millis(20);
/// Minimum time before the scripts are sent again: when a server forgets all scripts, every ask in
/// flight fails at once, and a server that does not allow loading them forgets each time.
const RELOAD_GAP: Duration = Duration::from_secs(1);

// === impl Connection ===

impl Connection {
    /// `stage` is where redis-rs records the end of the connection.
    pub(super) fn new(
        address: Address,
        opened: Opened,
        stage: Stages,
        context: Arc<StoreContext>,
        timeout: Arc<AdaptiveTimeout>,
    ) -> Self {
        opened.limit.note_login();
        let heard = AtomicU64::new(context.clock.now().nanos());
        let owed = Owed::default();
        let (has_scripts, reloaded) = (AtomicBool::new(false), AtomicU64::new(0));
        let end = OnceLock::new();
        Self { address, opened, context, timeout, heard, has_scripts, reloaded, owed, stage, end }
    }

    /// Sends all scripts ahead of whatever is sent after this. Returns once they are queued for
    /// writing: a server processes the commands of a connection in order, so a later call of a
    /// script finds it loaded, and no caller waits for a reply. A refusal, because the user may not
    /// load scripts, is not read: the server then answers NOSCRIPT, and learns each script from its
    /// first call in full.
    pub(super) async fn load_scripts(&self) {
        self.has_scripts.store(true, Ordering::Relaxed);
        let mut connection = self.opened.connection.clone();
        for load in self.context.scripts.loads() {
            if connection.send_packed_command(&load).await.is_err() {
                // The connection has ended, which its link learns separately.
                return;
            }
        }
    }

    /// Sends `command` exactly once: redis-rs repeats nothing on a connection of this kind
    /// (`aio/multiplexed_connection.rs`, `send_recv`: one message in, one reply or error out).
    /// `read` converts the reply to the result, or fails if the reply cannot be one.
    pub(super) async fn send<T>(
        &self,
        command: &Cmd,
        read: impl FnOnce(Value) -> Result<T, Fault>,
    ) -> Result<T, Fault> {
        let mut connection = self.opened.connection.clone();
        self.reply(async move { connection.send_packed_command(command).await }, read).await
    }

    /// As [`Connection::send`], for a list of the cluster's nodes, which may be longer than any
    /// other reply.
    pub(super) async fn send_for_list(&self, command: &Cmd) -> Result<Value, Fault> {
        let _higher_limit = self.opened.limit.await_list();
        self.send(command, Ok).await
    }

    /// Sends `command` for a slot that is still moving to this server. ASKING applies only to the
    /// next command of the connection, which is shared: both travel in one message.
    pub(super) async fn send_asking<T>(
        &self,
        command: &Cmd,
        read: impl FnOnce(Value) -> Result<T, Fault>,
    ) -> Result<T, Fault> {
        let mut both = redis::pipe();
        both.cmd("ASKING").add_command(command.clone());
        let mut connection = self.opened.connection.clone();
        let reply = async move {
            let mut replies = connection.send_packed_commands(&both, 0, 2).await?;
            Ok(replies.pop().unwrap_or(Value::Nil))
        };
        self.reply(reply, read).await
    }

    /// Waits until the connection has proven itself. Returns false if it ended before.
    pub(super) async fn proves_itself(&self) -> bool {
        // An error means that the time has passed while the connection lasted.
        let reached = tokio::time::timeout(PROOF, self.stage.reaches(Stage::Proven)).await;
        reached.map_or(true, |stage| stage == Stage::Proven)
    }

    /// Whether the server has sent anything since the login, be it in reply to the scripts.
    pub(super) fn has_replied(&self) -> bool {
        self.opened.limit.has_read()
    }

    /// Waits until the connection must be replaced, and returns the reason.
    pub(super) async fn ends(&self) -> Fault {
        self.stage.reaches(Stage::Retired).await;
        let broke = || Fault::new(Kind::Lost, "the connection broke");
        self.end.get().cloned().unwrap_or_else(broke)
    }

    /// How long the server has owed replies and sent nothing; zero while it owes none.
    pub(super) fn silence(&self) -> Duration {
        let heard = Time::from_nanos(self.heard.load(Ordering::Relaxed));
        let since = |since: Time| self.context.clock.now().since(since.max(heard));
        self.owed.since().map(since).unwrap_or_default()
    }

    async fn reply<T>(
        &self,
        reply: impl Future<Output = RedisResult<Value>>,
        read: impl FnOnce(Value) -> Result<T, Fault>,
    ) -> Result<T, Fault> {
        if self.stage.is_at(Stage::Abandoned) {
            return Err(Fault::new(Kind::NotSent, "the connection was given up"));
        }
        let sent = self.context.clock.now();
        let _owed = self.owed.more(sent);
        let outcome = tokio::select! {
            // A reply that arrives together with the end of the connection is too late.
            biased;
            _ = self.stage.reaches(Stage::Abandoned) => Err(self.abandoned()),
            reply = reply => self.take(sent, reply, read),
            () = self.falls_silent(sent) => Err(Fault::timed_out()),
        };
        if let Err(fault) = &outcome {
            self.note(fault);
            if fault.kind == Kind::NoScript && self.may_reload() {
                self.load_scripts().await;
            }
        }
        outcome
    }

    fn take<T>(
        &self,
        sent: Time,
        reply: RedisResult<Value>,
        read: impl FnOnce(Value) -> Result<T, Fault>,
    ) -> Result<T, Fault> {
        let limit = &self.opened.limit;
        let reply = reply.map_err(|error| fault_of(&error, &self.address, limit))?;
        let now = self.context.clock.now();
        self.heard.fetch_max(now.nanos(), Ordering::Relaxed);
        self.timeout.answered(now.since(sent));
        match reply {
            Value::ServerError(error) => Err(Fault::of_reply(&error, &self.address)),
            value => read(value).inspect(|_| self.prove()),
        }
    }

    /// Whether to send the scripts again. True for one caller within [`RELOAD_GAP`], and never on a
    /// connection on which they were not sent at all.
    fn may_reload(&self) -> bool {
        let now = self.context.clock.now();
        let last = self.reloaded.load(Ordering::Relaxed);
        let is_due = last == 0 || now.since(Time::from_nanos(last)) >= RELOAD_GAP;
        let (order, now) = (Ordering::Relaxed, now.nanos().max(1));
        self.has_scripts.load(order)
            && is_due
            && self.reloaded.compare_exchange(last, now, order, order).is_ok()
    }

    fn prove(&self) {
        if !self.stage.is_at(Stage::Proven) {
            self.stage.advance(Stage::Proven);
        }
    }

    /// Returns once nothing has arrived for longer than the server is known to need.
    async fn falls_silent(&self, sent: Time) {
        let since = || sent.max(Time::from_nanos(self.heard.load(Ordering::Relaxed)));
        loop {
            let before = since();
            let due = before + self.timeout.for_command();
            tokio::time::sleep_until(self.context.clock.instant(due)).await;
            tokio::time::sleep(GRACE).await;
            if since() == before {
                self.end_by(&Fault::timed_out(), Stage::Abandoned);
                return;
            }
        }
    }

    /// The fault of the commands on an abandoned connection.
    fn abandoned(&self) -> Fault {
        match self.end.get() {
            Some(end) if end.kind == Kind::TimedOut => Fault::timed_out(),
            _ => Fault::new(Kind::Lost, "the connection was given up with this on its way"),
        }
    }

    fn note(&self, fault: &Fault) {
        self.context.note(fault, &self.address);
        match fault.kind.meaning().connection {
            ConnectionFate::Keeps => {}
            ConnectionFate::Retires => self.end_by(fault, Stage::Retired),
            ConnectionFate::IsAbandoned => self.end_by(fault, Stage::Abandoned),
        }
    }

    fn end_by(&self, fault: &Fault, stage: Stage) {
        // Set before others can see the stage, since they then ask for the reason.
        let _ = self.end.set(fault.clone());
        if self.stage.advance(stage) && fault.kind == Kind::TimedOut {
            self.timeout.given_up();
        }
    }
}

// === impl Owed ===

impl Owed {
    /// Counts one more reply as owed until the returned guard is dropped.
    fn more(&self, sent: Time) -> impl Drop + use<'_> {
        struct OneLess<'a>(&'a Owed);
        impl Drop for OneLess<'_> {
            fn drop(&mut self) {
                self.0.replies.fetch_sub(1, Ordering::Relaxed);
            }
        }
        // Set before the count, so that a reader of the count finds no older time.
        if self.replies.load(Ordering::Relaxed) == 0 {
            self.since.store(sent.nanos(), Ordering::Relaxed);
        }
        self.replies.fetch_add(1, Ordering::Release);
        OneLess(self)
    }

    fn since(&self) -> Option<Time> {
        let owes = self.replies.load(Ordering::Acquire) > 0;
        owes.then(|| Time::from_nanos(self.since.load(Ordering::Relaxed)))
    }
}
