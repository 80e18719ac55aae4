//! Opens one connection: the stream, the login, and the limit on what is read from it.

mod login;

use std::sync::Arc;
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Cmd, RedisConnectionInfo, RedisError, Value};
use tokio::sync::OwnedSemaphorePermit;
use tokio::task::AbortHandle;
use tokio::time::Instant;

use super::context::StoreContext;
use super::fault::{Fault, Kind};
use super::reply_limit::ReplyLimit;
use super::secure;
use super::stages::{Stage, Stages};
use super::stream::{self, Bounded, BoxedStream};
use crate::store::redis::settings::{Address, Auth, RedisSettings};

/// A connection that is logged in.
#[derive(Debug)]
pub(super) struct Opened {
    pub(super) connection: MultiplexedConnection,
    pub(super) limit: Arc<ReplyLimit>,
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
        let logged_in = login::log_in(&opened, &auth, database).await;
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
pub(super) fn fault_of(error: &RedisError, from: &Address, limit: &ReplyLimit) -> Fault {
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
        let reply = reply.map_err(secure::with_hint);
        reply.map_err(|error| fault_of(&error, &self.address, &self.limit))
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        self.0.abort();
    }
}
