//! The tracing span that the present thread works for. Log lines and asks refer to it without
//! having it passed to them.

use std::cell::Cell;
use std::fmt;

thread_local! {
    /// `None` on nearly all threads nearly all of the time.
    static CURRENT: Cell<Option<SpanContext>> = const { Cell::new(None) };
}

/// Identifies a span: its trace's id and its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SpanContext {
    /// The id that all spans of one trace share.
    pub trace: [u8; 16],
    /// The span's own id.
    pub span: [u8; 8],
}

/// An id in the notation of the standard.
#[derive(Debug, Clone, Copy)]
pub struct Hex<'a>(&'a [u8]);

/// Restores the previous span when dropped, after a panic too.
struct Before(Option<SpanContext>);

/// The span that the present thread works for, if that is traced.
#[inline]
pub fn current() -> Option<SpanContext> {
    CURRENT.get()
}

// === impl SpanContext ===

impl SpanContext {
    /// Runs `call` with this as [`current`] and returns its result.
    pub fn within<T>(self, call: impl FnOnce() -> T) -> T {
        let _before = Before(CURRENT.replace(Some(self)));
        call()
    }

    /// A context for tests.
    #[doc(hidden)]
    pub fn for_test(trace: u8, span: u8) -> Self {
        Self { trace: [trace; 16], span: [span; 8] }
    }

    /// The trace's id in hexadecimal digits.
    pub fn trace_id(&self) -> Hex<'_> {
        Hex(&self.trace)
    }

    /// The span's id in hexadecimal digits.
    pub fn span_id(&self) -> Hex<'_> {
        Hex(&self.span)
    }
}

// === impl Hex ===

impl fmt::Display for Hex<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

// === impl Before ===

impl Drop for Before {
    fn drop(&mut self) {
        CURRENT.set(self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_works_for_the_innermost_span_and_for_none_after_a_panic() {
        let [outer, inner] = [1, 2].map(|n| SpanContext::for_test(n, n));
        assert_eq!(current(), None);
        outer.within(|| {
            assert_eq!(inner.within(current), Some(inner));
            assert_eq!(current(), Some(outer));
            assert_eq!(std::thread::spawn(current).join().expect("no panic"), None);
        });
        let panicked = std::panic::catch_unwind(|| outer.within(|| panic!("by the test")));
        assert!(panicked.is_err());
        assert_eq!(current(), None);
    }

    #[test]
    fn ids_are_written_as_the_standard_writes_them() {
        let context = SpanContext::for_test(0x0a, 0xf1);
        assert_eq!(context.trace_id().to_string(), "0a".repeat(16));
        assert_eq!(context.span_id().to_string(), "f1".repeat(8));
    }
}
