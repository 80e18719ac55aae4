//! The command line: `cargo bench --bench accuracy -- [flags]`.

use std::hash::{BuildHasher, RandomState};
use std::path::{Path, PathBuf};

use clap::Parser;

/// Measures how near a fleet of four pods comes to one exact server, and at what price, on a Redis
/// Cluster of six nodes that it starts itself. Needs redis-server on the PATH.
#[derive(Debug, Parser)]
#[command(name = "accuracy", bin_name = "cargo bench --bench accuracy --", max_term_width = 100)]
pub struct Args {
    /// A subset of the cells, in less than 90 s instead of some ten minutes
    #[arg(long)]
    pub quick: bool,
    /// Also write the measurements to this file as JSON
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Also draw them into this file
    #[arg(long, value_name = "FILE")]
    pub svg: Option<PathBuf>,
    /// Draw the requests by this seed again; each run prints its own
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// `cargo bench` passes it
    #[arg(long, hide = true)]
    bench: bool,
}

impl Args {
    /// The seed of this run.
    pub fn seed(&self) -> u64 {
        self.seed.unwrap_or_else(|| RandomState::new().hash_one(()))
    }

    /// Finds out now, not at the end, that a file cannot be written.
    pub fn check(&self) -> Result<(), String> {
        let files = [("--json", &self.json), ("--svg", &self.svg)];
        let faults: Vec<_> = files
            .into_iter()
            .filter_map(|(flag, file)| Some((flag, file.as_deref()?)))
            .filter(|(_, file)| file.is_dir() || !directory_of(file).is_dir())
            .map(|(flag, file)| format!("{flag} {}: no such directory", file.display()))
            .collect();
        if faults.is_empty() { Ok(()) } else { Err(faults.join("; ")) }
    }

    /// Writes to `file`, if one is asked for.
    pub fn write(
        &self,
        file: &Option<PathBuf>,
        text: impl FnOnce() -> String,
    ) -> Result<(), String> {
        let Some(file) = file else { return Ok(()) };
        std::fs::write(file, text()).map_err(|error| format!("{}: {error}", file.display()))
    }
}

fn directory_of(file: &Path) -> &Path {
    match file.parent() {
        Some(parent) if parent.as_os_str().is_empty() => Path::new("."),
        Some(parent) => parent,
        None => file,
    }
}
