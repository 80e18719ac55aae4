//! One connection to one server, kept up by a task of its own: asks never connect, they only look.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{Cmd, PushInfo, PushKind, RedisResult, Value};
use tokio::sync::{Notify, watch};
use tokio::task::AbortHandle;

use super::backoff::{Backoff, Outage};
use super::dial::Dial;
use super::fault::Fault;
use crate::settings::redis::Address;

/// A connection that comes back by itself. Dropping it ends its task.
#[derive(Debug)]
pub(super) struct Link {
    state: watch::Receiver<State>,
    task: AbortHandle,
}

/// ```text
///            open                    broken, or silent for long
/// Dialling ───────▶ Up(Live) ──────────────────────────────────▶ Down
///     └──fails──▶ Down ──opens, after a wait──▶ Up
/// ```
#[derive(Debug, Clone)]
enum State {
    /// The first attempt is under way.
    Dialling,
    Up(Arc<Live>),
    /// Why there is no connection.
    Down(Arc<str>),
}

/// An open connection, shared by all asks of its server; redis-rs pipelines them.
#[derive(Debug)]
pub(super) struct Live {
    pub(super) address: Address,
    connection: MultiplexedConnection,
    /// Notified once the connection is of no more use.
    over: Arc<Notify>,
    /// Replies that failed to come since the last one that did.
    silent: AtomicU32,
}

/// Waits between attempts to connect.
const RETRY_FIRST: Duration = Duration::from_millis(100);
const RETRY_LAST: Duration = Duration::from_secs(2);
/// So many commands in a row without a reply, and the connection is given up: a server that is
/// gone without a word (no RST) would otherwise hold it until TCP gives up, after a quarter hour.
const SILENT_MAX: u32 = 3;

// === impl Link ===

impl Link {
    /// Starts connecting to the server that `dial` leads to.
    pub(super) fn spawn(dial: Dial) -> Arc<Self> {
        let (publish, state) = watch::channel(State::Dialling);
        let task = tokio::spawn(keep_up(dial, publish)).abort_handle();
        Arc::new(Self { state, task })
    }

    /// The open connection, or at once the reason why there is none.
    pub(super) fn live(&self) -> Result<Arc<Live>, Fault> {
        match &*self.state.borrow() {
            State::Up(live) => Ok(Arc::clone(live)),
            State::Dialling => Err(Fault::NotSent("still connecting".into())),
            State::Down(why) => Err(Fault::NotSent(why.to_string())),
        }
    }

    /// As [`Link::live`], but first waits for the outcome of the first attempt.
    pub(super) async fn dialled(&self) -> Result<Arc<Live>, Fault> {
        let mut state = self.state.clone();
        // It fails only once the task is gone, and then the last state stands.
        let _ = state.wait_for(|state| !matches!(state, State::Dialling)).await;
        self.live()
    }

    /// Waits until there is a connection.
    pub(super) async fn up(&self) {
        let mut state = self.state.clone();
        let _ = state.wait_for(|state| matches!(state, State::Up(_))).await;
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn keep_up(dial: Dial, publish: watch::Sender<State>) {
    let mut backoff = Backoff::new(RETRY_FIRST, RETRY_LAST);
    let mut outage = Outage::default();
    loop {
        let over = Arc::new(Notify::new());
        let why = match dial.open(notify_when_closed(&over)).await {
            Ok((address, connection)) => {
                if outage.ends() {
                    tracing::info!(redis = %address, "connected to Redis again");
                }
                backoff.reset();
                let live = Live { over: Arc::clone(&over), ..Live::new(address, connection) };
                publish.send_replace(State::Up(Arc::new(live)));
                over.notified().await;
                "the connection broke".into()
            }
            Err(why) => why,
        };
        if outage.begins() {
            tracing::error!(redis = %dial, "no connection to Redis: {why}; {}", dial.advice(&why));
        }
        publish.send_replace(State::Down(format!("{dial}: {why}").into()));
        tokio::time::sleep(backoff.next()).await;
    }
}

fn notify_when_closed(over: &Arc<Notify>) -> impl Fn(PushInfo) -> Result<(), ()> + use<> {
    let over = Arc::clone(over);
    move |push| {
        if push.kind == PushKind::Disconnection {
            over.notify_one();
        }
        Ok(())
    }
}

// === impl Live ===

impl Live {
    pub(super) fn new(address: Address, connection: MultiplexedConnection) -> Self {
        Self { address, connection, over: Arc::default(), silent: AtomicU32::new(0) }
    }

    /// Sends `command` once and only once: redis-rs repeats nothing on a connection of this kind
    /// (`aio/multiplexed_connection.rs`, `send_recv`: one message in, one reply or error out).
    pub(super) async fn send(&self, command: &Cmd) -> Result<Value, Fault> {
        let reply = self.connection.clone().send_packed_command(command).await;
        self.read(reply)
    }

    /// Sends `command` for a slot that is still moving to this server. ASKING holds for the very
    /// next command of the connection, which others share: both travel in one message.
    pub(super) async fn send_asking(&self, command: &Cmd) -> Result<Value, Fault> {
        let mut both = redis::pipe();
        both.cmd("ASKING").add_command(command.clone());
        let replies = self.connection.clone().send_packed_commands(&both, 0, 2).await;
        self.read(replies.map(|mut replies| replies.pop().unwrap_or(Value::Nil)))
    }

    fn read(&self, reply: RedisResult<Value>) -> Result<Value, Fault> {
        let fault = match reply {
            Ok(Value::ServerError(error)) => Fault::of_reply(&error, &self.address),
            Ok(value) => {
                self.silent.store(0, Ordering::Relaxed);
                return Ok(value);
            }
            Err(error) => Fault::of(&error, &self.address),
        };
        match fault {
            Fault::TimedOut => {
                if self.silent.fetch_add(1, Ordering::Relaxed) + 1 >= SILENT_MAX {
                    self.give_up();
                }
            }
            Fault::Lost(_) | Fault::Garbled(_) => self.give_up(),
            _ => self.silent.store(0, Ordering::Relaxed),
        }
        Err(fault)
    }

    /// Has the connection replaced, and its server looked up anew.
    pub(super) fn give_up(&self) {
        self.over.notify_one();
    }
}
