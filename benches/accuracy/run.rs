//! Runs the plan: every cell at its time, on four pods that all cells share.

use std::future::ready;
use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use ratelease_rules::Limit;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, sleep_until};

use crate::cell::{Cell, Mode, PODS};
use crate::drive::{Answer, Said, count, drive};
use crate::fleet::Fleet;
use crate::oracle::Exact;
use crate::plan::{Plan, Slot};
use crate::progress::{self, Stage};
use crate::report_after::ReportAfter;
use crate::support::redis::Cluster;

/// The measurements of all cells.
pub struct Outcome {
    pub seed: u64,
    /// Rows in the order of the table.
    pub rows: Vec<Row>,
    /// Asks that left the pods, and calls of scripts by Redis's own count, including heartbeats and
    /// repeats after NOSCRIPT: a check of the counting.
    pub asks: u64,
    pub scripts: u64,
    /// The total duration.
    pub length: Duration,
}

/// The measurements of one cell.
#[derive(Debug, Clone, Copy)]
pub struct Row {
    pub cell: Cell,
    pub offered: u64,
    pub admitted: u64,
    /// The requests, of those that were sent, that one exact server would have admitted.
    pub exact: u64,
    pub failed: u64,
    pub commands: u64,
    /// Time from the request to the answer.
    pub median: Duration,
    pub p99: Duration,
    /// Decisions a second of all cells that ran at the same time, including this one.
    pub beside: f64,
}

/// The product's default.
const MAX_WAIT: Duration = Duration::from_millis(5);

/// No request is sent this close to the end, so that none is counted in the next window.
const END_MARGIN: Duration = Duration::from_millis(30);

/// More than enough time for the pods to give tokens back once a key is idle.
const IDLE_MARGIN: Duration = Duration::from_millis(1_500);

/// The offset between the wall clock and the runtime's clock.
#[derive(Clone, Copy)]
struct Epoch {
    instant: Instant,
    wall: Duration,
}

pub async fn run(plan: &Plan, seed: u64) -> Outcome {
    let cluster = Arc::new(Cluster::start(3, 1));
    let cells = || plan.slots.iter().flat_map(|slot| &slot.cells);
    let rules: Vec<_> = cells().map(|cell| (cell.key(), cell.rule())).collect();
    let fleet = Arc::new(Fleet::start(&cluster, "bench", PODS, &rules, MAX_WAIT).await);
    let epoch = Epoch::now();
    let scripts = scripts_run(&cluster);

    let soon = epoch.wall + Duration::from_millis(200);
    let (mut running, mut stages, mut end) = (JoinSet::new(), Vec::new(), epoch.instant);
    for (start, slot) in plan.starts(soon) {
        end = epoch.at(start) + slot.length();
        stages.push(Stage { from: epoch.at(start), says: describe(slot) });
        for &cell in &slot.cells {
            let stand = Stand { cell, start, epoch, seed, beside: slot.rate() };
            running.spawn(stand.run(Arc::clone(&fleet), Arc::clone(&cluster)));
        }
    }
    let first = stages.first().map_or(end, |stage| stage.from);
    progress::tell(stages, first, end).await;
    let mut rows = running.join_all().await;
    sleep(IDLE_MARGIN).await;
    for row in rows.iter_mut().filter(|row| row.cell.mode != Mode::ReportAfter) {
        row.commands = fleet.asks(&row.cell.key());
    }
    rows.sort_by(|a, b| order(&a.cell).partial_cmp(&order(&b.cell)).unwrap());
    let scripts = scripts_run(&cluster) - scripts;
    Outcome { seed, rows, asks: fleet.all_asks(), scripts, length: end - epoch.instant }
}

fn order(cell: &Cell) -> impl PartialOrd + use<> {
    (cell.algorithm, cell.limit, cell.spread, cell.offered, cell.mode)
}

fn describe(slot: &Slot) -> String {
    let Slot { cells } = slot;
    let (mode, rate) = (cells.first().map_or("", |cell| cell.mode.name()), slot.rate());
    format!("{} cells, {mode}, {rate:.0} decisions a second", cells.len())
}

fn scripts_run(cluster: &Cluster) -> u64 {
    cluster.calls("evalsha") + cluster.calls("eval")
}

/// One cell with everything that it needs to run.
struct Stand {
    cell: Cell,
    /// Start, as time since the Unix epoch.
    start: Duration,
    epoch: Epoch,
    seed: u64,
    beside: f64,
}

impl Stand {
    async fn run(self, fleet: Arc<Fleet>, cluster: Arc<Cluster>) -> Row {
        let Self { cell, start, epoch, seed, .. } = self;
        let (end, key) = (cell.length() - END_MARGIN, cell.key());
        let limit = fleet.limit(&key);
        let start_instant = epoch.at(start);
        // Every mode of a cell gets the same requests.
        let arrivals = cell.demand().arrivals(seed_of(seed, &cell), cell.length());
        if cell.mode == Mode::ReportAfter {
            sleep_until(start_instant - Duration::from_millis(500)).await;
            let pods = ReportAfter::new(&cluster, &cell, start_instant, start).await;
            let reporting = pods.report();
            let decide = |pod| ready(pods.decide(pod));
            let answers = drive(arrivals, start_instant, end, decide).await;
            drop(reporting);
            Row { commands: pods.commands(), ..self.row(limit, &answers) }
        } else {
            let decide = |pod| fleet.decide(pod, &key);
            let answers = drive(arrivals, start_instant, end, decide).await;
            self.row(limit, &answers)
        }
    }

    fn row(&self, limit: Limit, answers: &[Answer]) -> Row {
        let mut exact = Exact::new(limit);
        let passing = answers.iter().filter(|answer| exact.admits(self.start + answer.issued));
        let exact = passing.count() as u64;
        let mut waits: Vec<_> = answers.iter().map(|it| it.answered - it.issued).collect();
        Row {
            cell: self.cell,
            offered: answers.len() as u64,
            admitted: count(answers, Said::Admitted),
            exact,
            failed: count(answers, Said::Failed),
            commands: 0,
            median: quantile(&mut waits, 50),
            p99: quantile(&mut waits, 99),
            beside: self.beside,
        }
    }
}

/// The seed of a cell; all modes of the cell have the same.
fn seed_of(seed: u64, cell: &Cell) -> u64 {
    let parts = [cell.algorithm as u64, u64::from(cell.limit), cell.spread as u64];
    parts.iter().fold(seed ^ cell.offered.to_bits(), |seed, part| {
        (seed ^ part).wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(29)
    })
}

fn quantile(waits: &mut [Duration], percent: usize) -> Duration {
    let at = (waits.len() * percent / 100).min(waits.len().saturating_sub(1));
    if waits.is_empty() { Duration::ZERO } else { *waits.select_nth_unstable(at).1 }
}

// === impl Row ===

impl Row {
    /// Admitted requests, as a multiple of the limits of its windows.
    pub fn of_limit(&self) -> f64 {
        let limits = f64::from(self.cell.limit) * f64::from(self.cell.windows());
        self.admitted as f64 / limits
    }

    /// Admitted requests, as a fraction of what one exact server would have admitted.
    pub fn of_exact(&self) -> f64 {
        self.admitted as f64 / self.exact as f64
    }

    /// Requests that an exact server would have admitted and the fleet did not, as a fraction of
    /// those offered: requests are interchangeable, so that only their number counts. Failed
    /// requests are included.
    pub fn falsely_denied(&self) -> f64 {
        self.exact.saturating_sub(self.admitted) as f64 / self.offered as f64
    }

    /// Redis commands per 1000 decisions.
    pub fn cost(&self) -> f64 {
        1_000.0 * self.commands as f64 / self.offered as f64
    }
}

// === impl Epoch ===

impl Epoch {
    #[allow(clippy::disallowed_methods, reason = "windows are the wall clock's")]
    fn now() -> Self {
        let wall = std::time::SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
        Self { instant: Instant::now(), wall }
    }

    fn at(self, wall: Duration) -> Instant {
        self.instant + wall.saturating_sub(self.wall)
    }
}
