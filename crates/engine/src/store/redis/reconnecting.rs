//! One connection to one server, maintained by a task of its own: asks never connect, they only use
//! the present connection.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::select_ok;
use redis::Value;
use tokio::sync::watch;
use tokio::task::AbortHandle;

use crate::backoff::Backoff;
use crate::store::redis::connection::{Connection, Peer, Stages, open};
use crate::store::redis::context::{AdaptiveTimeout, ConnectLimiters, StoreContext, count};
use crate::store::redis::fault::{Fault, Kind, LogOnce};
use crate::store::redis::settings::Address;

/// A connection that reconnects on its own. Dropping it ends its task.
#[derive(Debug)]
pub(super) struct Reconnecting {
    state: watch::Receiver<State>,
    timeout: Arc<AdaptiveTimeout>,
    task: AbortHandle,
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

/// Waits between attempts to connect.
const RETRY_FIRST: Duration = Duration::from_millis(100);
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
        let task = tokio::spawn(keep_up(connector, Arc::clone(&timeout), publish)).abort_handle();
        Arc::new(Self { state, timeout, task })
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
        // It fails only once the task has ended, and then the last state is final.
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
        let mut state = self.state.clone();
        let _ = state.wait_for(|state| matches!(state, State::Up(_))).await;
    }
}

impl Drop for Reconnecting {
    fn drop(&mut self) {
        self.task.abort();
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
        let address = match &self.to {
            Target::Server(address) => address.clone(),
            Target::Master(name) => find_master(&self.context, name).await?,
            Target::Nowhere => return Err(Fault::new(Kind::Lost, "no address is configured")),
        };
        let stages = Stages::new();
        let began = self.context.clock.now();
        let within = timeout.for_connect();
        let opened = open(&self.context, &address, Peer::Server, Some(&stages), within).await?;
        timeout.connected(self.context.clock.now().since(began));
        let (context, timeout) = (Arc::clone(&self.context), Arc::clone(timeout));
        Ok(Connection::new(address, opened, stages, context, timeout))
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

fn text(value: &Value) -> Option<&str> {
    match value {
        Value::BulkString(text) => std::str::from_utf8(text).ok(),
        Value::SimpleString(text) | Value::VerbatimString { text, .. } => Some(text),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_master_is_a_host_and_a_port() {
        let reply = |parts: &[&str]| {
            Value::Array(parts.iter().map(|it| Value::BulkString((*it).into())).collect())
        };
        let master = Address::Tcp("10.0.0.1".into(), 6379);
        assert_eq!(named(&reply(&["10.0.0.1", "6379"])), Some(master));
        for parts in [&["10.0.0.1"][..], &["", "6379"], &["a b", "6379"], &["a", "99999"]] {
            assert_eq!(named(&reply(parts)), None, "{parts:?}");
        }
        assert_eq!(named(&Value::Nil), None);
    }
}
