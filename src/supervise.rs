//! Keeps background tasks running: a task that ends or panics is restarted, and the restart is
//! counted.
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
const WAIT_FIRST: Duration = Duration::from_millis(100);
const WAIT_LAST: Duration = Duration::from_secs(5);

/// A task that ran this long was healthy: its end counts as a first one.
const WELL_AFTER: Duration = Duration::from_secs(10);

const _: () = assert!(WAIT_FIRST.as_millis() <= WAIT_LAST.as_millis());

/// Restarts tasks and counts the restarts. A cheap handle: clones share the count.
#[derive(Debug, Clone, Default)]
pub struct Supervisor {
    restarts: Arc<AtomicU64>,
}

// === impl Supervisor ===

impl Supervisor {
    /// Runs the future that `task` returns, and restarts it whenever it ends or panics, until this
    /// future is dropped. `name` is for the log.
    pub async fn keep<F>(self, name: &'static str, task: impl FnMut() -> F)
    where
        F: Future<Output = ()>,
    {
        self.keep_until(name, || false, task).await;
    }

    /// Like [`Supervisor::keep`], until a task ends while `is_over` returns true.
    pub async fn keep_until<F>(
        self,
        name: &'static str,
        is_over: impl Fn() -> bool,
        mut task: impl FnMut() -> F,
    ) where
        F: Future<Output = ()>,
    {
        let clock = Clock::start();
        let mut backoff = Backoff::new(WAIT_FIRST, WAIT_LAST);
        loop {
            let begun = clock.now();
            // Making the future may panic as well as running it. No part of it is used after a
            // panic.
            let ended = AssertUnwindSafe(async { task().await }).catch_unwind().await;
            if is_over() {
                return;
            }
            self.restarts.fetch_add(1, Ordering::Relaxed);
            let wait = wait_after(&mut backoff, clock.now().since(begun));
            let how = if ended.is_ok() { "ended" } else { "panicked" };
            error!(
                "the task {name:?} {how} (a fault of the program's own); it begins anew in {wait:?}"
            );
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
    if ran >= WELL_AFTER {
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
    async fn a_task_that_ends_or_panics_begins_anew_and_is_counted() {
        let supervisor = Supervisor::default();
        let mut runs = 0;
        let task = || {
            runs += 1;
            let run = runs;
            async move {
                match run {
                    1 => panic!("told to"),
                    2 => {}
                    _ => std::future::pending().await,
                }
            }
        };
        let kept = timeout(MINUTE, supervisor.clone().keep("test", task)).await;
        assert!(kept.is_err(), "it goes on for ever");
        assert_eq!((runs, supervisor.restarts()), (3, 2));
    }

    #[tokio::test(start_paused = true)]
    async fn a_panic_before_the_task_is_one_of_the_task() {
        let supervisor = Supervisor::default();
        let mut runs = 0;
        let task = || {
            runs += 1;
            assert!(runs > 1, "told to");
            std::future::pending::<()>()
        };
        let kept = timeout(MINUTE, supervisor.clone().keep("test", task)).await;
        assert!(kept.is_err());
        assert_eq!(supervisor.restarts(), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn a_task_that_was_told_to_end_stays_ended() {
        let supervisor = Supervisor::default();
        let is_over = AtomicBool::new(false);
        let mut runs = 0;
        let task = || {
            runs += 1;
            is_over.store(runs == 2, Ordering::Relaxed);
            async {}
        };
        let told = || is_over.load(Ordering::Relaxed);
        let kept = timeout(MINUTE, supervisor.clone().keep_until("test", told, task)).await;
        assert!(kept.is_ok());
        assert_eq!((runs, supervisor.restarts()), (2, 1));
    }

    #[test]
    fn waits_double_up_to_the_last_and_begin_anew_after_a_good_run() {
        let mut backoff = Backoff::new(WAIT_FIRST, WAIT_LAST);
        for nominal in [100, 200, 400, 800, 1_600, 3_200, 5_000, 5_000] {
            let wait = wait_after(&mut backoff, Duration::ZERO);
            let nominal = Duration::from_millis(nominal);
            assert!(wait >= nominal / 2 && wait <= nominal, "{wait:?} of {nominal:?}");
        }
        assert!(wait_after(&mut backoff, WELL_AFTER) <= WAIT_FIRST);
        assert!(wait_after(&mut backoff, Duration::ZERO) > WAIT_FIRST / 2);
    }
}
