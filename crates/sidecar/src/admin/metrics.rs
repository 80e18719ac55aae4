//! `/metrics`: the numbers of every part, as Prometheus reads them. `docs/metrics.md` says what
//! each means.

use std::collections::BTreeMap;
use std::fs;
use std::sync::Arc;

use axum::Router;
use axum::extract::State;
use axum::response::IntoResponse;
use axum::routing::get;
use http::header::CONTENT_TYPE;
use ratelease_engine::invariant;
use ratelease_engine::lease::{BreakerState, ShardCounters, ShardSnapshot};
use ratelease_server::metrics::Meters;
use ratelease_server::metrics::counter::Counter;
use ratelease_server::metrics::family::{self, Family, Kind, Labels, Value};

use super::render;
use super::status::Status;

/// Returns further families when called.
pub type FamilySource = Arc<dyn Fn() -> Vec<Family> + Send + Sync>;

/// Everything that is measured. A cheap handle: clones share all state.
#[derive(Clone)]
pub struct MetricsSources {
    /// The counts of decisions; `None` if decisions are not counted.
    pub meters: Option<Meters>,
    /// Rules, breakers and counts, as the status page shows them.
    pub status: Status,
    /// The results of the asks of each shard.
    pub shard_counters: Arc<dyn Fn() -> Vec<ShardCounters> + Send + Sync>,
    /// Further sources; each family comes from one source.
    pub more: Vec<FamilySource>,
}

/// The route of `path`, which shows `sources`.
pub fn routes(path: &str, sources: MetricsSources) -> Router {
    Router::new().route(path, get(show)).with_state(sources)
}

async fn show(State(sources): State<MetricsSources>) -> impl IntoResponse {
    let page = render(move || family::text(&sources.families())).await;
    page.map(|page| ([(CONTENT_TYPE, family::CONTENT_TYPE)], page))
}

// === impl MetricsSources ===

impl MetricsSources {
    /// All families, at this moment.
    pub fn families(&self) -> Vec<Family> {
        let in_force = self.status.published.current();
        let mut families: Vec<_> =
            self.meters.iter().flat_map(|it| it.families(in_force.as_deref())).collect();
        families.extend(self.loads());
        families.extend(self.rules());
        families.extend(leases(&(self.shard_counters)()));
        families.extend(shards(&(self.status.shards)()));
        families.extend(of_counts(&self.status.counts()));
        families.push(single(
            "ratelease_invariant_violations_total",
            Kind::Counter,
            "Invariants found violated: internal errors; 0 is expected.",
            Value::Count(invariant::violations()),
        ));
        families.push(build_info());
        families.extend(of_process());
        families.extend(self.more.iter().flat_map(|source| source()));
        families
    }

    /// Counts of loads, under the reference implementation's names and our own.
    fn loads(&self) -> Vec<Family> {
        let published = &self.status.published;
        let ok = published.loads_ok();
        let refused = published.loads_failed();
        let help = "Loads of the rules, by what came of them.";
        let mut loads = Family::new("ratelease_rules_loads_total", Kind::Counter, help);
        loads.push(vec![("result", "ok".into())], Value::Count(ok));
        loads.push(vec![("result", "refused".into())], Value::Count(refused));
        let left_out = single(
            "ratelease_rules_files_left_out",
            Kind::Gauge,
            "Files of the rules directory that are not loaded, because of their names or as links.",
            Value::Count(published.files_left_out() as u64),
        );
        let reference = |name, help, count| single(name, Kind::Unsuffixed, help, count);
        vec![
            reference(
                "ratelimit_service_config_load_success",
                "Loads of the rules that found good ones.",
                Value::Count(ok),
            ),
            reference(
                "ratelimit_service_config_load_error",
                "Loads of the rules that found none to take.",
                Value::Count(refused),
            ),
            loads,
            left_out,
        ]
    }

    /// The rules in force.
    fn rules(&self) -> Vec<Family> {
        let published = &self.status.published;
        let rules = published.current();
        let count = rules.as_ref().map_or(0, |rules| rules.len() as u64);
        let help = "1; the version of the rules in force, and where they came from.";
        let mut info = Family::new("ratelease_rules_info", Kind::Gauge, help);
        if let Some(rules) = &rules {
            let source = self.status.source();
            let version = format!("{:016x}", rules.version());
            let labels = vec![("version", version.into()), ("source", source.into())];
            info.push(labels, Value::Count(1));
        }
        let stale = u64::from(published.last_fault().is_some());
        let seconds = |name, help, span: Option<std::time::Duration>| {
            let mut family = Family::new(name, Kind::Gauge, help);
            if let Some(span) = span {
                family.push(Vec::new(), Value::Number(span.as_secs_f64()));
            }
            family
        };
        vec![
            single("ratelease_rules", Kind::Gauge, "Rules in force.", Value::Count(count)),
            info,
            seconds(
                "ratelease_rules_age_seconds",
                "How long the rules in force have been so.",
                published.in_force_for(),
            ),
            single(
                "ratelease_rules_stale",
                Kind::Gauge,
                "1 while the last load was refused, and older rules are in force.",
                Value::Count(stale),
            ),
            seconds(
                "ratelease_rules_propagation_seconds",
                "From the last change of a rule file to its rules being in force.",
                published.propagation(),
            ),
        ]
    }
}

fn single(name: &'static str, kind: Kind, help: &'static str, value: Value) -> Family {
    Family::single(name, kind, help, value)
}

fn build_info() -> Family {
    let help = "1; the version of the program.";
    let mut info = Family::new("ratelease_build_info", Kind::Gauge, help);
    info.push(vec![("version", env!("CARGO_PKG_VERSION").into())], Value::Count(1));
    info
}

fn of_shard(store: &Arc<str>, shard: usize) -> Labels {
    vec![("shard", shard.to_string().into()), ("store", store.to_string().into())]
}

/// Counts of asks by shard, and of tokens in total.
fn leases(shard_counters: &[ShardCounters]) -> Vec<Family> {
    type Read = fn(&ShardCounters) -> u64;
    let by_shard: [(&str, &str, Read); 4] = [
        ("ratelease_lease_asks_total", "Asks for tokens that were sent.", |tally| tally.asks),
        ("ratelease_lease_grants_total", "Asks for tokens that were answered.", |tally| {
            tally.grants
        }),
        ("ratelease_lease_returns_total", "Returns of unspent tokens that were sent.", |tally| {
            tally.returns
        }),
        ("ratelease_lease_failures_total", "Asks and returns that failed.", |tally| tally.failures),
    ];
    let in_all: [(&str, &str, Read); 2] = [
        ("ratelease_tokens_granted_total", "Tokens lent.", |tally| tally.tokens_granted),
        ("ratelease_tokens_returned_total", "Unspent tokens given back.", |tally| {
            tally.tokens_returned
        }),
    ];
    let mut families = Vec::new();
    for (name, help, read) in by_shard {
        let mut family = Family::new(name, Kind::Counter, help);
        shard_counters
            .iter()
            .for_each(|it| family.push(of_shard(&it.store, it.shard), Value::Count(read(it))));
        families.push(family);
    }
    families.extend(in_all.map(|(name, help, read)| {
        single(name, Kind::Counter, help, Value::Count(shard_counters.iter().map(read).sum()))
    }));
    let help = "How long an ask was out, whatever came of it.";
    let mut took = Family::new("ratelease_ask_duration_seconds", Kind::Histogram, help);
    for tally in shard_counters {
        took.push(of_shard(&tally.store, tally.shard), Value::Buckets(tally.took.clone()));
    }
    families.push(took);
    families
}

fn shards(shards: &[ShardSnapshot]) -> [Family; 4] {
    let help = "1 while asks to the shard are kept back, or one is on its way to find out.";
    let mut open = Family::new("ratelease_breaker_open", Kind::Gauge, help);
    let help = "How often the shard's breaker has opened.";
    let mut opened = Family::new("ratelease_breaker_opened_total", Kind::Counter, help);
    let help = "What a round trip to the shard takes at present.";
    let mut trip = Family::new("ratelease_shard_round_trip_seconds", Kind::Gauge, help);
    let help = "1 while one key has more than 5 % of the shard's asks.";
    let mut hot = Family::new("ratelease_shard_hot_key", Kind::Gauge, help);
    for state in shards {
        let ShardSnapshot { breaker, round_trip, .. } = *state;
        let labels = || of_shard(&state.store, state.shard);
        open.push(labels(), Value::Count(u64::from(breaker != BreakerState::Closed)));
        opened.push(labels(), Value::Count(state.opened));
        trip.push(labels(), Value::Number(round_trip.as_secs_f64()));
        hot.push(labels(), Value::Count(u64::from(state.hot_key.is_some())));
    }
    [open, opened, trip, hot]
}

// The counts of the status page as metrics.

/// Returns `counts` as metrics, except those that are reported by shard.
fn of_counts(counts: &BTreeMap<Counter, u64>) -> Vec<Family> {
    let mut families: Vec<Family> = Vec::new();
    for (counter, value) in counts {
        let value = Value::Count(*value);
        let Some(metric) = counter.metric() else { continue };
        let labels: Labels =
            metric.label.iter().map(|(label, of)| (*label, (*of).into())).collect();
        let known = families.iter().position(|family| family.name == metric.name);
        match known.and_then(|at| families.get_mut(at)) {
            Some(family) => family.push(labels, value),
            None => {
                let mut family = Family::new(metric.name, metric.kind, metric.help);
                family.push(labels, value);
                families.push(family);
            }
        }
    }
    families
}

// The process as Linux sees it (proc(5)), under the names that Prometheus's clients use.

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
fn of_process() -> Vec<Family> {
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
mod tests;
