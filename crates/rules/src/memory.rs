//! The memory of a load, counted before it is allocated.
//!
//! Memory is taken from a budget before the compiler allocates it, by the sizes that vectors and
//! tables will really have. So a load never exceeds its budget, whatever its text, and its use is
//! known afterwards. `tests/rule_memory.rs` compares the count with the allocator.

use std::cell::Cell;
use std::fmt;
use std::rc::Rc;

/// The memory of a load, in bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct MemoryUse {
    /// Maximum while it was compiled, with the rules and without the texts of the sources.
    pub peak: usize,
    /// Bytes that the rules keep.
    pub held: usize,
}

/// A function that a load calls again and again while it works, so that its caller can rest. By
/// default there is none.
#[derive(Clone, Default)]
pub struct Pace(Option<Rc<dyn Fn()>>);

/// The bounds of a load.
#[derive(Debug, Clone)]
pub struct LoadBounds {
    /// Bytes that it may take, without the texts of the sources.
    pub memory: usize,
    /// How it goes on.
    pub pace: Pace,
}

/// The budget of a load, and the bytes taken from it.
#[derive(Debug)]
pub(crate) struct Memory {
    max: usize,
    pace: Pace,
    /// How often something was taken.
    steps: Cell<u32>,
    held: Cell<usize>,
    peak: Cell<usize>,
    is_exceeded: Cell<bool>,
}

/// So many allocations are one step of the pace: some 10 µs of work.
const STEP: u32 = 64;

/// Maximum bytes that the allocator adds to a small allocation.
const ROUNDING: usize = 16;

/// Bytes of the counters of an `Arc`.
pub(crate) const ARC: usize = 16;

// === impl Pace ===

impl Pace {
    /// Calls this after each small part of the work, on the thread of the load.
    pub fn new(step: impl Fn() + 'static) -> Self {
        Self(Some(Rc::new(step)))
    }
}

impl fmt::Debug for Pace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Pace").field(&self.0.is_some()).finish()
    }
}

// === impl LoadBounds ===

impl From<usize> for LoadBounds {
    /// So much memory, at full pace.
    fn from(memory: usize) -> Self {
        Self { memory, pace: Pace::default() }
    }
}

// === impl Memory ===

impl Memory {
    pub(crate) fn new(LoadBounds { memory: max, pace }: LoadBounds) -> Self {
        let held = Cell::new(0);
        let peak = Cell::new(0);
        Self { max, pace, steps: Cell::default(), held, peak, is_exceeded: Cell::new(false) }
    }

    /// Takes `bytes`; `None` if there are not so many, and from then on.
    pub(crate) fn take(&self, bytes: usize) -> Option<()> {
        let held = self.held.get().saturating_add(bytes);
        if held > self.max || self.is_exceeded.get() {
            self.is_exceeded.set(true);
            return None;
        }
        self.held.set(held);
        self.peak.set(self.peak.get().max(held));
        self.keep_pace();
        Some(())
    }

    fn keep_pace(&self) {
        let Pace(Some(step)) = &self.pace else { return };
        let steps = self.steps.get() % STEP + 1;
        self.steps.set(steps);
        if steps == STEP {
            step();
        }
    }

    /// Returns `bytes` that were taken and are free again.
    pub(crate) fn give_back(&self, bytes: usize) {
        self.held.set(self.held.get().saturating_sub(bytes));
    }

    /// Takes `bytes` that are needed for a moment, and returns them at once: only the peak rises.
    pub(crate) fn pass(&self, bytes: usize) -> Option<()> {
        self.take(bytes)?;
        self.give_back(bytes);
        Some(())
    }

    /// Takes an allocation of its own with so many bytes; none needs none.
    pub(crate) fn take_box(&self, bytes: usize) -> Option<()> {
        self.take(boxed(bytes))
    }

    /// Adds an item to a vector, whose growth is taken.
    pub(crate) fn push<T>(&self, list: &mut Vec<T>, item: T) -> Option<()> {
        self.take_growth(list)?;
        list.push(item);
        Some(())
    }

    /// Takes the growth of a vector that is to have one more item.
    pub(crate) fn take_growth<T>(&self, list: &Vec<T>) -> Option<()> {
        if list.len() < list.capacity() {
            return Some(());
        }
        let old = list.capacity() * size_of::<T>();
        self.take(usize::max(2 * old, 4 * size_of::<T>()))?;
        self.give_back(old);
        Some(())
    }

    /// Releases the unused capacity of a vector whose growth was taken.
    pub(crate) fn shrink<T>(&self, list: &mut Vec<T>) {
        let before = list.capacity();
        list.shrink_to_fit();
        self.give_back((before - list.capacity()) * size_of::<T>());
    }

    /// Takes the growth of a table of this length and capacity, whose entries have `entry` bytes,
    /// and that is to have `more` of them.
    pub(crate) fn take_table(
        &self,
        (len, capacity): (usize, usize),
        entry: usize,
        more: usize,
    ) -> Option<()> {
        if len + more <= capacity {
            return Some(());
        }
        self.take(table_bytes(usize::max(len + more, capacity + 1), entry))?;
        self.give_back(table_bytes(capacity, entry));
        Some(())
    }

    pub(crate) fn is_exceeded(&self) -> bool {
        self.is_exceeded.get()
    }

    /// Returns the bytes that may still be taken.
    pub(crate) fn left(&self) -> usize {
        self.max - self.held.get()
    }

    /// Returns the bytes that are taken now.
    pub(crate) fn held(&self) -> usize {
        self.held.get()
    }

    pub(crate) fn used(&self) -> MemoryUse {
        MemoryUse { peak: self.peak.get(), held: self.held.get() }
    }

    /// Why a load is refused.
    pub(crate) fn refusal(&self) -> String {
        format!(
            "the rules need more than {:.1} MiB of memory while they are loaded, which is all that \
             is left for them; load fewer rules, or raise the memory limit of this process",
            mib(self.max)
        )
    }
}

impl Default for Memory {
    /// Without a limit.
    fn default() -> Self {
        Self::new(usize::MAX.into())
    }
}

/// An allocation of its own with so many bytes.
pub(crate) const fn boxed(bytes: usize) -> usize {
    if bytes == 0 { 0 } else { bytes.next_multiple_of(ROUNDING) }
}

/// Bytes of a hash table for `capacity` entries, which has a byte of control for each place, and at
/// most seven eighths of its places in use.
pub(crate) fn table_bytes(capacity: usize, entry: usize) -> usize {
    let places = match capacity {
        0 => return 0,
        1..=3 => 4,
        4..=7 => 8,
        _ => (capacity * 8 / 7).next_power_of_two(),
    };
    places * (entry + 1) + ROUNDING + ROUNDING
}

#[allow(clippy::cast_precision_loss, reason = "shown with one decimal")]
fn mib(bytes: usize) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}
