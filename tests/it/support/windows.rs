//! Where the wall clock stands in a window. The servers of a test run on this machine and have the
//! same clock.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Maximum duration of a test whose limits are of days.
const TEST_MAX: Duration = Duration::from_secs(60);

const DAY: Duration = Duration::from_secs(86_400);

/// The wall clock, since the Unix epoch.
pub(crate) fn wall_clock() -> Duration {
    #[allow(clippy::disallowed_methods, reason = "windows are the wall clock's")]
    SystemTime::now().duration_since(UNIX_EPOCH).expect("a date after 1970")
}

/// How far the present window of this length has run.
pub(crate) fn into_window(length: Duration) -> Duration {
    let into = wall_clock().as_nanos() % length.as_nanos();
    Duration::from_nanos(u64::try_from(into).expect("less than a length"))
}

/// Returns once a window of this length has at least `rest` left.
pub(crate) async fn early_in_a_window(length: Duration, rest: Duration) {
    let into = into_window(length);
    if into + rest > length {
        println!("waits {:?} for a window to end", length - into);
        tokio::time::sleep(length - into).await;
    }
}

/// Waits for the end of the day by UTC, as Redis counts it, if the day would end during the test.
pub(crate) async fn clear_of_midnight() {
    early_in_a_window(DAY, TEST_MAX).await;
}
