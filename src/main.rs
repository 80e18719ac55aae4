//! The binary: reads settings, sets up the log, builds the app, runs it until a signal, drains.

use std::fmt::Display;
use std::io::{self, Write};
use std::pin::pin;
use std::process::ExitCode;
use std::time::Duration;

use ratelease_cli::commands::{self, Task};
use ratelease_cli::settings::{Faults, Settings, SettingsError, process_env};
use ratelease_engine::time::Clock;
use ratelease_sidecar::app::{self, App};
use ratelease_sidecar::telemetry::{self, LogWriter};
use tokio::signal::unix::{SignalKind, signal};
use tracing::{error, info, warn};

/// Exit code when the environment prevents the start or ends the service: a port in use, a
/// directory that cannot be read, a listener that failed.
const EXIT_BUILD: u8 = 1;

/// Exit code when a second signal arrives while draining.
const EXIT_CUT_SHORT: i32 = 130;

/// Maximum time to write the last lines of the log.
const FLUSH_MAX: Duration = Duration::from_millis(500);

/// Time between two looks at the files that a start waits for.
const FILES_LOOK: Duration = Duration::from_secs(1);

/// Returns memory to the system after a burst of work or an attack; the allocator of the C library
/// keeps most of it. `docs/design.md` has figures.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

fn main() -> ExitCode {
    let clock = Clock::start_counting_suspension();
    let Some(parsed) = parse_with_files() else { return ExitCode::SUCCESS };
    let settings = match parsed {
        Ok(Task::Serve(settings)) => *settings,
        Ok(Task::Check(flags, role)) => return commands::check(&flags, role),
        // To restart a process that waits would bring no file.
        Ok(Task::Health(_)) if !commands::missing_files(&process_env).is_empty() => {
            return ExitCode::SUCCESS;
        }
        Ok(Task::Health(flags)) => return commands::health(*flags),
        Err(SettingsError::Help(text)) => return commands::help("ratelease", &text),
        Err(error) => {
            print_line(io::stderr(), &error);
            return ExitCode::from(error.exit_code());
        }
    };
    let log = telemetry::init(&settings.logging, clock)
        .inspect_err(|error| print_line(io::stderr(), format_args!("ratelease: {error}")))
        .ok();
    for warning in &settings.warnings {
        warn!("{warning}");
    }
    let runtime = match app::runtime_builder().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            let mend = "raise the limit on open files";
            let line = format!("ratelease: cannot start the runtime: {error}; {mend}");
            print_line(io::stderr(), line);
            return ExitCode::from(EXIT_BUILD);
        }
    };
    let code = runtime.block_on(serve(settings, clock, log.clone()));
    // Does not wait for threads that are still blocked.
    runtime.shutdown_background();
    flush(log.as_ref());
    code
}

/// Parses the command line and the environment. If nothing but files is wrong, first waits for
/// those that a start waits for; returns `None` if a signal comes before them.
fn parse_with_files() -> Option<Result<Task, SettingsError>> {
    let parsed = parse();
    let is_in_files = |faults: &Faults| faults.iter().all(|fault| fault.is_in_file);
    let missing = commands::missing_files(&process_env);
    match &parsed {
        Err(SettingsError::Faults(faults)) if is_in_files(faults) && !missing.is_empty() => {}
        _ => return Some(parsed),
    }
    print_line(io::stderr(), commands::waiting_notice(&missing));
    let Ok(runtime) = app::runtime_builder().build() else { return Some(parsed) };
    let have_come = runtime.block_on(async {
        let mut stop = pin!(stop_signal(None));
        while !commands::missing_files(&process_env).is_empty() {
            tokio::select! {
                () = tokio::time::sleep(FILES_LOOK) => {}
                () = &mut stop => return false,
            }
        }
        true
    });
    have_come.then(parse)
}

fn parse() -> Result<Task, SettingsError> {
    let mut args = std::env::args_os();
    let program = args.next().unwrap_or_default();
    Task::parse(&program.to_string_lossy(), args, &process_env)
}

async fn serve(settings: Settings, clock: Clock, log: Option<LogWriter>) -> ExitCode {
    // Signals are caught from here on, including one that arrives before the build is done.
    let mut stop = pin!(stop_signal(log.clone()));
    let built = tokio::select! {
        built = App::build(settings, clock, log) => built,
        () = &mut stop => return ExitCode::SUCCESS,
    };
    let app = match built {
        Ok(app) => app,
        Err(error) => {
            print_line(io::stderr(), format_args!("ratelease: {error}"));
            return ExitCode::from(EXIT_BUILD);
        }
    };
    let banner = app.banner().to_owned();
    // On a blocking thread, since writing to a pipe that has no reader would block.
    tokio::task::spawn_blocking(move || print_line(io::stdout(), banner));
    match app.run(stop).await {
        Ok(()) => {
            info!("drained: the process ends");
            ExitCode::SUCCESS
        }
        Err(error) => {
            error!("the gRPC listener failed: {error}");
            ExitCode::from(EXIT_BUILD)
        }
    }
}

/// Resolves at the first termination signal; the second exits the process at once. Signals are
/// counted from the time of this call.
fn stop_signal(log: Option<LogWriter>) -> impl Future<Output = ()> {
    let kinds = [SignalKind::terminate(), SignalKind::interrupt(), SignalKind::hangup()];
    let (sender, mut receiver) = tokio::sync::mpsc::channel(kinds.len());
    for kind in kinds {
        let Ok(mut signals) = signal(kind) else { continue };
        let sender = sender.clone();
        tokio::spawn(async move {
            while signals.recv().await.is_some() && sender.send(()).await.is_ok() {}
        });
    }
    async move {
        receiver.recv().await;
        tokio::spawn(async move {
            #[allow(clippy::disallowed_methods, reason = "a second signal ends at once")]
            if receiver.recv().await.is_some() {
                warn!("a second signal: ending at once, leases end with their windows");
                flush(log.as_ref());
                std::process::exit(EXIT_CUT_SHORT);
            }
        });
    }
}

fn flush(log: Option<&LogWriter>) {
    if let Some(log) = log {
        log.flush(FLUSH_MAX);
    }
}

/// Writes a line for people. A failed write is ignored: it must not end the process.
fn print_line(mut to: impl Write, line: impl Display) {
    let _ = to.write_all(format!("{line}\n").as_bytes());
}
