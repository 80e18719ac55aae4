//! The time by the database's clock. The clocks of replicas differ, so a replica compares the times
//! that another one wrote with this time and never with its own clock.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use parking_lot::Mutex;
use ratelease_engine::time::{Clock, Time};

use super::{Backend, Store, StoreResult};

/// Maximum time of a reading. A slower reading counts only if there is no other one of the last
/// [`FRESH`]. It is wrong by half of its time at most.
const READING_MAX: Duration = Duration::from_millis(500);

/// How long a reading counts: the monotonic clock differs from the database's by milliseconds then.
const FRESH: Duration = Duration::from_secs(60);

/// Steps back that are waited for instead of taken, in milliseconds: readings differ by as much.
const BACK_MAX: i64 = 1000;

/// The time by the database's clock: the last reading, advanced by the monotonic clock of this
/// process. With SQLite it is the clock of this machine. A cheap handle: clones share all state.
#[derive(Debug, Clone)]
pub struct DatabaseClock(Option<Arc<Readings>>);

#[derive(Debug)]
struct Readings {
    clock: Clock,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// The last reading: the database's time, in milliseconds since the Unix epoch, and when.
    read: Option<(i64, Time)>,
    /// The latest time that was told.
    told: i64,
}

// === impl DatabaseClock ===

impl DatabaseClock {
    /// A clock that was not read yet.
    pub fn new(backend: Backend) -> Self {
        let readings = || Readings { clock: Clock::start(), state: Mutex::default() };
        Self((backend == Backend::Postgres).then(|| Arc::new(readings())))
    }

    /// The time in milliseconds since the Unix epoch. If the database's clock was never read, it is
    /// the time of this machine.
    pub fn now(&self) -> i64 {
        match &self.0 {
            Some(readings) => readings.state.lock().tell(readings.clock.now()),
            None => Timestamp::now().as_millisecond(),
        }
    }
}

// === impl State ===

impl State {
    /// Takes a reading that was asked for and answered at these times.
    fn take(&mut self, read: i64, asked: Time, answered: Time) {
        let took = answered.since(asked);
        let is_fresh = self.read.is_some_and(|(_, at)| answered.since(at) < FRESH);
        if took <= READING_MAX || !is_fresh {
            self.read = Some((read, asked + took / 2));
        }
    }

    /// The time now.
    fn tell(&mut self, now: Time) -> i64 {
        let Some((read, at)) = self.read else { return Timestamp::now().as_millisecond() };
        let passed = i64::try_from(now.since(at).as_millis()).unwrap_or(i64::MAX);
        let time = read.saturating_add(passed);
        if time < self.told && self.told - time < BACK_MAX {
            return self.told;
        }
        self.told = time;
        time
    }
}

// === impl Store ===

impl Store {
    /// The time by the database's clock, in milliseconds since the Unix epoch.
    pub fn now(&self) -> i64 {
        self.clock.now()
    }

    /// The clock of the database.
    pub fn clock(&self) -> DatabaseClock {
        self.clock.clone()
    }

    /// Reads the clock of the database, by which [`now`](Self::now) goes on.
    ///
    /// # Errors
    /// Fails if the database is not available.
    pub async fn read_clock(&self) -> StoreResult<()> {
        let Some(readings) = &self.clock.0 else { return Ok(()) };
        let mut connection = self.pool.acquire().await?; // the wait is no part of the reading
        let asked = readings.clock.now();
        let sql = sqlx::AssertSqlSafe(format!("SELECT {}", self.backend.clock()));
        let (read,): (i64,) = sqlx::query_as(sql).fetch_one(&mut *connection).await?;
        readings.state.lock().take(read, asked, readings.clock.now());
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: u64) -> Time {
        Time::default() + Duration::from_millis(millis)
    }

    #[test]
    fn the_time_goes_on_from_the_last_reading_and_follows_the_next_one() {
        let mut state = State::default();
        state.take(1_000_000, at(100), at(120));
        assert_eq!((state.tell(at(120)), state.tell(at(3110))), (1_000_010, 1_003_000));
        state.take(1_004_000, at(3500), at(3500));
        assert_eq!(state.tell(at(3600)), 1_004_100);
        // Another server answers, whose clock is an hour ahead, and then the first one again.
        state.take(4_604_000, at(4000), at(4000));
        assert_eq!(state.tell(at(4000)), 4_604_000);
        state.take(1_005_000, at(5000), at(5000));
        assert_eq!(state.tell(at(5000)), 1_005_000);
    }

    #[test]
    fn readings_that_differ_a_little_do_not_turn_the_time_back() {
        let mut state = State::default();
        state.take(1000, at(0), at(0));
        assert_eq!(state.tell(at(500)), 1500);
        state.take(1400, at(500), at(500));
        assert_eq!(
            (state.tell(at(500)), state.tell(at(550)), state.tell(at(700))),
            (1500, 1500, 1600)
        );
    }

    #[test]
    fn a_slow_reading_counts_only_without_a_fresh_one() {
        let mut state = State::default();
        state.take(1000, at(0), at(0));
        state.take(90_000, at(1000), at(9000));
        assert_eq!(state.tell(at(9000)), 10_000);
        state.take(90_000, at(60_000), at(62_000));
        assert_eq!(state.tell(at(62_000)), 91_000);
    }
}
