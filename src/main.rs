//! The binary: settings, logging, build, run until a signal, drain.

use std::process::ExitCode;

use ratelease::app::App;
use ratelease::settings::{Settings, SettingsError, process_env};
use ratelease::telemetry;
use tokio::signal::unix::{SignalKind, signal};
use tracing::warn;

/// The machine refused: a port in use, a directory that cannot be read.
const EXIT_BUILD: u8 = 1;

/// A second signal while draining.
const EXIT_CUT_SHORT: i32 = 130;

fn main() -> ExitCode {
    let mut args = std::env::args_os();
    let program = args.next().unwrap_or_default();
    let settings = match Settings::parse(&program.to_string_lossy(), args, &process_env) {
        Ok(settings) => settings,
        Err(SettingsError::Help(text)) => {
            print!("{text}");
            return ExitCode::SUCCESS;
        }
        Err(error) => {
            eprintln!("{error}");
            return ExitCode::from(error.exit_code());
        }
    };
    if let Err(error) = telemetry::init(&settings.logging) {
        eprintln!("ratelease: {error}");
    }
    for warning in &settings.warnings {
        warn!("{warning}");
    }
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            eprintln!("ratelease: cannot start threads: {error}; raise the limit on processes");
            return ExitCode::from(EXIT_BUILD);
        }
    };
    let code = runtime.block_on(serve(settings));
    // Whatever still blocks a thread must not hold up the end.
    runtime.shutdown_background();
    code
}

async fn serve(settings: Settings) -> ExitCode {
    let app = match App::build(settings).await {
        Ok(app) => app,
        Err(error) => {
            eprintln!("ratelease: {error}");
            return ExitCode::from(EXIT_BUILD);
        }
    };
    println!("{}", app.greeting());
    app.run(stop_signal()).await;
    ExitCode::SUCCESS
}

/// Resolves at the first signal to end; the second ends the process at once.
async fn stop_signal() {
    let kinds = [SignalKind::terminate(), SignalKind::interrupt(), SignalKind::hangup()];
    let (told, mut heard) = tokio::sync::mpsc::channel(kinds.len());
    for kind in kinds {
        let Ok(mut signals) = signal(kind) else { continue };
        let told = told.clone();
        tokio::spawn(async move {
            while signals.recv().await.is_some() && told.send(()).await.is_ok() {}
        });
    }
    drop(told);
    heard.recv().await;
    tokio::spawn(async move {
        if heard.recv().await.is_some() {
            eprintln!("ratelease: a second signal: ending at once, leases end with their windows");
            std::process::exit(EXIT_CUT_SHORT);
        }
    });
}
