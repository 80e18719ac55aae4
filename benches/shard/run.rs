//! Runs one algorithm after the other, on one server that is emptied between them.

use std::io::{IsTerminal, Write, stderr};
use std::time::Duration;

use hdrhistogram::Histogram;

use crate::args::Args;
use crate::kind::{KINDS, Kind};
use crate::load::{self, Served};
use crate::rig::Rig;

/// The measurements of one algorithm.
pub struct Row {
    pub kind: Kind,
    /// Calls in a closed loop, for each number in [`Args::in_flight`].
    pub served: Vec<Served>,
    /// Calls a second in an open loop, and their latencies `took`, in microseconds.
    pub rate: f64,
    pub took: Histogram<u64>,
    /// Number of keys, and the growth of Redis's memory by them in bytes.
    pub keys: u64,
    pub bytes: u64,
    pub version: String,
}

/// Number of asks under way while keys are created.
const MAKERS: usize = 256;

pub async fn run(args: &Args) -> Vec<Row> {
    let rig = Rig::start(args.connections).await;
    let mut rows = Vec::new();
    for kind in KINDS {
        rows.push(row(args, &rig, kind).await);
    }
    tell("");
    rows
}

async fn row(args: &Args, rig: &Rig, kind: Kind) -> Row {
    rig.clear();
    // This loads the script before the memory is read.
    load::all(rig, 1, 1, move |n| kind.first(n), |_| {}).await;
    let (keys, before) = (kind.keys(args.keys), rig.used_memory());
    let made = |done| tell(&format!("{}: {done} of {keys} keys", kind.name));
    load::all(rig, keys, MAKERS, move |n| kind.first(n + 1), made).await;
    let (made, bytes) = (rig.keys() - 1, rig.used_memory() - before);
    assert_eq!(made, keys, "each ask makes a key");
    let span = Duration::from_secs(args.seconds);
    let mut served = Vec::new();
    for in_flight in &args.in_flight {
        tell(&format!("{}: {in_flight} calls under way, {span:?}", kind.name));
        served.push(load::closed(rig, kind, keys, *in_flight, span).await);
    }
    let most = served.iter().map(|served| served.per_second()).fold(0.0, f64::max);
    let rate = most / 2.0;
    tell(&format!("{}: {rate:.0} calls/s, {span:?}", kind.name));
    let took = load::open(rig, kind, keys, rate, span).await;
    Row { kind, served, rate, took, keys, bytes, version: rig.version() }
}

/// Prints the present stage on standard error: on one line of a terminal, otherwise on a line each.
fn tell(stage: &str) {
    if stderr().is_terminal() {
        eprint!("\r\x1b[K{stage}");
        let _ = stderr().flush();
    } else if !stage.is_empty() && !stage.ends_with(" keys") {
        eprintln!("{stage}");
    }
}
