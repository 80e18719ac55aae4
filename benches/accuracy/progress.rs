//! The progress: a bar if stderr is a terminal, otherwise a line for each slot.

use std::io::{IsTerminal, Write, stderr};
use std::time::Duration;

use tokio::time::{Instant, interval, sleep_until};

const COLUMNS: u128 = 40;

/// A description of the work, and when it begins, in order of time.
pub struct Stage {
    pub from: Instant,
    pub says: String,
}

/// Prints `stages` as they begin, until `end`.
pub async fn tell(stages: Vec<Stage>, begin: Instant, end: Instant) {
    if stderr().is_terminal() {
        draw(&stages, begin, end).await;
    } else {
        for stage in stages {
            sleep_until(stage.from).await;
            let rest = end.saturating_duration_since(stage.from).as_secs();
            eprintln!("{}; {rest} s to go", stage.says);
        }
        sleep_until(end).await;
    }
}

async fn draw(stages: &[Stage], begin: Instant, end: Instant) {
    let mut ticks = interval(Duration::from_millis(500));
    let whole = end.saturating_duration_since(begin);
    loop {
        let now = ticks.tick().await;
        let gone = now.saturating_duration_since(begin).min(whole).as_millis();
        let columns = gone * COLUMNS / whole.as_millis().max(1);
        let done = "█".repeat(usize::try_from(columns).unwrap());
        let says = stages.iter().rfind(|stage| stage.from <= now).map_or("", |stage| &stage.says);
        let rest = end.saturating_duration_since(now).as_secs();
        // Returns to the start of the line, and clears it.
        eprint!("\r\x1b[K{done:░<40} {rest:>4} s to go, {says}");
        let _ = stderr().flush();
        if now >= end {
            eprintln!("\r\x1b[K{} slots done", stages.len());
            return;
        }
    }
}
