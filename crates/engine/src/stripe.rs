//! Assigns threads to stripes, so that threads write to separate cache lines.

use std::cell::Cell;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The next thread's number.
static NEXT: AtomicUsize = AtomicUsize::new(0);

const UNKNOWN: usize = usize::MAX;

thread_local! {
    static MINE: Cell<usize> = const { Cell::new(UNKNOWN) };
}

/// The number of this thread; its remainder selects a stripe. Threads are numbered from 0 in the
/// order of their first call, so that up to as many threads as there are stripes share none.
#[inline]
pub fn mine() -> usize {
    let mine = MINE.get();
    if mine == UNKNOWN { number() } else { mine }
}

#[cold]
fn number() -> usize {
    let mine = NEXT.fetch_add(1, Ordering::Relaxed);
    MINE.set(mine);
    mine
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_keeps_its_number_and_no_other_has_it() {
        let numbers = || [mine(), mine()];
        let [one, other] = [(); 2].map(|()| std::thread::spawn(numbers).join().unwrap());
        assert_eq!((one[0], other[0]), (one[1], other[1]));
        assert_ne!(one, other);
    }
}
