//! What `metrics` must do.

use ratelease_engine::counter::{self, RedisCounter, RedisFailure};

use super::*;

#[test]
fn every_count_has_a_metric_and_those_of_one_name_are_one_family() {
    let counts = [
        (Counter::GrpcConnections, 2),
        (Counter::HttpConnections, 3),
        (counter::Counter::Keys.into(), 4),
        (counter::Counter::Redis(RedisCounter::Failure(RedisFailure::OutOfMemory)).into(), 5),
        (counter::Counter::BreakerOpened.into(), 6),
        (counter::Counter::UnmeteredHits.into(), 7),
    ];
    let shown = of_counts(&counts.into_iter().collect());
    let text = family::text(&shown);
    let lines: Vec<_> = text.lines().filter(|line| !line.starts_with('#')).collect();
    let expected = [
        "ratelease_connections{listener=\"grpc\"} 2",
        "ratelease_connections{listener=\"http\"} 3",
        "ratelease_buffer_keys 4",
        "ratelease_redis_oom_total 5",
        "ratelease_unmetered_total{mode=\"allow\"} 7",
    ];
    assert_eq!(lines, expected);
}

mod process {
    use super::super::*;

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
        assert_eq!(of_process().len(), 7, "{:?}", of_process());
    }
}
