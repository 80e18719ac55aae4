//! Opens one connection: the stream, the login, and the limit on what is read from it.

use std::sync::Arc;
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{
    AsyncConnectionConfig, Cmd, ProtocolVersion, RedisConnectionInfo, RedisError, RedisResult,
    Value,
};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::OwnedSemaphorePermit;
use tokio::task::AbortHandle;

use super::fault::{Fault, Kind};
use super::live::Stages;
use super::reply_limit::ReplyLimit;
use super::site::Site;
use super::stream::{self, Bounded};
use crate::settings::redis::{Address, Auth};

/// A connection that is logged in.
#[derive(Debug)]
pub(super) struct Opened {
    pub(super) connection: MultiplexedConnection,
    pub(super) limit: Arc<ReplyLimit>,
    address: Address,
    _driver: Driver,
    _place: OwnedSemaphorePermit,
}

/// The task that carries the bytes of a connection. Dropping it ends both.
#[derive(Debug)]
struct Driver(AbortHandle);

/// Commands of one connection that may wait to be written; the rest wait for their place. It is as
/// many as the lease desk sends to a shard at once.
const UNWRITTEN_MAX: usize = 256;

/// Connects to `address` and logs in, within the given time, however many addresses a name has.
/// `stages` are told of the end.
pub(super) async fn open(
    site: &Site,
    address: &Address,
    login: RedisConnectionInfo,
    stages: Option<&Stages>,
    within: Duration,
) -> Result<Opened, Fault> {
    let place = site.place()?;
    let limit = Arc::new(ReplyLimit::default());
    // Replies have deadlines of our own: `Live`.
    let mut config = AsyncConnectionConfig::new()
        .set_response_timeout(None)
        .set_pipeline_buffer_size(UNWRITTEN_MAX);
    if let Some(stages) = stages {
        config = config.set_push_sender(stages.on_push());
    }
    let opening = async {
        let bound = Arc::clone(&limit);
        match address {
            Address::Tcp(host, port) => {
                let stream = stream::tcp(host, *port, |ip| site.allows(address, ip)).await?;
                log_in(Bounded::new(stream, bound), &login, config).await
            }
            Address::Unix(path) => {
                let stream = stream::unix(path).await?;
                log_in(Bounded::new(stream, bound), &login, config).await
            }
        }
    };
    let opened = tokio::time::timeout(within, Box::pin(opening)).await;
    let opened = opened.map_err(|_| Fault::timed_out())?;
    // redis-rs never puts a password into an error.
    let (connection, driver) = opened.map_err(|error| fault_of(&error, address, &limit))?;
    Ok(Opened { connection, limit, address: address.clone(), _driver: driver, _place: place })
}

async fn log_in<S: AsyncRead + AsyncWrite + Unpin + Send + 'static>(
    stream: Bounded<S>,
    login: &RedisConnectionInfo,
    config: AsyncConnectionConfig,
) -> RedisResult<(MultiplexedConnection, Driver)> {
    let new = MultiplexedConnection::new_with_config(login, stream, config);
    let (connection, driver) = new.await?;
    Ok((connection, Driver(tokio::spawn(driver).abort_handle())))
}

/// Who we are to the servers.
///
/// RESP3: its HELLO logs in and speaks up in one command that either succeeds or ends the attempt,
/// so that a wrong password never leaves us there as another user; and redis-rs tells of a closed
/// connection only there. In RESP2 it would skip the login of a user without a password, and drop
/// the user's name for a server that knows no names.
pub(super) async fn server_login(site: &Arc<Site>) -> Result<RedisConnectionInfo, Fault> {
    let auth = auth_of(site, |site| site.settings.auth_now()).await?;
    Ok(login(auth, ProtocolVersion::RESP3))
}

/// Who we are to the sentinels, of which old ones know no HELLO.
pub(super) async fn sentinel_login(site: &Arc<Site>) -> Result<RedisConnectionInfo, Fault> {
    let auth = auth_of(site, |site| site.settings.sentinel_auth_now()).await?;
    Ok(login(auth, ProtocolVersion::RESP2))
}

/// Reads a file, if the password is in one.
async fn auth_of(site: &Arc<Site>, read: fn(&Site) -> Result<Auth, String>) -> Result<Auth, Fault> {
    let site = Arc::clone(site);
    let read = tokio::task::spawn_blocking(move || read(&site)).await;
    let read = read.unwrap_or_else(|_| Err("reading the password was interrupted".to_owned()));
    read.map_err(|why| Fault::new(Kind::Denied, why))
}

fn login(auth: Auth, protocol: ProtocolVersion) -> RedisConnectionInfo {
    // CLIENT SETINFO is left out: servers before 7.2 do not know it, and an access list may well
    // not name it.
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

/// An error of a connection to `from`; one of its limit says that the reply was none of ours.
pub(super) fn fault_of(error: &RedisError, from: &Address, limit: &ReplyLimit) -> Fault {
    let fault = Fault::of(error, from);
    match fault.kind {
        Kind::Lost if limit.is_exceeded() => Fault { kind: Kind::Garbled, ..fault },
        _ => fault,
    }
}

// === impl Opened ===

impl Opened {
    /// The reply to one command; an error reply is a fault.
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
