//! When a connection is cut off, whatever its client does: if its preface is late, and at its age.

use std::future::{Future, pending};
use std::pin::Pin;
use std::task::Context;
use std::time::Duration;

use tokio::time::{Instant, Sleep, sleep};

/// Maximum time for a client to send as many bytes as the preface of HTTP/2 has.
pub(super) const PREFACE_MAX: Duration = Duration::from_secs(10);

/// The deadline of the preface, and then of the connection's age.
#[derive(Debug)]
pub(super) struct Deadline {
    /// `None` if there is no deadline any more.
    sleep: Option<Pin<Box<Sleep>>>,
    max_age: Option<Duration>,
    /// The second of the connection in which the timer was last polled.
    polled: Option<u32>,
}

// === impl Deadline ===

impl Deadline {
    /// The deadline of the preface of a connection that has just been accepted, and which is cut
    /// off at `max_age`. It must be called in a runtime.
    pub(super) fn of_preface(max_age: Option<Duration>) -> Self {
        Self { sleep: Some(Box::pin(sleep(PREFACE_MAX))), max_age, polled: None }
    }

    /// Makes it the deadline of the connection's age, once the preface has arrived.
    pub(super) fn note_preface(&mut self) {
        let of_age = |(mut sleep, max_age): (Pin<Box<Sleep>>, _)| {
            let accepted: Instant = sleep.deadline() - PREFACE_MAX;
            sleep.as_mut().reset(accepted.checked_add(max_age)?);
            Some(sleep)
        };
        self.sleep = self.sleep.take().zip(self.max_age).and_then(of_age);
        self.polled = None;
    }

    /// Whether it has passed in this `second` of the connection. If not, the task of `cx` is woken
    /// when it does. A connection is read from several times for each call: the timer, which a
    /// poll locks, is polled once a second only.
    pub(super) fn has_passed(&mut self, second: u32, cx: &mut Context<'_>) -> bool {
        let Some(sleep) = &mut self.sleep else { return false };
        if self.polled.replace(second) == Some(second) {
            return sleep.is_elapsed();
        }
        sleep.as_mut().poll(cx).is_ready()
    }

    /// Returns once it has passed.
    pub(super) async fn passes(&mut self) {
        match &mut self.sleep {
            Some(sleep) => sleep.as_mut().await,
            None => pending().await,
        }
    }

    #[cfg(test)]
    pub(super) fn is_none(&self) -> bool {
        self.sleep.is_none()
    }
}
