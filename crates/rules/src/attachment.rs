//! A value that the program keeps with a rule, such as the rule's meter.
//!
//! The slot is type-erased, so that this crate does not depend on the code that stores the value.

use std::any::Any;
use std::fmt;
use std::sync::{Arc, OnceLock};

/// A slot for one value, which is set on first use and never replaced. Comparing rules ignores the
/// slot, and copying a rule does not copy it.
#[derive(Default)]
pub struct Attachment(OnceLock<Arc<dyn Any + Send + Sync>>);

// === impl Attachment ===

impl Attachment {
    /// Returns the value; the first call makes it with `make`. Returns `None` if a value of another
    /// type was stored first.
    #[inline]
    pub fn get_or_init<T: Any + Send + Sync>(&self, make: impl FnOnce() -> Arc<T>) -> Option<&T> {
        let value = self.0.get_or_init(|| {
            let value: Arc<dyn Any + Send + Sync> = make();
            value
        });
        value.downcast_ref()
    }
}

impl fmt::Debug for Attachment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Attachment")
    }
}

impl Clone for Attachment {
    fn clone(&self) -> Self {
        Self::default()
    }
}

impl PartialEq for Attachment {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_value_stays_and_makes_no_difference_between_rules() {
        let attachment = Attachment::default();
        assert_eq!(attachment.get_or_init(|| Arc::new(1_u32)), Some(&1));
        assert_eq!(attachment.get_or_init(|| Arc::new(2_u32)), Some(&1));
        assert_eq!(attachment.get_or_init(|| Arc::new("two")), None, "another type");
        let copy = attachment.clone();
        assert!(attachment == copy);
        assert!(attachment.0.get().is_some() && copy.0.get().is_none());
    }
}
