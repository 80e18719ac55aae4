//! One row of the table: the limit, the mode, and the demand.

use std::time::Duration;

use crate::demand::Demand;

/// Number of pods that share each limit.
pub const PODS: usize = 4;

#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Cell {
    pub algorithm: Algorithm,
    pub limit: u32,
    pub spread: Spread,
    /// Requests, as a multiple of the limit.
    pub offered: f64,
    pub mode: Mode,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Algorithm {
    FixedWindow,
    TokenBucket,
    SlidingWindow,
    SlidingLog,
    LeakyBucket,
}

/// How the requests are distributed over the pods.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Spread {
    Balanced,
    /// One pod takes 60 %.
    Skewed,
    /// One pod takes 60 %, and which one changes.
    Moving,
}

/// How decisions are made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Mode {
    /// By leases, as the product does.
    Leased,
    /// By the product with `lease: off`: a round trip for each decision.
    Off,
    /// Count locally, report every 100 ms.
    ReportAfter,
}

/// Requests that a key admits in its window.
const LIMITS: [u32; 3] = [20, 1_000, 100_000];

/// From this limit on, cells run for less time, since they have enough decisions.
pub const LARGE: u32 = 100_000;

/// Demand, as a multiple of the limit.
const OFFERED: [f64; 3] = [0.95, 1.5, 5.0];

/// Shares of the pods in the demand where one pod is hot.
const HOT_WEIGHTS: [f64; PODS] = [0.6, 0.4 / 3.0, 0.4 / 3.0, 0.4 / 3.0];

/// How long a pod stays the hot one. No window is a multiple of it.
const MOVES_EVERY: Duration = Duration::from_millis(1_300);

/// Every cell.
pub fn all() -> Vec<Cell> {
    every().filter(Cell::is_measured).collect()
}

/// A few cells that show the trade-off, where one pod is hot.
pub fn quick() -> Vec<Cell> {
    let shown = |cell: &Cell| match (cell.limit, cell.mode) {
        // As many large cells as fit into one slot are shown.
        (LARGE.., Mode::Leased) => cell.offered == 1.5 && cell.algorithm != Algorithm::LeakyBucket,
        (LARGE.., _) => false,
        (_, Mode::Off) => cell.algorithm == Algorithm::FixedWindow,
        _ => true,
    };
    every().filter(|cell| cell.is_measured() && cell.is_skewed() && shown(cell)).collect()
}

/// Every cell, in the order of the table.
fn every() -> impl Iterator<Item = Cell> {
    let mut cells = Vec::new();
    for algorithm in Algorithm::ALL {
        for limit in LIMITS {
            for spread in [Spread::Balanced, Spread::Skewed, Spread::Moving] {
                for offered in OFFERED {
                    for mode in [Mode::Leased, Mode::Off, Mode::ReportAfter] {
                        cells.push(Cell { algorithm, limit, spread, offered, mode });
                    }
                }
            }
        }
    }
    cells.into_iter()
}

impl Cell {
    /// The other modes run on all cells of the fixed window, whose arithmetic report-after uses;
    /// for the other algorithms, `lease: off` runs where one pod is hot.
    fn is_measured(&self) -> bool {
        let exists = self.algorithm != Algorithm::SlidingLog || self.limit < LARGE;
        let fixed = self.algorithm == Algorithm::FixedWindow;
        let runs = match self.mode {
            Mode::Leased => true,
            // A log is never leased, so the row would be the same. And this machine's Redis cannot
            // serve 25 000 round trips a second beside the load.
            Mode::Off => {
                let small = self.limit < LARGE || self.offered < 2.0;
                fixed || (self.algorithm != Algorithm::SlidingLog && self.is_skewed() && small)
            }
            Mode::ReportAfter => fixed,
        };
        exists && runs
    }

    fn is_skewed(&self) -> bool {
        self.spread == Spread::Skewed
    }

    /// The name of the cell's count, and of its rule.
    pub fn key(&self) -> String {
        let Self { algorithm, limit, spread, offered, mode } = self;
        format!("{algorithm:?}-{limit}-{spread:?}-{offered}-{mode:?}")
    }

    /// The `rate_limit` of the cell, as in a rule file.
    pub fn rule(&self) -> String {
        let Self { limit, .. } = self;
        let algorithm = self.algorithm.name();
        let more = match self.algorithm {
            // A tenth, so that the rate matters more than the initial content of the bucket.
            Algorithm::TokenBucket => format!(", burst: {}", limit / 10),
            Algorithm::LeakyBucket => ", max_delay: 50ms".to_owned(),
            _ => String::new(),
        };
        let lease = if self.mode == Mode::Off { ", lease: off" } else { "" };
        format!(
            "unit: second, unit_multiplier: {}, requests_per_unit: {limit}, \
             algorithm: {algorithm}{more}{lease}",
            self.window().as_secs()
        )
    }

    /// Short where the limit is low, so that there are many windows; long where each decision is a
    /// round trip, so that Redis can keep up.
    pub fn window(&self) -> Duration {
        let seconds = match (self.limit, self.mode) {
            (..1_000, _) => 2,
            (LARGE.., Mode::Off) => 20 + 10 * u64::from(self.algorithm == Algorithm::FixedWindow),
            _ => 5,
        };
        Duration::from_secs(seconds)
    }

    /// Number of windows that it runs for. Sliding algorithms need a second window.
    pub fn windows(&self) -> u32 {
        match (self.limit, self.mode) {
            (..1_000, _) => 10,
            (..LARGE, _) => 4,
            (_, Mode::Off) if self.algorithm == Algorithm::FixedWindow => 1,
            _ => 2,
        }
    }

    /// How long it runs.
    pub fn length(&self) -> Duration {
        self.window() * self.windows()
    }

    pub fn demand(&self) -> Demand {
        let weights = match self.spread {
            Spread::Balanced => vec![1.0; PODS],
            Spread::Skewed | Spread::Moving => HOT_WEIGHTS.to_vec(),
        };
        let moves_every = (self.spread == Spread::Moving).then_some(MOVES_EVERY);
        Demand { rate: self.rate(), weights, moves_every }
    }

    /// The load on this machine, in plain decisions a second. A leaky bucket's answers wait for
    /// their slots, each with a timer of its own.
    pub fn load(&self) -> f64 {
        let weight = if self.algorithm == Algorithm::LeakyBucket { 3.0 } else { 1.0 };
        weight * self.rate()
    }

    /// Requests a second.
    pub fn rate(&self) -> f64 {
        self.offered * f64::from(self.limit) / self.window().as_secs_f64()
    }
}

impl Algorithm {
    pub const ALL: [Self; 5] = [
        Self::FixedWindow,
        Self::TokenBucket,
        Self::SlidingWindow,
        Self::SlidingLog,
        Self::LeakyBucket,
    ];

    /// The name in a rule file.
    pub fn name(self) -> &'static str {
        match self {
            Self::FixedWindow => "fixed_window",
            Self::TokenBucket => "token_bucket",
            Self::SlidingWindow => "sliding_window",
            Self::SlidingLog => "sliding_log",
            Self::LeakyBucket => "leaky_bucket",
        }
    }
}

impl Spread {
    pub fn name(self) -> &'static str {
        match self {
            Self::Balanced => "balanced",
            Self::Skewed => "one pod 60 %",
            Self::Moving => "moving 60 %",
        }
    }
}

impl Mode {
    pub const ALL: [Self; 3] = [Self::Leased, Self::Off, Self::ReportAfter];

    pub fn name(self) -> &'static str {
        match self {
            Self::Leased => "leased",
            Self::Off => "lease: off",
            Self::ReportAfter => "report-after",
        }
    }
}
