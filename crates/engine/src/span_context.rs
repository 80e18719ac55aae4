//! The tracing span that the present thread works for. Log lines and asks refer to it without
//! having it passed to them.

use std::cell::Cell;
use std::fmt;

use crate::rng;

thread_local! {
    /// `None` on nearly all threads nearly all of the time.
    static CURRENT: Cell<Option<SpanContext>> = const { Cell::new(None) };
}

/// Identifies a span: its trace's id and its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
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

/// Random bytes, not all of them zero. `N` is at most 16.
pub fn fresh_id<const N: usize>() -> [u8; N] {
    let mut id = [0; N];
    for part in id.chunks_mut(8) {
        let random = rng::next_u64().max(1).to_le_bytes();
        part.iter_mut().zip(random).for_each(|(byte, random)| *byte = random);
    }
    id
}

// === impl SpanContext ===

impl SpanContext {
    /// A new span of `trace`.
    pub fn fresh(trace: [u8; 16]) -> Self {
        Self { trace, span: fresh_id() }
    }

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

    #[test]
    fn ids_are_random_and_never_zero() {
        let ids: std::collections::HashSet<[u8; 16]> = (0..1000).map(|_| fresh_id()).collect();
        assert_eq!(ids.len(), 1000);
        assert!(!ids.contains(&[0; 16]));
    }
}
