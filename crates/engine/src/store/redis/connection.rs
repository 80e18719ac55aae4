//! A connection to one server, shared by all asks: how it is opened, how its end is detected, and
//! the task that replaces it. Asks never connect, they only use the present connection.

use std::fmt;
use std::future::Future;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use futures_util::future::select_ok;
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Cmd, RedisConnectionInfo, RedisError, RedisResult, Value};
use tokio::sync::{OwnedSemaphorePermit, watch};
use tokio::task::AbortHandle;
use tokio::time::Instant;

use crate::backoff::Backoff;
use crate::store::redis::context::{AdaptiveTimeout, ConnectLimiters, StoreContext, count};
use crate::store::redis::fault::{ConnectionFate, Fault, Kind, LogOnce};
use crate::store::redis::settings::{Address, Auth, RedisSettings};
use crate::store::redis::stream::{self, Bounded, BoxedStream, ReplyLimit};
use crate::store::redis::{loads, text};
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
    fn new(
        address: Address,
        opened: Opened,
        stage: Stages,
        context: Arc<StoreContext>,
        timeout: Arc<AdaptiveTimeout>,
    ) -> Self {
        opened.limit.note_login();
        let heard = AtomicU64::new(context.clock.now().nanos());
        let owed = Owed::default();
        let has_scripts = AtomicBool::new(false);
        let reloaded = AtomicU64::new(0);
        let end = OnceLock::new();
        Self { address, opened, context, timeout, heard, has_scripts, reloaded, owed, stage, end }
    }

    /// Sends all scripts ahead of whatever is sent after this. Returns once they are queued for
    /// writing: a server processes the commands of a connection in order, so a later call of a
    /// script finds it loaded, and no caller waits for a reply. A refusal, because the user may not
    /// load scripts, is not read: the server then answers NOSCRIPT, and learns each script from its
    /// first call in full.
    async fn load_scripts(&self) {
        self.has_scripts.store(true, Ordering::Relaxed);
        let mut connection = self.opened.connection.clone();
        for load in loads() {
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
        let _higher_limit = self.await_long_reply();
        self.send(command, Ok).await
    }

    /// Takes longer replies than a script's until the returned guard is dropped.
    pub(super) fn await_long_reply(&self) -> impl Drop + use<'_> {
        self.opened.await_long_reply()
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
    async fn proves_itself(&self) -> bool {
        // An error means that the time has passed while the connection lasted.
        let reached = tokio::time::timeout(PROOF, self.stage.reaches(Stage::Proven)).await;
        reached.map_or(true, |stage| stage == Stage::Proven)
    }

    /// Whether the server has sent anything since the login, be it in reply to the scripts.
    fn has_replied(&self) -> bool {
        self.opened.limit.has_read()
    }

    /// Waits until the connection must be replaced, and returns the reason.
    async fn ends(&self) -> Fault {
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
        let order = Ordering::Relaxed;
        let now = now.nanos().max(1);
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
struct Stages(watch::Sender<Stage>);

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
    fn new() -> Self {
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
        // The wait fails only if the sender is dropped, which we hold.
        let reached = stages.wait_for(|present| *present >= stage).await;
        reached.map_or(Stage::Abandoned, |reached| *reached)
    }
}

// === Opens one connection: the stream, the login, and the limit on the bytes read from it ===

/// A connection that is logged in.
#[derive(Debug)]
pub(super) struct Opened {
    connection: MultiplexedConnection,
    limit: Arc<ReplyLimit>,
    address: Address,
    /// Transfers the bytes.
    _driver: Task,
    _permit: Option<OwnedSemaphorePermit>,
}

/// A task that ends when this is dropped.
#[derive(Debug)]
pub(super) struct Task(AbortHandle);

/// The kind of server at the other end, which determines the login.
#[derive(Debug, Clone, Copy)]
enum Peer {
    Server,
    Sentinel,
}

/// The largest number of commands on one connection that wait to be written; further ones wait for
/// a permit. It is the number that the lease client sends to a shard at once.
const UNWRITTEN_MAX: usize = 256;

/// A hint for a server that ends a connection in plaintext before its first reply: a server that
/// expects TLS takes our first command for a broken handshake.
const HINT_TLS: &str = "if that port expects TLS, set REDIS_TLS=true or use rediss://";

/// Connects to `address` and logs in within the given time, however many addresses a name has and
/// however long reading a password takes. `stages` records the end of the connection.
async fn open(
    context: &Arc<StoreContext>,
    address: &Address,
    peer: Peer,
    stages: Option<&Stages>,
    within: Duration,
) -> Result<Opened, Fault> {
    let permit = context.permit(address)?;
    let deadline = context.clock.instant(context.clock.now() + within);
    let opening = async {
        let auth = peer.auth(context).await?;
        let stream = connect(context, address, deadline).await?;
        let opened = Opened::over(stream, address.clone(), stages, permit).await?;
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
    async fn auth(self, context: &StoreContext) -> Result<Auth, Fault> {
        let login = match self {
            Self::Server => &context.settings.login,
            Self::Sentinel => &context.settings.sentinel_login,
        };
        let login = login.clone();
        let auth = match login.file {
            None => login.now(),
            Some(_) => {
                let read = context.files.run(move || login.now()).await;
                read.unwrap_or_else(|_| Err("reading the password was interrupted".to_owned()))
            }
        };
        auth.map_err(|why| Fault::new(Kind::Denied, why))
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
        permit: Option<OwnedSemaphorePermit>,
    ) -> Result<Self, Fault> {
        let limit = Arc::new(ReplyLimit::default());
        // Without credentials, a database and its own name, redis-rs sends nothing: `login` does.
        // The connection then speaks RESP2, which all servers and proxies know. Deadlines for
        // replies are set in `Connection`.
        let nothing = RedisConnectionInfo::default().set_skip_set_lib_name();
        let config = AsyncConnectionConfig::new()
            .set_response_timeout(None)
            .set_pipeline_buffer_size(UNWRITTEN_MAX);
        let stream = Bounded::new(stream, Arc::clone(&limit));
        let new = MultiplexedConnection::new_with_config(&nothing, stream, config).await;
        let (connection, driver) = new.map_err(|error| fault_of(&error, &address, &limit))?;
        let stages = stages.cloned();
        let _driver = Task::spawn(async move {
            driver.await;
            // redis-rs reports the end only to the callers that wait for replies.
            if let Some(stages) = stages {
                stages.advance(Stage::Retired);
            }
        });
        Ok(Self { connection, limit, address, _driver, _permit: permit })
    }

    /// As [`Connection::await_long_reply`].
    pub(super) fn await_long_reply(&self) -> impl Drop + use<'_> {
        self.limit.await_list()
    }

    /// Sends one command and returns its reply; an error reply is a fault.
    pub(super) async fn ask(&self, command: &Cmd) -> Result<Value, Fault> {
        let reply = self.connection.clone().send_packed_command(command).await;
        let reply = reply.and_then(Value::extract_error);
        let reply = reply.map_err(stream::with_hint);
        reply.map_err(|error| fault_of(&error, &self.address, &self.limit))
    }
}

// === impl Task ===

impl Task {
    pub(super) fn spawn(task: impl Future<Output = ()> + Send + 'static) -> Self {
        Self(tokio::spawn(task).abort_handle())
    }
}

impl Drop for Task {
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

/// The text of Redis's reply to a password alone if its default user needs none.
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

// === A connection that a task of its own maintains ===

/// A connection that reconnects on its own. Dropping it ends its task.
#[derive(Debug)]
pub(super) struct Reconnecting {
    state: watch::Receiver<State>,
    timeout: Arc<AdaptiveTimeout>,
    _task: Task,
}

/// ```text
///              open                      broken, silent for long, or denied
/// Connecting ───────▶ Up(Connection) ──────────────────────────────────────▶ Down
///     └──fails──▶ Down ──opens, after a wait──▶ Up
/// ```
#[derive(Debug, Clone)]
enum State {
    /// The first attempt is in progress.
    Connecting,
    Up(Arc<Connection>),
    /// The reason why there is no connection.
    Down(Arc<str>),
}

/// The first wait between two attempts to connect.
const RETRY_FIRST: Duration = Duration::from_millis(100);

/// The longest wait between two attempts to connect.
const RETRY_LAST: Duration = Duration::from_secs(2);

/// Some proxies close a connection on which SCRIPT is sent. After so many connections in a row that
/// ended at the scripts, the next one sends none: a single one may have ended for another reason.
const ENDS_AT_SCRIPTS_MAX: u32 = 2;

// === impl Reconnecting ===

impl Reconnecting {
    /// Starts to connect to the server of `connector`.
    pub(super) fn spawn(connector: Connector) -> Arc<Self> {
        let (publish, state) = watch::channel(State::Connecting);
        let timeout = connector.context().timeout();
        let _task = Task::spawn(keep_up(connector, Arc::clone(&timeout), publish));
        Arc::new(Self { state, timeout, _task })
    }

    /// The open connection, or at once the reason why there is none.
    pub(super) fn connection(&self) -> Result<Arc<Connection>, Fault> {
        match &*self.state.borrow() {
            State::Up(connection) => Ok(Arc::clone(connection)),
            State::Connecting => Err(Fault::new(Kind::NotSent, "still connecting")),
            State::Down(why) => Err(Fault::new(Kind::NotSent, &**why)),
        }
    }

    /// As [`Reconnecting::connection`], but first waits for the outcome of the first attempt.
    pub(super) async fn first_connection(&self) -> Result<Arc<Connection>, Fault> {
        let mut state = self.state.clone();
        // The wait fails only once the task has ended, and then the last state is final.
        let _ = state.wait_for(|state| !matches!(state, State::Connecting)).await;
        self.connection()
    }

    /// How long a reply may take at present.
    pub(super) fn timeout(&self) -> Duration {
        self.timeout.for_command()
    }

    /// How long the server has owed replies and sent nothing; `None` until the first attempt to
    /// connect has ended, which asks wait for.
    pub(super) fn silence(&self) -> Option<Duration> {
        match &*self.state.borrow() {
            State::Connecting => None,
            State::Up(connection) => Some(connection.silence()),
            State::Down(_) => Some(Duration::ZERO),
        }
    }

    /// Waits until there is a connection.
    pub(super) async fn up(&self) {
        self.renewed(&Weak::new()).await;
    }

    /// Waits until there is a connection that is not `than`.
    pub(super) async fn renewed(&self, than: &Weak<Connection>) {
        let is_other = |state: &State| match state {
            State::Up(connection) => !Weak::ptr_eq(&Arc::downgrade(connection), than),
            State::Connecting | State::Down(_) => false,
        };
        let mut state = self.state.clone();
        let _ = state.wait_for(is_other).await;
    }
}

async fn keep_up(
    connector: Connector,
    timeout: Arc<AdaptiveTimeout>,
    publish: watch::Sender<State>,
) {
    let context = connector.context();
    let mut backoff = Backoff::new(RETRY_FIRST, RETRY_LAST);
    let mut outage = LogOnce::default();
    // Connections in a row that ended at the scripts, before any reply to them.
    let mut ended_at_scripts = 0;
    connector.limiters().first.pass(&context.clock).await;
    loop {
        let began = context.clock.now();
        let (why, spent) = match connector.open(&timeout).await {
            Ok(connection) => {
                let connection = Arc::new(connection);
                let sends_scripts = ended_at_scripts < ENDS_AT_SCRIPTS_MAX;
                // Before the first ask, so that the server reads it after the scripts.
                if sends_scripts {
                    connection.load_scripts().await;
                }
                publish.send_replace(State::Up(Arc::clone(&connection)));
                if connection.proves_itself().await {
                    if outage.ends() {
                        tracing::info!(redis = %connection.address, "connected to Redis again");
                    }
                    backoff.reset();
                }
                let why = connection.ends().await;
                let ends_at_scripts = why.kind == Kind::Lost && !connection.has_replied();
                ended_at_scripts = match (sends_scripts, ends_at_scripts) {
                    (true, true) => ended_at_scripts + 1,
                    (true, false) => 0,
                    // The next one tries the scripts once more.
                    (false, _) => ENDS_AT_SCRIPTS_MAX - 1,
                };
                (why, Duration::ZERO)
            }
            Err(fault) => (fault, context.clock.now().since(began)),
        };
        if outage.begins() {
            let (why, hint) = (&why.text, connector.advice(&why));
            tracing::error!(redis = %connector, "no connection to Redis: {why}; {hint}");
        }
        publish.send_replace(State::Down(format!("{connector}: {}", why.text).into()));
        // The time that a failed attempt waited for an answer counts towards this wait.
        tokio::time::sleep(backoff.next_wait().saturating_sub(spent)).await;
        connector.limiters().again.pass(&context.clock).await;
    }
}

// === How to reach one server: its address, the login, and the timeouts ===

/// Opens connections to one server.
#[derive(Debug, Clone)]
pub(super) struct Connector {
    context: Arc<StoreContext>,
    to: Target,
}

#[derive(Debug, Clone)]
enum Target {
    /// The server at this address.
    Server(Address),
    /// The server that the sentinels report as the master of this name.
    Master(String),
    /// No address was configured.
    Nowhere,
}

// === impl Connector ===

impl Connector {
    pub(super) fn server(context: &Arc<StoreContext>, address: Address) -> Self {
        Self { context: Arc::clone(context), to: Target::Server(address) }
    }

    pub(super) fn first_server(context: &Arc<StoreContext>) -> Self {
        let to =
            context.settings.addresses.first().cloned().map_or(Target::Nowhere, Target::Server);
        Self { context: Arc::clone(context), to }
    }

    pub(super) fn master(context: &Arc<StoreContext>, name: &str) -> Self {
        Self { context: Arc::clone(context), to: Target::Master(name.to_owned()) }
    }

    fn context(&self) -> &Arc<StoreContext> {
        &self.context
    }

    /// The limiters that its connections pass.
    pub(super) fn limiters(&self) -> &ConnectLimiters {
        match &self.to {
            Target::Server(address) => self.context.limiters(address),
            Target::Master(_) | Target::Nowhere => self.context.configured_limiters(),
        }
    }

    /// Opens a connection and logs in, or returns the reason for the failure. It takes at most as
    /// long as `timeout` allows, however many addresses a name has, and reports the time it took
    /// to `timeout`.
    pub(super) async fn open(&self, timeout: &Arc<AdaptiveTimeout>) -> Result<Connection, Fault> {
        count(&self.context.counters.connects);
        let opened = self.try_open(timeout).await;
        opened.inspect_err(|fault| {
            count(&self.context.counters.connect_errors);
            match fault.kind {
                // No server answered, so no command was lost.
                Kind::Lost => {}
                Kind::TimedOut => timeout.note_failed_connect(),
                kind => {
                    self.context.note_fault(kind);
                }
            }
        })
    }

    async fn try_open(&self, timeout: &Arc<AdaptiveTimeout>) -> Result<Connection, Fault> {
        let address = self.address().await?;
        let stages = Stages::new();
        let began = self.context.clock.now();
        let within = timeout.for_connect();
        let opened = open(&self.context, &address, Peer::Server, Some(&stages), within).await?;
        timeout.connected(self.context.clock.now().since(began));
        let context = Arc::clone(&self.context);
        let timeout = Arc::clone(timeout);
        Ok(Connection::new(address, opened, stages, context, timeout))
    }

    /// Opens a connection for commands that wait at the server, beside the one for asks.
    pub(super) async fn open_aside(&self) -> Result<Opened, Fault> {
        let address = self.address().await?;
        open(&self.context, &address, Peer::Server, None, MASTER_TIMEOUT).await
    }

    async fn address(&self) -> Result<Address, Fault> {
        match &self.to {
            Target::Server(address) => Ok(address.clone()),
            Target::Master(name) => find_master(&self.context, name).await,
            Target::Nowhere => Err(Fault::new(Kind::Lost, "no address is configured")),
        }
    }

    /// A hint on how to fix `why`.
    pub(super) fn advice(&self, why: &Fault) -> &'static str {
        match (why.kind.meaning().hint, &self.to) {
            (Some(hint), _) if why.kind != Kind::Refused => hint,
            (_, Target::Master(_)) => {
                "check the sentinels' addresses and the master's name (REDIS_URL); retrying"
            }
            _ => "check that Redis runs there and can be reached (REDIS_URL); retrying",
        }
    }
}

impl fmt::Display for Connector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.to {
            Target::Server(address) => write!(f, "{address}"),
            Target::Master(name) => write!(f, "master {name}"),
            Target::Nowhere => f.write_str("nowhere"),
        }
    }
}

// Finds the master, by the sentinels' replies and the server's own.
//
// Uses connections of this store rather than redis-rs's `SentinelClient`, which limits neither the
// replies nor the servers to which it sends the password.

/// Timeout for finding the master: all sentinels are asked at once.
const FIND_TIMEOUT: Duration = Duration::from_secs(3);
/// The part of it for connecting to a server that a sentinel named: an old master may have vanished
/// silently.
const MASTER_TIMEOUT: Duration = Duration::from_secs(1);

/// Finds the server that a sentinel names as the master `name`, and that confirms it. A sentinel
/// that was cut off may still name an old master.
async fn find_master(context: &Arc<StoreContext>, name: &str) -> Result<Address, Fault> {
    let sentinels = &context.settings.addresses;
    if sentinels.is_empty() {
        return Err(Fault::new(Kind::Lost, "no address is configured"));
    }
    let asked = sentinels.iter().map(|sentinel| Box::pin(ask(context, sentinel, name)));
    let found = tokio::time::timeout(FIND_TIMEOUT, select_ok(asked)).await;
    let silent = |_| Fault::new(Kind::Lost, "the sentinels did not answer in time");
    found.map_err(silent)?.map(|(master, _)| master)
}

async fn ask(
    context: &Arc<StoreContext>,
    sentinel: &Address,
    name: &str,
) -> Result<Address, Fault> {
    let master = named_by(context, sentinel, name).await;
    let master = master.map_err(|fault| fault.at(&format!("sentinel {sentinel}")))?;
    let answer =
        is_master(context, &master).await.map_err(|fault| fault.at(&master.to_string()))?;
    if answer {
        return Ok(master);
    }
    Err(Fault::new(Kind::Lost, format!("{master} is called the master and is none yet")))
}

async fn named_by(
    context: &Arc<StoreContext>,
    sentinel: &Address,
    name: &str,
) -> Result<Address, Fault> {
    let asked = open(context, sentinel, Peer::Sentinel, None, FIND_TIMEOUT).await?;
    let mut command = redis::cmd("SENTINEL");
    command.arg("GET-MASTER-ADDR-BY-NAME").arg(name);
    let reply = asked.ask(&command).await?;
    let unknown = || Fault::new(Kind::Lost, format!("no master {name} is known there"));
    named(&reply).ok_or_else(unknown)
}

async fn is_master(context: &Arc<StoreContext>, server: &Address) -> Result<bool, Fault> {
    let server = open(context, server, Peer::Server, None, MASTER_TIMEOUT).await?;
    match server.ask(&redis::cmd("ROLE")).await {
        Ok(Value::Array(parts)) => Ok(parts.first().and_then(text) == Some("master")),
        Ok(_) => Ok(false),
        // The user may only have permission for INFO.
        Err(fault) if matches!(fault.kind, Kind::Denied | Kind::Refused) => {
            let reply = server.ask(redis::cmd("INFO").arg("REPLICATION")).await?;
            Ok(text(&reply).is_some_and(|info| info.lines().any(|line| line == "role:master")))
        }
        Err(fault) => Err(fault),
    }
}

/// Reads `[host, port]`.
fn named(reply: &Value) -> Option<Address> {
    let Value::Array(parts) = reply else { return None };
    let [host, port] = parts.as_slice() else { return None };
    let host = text(host).filter(|host| !host.is_empty())?;
    Address::of_node(host, text(port)?.parse().ok()?)
}

#[cfg(test)]
mod tests;
