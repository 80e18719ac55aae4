//! How much of a pod's time compiling takes, however often rules change.
//!
//! ```text
//! no quota: ██████████··········································  rests after it, nine times as long
//! 200m:     █·········█·········█·········█·········█·········  rests in it: half of the quota
//! ```
//! A process that has taken its quota of processor time stands still until the next period, with
//! the threads that answer requests (Linux, `sched-bwc`). So a compilation takes less than the quota
//! at any time.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use ratelease_rules::Pace;

use crate::control_group::cpu_quota;

/// Compiling takes one of so many parts of the time: a change follows another one no sooner than
/// after nine times as long as that took.
pub(super) const PARTS: u32 = 10;

/// Maximum rest: so soon each change is compiled, whatever it and the one before it took.
const REST_MAX: Duration = Duration::from_secs(5);

/// How long a compilation works at once, under a quota: a hundredth of the kernel's period, so that
/// the least quota that pods are given has room for it.
const SLICE: Duration = Duration::from_millis(1);

/// The part of a quota that compiling takes; the other half is for requests.
const PART_OF_QUOTA: f64 = 0.5;

/// The rest after a compilation. A change after a pause has none.
#[derive(Debug)]
pub(super) struct Rest {
    until: Option<Instant>,
    /// How long a compilation rests for each second of work.
    rests: f64,
}

/// A compilation under way.
#[derive(Debug)]
pub(super) struct Work {
    began: Instant,
    /// When the present slice began.
    resumed: Cell<Instant>,
    /// How long it has rested.
    rested: Cell<Duration>,
    rests: f64,
    is_stopping: Arc<AtomicBool>,
}

// === impl Rest ===

impl Rest {
    /// The rests of a process with this quota, in cores, if it has one.
    pub(super) fn with_quota(quota: Option<f64>) -> Self {
        let rests = quota.map_or(0.0, |cores| 1.0 / (cores * PART_OF_QUOTA) - 1.0);
        Self { until: None, rests: rests.max(0.0) }
    }

    /// Begins a compilation.
    #[allow(clippy::disallowed_methods)] // the edge: the clock is used only for how long to wait
    pub(super) fn begin(&self, is_stopping: &Arc<AtomicBool>) -> Rc<Work> {
        let now = Instant::now();
        Rc::new(Work {
            began: now,
            resumed: Cell::new(now),
            rested: Cell::default(),
            rests: self.rests,
            is_stopping: Arc::clone(is_stopping),
        })
    }

    /// Notes that a compilation has ended.
    #[allow(clippy::disallowed_methods)] // the edge: the clock is used only for how long to wait
    pub(super) fn note(&mut self, work: &Work) {
        self.note_at(Instant::now(), work.began, work.rested.get());
    }

    /// Notes a compilation that ended now, and had rested so long.
    fn note_at(&mut self, now: Instant, began: Instant, rested: Duration) {
        let worked = (now - began).saturating_sub(rested);
        let owed = (worked * (PARTS - 1)).min(REST_MAX).saturating_sub(rested);
        self.until = Some(now + owed);
    }

    /// The rest that is left; `None` if there is none.
    pub(super) fn left(&self, now: Instant) -> Option<Duration> {
        self.until?.checked_duration_since(now).filter(|left| !left.is_zero())
    }
}

impl Default for Rest {
    /// The rests of this process.
    fn default() -> Self {
        Self::with_quota(cpu_quota())
    }
}

// === impl Work ===

impl Work {
    /// The pace of a load that this is.
    pub(super) fn pace(self: &Rc<Self>) -> Pace {
        let work = Rc::clone(self);
        Pace::new(move || work.rest_after_slice())
    }

    /// Rests if a slice is over, unless the compilation has rested enough or is to end.
    #[allow(clippy::disallowed_methods)] // the edge: the clock is used only for how long to wait
    fn rest_after_slice(&self) {
        let worked = Instant::now() - self.resumed.get();
        if worked < SLICE || self.is_stopping.load(Ordering::Relaxed) {
            return;
        }
        let left = REST_MAX.saturating_sub(self.rested.get());
        let rest = worked.mul_f64(self.rests).min(left);
        thread::sleep(rest);
        self.rested.set(self.rested.get() + rest);
        self.resumed.set(Instant::now());
    }
}

#[cfg(test)]
#[allow(clippy::disallowed_methods)] // measures real time
mod tests {
    use super::*;

    #[test]
    fn compiling_takes_a_tenth_of_the_time_and_a_change_is_delayed_by_five_seconds() {
        let now = Instant::now();
        let mut rest = Rest::with_quota(None);
        assert_eq!(rest.left(now), None);
        let millis = Duration::from_millis;
        for (worked, rested, expected) in
            [(20, 0, 180), (500, 0, 4500), (700, 0, 5000), (4000, 0, 5000), (20, 100, 80)]
        {
            let end = now + millis(worked + rested);
            rest.note_at(end, now, millis(rested));
            assert_eq!(rest.left(end), Some(millis(expected)));
        }
        assert_eq!(rest.left(now + Duration::from_secs(9)), None);
        rest.note_at(now + millis(200), now, millis(180));
        assert_eq!(rest.left(now + millis(200)), None, "it has rested all that it owes");
    }

    /// How long a compilation of so many slices rests.
    fn rested(quota: Option<f64>, slices: u32, is_stopping: bool) -> Duration {
        let rest = Rest::with_quota(quota);
        let work = rest.begin(&Arc::new(AtomicBool::new(is_stopping)));
        for _ in 0..slices {
            let began = Instant::now();
            while began.elapsed() < SLICE {
                work.rest_after_slice();
            }
            work.rest_after_slice();
        }
        assert!(work.began.elapsed() >= work.rested.get());
        work.rested.get()
    }

    #[test]
    fn a_compilation_takes_half_of_a_quota() {
        for (quota, times) in [(0.2, 9), (1.0, 1)] {
            let rested = rested(Some(quota), 20, false);
            assert!(rested >= 20 * SLICE * times, "{quota}: {rested:?}");
        }
        for quota in [None, Some(2.0), Some(8.0)] {
            assert_eq!(rested(quota, 20, false), Duration::ZERO);
        }
        assert_eq!(rested(Some(0.2), 20, true), Duration::ZERO);
    }
}
