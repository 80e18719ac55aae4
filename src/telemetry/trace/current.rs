//! Which span the present thread works for: what is told on the way, a line of the log or an ask,
//! names it without being handed it.

use std::cell::Cell;
use std::fmt;

use super::context;

thread_local! {
    /// `None` on all threads nearly all of the time.
    static CURRENT: Cell<Option<Context>> = const { Cell::new(None) };
}

/// What names a span to others: its trace's id and its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Context {
    pub(super) trace: [u8; 16],
    pub(super) span: [u8; 8],
}

/// An id as the standard writes it.
#[derive(Debug, Clone, Copy)]
pub(in crate::telemetry) struct Hex<'a>(&'a [u8]);

/// Puts back what was there before, after a panic too.
struct Before(Option<Context>);

/// The span that the present thread works for, if that is traced.
pub fn current() -> Option<Context> {
    CURRENT.get()
}

// === impl Context ===

impl Context {
    /// A new span of `trace`.
    pub(super) fn fresh(trace: [u8; 16]) -> Self {
        Self { trace, span: context::fresh_id() }
    }

    /// What `call` comes to; meanwhile this is [`current`].
    pub(in crate::telemetry) fn within<T>(self, call: impl FnOnce() -> T) -> T {
        let _before = Before(CURRENT.replace(Some(self)));
        call()
    }

    #[cfg(test)]
    pub(in crate::telemetry) fn for_test(trace: u8, span: u8) -> Self {
        Self { trace: [trace; 16], span: [span; 8] }
    }

    pub(in crate::telemetry) fn trace_id(&self) -> Hex<'_> {
        Hex(&self.trace)
    }

    pub(in crate::telemetry) fn span_id(&self) -> Hex<'_> {
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
        let [outer, inner] = [1, 2].map(|n| Context::for_test(n, n));
        assert_eq!(current(), None);
        outer.within(|| {
            assert_eq!(inner.within(current), Some(inner));
            assert_eq!(current(), Some(outer));
            assert_eq!(std::thread::spawn(current).join().expect("no panic"), None);
        });
        let panicked = std::panic::catch_unwind(|| outer.within(|| panic!("told to")));
        assert!(panicked.is_err());
        assert_eq!(current(), None);
    }

    #[test]
    fn ids_are_written_as_the_standard_writes_them() {
        let context = Context::for_test(0x0a, 0xf1);
        assert_eq!(context.trace_id().to_string(), "0a".repeat(16));
        assert_eq!(context.span_id().to_string(), "f1".repeat(8));
    }
}
