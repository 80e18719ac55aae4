//! One connection to one server, maintained by a task of its own: asks never connect, they only use
//! the present connection.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::AbortHandle;

use super::adaptive_timeout::Patience;
use super::connection::Live;
use super::connector::Dial;
use super::fault::{Fault, Kind};
use super::log_once::Outage;
use crate::backoff::Backoff;

/// A connection that reconnects on its own. Dropping it ends its task.
#[derive(Debug)]
pub(super) struct Link {
    state: watch::Receiver<State>,
    patience: Arc<Patience>,
    task: AbortHandle,
}

/// ```text
///            open                broken, silent for long, or denied
/// Dialling ───────▶ Up(Live) ──────────────────────────────────▶ Down
///     └──fails──▶ Down ──opens, after a wait──▶ Up
/// ```
#[derive(Debug, Clone)]
enum State {
    /// The first attempt is in progress.
    Dialling,
    Up(Arc<Live>),
    /// The reason why there is no connection.
    Down(Arc<str>),
}

/// Waits between attempts to connect.
const RETRY_FIRST: Duration = Duration::from_millis(100);
const RETRY_LAST: Duration = Duration::from_secs(2);

// === impl Link ===

impl Link {
    /// Starts to connect to the server of `dial`.
    pub(super) fn spawn(dial: Dial) -> Arc<Self> {
        let (publish, state) = watch::channel(State::Dialling);
        let patience = dial.site().patience();
        let task = tokio::spawn(keep_up(dial, Arc::clone(&patience), publish)).abort_handle();
        Arc::new(Self { state, patience, task })
    }

    /// The open connection, or at once the reason why there is none.
    pub(super) fn live(&self) -> Result<Arc<Live>, Fault> {
        match &*self.state.borrow() {
            State::Up(live) => Ok(Arc::clone(live)),
            State::Dialling => Err(Fault::new(Kind::NotSent, "still connecting")),
            State::Down(why) => Err(Fault::new(Kind::NotSent, &**why)),
        }
    }

    /// As [`Link::live`], but first waits for the outcome of the first attempt.
    pub(super) async fn dialled(&self) -> Result<Arc<Live>, Fault> {
        let mut state = self.state.clone();
        // It fails only once the task has ended, and then the last state is final.
        let _ = state.wait_for(|state| !matches!(state, State::Dialling)).await;
        self.live()
    }

    /// How long a reply may take at present.
    pub(super) fn patience(&self) -> Duration {
        self.patience.of_command()
    }

    /// How long the server has owed replies and sent nothing; `None` until the first attempt to
    /// connect has ended, which asks wait for.
    pub(super) fn silence(&self) -> Option<Duration> {
        match &*self.state.borrow() {
            State::Dialling => None,
            State::Up(live) => Some(live.silence()),
            State::Down(_) => Some(Duration::ZERO),
        }
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

async fn keep_up(dial: Dial, patience: Arc<Patience>, publish: watch::Sender<State>) {
    let site = dial.site();
    let mut backoff = Backoff::new(RETRY_FIRST, RETRY_LAST);
    let mut outage = Outage::default();
    dial.gates().first.pass(&site.clock).await;
    loop {
        let began = site.clock.now();
        let (why, spent) = match dial.open(&patience).await {
            Ok(live) => {
                let live = Arc::new(live);
                // Before the first ask, so that the server reads it after the scripts.
                live.load_scripts().await;
                publish.send_replace(State::Up(Arc::clone(&live)));
                if live.proves_itself().await {
                    if outage.ends() {
                        tracing::info!(redis = %live.address, "connected to Redis again");
                    }
                    backoff.reset();
                }
                (live.ends().await, Duration::ZERO)
            }
            Err(fault) => (fault, site.clock.now().since(began)),
        };
        if outage.begins() {
            let (why, mend) = (&why.text, dial.advice(&why));
            tracing::error!(redis = %dial, "no connection to Redis: {why}; {mend}");
        }
        publish.send_replace(State::Down(format!("{dial}: {}", why.text).into()));
        // The time that a failed attempt waited for an answer counts towards this wait.
        tokio::time::sleep(backoff.next_wait().saturating_sub(spent)).await;
        dial.gates().again.pass(&site.clock).await;
    }
}
