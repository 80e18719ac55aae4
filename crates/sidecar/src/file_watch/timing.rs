//! When files are read again. Used by the watch of the rules and by that of the certificate.

use std::time::Duration;

/// A change is complete once there has been no event for this long. Writing a file causes several
/// events, and a certificate and its key may be written one after the other.
const QUIET: Duration = Duration::from_millis(200);
/// If events do not stop, the files are read after this long. A change is in force within 1 s.
const SETTLE_MAX: Duration = Duration::from_millis(600);
/// The files are read at least this often: network file systems send no events, and a kernel whose
/// queue overflows drops some.
const POLL: Duration = Duration::from_secs(30);

/// For files.
pub(crate) const WATCHED: Timing = Timing { quiet: QUIET, settle_max: SETTLE_MAX, poll: POLL };
/// For rules that a server sends. Each set comes with one wake-up, and its sender waits for the
/// outcome.
pub(crate) const PUSHED: Timing =
    Timing { quiet: Duration::ZERO, settle_max: Duration::ZERO, poll: Duration::MAX };

const _: () = assert!(QUIET.as_millis() < SETTLE_MAX.as_millis());

/// The timing of readings.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Timing {
    /// Without an event for this long, a change is complete.
    pub(crate) quiet: Duration,
    /// However many events there are, no reading waits longer.
    pub(crate) settle_max: Duration,
    /// Without an event, the next reading comes after this long.
    pub(crate) poll: Duration,
}
