//! The command line: `scripts/bench-shard [flags]`.

use clap::Parser;

/// Measures what one redis-server does for leases: calls a second and their latency by algorithm,
/// its CPU a call, and the memory of many keys. Starts the server itself, on a free port of this
/// machine. Needs redis-server on the PATH.
#[derive(Debug, Parser)]
#[command(name = "shard", bin_name = "scripts/bench-shard", max_term_width = 100)]
pub struct Args {
    /// Seconds of each measurement of calls; there are three for each algorithm
    #[arg(long, value_name = "N", default_value_t = 5)]
    pub seconds: u64,
    /// Keys whose memory is measured; a hundredth of them of a sliding log
    #[arg(long, value_name = "N", default_value_t = 1_000_000)]
    pub keys: u64,
    /// Connections, each as a pod has one
    #[arg(long, value_name = "N", default_value_t = 8)]
    pub connections: usize,
    /// Calls under way on all connections together; the second number is measured too
    #[arg(long, value_name = "N", num_args = 2, default_values_t = [64, 512])]
    pub in_flight: Vec<usize>,
    /// One line of JSON in place of the table
    #[arg(long)]
    pub json: bool,
    /// `cargo bench` passes it
    #[arg(long, hide = true)]
    bench: bool,
}

impl Args {
    /// Rejects values that would measure nothing, or take hours.
    pub fn check(&self) -> Result<(), String> {
        let in_range = |name: &str, value: u64, least: u64, most: u64| {
            let is_within = (least..=most).contains(&value);
            is_within.then_some(()).ok_or(format!("--{name} {value}: from {least} to {most}"))
        };
        in_range("seconds", self.seconds, 1, 600)?;
        in_range("keys", self.keys, 10_000, 100_000_000)?;
        in_range("connections", self.connections as u64, 1, 1_000)?;
        for in_flight in &self.in_flight {
            in_range("in-flight", *in_flight as u64, 1, 4_096)?;
        }
        Ok(())
    }
}
