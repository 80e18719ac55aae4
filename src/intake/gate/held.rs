//! Room for the parts of messages that are not whole yet: so many bytes for all calls together,
//! whatever each of them may take.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::{Gate, Refusal, Shared};

/// Bytes of messages that are being read, of all calls together, at most. `MAX_IN_FLIGHT` calls
/// (4096) may have 8 KiB each, and Envoy's messages take a few hundred bytes. Without it as many
/// calls could have all the bytes that one message may have, which is gigabytes.
const HELD_BYTES_MAX: usize = 32 * 1024 * 1024;

/// What one call has read of its message. Dropped, it counts no more.
#[derive(Debug)]
pub struct Held {
    shared: Arc<Shared>,
    bytes: usize,
}

// === impl Gate ===

impl Gate {
    /// Nothing held yet.
    pub(in crate::intake) fn hold(&self) -> Held {
        Held { shared: Arc::clone(&self.shared), bytes: 0 }
    }
}

// === impl Held ===

impl Held {
    /// Counts `bytes` more.
    ///
    /// # Errors
    ///
    /// There is no room for them ([`Refusal::NoRoom`]); it has counted the call as shed.
    pub fn take(&mut self, bytes: usize) -> Result<(), Refusal> {
        self.bytes = self.bytes.saturating_add(bytes);
        let before = self.shared.held.fetch_add(bytes, Ordering::Relaxed);
        if before.saturating_add(bytes) <= HELD_BYTES_MAX {
            return Ok(());
        }
        self.shared.shed.fetch_add(1, Ordering::Relaxed);
        Err(Refusal::NoRoom)
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.shared.held.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_all_calls_hold_is_bounded_and_comes_back() {
        let gate = Gate::new(10);
        let (mut one, mut other) = (gate.hold(), gate.hold());
        for _ in 0..2 {
            assert_eq!(one.take(HELD_BYTES_MAX / 2), Ok(()));
        }
        assert_eq!(other.take(1), Err(Refusal::NoRoom));
        assert_eq!(gate.counts()[1], ("shed", 1));
        drop(one);
        assert_eq!(other.take(HELD_BYTES_MAX - 1), Ok(()), "one byte is held already");
        drop(other);
        assert_eq!(gate.shared.held.load(Ordering::Relaxed), 0);
    }
}
