//! The binary `ratelease-control`: reads the command line, and serves or manages tokens.

use std::fmt::Display;
use std::io::{self, Write};
use std::pin::pin;
use std::process::ExitCode;

use ratelease_cli::settings::{Flags, SettingsError, process_env};
use ratelease_cli::{commands, log_limiter};
use ratelease_control::Control;
use ratelease_control::settings::{self, Command, Settings};
use ratelease_control::tokens;
use tokio::signal::unix::{SignalKind, signal};

/// Exit code of wrong usage and of what the system refuses.
const EXIT_USAGE: u8 = 2;

/// Returns memory to the system after a large import; the allocator of the C library keeps it.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

fn main() -> ExitCode {
    let command = match settings::parse(std::env::args_os(), &process_env) {
        Ok(command) => command,
        Err(SettingsError::Help(text)) => return commands::help("ratelease-control", &text),
        Err(SettingsError::Usage(text)) => {
            print_line(io::stderr(), text.trim_end());
            return ExitCode::from(EXIT_USAGE);
        }
        Err(error) => return fail(error),
    };
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return fail(format_args!("cannot start the runtime: {error}")),
    };
    let code = match command {
        Command::Serve(flags) => runtime.block_on(serve(&flags)),
        Command::Token(command) => match runtime.block_on(tokens::run(command)) {
            Ok(text) => {
                print_line(io::stdout(), text);
                ExitCode::SUCCESS
            }
            Err(why) => fail(why),
        },
    };
    runtime.shutdown_background();
    code
}

async fn serve(flags: &Flags<Settings>) -> ExitCode {
    match log_limiter::start() {
        Ok(log) => drop(tokio::spawn(log.report_forever())),
        Err(error) => return fail(format_args!("cannot set up the log: {error}")),
    }
    let settings = match flags.read(Settings::read) {
        Ok(settings) => settings,
        Err(faults) => return fail(faults),
    };
    let mut stop = pin!(stop_signal());
    let started = tokio::select! {
        started = Control::start(settings) => started,
        // It may wait for the database.
        () = &mut stop => return ExitCode::SUCCESS,
    };
    let control = match started {
        Ok(control) => control,
        Err(error) => return fail(error),
    };
    if let Some(token) = &control.first_token {
        let line = format!("ratelease-control: the first token, shown only now: {token}");
        print_line(io::stdout(), line);
    }
    let Control { http, pods, probes, .. } = &control;
    let probes = probes.map(|probes| format!(", probes on http://{probes}")).unwrap_or_default();
    let listens = format!("ratelease-control: API on http://{http}, pods on {pods}{probes}");
    print_line(io::stdout(), listens);
    match control.run(stop).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => fail(error),
    }
}

/// Resolves at the first signal to end. Signals are caught from this call on.
fn stop_signal() -> impl Future<Output = ()> {
    let terminate = signal(SignalKind::terminate());
    let interrupt = signal(SignalKind::interrupt());
    async move {
        let (Ok(mut terminate), Ok(mut interrupt)) = (terminate, interrupt) else {
            return std::future::pending().await;
        };
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
    }
}

fn fail(why: impl Display) -> ExitCode {
    print_line(io::stderr(), format_args!("ratelease-control: {why}"));
    ExitCode::from(EXIT_USAGE)
}

/// Writes a line for people. A failed write is ignored: it must not end the process.
fn print_line(mut to: impl Write, line: impl Display) {
    let _ = to.write_all(format!("{line}\n").as_bytes());
}
