//! The process as Linux sees it (proc(5)), under the names that Prometheus's clients use.

use std::fs;

use ratelease_server::metrics::family::{Family, Kind, Value};

/// The kernel's unit of CPU time and of start times: USER_HZ, 100 on every supported platform.
const TICKS_PER_SECOND: f64 = 100.0;

/// The values read from `/proc`; `None` for those that cannot be read.
#[derive(Debug, Default, PartialEq)]
struct Process {
    cpu_seconds: Option<f64>,
    resident_bytes: Option<u64>,
    virtual_bytes: Option<u64>,
    threads: Option<u64>,
    open_files: Option<u64>,
    files_max: Option<u64>,
    start_seconds: Option<f64>,
}

/// The metrics that can be read at this moment.
pub(super) fn families() -> Vec<Family> {
    let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
    let mut process = Process::parse(
        &read("/proc/self/stat"),
        &read("/proc/self/status"),
        &read("/proc/self/limits"),
        &read("/proc/stat"),
    );
    // Minus the descriptor that reads the directory.
    process.open_files =
        fs::read_dir("/proc/self/fd").ok().map(|files| (files.count() as u64).saturating_sub(1));
    process.families()
}

// === impl Process ===

impl Process {
    fn parse(stat: &str, status: &str, limits: &str, machine: &str) -> Self {
        // The second field is the program's name, which may contain spaces and brackets.
        let fields: Vec<&str> =
            stat.rsplit_once(')').map_or("", |(_, rest)| rest).split_whitespace().collect();
        // proc(5) numbers fields from 1, and its third field is the first here.
        let ticks = |number: usize| fields.get(number - 3)?.parse::<f64>().ok();
        let kib = |name: &str| Some(value_of(status, name)?.parse::<u64>().ok()? * 1024);
        let booted = value_of(machine, "btime").and_then(|text| text.parse::<f64>().ok());
        Self {
            cpu_seconds: ticks(14)
                .zip(ticks(15))
                .map(|(user, system)| (user + system) / TICKS_PER_SECOND),
            resident_bytes: kib("VmRSS:"),
            virtual_bytes: kib("VmSize:"),
            threads: value_of(status, "Threads:").and_then(|text| text.parse().ok()),
            open_files: None,
            files_max: value_of(limits, "Max open files").and_then(|text| text.parse().ok()),
            start_seconds: booted
                .zip(ticks(22))
                .map(|(booted, ticks)| booted + ticks / TICKS_PER_SECOND),
        }
    }

    fn families(self) -> Vec<Family> {
        let count = |value: Option<u64>| value.map(Value::Count);
        let number = |value: Option<f64>| value.map(Value::Number);
        let table = [
            (
                "process_cpu_seconds_total",
                Kind::Counter,
                "CPU time spent.",
                number(self.cpu_seconds),
            ),
            (
                "process_resident_memory_bytes",
                Kind::Gauge,
                "Memory in use.",
                count(self.resident_bytes),
            ),
            (
                "process_virtual_memory_bytes",
                Kind::Gauge,
                "Address space in use.",
                count(self.virtual_bytes),
            ),
            ("process_open_fds", Kind::Gauge, "Open files.", count(self.open_files)),
            ("process_max_fds", Kind::Gauge, "Files that may be open.", count(self.files_max)),
            (
                "process_start_time_seconds",
                Kind::Gauge,
                "When the process began, since the Unix epoch.",
                number(self.start_seconds),
            ),
            ("process_threads", Kind::Gauge, "Threads.", count(self.threads)),
        ];
        let shown = table
            .into_iter()
            .filter_map(|(name, kind, help, value)| Some(Family::single(name, kind, help, value?)));
        shown.collect()
    }
}

/// The first word after `name`, where `name` is at the start of a line.
fn value_of<'t>(text: &'t str, name: &str) -> Option<&'t str> {
    text.lines().find_map(|line| line.strip_prefix(name)?.split_whitespace().next())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_texts_of_proc_are_read_as_they_are_documented() {
        let stat = "7 (a b) c) S 1 7 7 0 -1 4194560 1 0 0 0 250 150 0 0 20 0 9 0 5000 1000 200 18";
        let status = "Name:\ta b\nVmSize:\t    2048 kB\nVmRSS:\t     512 kB\nThreads:\t9\n";
        let limits = "Max open files            1024                 524288               files\n";
        let read = Process::parse(stat, status, limits, "cpu 1 2\nbtime 1700000000\n");
        let expected = Process {
            cpu_seconds: Some(4.0),
            resident_bytes: Some(512 * 1024),
            virtual_bytes: Some(2048 * 1024),
            threads: Some(9),
            open_files: None,
            files_max: Some(1024),
            start_seconds: Some(1_700_000_050.0),
        };
        assert_eq!(read, expected);
        assert_eq!(Process::parse("", "", "", ""), Process::default());
    }

    #[test]
    fn this_process_has_all_of_them() {
        assert_eq!(families().len(), 7, "{:?}", families());
    }
}
