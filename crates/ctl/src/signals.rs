//! Signals that ask a tool to stop. The first signal stops long work, which then reports its
//! results so far; a second signal, or the first one after the work is done, ends the process at
//! once.

use std::cell::Cell;
use std::future::pending;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::Duration;
use std::{fs, thread};

use ratelease_cli::out::{CliError, Interrupt};
use tokio::runtime::Runtime;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::mpsc;
use tokio::time::timeout;

/// Handles the signals of this process from its creation until it is dropped.
pub struct Signals {
    received: Receiver<Interrupt>,
    first: Cell<Option<Interrupt>>,
}

/// Signals that ask a process to stop: Ctrl-C, the terminal closing, and `kill`.
const KINDS: [SignalKind; 3] =
    [SignalKind::interrupt(), SignalKind::hangup(), SignalKind::terminate()];

/// The file in which the kernel reports which signals a process ignores.
const STATUS: &str = "/proc/self/status";

// === impl Signals ===

impl Signals {
    /// Starts listening. A second signal, or `grace` after the first, ends the process at once.
    /// Before that, `before_exit` restores the terminal, on another thread than the work.
    ///
    /// # Errors
    /// The system has no thread or file descriptor left.
    pub fn listen(before_exit: fn(), grace: Option<Duration>) -> Result<Self, CliError> {
        let failed = |error| {
            CliError::new(format_args!("cannot start: {error}; raise the limit on open files"))
        };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(failed)?;
        let signals = unignored(&runtime).map_err(failed)?;
        let (first_sender, received) = sync_channel(1);
        #[allow(clippy::disallowed_methods, reason = "a second signal ends at once")]
        let listener = move || {
            let last = runtime.block_on(last(signals, &first_sender, grace));
            before_exit();
            std::process::exit(last.status().into());
        };
        thread::Builder::new().name("signals".to_owned()).spawn(listener).map_err(failed)?;
        Ok(Self { received, first: Cell::new(None) })
    }

    /// Returns the first signal, if there was one.
    pub fn first(&self) -> Option<Interrupt> {
        self.wait(Duration::ZERO)
    }

    /// Waits up to `within` for the first signal and returns it.
    pub fn wait(&self, within: Duration) -> Option<Interrupt> {
        if self.first.get().is_none() {
            self.first.set(self.received.recv_timeout(within).ok());
        }
        self.first.get()
    }
}

/// Returns all signals that are not ignored: `nohup` and a shell's `&` cause some of them to be
/// ignored on purpose.
fn unignored(runtime: &Runtime) -> std::io::Result<Vec<(Interrupt, Signal)>> {
    let _context = runtime.enter();
    let status = fs::read_to_string(STATUS).unwrap_or_default();
    let handled = KINDS.into_iter().filter(|kind| !is_ignored(&status, *kind));
    handled.map(|kind| Ok((Interrupt::of(kind), signal(kind)?))).collect()
}

/// Returns whether the mask in `status` contains the signal: the mask is hexadecimal, with signal 1
/// in the lowest bit.
fn is_ignored(status: &str, kind: SignalKind) -> bool {
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    let bit = u32::try_from(kind.as_raw_value() - 1).ok();
    mask.zip(bit).is_some_and(|(mask, bit)| mask.checked_shr(bit).is_some_and(|at| at & 1 == 1))
}

/// Returns the signal that ends the process, once it must end. The first signal only stops the
/// work, unless the work is done and its result is being printed.
async fn last(
    signals: Vec<(Interrupt, Signal)>,
    first_sender: &SyncSender<Interrupt>,
    grace: Option<Duration>,
) -> Interrupt {
    let (sender, mut received) = mpsc::channel(KINDS.len());
    for (interrupt, mut signal) in signals {
        let sender = sender.clone();
        tokio::spawn(async move {
            while signal.recv().await.is_some() && sender.send(interrupt).await.is_ok() {}
        });
    }
    // If all signals are ignored, this never returns.
    let mut next = async || match received.recv().await {
        Some(interrupt) => interrupt,
        None => pending().await,
    };
    let first = next().await;
    if first_sender.send(first).is_err() {
        return first;
    }
    match grace {
        Some(grace) => timeout(grace, next()).await.unwrap_or(first),
        None => next().await,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ignored_signals_are_read_from_the_mask_of_the_process() {
        // `nohup` leaves such a mask, and so does a shell without job control for background jobs.
        for (mask, ignored) in [
            ("0000000000000001", vec![SignalKind::hangup()]),
            ("0000000000000006", vec![SignalKind::interrupt()]),
            ("0000000000004003", KINDS.to_vec()),
            ("0000000000000000", Vec::new()),
        ] {
            let status = format!("Name:\tratelease\nSigBlk:\tffffffff\nSigIgn:\t{mask}\n");
            for kind in KINDS {
                assert_eq!(is_ignored(&status, kind), ignored.contains(&kind), "{mask} {kind:?}");
            }
        }
        assert!(!is_ignored("", SignalKind::hangup()));
        assert!(!is_ignored("SigIgn:\tmany\n", SignalKind::hangup()));
    }
}
