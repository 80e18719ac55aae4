//! Keeps background tasks running: a task that ends or panics is restarted, and the restart is
//! counted. Uses nothing else of this crate; `app` runs all background tasks by it.
//!
//! ```text
//!  running ──ends or panics──▶ waiting, jittered ──▶ running
//! ```

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures_util::FutureExt;
use ratelease_engine::backoff::Backoff;
use ratelease_engine::time::Clock;
use tracing::error;

/// Upper bounds of the wait before a restart: the first, doubled at each further end up to the
/// last.
const WAIT_MIN: Duration = Duration::from_millis(100);
const WAIT_MAX: Duration = Duration::from_secs(5);

/// A task that ran this long was healthy: its end counts as a first one.
const STABLE_AFTER: Duration = Duration::from_secs(10);

const _: () = assert!(WAIT_MIN.as_millis() <= WAIT_MAX.as_millis());

/// Restarts tasks and counts the restarts. A cheap handle: clones share the count.
#[derive(Debug, Clone, Default)]
pub struct Supervisor {
    restarts: Arc<AtomicU64>,
}

// === impl Supervisor ===

impl Supervisor {
    /// Runs the future that `task` returns, and restarts it whenever it ends or panics, until this
    /// future is dropped. `name` is for the log.
    pub async fn run<F>(self, name: &'static str, task: impl FnMut() -> F)
    where
        F: Future<Output = ()>,
    {
        self.run_until(name, || false, task).await;
    }

    /// Like [`Supervisor::run`], until a task ends while `should_stop` returns true.
    pub async fn run_until<F>(
        self,
        name: &'static str,
        should_stop: impl Fn() -> bool,
        mut task: impl FnMut() -> F,
    ) where
        F: Future<Output = ()>,
    {
        let clock = Clock::start();
        let mut backoff = Backoff::new(WAIT_MIN, WAIT_MAX);
        loop {
            let begun = clock.now();
            // Making the future may panic as well as running it. No part of it is used after a
            // panic.
            let ended = AssertUnwindSafe(async { task().await }).catch_unwind().await;
            if should_stop() {
                return;
            }
            self.restarts.fetch_add(1, Ordering::Relaxed);
            let wait = wait_after(&mut backoff, clock.now().since(begun));
            let how = if ended.is_ok() { "ended" } else { "panicked" };
            error!("internal error: the task {name:?} {how}; it restarts in {wait:?}");
            tokio::time::sleep(wait).await;
        }
    }

    /// Number of restarts.
    pub fn restarts(&self) -> u64 {
        self.restarts.load(Ordering::Relaxed)
    }
}

/// The wait before the next restart, after a run of this length.
fn wait_after(backoff: &mut Backoff, ran: Duration) -> Duration {
    if ran >= STABLE_AFTER {
        backoff.reset();
    }
    backoff.next_wait()
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;

    use tokio::time::timeout;

    use super::*;

    const MINUTE: Duration = Duration::from_secs(60);

    #[tokio::test(start_paused = true)]
    async fn a_task_that_ends_or_panics_is_restarted_and_counted() {
        let supervisor = Supervisor::default();
        let mut runs = 0;
        let task = || {
            runs += 1;
            let run = runs;
            async move {
                match run {
                    1 => panic!("deliberate"),
                    2 => {}
                    _ => std::future::pending().await,
                }
            }
        };
        let result = timeout(MINUTE, supervisor.clone().run("test", task)).await;
        assert!(result.is_err(), "it never returns");
        assert_eq!((runs, supervisor.restarts()), (3, 2));
    }

    #[tokio::test(start_paused = true)]
    async fn a_panic_while_the_future_is_made_restarts_the_task() {
        let supervisor = Supervisor::default();
        let mut runs = 0;
        let task = || {
            runs += 1;
            assert!(runs > 1, "deliberate");
            std::future::pending::<()>()
        };
        let result = timeout(MINUTE, supervisor.clone().run("test", task)).await;
        assert!(result.is_err());
        assert_eq!(supervisor.restarts(), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn a_stopped_task_is_not_restarted() {
        let supervisor = Supervisor::default();
        let should_stop = AtomicBool::new(false);
        let mut runs = 0;
        let task = || {
            runs += 1;
            should_stop.store(runs == 2, Ordering::Relaxed);
            async {}
        };
        let stop = || should_stop.load(Ordering::Relaxed);
        let result = timeout(MINUTE, supervisor.clone().run_until("test", stop, task)).await;
        assert!(result.is_ok());
        assert_eq!((runs, supervisor.restarts()), (2, 1));
    }

    #[test]
    fn waits_double_up_to_the_maximum_and_restart_after_a_long_run() {
        let mut backoff = Backoff::new(WAIT_MIN, WAIT_MAX);
        for nominal in [100, 200, 400, 800, 1_600, 3_200, 5_000, 5_000] {
            let wait = wait_after(&mut backoff, Duration::ZERO);
            let nominal = Duration::from_millis(nominal);
            assert!(wait >= nominal / 2 && wait <= nominal, "{wait:?} of {nominal:?}");
        }
        assert!(wait_after(&mut backoff, STABLE_AFTER) <= WAIT_MIN);
        assert!(wait_after(&mut backoff, Duration::ZERO) > WAIT_MIN / 2);
    }
}
