//! Logging of outages: one line when an outage begins, and one when it ends.

/// Whether a part of the store is in an outage, so that only its two ends are logged.
#[derive(Debug, Default)]
pub(super) struct LogOnce {
    begun: bool,
}

// === impl LogOnce ===

impl LogOnce {
    /// Whether this failure is the first of an outage.
    pub(super) fn begins(&mut self) -> bool {
        !std::mem::replace(&mut self.begun, true)
    }

    /// Whether this success ends an outage.
    pub(super) fn ends(&mut self) -> bool {
        std::mem::replace(&mut self.begun, false)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_outage_has_one_beginning_and_one_end() {
        let mut outage = LogOnce::default();
        assert!(!outage.ends());
        assert!(outage.begins());
        assert!(!outage.begins());
        assert!(outage.ends());
        assert!(!outage.ends());
    }
}
