//! Flags and variables.

use std::collections::HashMap;
use std::ffi::OsString;

use ratelease_cli::commands::Task;
use ratelease_cli::settings::SettingsError;

use crate::run;

const WORDS: [&str; 20] = [
    "REDIS_URL=",
    "REDIS_TYPE=cluster",
    "REDIS_TYPE=sentinel",
    "redis://",
    "rediss://",
    "unix://",
    "[::1]:",
    "OTEL_EXPORTER_OTLP_ENDPOINT=",
    "OTEL_METRICS_EXPORTER=otlp",
    "TRACING_ENABLED=true",
    "\n--",
    "=",
    ",",
    "65536",
    "10s",
    "64MiB",
    "NaN",
    "%zz",
    "@",
    "true",
];

/// Each line is a flag if it begins with `--`, and a variable otherwise.
#[test]
fn any_settings_are_good_or_have_faults_of_one_line_each() {
    run::mutated("settings", &WORDS, 200, |input| {
        let text = String::from_utf8_lossy(input);
        let (flags, variables): (Vec<_>, Vec<_>) =
            text.lines().partition(|line| line.starts_with("--"));
        let variables: HashMap<_, _> =
            variables.iter().filter_map(|line| line.split_once('=')).collect();
        let env = |name: &str| variables.get(name).map(|value| (*value).to_owned());
        let under = |program: &str, first: &[&str]| {
            let arguments = first.iter().chain(&flags).map(OsString::from);
            match Task::parse(program, arguments, &env) {
                Ok(_) => true,
                Err(SettingsError::Faults(faults)) => {
                    let one_line = |fault: String| assert!(!fault.contains('\n'), "{fault:?}");
                    faults.iter().for_each(|fault| one_line(fault.to_string()));
                    false
                }
                Err(_) => false,
            }
        };
        under("ratelimit", &[]) | under("ratelease", &["serve"])
    });
}
