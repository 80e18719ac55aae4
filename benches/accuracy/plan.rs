//! The schedule: which cells run at the same time, and when.

use std::time::Duration;

use crate::cell::{Cell, LARGE, Mode};

/// Slots, one after the other.
pub struct Plan {
    pub slots: Vec<Slot>,
}

/// Cells that begin together and take equally long, each with a key of its own.
pub struct Slot {
    pub cells: Vec<Cell>,
}

/// Maximum decisions a second of concurrent cells, so that neither of two cores is always busy. A
/// lone cell may exceed the maximum.
const DECISIONS_MAX: f64 = 120_000.0;

/// Maximum decisions a second of concurrent cells with smaller limits, whose decisions go to Redis
/// more often.
const DECISIONS_OF_SMALL_LIMITS_MAX: f64 = 12_000.0;

/// Maximum decisions a second of concurrent cells that make a round trip for each decision. Round
/// trips to Redis cost far more than local decisions.
const TRIPS_MAX: f64 = 20_000.0;

/// Maximum decisions a second of such cells with smaller limits.
const TRIPS_OF_SMALL_LIMITS_MAX: f64 = 6_000.0;

impl Plan {
    pub fn new(mut cells: Vec<Cell>) -> Self {
        // The largest first, each into the first slot that has room.
        cells.sort_by(|a, b| b.load().total_cmp(&a.load()));
        let mut slots: Vec<Slot> = Vec::new();
        for cell in cells {
            match slots.iter_mut().find(|slot| slot.takes(&cell)) {
                Some(slot) => slot.cells.push(cell),
                None => slots.push(Slot { cells: vec![cell] }),
            }
        }
        // Slots whose windows are multiples of one another begin without a wait.
        slots.sort_by_key(|slot| (slot.window(), slot.length()));
        Self { slots }
    }

    pub fn cells(&self) -> usize {
        self.slots.iter().map(|slot| slot.cells.len()).sum()
    }

    /// The total duration, if the first window begins now.
    pub fn length(&self) -> Duration {
        let start = Duration::ZERO;
        self.starts(start).last().map_or(start, |(start, slot)| start + slot.length())
    }

    /// The start of each slot: when a window of each of its cells begins, at or after `time`, which
    /// is since the Unix epoch.
    pub fn starts(&self, mut time: Duration) -> impl Iterator<Item = (Duration, &Slot)> {
        self.slots.iter().map(move |slot| {
            let window = slot.window().as_secs();
            let seconds = (time.as_secs() + u64::from(time.subsec_nanos() > 0)).div_ceil(window);
            let start = Duration::from_secs(seconds * window);
            time = start + slot.length();
            (start, slot)
        })
    }
}

impl Slot {
    pub fn length(&self) -> Duration {
        self.cells.iter().map(Cell::length).max().unwrap_or_default()
    }

    /// Requests a second.
    pub fn rate(&self) -> f64 {
        self.cells.iter().map(Cell::rate).sum()
    }

    /// A multiple of every cell's window.
    fn window(&self) -> Duration {
        let seconds = self.cells.iter().map(|cell| cell.window().as_secs());
        let multiple = seconds.fold(1, |all, one| all / greatest_common_divisor(all, one) * one);
        Duration::from_secs(multiple)
    }

    fn takes(&self, cell: &Cell) -> bool {
        let alike = |other: &Cell| {
            let small = |cell: &Cell| cell.limit < LARGE;
            other.mode == cell.mode
                && other.length() == cell.length()
                && small(other) == small(cell)
        };
        let most = match (cell.mode, cell.limit) {
            (Mode::Off, LARGE..) => TRIPS_MAX,
            (Mode::Off, _) => TRIPS_OF_SMALL_LIMITS_MAX,
            (_, LARGE..) => DECISIONS_MAX,
            _ => DECISIONS_OF_SMALL_LIMITS_MAX,
        };
        let load: f64 = self.cells.iter().map(Cell::load).sum();
        self.cells.iter().all(alike) && load + cell.load() <= most
    }
}

fn greatest_common_divisor(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { greatest_common_divisor(b, a % b) }
}
