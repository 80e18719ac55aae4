//! When a watch reads the rules. Used by the watch alone.

use std::time::Duration;

/// A change is complete once there has been no event for this long. Writing a file causes several
/// events.
const QUIET: Duration = Duration::from_millis(200);
/// If events do not stop, the rules are read after this long; this leaves time for them to be in
/// force within 1 s.
const SETTLE_MAX: Duration = Duration::from_millis(600);
/// The rules are read at least this often: network file systems send no events, and a kernel whose
/// queue overflows drops some.
const POLL: Duration = Duration::from_secs(30);

/// For a directory.
pub(super) const WATCHED: Timing = Timing { quiet: QUIET, settle_max: SETTLE_MAX, poll: POLL };
/// For sources that are pushed: whoever pushes one waits for what becomes of it, and nothing
/// changes without a wake-up.
pub(super) const PUSHED: Timing =
    Timing { quiet: Duration::ZERO, settle_max: Duration::ZERO, poll: Duration::MAX };

const _: () = assert!(QUIET.as_millis() < SETTLE_MAX.as_millis());

/// The timing of readings.
#[derive(Debug, Clone, Copy)]
pub(super) struct Timing {
    /// Without an event for this long, a change is complete.
    pub(super) quiet: Duration,
    /// However many events there are, no reading waits longer.
    pub(super) settle_max: Duration,
    /// Without an event, the next reading comes after this long.
    pub(super) poll: Duration,
}
