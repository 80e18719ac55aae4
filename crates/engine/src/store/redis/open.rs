//! Opens one connection: the stream, the login, and the limit on what is read from it.

use std::sync::Arc;
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{
    AsyncConnectionConfig, Cmd, ProtocolVersion, RedisConnectionInfo, RedisError, RedisResult,
    Value,
};
use tokio::sync::OwnedSemaphorePermit;
use tokio::task::AbortHandle;

use super::context::StoreContext;
use super::fault::{Fault, Kind};
use super::reply_limit::ReplyLimit;
use super::secure;
use super::stages::Stages;
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
    /// Old sentinels do not know HELLO.
    Sentinel,
}

/// The largest number of commands on one connection that wait to be written; further ones wait for
/// a place. It is the number that the lease client sends to a shard at once.
const UNWRITTEN_MAX: usize = 256;

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
    let limit = Arc::new(ReplyLimit::default());
    let opening = async {
        let login = peer.login(context).await?;
        let opening = connect(context, address, &login, Arc::clone(&limit), stages).await;
        // redis-rs never puts a password into an error.
        opening.map_err(|error| fault_of(&error, address, &limit))
    };
    let opened = tokio::time::timeout(within, Box::pin(opening)).await;
    let (connection, driver) = opened.map_err(|_| Fault::timed_out())??;
    Ok(Opened { connection, limit, address: address.clone(), _driver: driver, _place: place })
}

async fn connect(
    context: &StoreContext,
    address: &Address,
    login: &RedisConnectionInfo,
    limit: Arc<ReplyLimit>,
    stages: Option<&Stages>,
) -> RedisResult<(MultiplexedConnection, Driver)> {
    // Deadlines for replies are set in `Connection`.
    let mut config = AsyncConnectionConfig::new()
        .set_response_timeout(None)
        .set_pipeline_buffer_size(UNWRITTEN_MAX);
    if let Some(stages) = stages {
        config = config.set_push_sender(stages.on_push());
    }
    let stream: BoxedStream = match address {
        Address::Tcp(host, port) => {
            let allows = |ip| context.allows(address, ip);
            let stream = stream::tcp(host, *port, context.threads(address), allows).await?;
            match &context.tls {
                Some(tls) => Box::new(Box::pin(tls.secure(stream, host, &context.files)).await?),
                None => Box::new(stream),
            }
        }
        Address::Unix(path) => Box::new(stream::unix(path).await?),
    };
    log_in(Bounded::new(stream, limit), login, config).await
}

async fn log_in(
    stream: Bounded<BoxedStream>,
    login: &RedisConnectionInfo,
    config: AsyncConnectionConfig,
) -> RedisResult<(MultiplexedConnection, Driver)> {
    let new = MultiplexedConnection::new_with_config(login, stream, config);
    let (connection, driver) = new.await.map_err(secure::with_hint)?;
    Ok((connection, Driver(tokio::spawn(driver).abort_handle())))
}

// === impl Peer ===

impl Peer {
    /// The login.
    ///
    /// Servers use RESP3: its HELLO logs in and switches the protocol in one command that either
    /// succeeds or ends the attempt, so that a wrong password never leaves the connection logged in
    /// as another user; and redis-rs reports a closed connection only with RESP3. With RESP2 it
    /// would skip the login of a user without a password, and would omit the user's name for a
    /// server that does not support names.
    async fn login(self, context: &Arc<StoreContext>) -> Result<RedisConnectionInfo, Fault> {
        let protocol = match self {
            Self::Server => ProtocolVersion::RESP3,
            Self::Sentinel => ProtocolVersion::RESP2,
        };
        let auth = if self.has_file(&context.settings) {
            let of = Arc::clone(context);
            let read = context.files.run(move || self.auth(&of.settings)).await;
            read.unwrap_or_else(|_| Err("reading the password was interrupted".to_owned()))
        } else {
            self.auth(&context.settings)
        };
        auth.map(|auth| login(auth, protocol)).map_err(|why| Fault::new(Kind::Denied, why))
    }

    fn has_file(self, settings: &RedisSettings) -> bool {
        match self {
            Self::Server => settings.auth_file.is_some(),
            Self::Sentinel => settings.sentinel_auth_file.is_some(),
        }
    }

    fn auth(self, settings: &RedisSettings) -> Result<Auth, String> {
        match self {
            Self::Server => settings.auth_now(),
            Self::Sentinel => settings.sentinel_auth_now(),
        }
    }
}

fn login(auth: Auth, protocol: ProtocolVersion) -> RedisConnectionInfo {
    // CLIENT SETINFO is omitted: servers before 7.2 do not know it, and an access list may not
    // include it.
    let mut login = RedisConnectionInfo::default().set_protocol(protocol).set_skip_set_lib_name();
    if let Some(username) = &auth.username {
        login = login.set_username(username);
    }
    match (&auth.password, &auth.username) {
        (Some(password), _) => login.set_password(password.reveal()),
        (None, Some(_)) => login.set_password(""),
        (None, None) => login,
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
    /// Sends one command and returns its reply; an error reply is a fault.
    pub(super) async fn ask(&self, command: &Cmd) -> Result<Value, Fault> {
        let reply = self.connection.clone().send_packed_command(command).await;
        let reply = reply.and_then(Value::extract_error);
        reply.map_err(|error| fault_of(&error, &self.address, &self.limit))
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        self.0.abort();
    }
}
