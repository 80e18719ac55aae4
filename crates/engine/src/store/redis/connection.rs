//! An open connection, shared by all asks of its server, and how its end is detected.

use std::future::Future;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Cmd, RedisConnectionInfo, RedisError, RedisResult, Value};
use tokio::sync::{OwnedSemaphorePermit, watch};
use tokio::task::AbortHandle;
use tokio::time::Instant;

use crate::store::redis::context::{AdaptiveTimeout, StoreContext};
use crate::store::redis::fault::{ConnectionFate, Fault, Kind};
use crate::store::redis::script;
use crate::store::redis::settings::{Address, Auth, RedisSettings};
use crate::store::redis::stream::{self, Bounded, BoxedStream, ReplyLimit};
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
        for load in script::loads() {
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

// === The stages of a connection, from its login to its end ===

/// The present stage of a connection, which tasks can wait on.
#[derive(Debug, Clone)]
pub(super) struct Stages(watch::Sender<Stage>);

/// The stages follow each other in this order; any may be skipped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Stage {
    /// Logged in; nothing else is known.
    New,
    /// A command has had its result.
    Proven,
    /// To be replaced. Commands in flight may still be answered.
    Retired,
    /// To be replaced, since nothing arrived for too long, or nothing valid. Whatever still arrives
    /// is ignored.
    Abandoned,
}

// === impl Stages ===

impl Stages {
    pub(super) fn new() -> Self {
        Self(watch::Sender::new(Stage::New))
    }

    /// Advances to `stage`. Returns whether that stage is new.
    fn advance(&self, stage: Stage) -> bool {
        self.0.send_if_modified(|present| {
            let advances = *present < stage;
            *present = stage.max(*present);
            advances
        })
    }

    fn is_at(&self, stage: Stage) -> bool {
        *self.0.borrow() >= stage
    }

    /// Waits for `stage` or a later one, and returns the stage reached.
    async fn reaches(&self, stage: Stage) -> Stage {
        let mut stages = self.0.subscribe();
        // It fails only if the sender is dropped, which we hold.
        let reached = stages.wait_for(|present| *present >= stage).await;
        reached.map_or(Stage::Abandoned, |reached| *reached)
    }
}

// === Opens one connection: the stream, the login, and the limit on what is read from it ===

/// A connection that is logged in.
#[derive(Debug)]
pub(super) struct Opened {
    connection: MultiplexedConnection,
    limit: Arc<ReplyLimit>,
    address: Address,
    _driver: Driver,
    _place: Option<OwnedSemaphorePermit>,
}

/// The task that transfers the bytes of a connection. Dropping this ends both.
#[derive(Debug)]
struct Driver(AbortHandle);

/// The kind of server at the other end, which determines the login.
#[derive(Debug, Clone, Copy)]
pub(super) enum Peer {
    Server,
    Sentinel,
}

/// The largest number of commands on one connection that wait to be written; further ones wait for
/// a place. It is the number that the lease client sends to a shard at once.
const UNWRITTEN_MAX: usize = 256;

/// What to check when a server ends a connection in plaintext before its first reply: one that
/// expects TLS takes our first command for a broken handshake.
const HINT_TLS: &str = "if that port expects TLS, set REDIS_TLS=true or use rediss://";

/// Connects to `address` and logs in within the given time, however many addresses a name has and
/// however long reading a password takes. `stages` records the end of the connection.
pub(super) async fn open(
    context: &Arc<StoreContext>,
    address: &Address,
    peer: Peer,
    stages: Option<&Stages>,
    within: Duration,
) -> Result<Opened, Fault> {
    let place = context.place(address)?;
    let deadline = context.clock.instant(context.clock.now() + within);
    let opening = async {
        let auth = peer.auth(context).await?;
        let stream = connect(context, address, deadline).await?;
        let opened = Opened::over(stream, address.clone(), stages, place).await?;
        let database = peer.database(&context.settings);
        let logged_in = log_in(&opened, &auth, database).await;
        logged_in.map_err(|fault| match (fault.kind, address) {
            (Kind::Lost | Kind::MalformedReply, Address::Tcp(..)) if context.tls.is_none() => {
                fault.with_hint(HINT_TLS)
            }
            _ => fault,
        })?;
        Ok(opened)
    };
    let opened = tokio::time::timeout_at(deadline, Box::pin(opening)).await;
    opened.unwrap_or_else(|_| Err(Fault::timed_out()))
}

/// Opens the stream. `deadline` is when to give up a handshake; the caller gives up the rest.
async fn connect(
    context: &StoreContext,
    address: &Address,
    deadline: Instant,
) -> Result<BoxedStream, Fault> {
    let failed = |error: std::io::Error| Fault::of(&RedisError::from(error), address);
    let (host, port) = match address {
        Address::Tcp(host, port) => (host, *port),
        Address::Unix(path) => return Ok(Box::new(stream::unix(path).await.map_err(failed)?)),
    };
    let allows = |ip| context.allows(address, ip);
    let stream = stream::tcp(host, port, context.threads(address), allows).await.map_err(failed)?;
    let Some(tls) = &context.tls else { return Ok(Box::new(stream)) };
    let secured = tls.secure(stream, host, &context.files, deadline).await;
    Ok(Box::new(Box::pin(secured.map_err(failed)?)))
}

// === impl Peer ===

impl Peer {
    /// The credentials, read now if they are in a file.
    async fn auth(self, context: &Arc<StoreContext>) -> Result<Auth, Fault> {
        let auth = if self.has_file(&context.settings) {
            let of = Arc::clone(context);
            let read = context.files.run(move || self.auth_now(&of.settings)).await;
            read.unwrap_or_else(|_| Err("reading the password was interrupted".to_owned()))
        } else {
            self.auth_now(&context.settings)
        };
        auth.map_err(|why| Fault::new(Kind::Denied, why))
    }

    fn has_file(self, settings: &RedisSettings) -> bool {
        match self {
            Self::Server => settings.auth_file.is_some(),
            Self::Sentinel => settings.sentinel_auth_file.is_some(),
        }
    }

    fn auth_now(self, settings: &RedisSettings) -> Result<Auth, String> {
        match self {
            Self::Server => settings.auth_now(),
            Self::Sentinel => settings.sentinel_auth_now(),
        }
    }

    /// The number of the database; sentinels have none.
    fn database(self, settings: &RedisSettings) -> Option<u32> {
        match self {
            Self::Server => Some(settings.database),
            Self::Sentinel => None,
        }
    }
}

/// Converts an error of a connection to `from`. An error of its limit means that the reply cannot
/// be one of ours.
fn fault_of(error: &RedisError, from: &Address, limit: &ReplyLimit) -> Fault {
    let fault = Fault::of(error, from);
    match fault.kind {
        Kind::Lost if limit.is_exceeded() => Fault { kind: Kind::MalformedReply, ..fault },
        _ => fault,
    }
}

// === impl Opened ===

impl Opened {
    /// Begins to use `stream`, on which nothing was sent yet.
    async fn over(
        stream: BoxedStream,
        address: Address,
        stages: Option<&Stages>,
        place: Option<OwnedSemaphorePermit>,
    ) -> Result<Self, Fault> {
        let limit = Arc::new(ReplyLimit::default());
        // Without credentials, a database and its own name, redis-rs sends nothing: `login` does.
        // It speaks RESP2 then, which all servers and proxies know. Deadlines for replies are set
        // in `Connection`.
        let nothing = RedisConnectionInfo::default().set_skip_set_lib_name();
        let config = AsyncConnectionConfig::new()
            .set_response_timeout(None)
            .set_pipeline_buffer_size(UNWRITTEN_MAX);
        let stream = Bounded::new(stream, Arc::clone(&limit));
        let new = MultiplexedConnection::new_with_config(&nothing, stream, config).await;
        let (connection, driver) = new.map_err(|error| fault_of(&error, &address, &limit))?;
        let stages = stages.cloned();
        let driver = tokio::spawn(async move {
            driver.await;
            // redis-rs reports the end only to the callers that wait for replies.
            if let Some(stages) = stages {
                stages.advance(Stage::Retired);
            }
        });
        let _driver = Driver(driver.abort_handle());
        Ok(Self { connection, limit, address, _driver, _place: place })
    }

    /// Sends one command and returns its reply; an error reply is a fault.
    pub(super) async fn ask(&self, command: &Cmd) -> Result<Value, Fault> {
        let reply = self.connection.clone().send_packed_command(command).await;
        let reply = reply.and_then(Value::extract_error);
        let reply = reply.map_err(stream::with_hint);
        reply.map_err(|error| fault_of(&error, &self.address, &self.limit))
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        self.0.abort();
    }
}

// The login of a connection: AUTH, SELECT, and a sign of life.
//
// All of it is RESP2 and known to every server and proxy. HELLO, which would do the login in one
// command, is not: proxies, servers before Redis 6 and some access lists refuse it.

/// The user of a login without a name.
const DEFAULT_USER: &str = "default";

/// What Redis says to a password alone if its default user needs none.
const NEEDS_NONE: &str = "without any password configured";

/// Logs in, and selects the database of a server that has any; a sentinel has none. On success such
/// a server has replied at least once.
///
/// A login that was refused ends the attempt: the connection is never used as another user.
async fn log_in(opened: &Opened, auth: &Auth, database: Option<u32>) -> Result<(), Fault> {
    let has_credentials = auth.username.is_some() || auth.password.is_some();
    if has_credentials {
        authenticate(opened, auth).await?;
    }
    match database {
        Some(0) if !has_credentials => proves_alive(opened).await,
        None | Some(0) => Ok(()),
        Some(number) => {
            let selected = opened.ask(redis::cmd("SELECT").arg(number)).await.and_then(okay);
            selected.map_err(|fault| fault.at(&format!("database {number} of REDIS_URL")))
        }
    }
}

async fn proves_alive(opened: &Opened) -> Result<(), Fault> {
    match opened.ask(&redis::cmd("PING")).await {
        Err(fault) if !shows_life(&fault) => Err(fault),
        _ => Ok(()),
    }
}

async fn authenticate(opened: &Opened, auth: &Auth) -> Result<(), Fault> {
    let password = auth.password.as_ref().map_or("", |password| password.reveal());
    let command = |user: Option<&str>| {
        let mut command = redis::cmd("AUTH");
        command.arg(user).arg(password);
        command
    };
    let ask = async |command: Cmd| {
        let reply = opened.ask(&command).await.and_then(okay);
        reply.map_err(|fault| refusal(fault, password))
    };
    let user = auth.username.as_deref();
    match ask(command(user)).await {
        // Such a user accepts any password, if it is named.
        Err(fault) if user.is_none() && fault.text.contains(NEEDS_NONE) => {
            ask(command(Some(DEFAULT_USER))).await
        }
        reply => reply,
    }
}

fn okay(reply: Value) -> Result<(), Fault> {
    match reply {
        Value::Okay => Ok(()),
        other => Err(Fault::malformed(&other)),
    }
}

/// The refusal of a login, without the password: servers repeat the arguments of commands that they
/// do not know.
fn refusal(fault: Fault, password: &str) -> Fault {
    let said = fault.without_arguments();
    let text = if !password.is_empty() && said.contains(password) {
        "the login was refused".to_owned()
    } else {
        said.to_owned()
    };
    let words = text.to_ascii_lowercase();
    let is_of_login = ["auth", "password"].iter().any(|word| words.contains(word));
    let kind = match fault.kind {
        Kind::Refused if is_of_login => Kind::Denied,
        kind => kind,
    };
    Fault { kind, text, ..fault }
}

/// Whether an error in reply to PING is of a server that may be used: one that cannot serve just
/// now, or one that knows no PING or does not permit it to this user.
fn shows_life(fault: &Fault) -> bool {
    match fault.kind {
        Kind::Loading | Kind::MasterDown | Kind::Busy | Kind::ClusterDown => true,
        Kind::Denied => fault.text.starts_with("NOPERM"),
        Kind::Refused => fault.text.to_ascii_lowercase().contains("command"),
        _ => false,
    }
}

#[cfg(test)]
mod tests;
