//! Servers that decide nothing, which show the cost of answering `ShouldRateLimit` without any
//! limit. `scripts/bench` compares ratelease with them.
//!
//! ```text
//! cargo bench --bench floor -- tonic --port 0          as a server on tonic does it
//! cargo bench --bench floor -- h2 --port 0             straight on HTTP/2
//! cargo bench --bench floor -- h2-per-core --port 0    the same, on a runtime for each core
//! cargo bench --bench floor -- raw --port 0            from the heads of HTTP/2's frames alone
//! cargo bench --bench floor -- raw-deciding --port 0   the same, with ratelease's decisions
//! ```
//!
//! Prints its address, and serves until its standard input ends or a signal arrives.

mod floor {
    pub(crate) mod deciding;
    pub(crate) mod h2;
    pub(crate) mod raw;
    pub(crate) mod tonic;
}

use std::io::{self, Read};
use std::num::NonZeroUsize;
use std::process::ExitCode;
use std::thread;

use clap::{Parser, ValueEnum};
use ratelease_listener::{Cores, OpenConnections, connections, runtime_builder, serve_each};
use ratelease_server::service::DecisionService;
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::{Builder, Handle};

/// The allocator of the binary `ratelease`.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

/// A server that answers OK to every request.
#[derive(Debug, Parser)]
struct Args {
    /// What to build on; nothing is served without
    on: Option<On>,
    /// Port on 127.0.0.1; 0 takes any free one
    #[arg(long, default_value_t = 0)]
    port: u16,
    /// Threads; as many as cores by default, as `ratelease serve` has them
    #[arg(long)]
    threads: Option<NonZeroUsize>,
    /// `cargo bench` says this to every bench
    #[arg(long, hide = true)]
    bench: bool,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum On {
    Tonic,
    H2,
    H2PerCore,
    Raw,
    RawDeciding,
}

fn main() -> ExitCode {
    let args = Args::parse();
    let Some(on) = args.on else {
        println!("floor: nothing to measure by itself; scripts/bench runs it beside ratelease");
        return ExitCode::SUCCESS;
    };
    match run(&args, on) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("floor: cannot serve on port {}: {error}", args.port);
            ExitCode::FAILURE
        }
    }
}

fn run(args: &Args, on: On) -> io::Result<()> {
    let threads = args.threads.map_or_else(thread::available_parallelism, Ok)?.get();
    let runtime = match on {
        On::Tonic | On::H2 => {
            Builder::new_multi_thread().worker_threads(threads).enable_all().build()?
        }
        On::H2PerCore | On::Raw | On::RawDeciding => runtime_builder().build()?,
    };
    runtime.block_on(async {
        let listener = TcpListener::bind(("127.0.0.1", args.port)).await?;
        println!("{}", listener.local_addr()?);
        let input = tokio::task::spawn_blocking(|| io::stdin().read_to_end(&mut Vec::new()));
        tokio::select! {
            served = serve(listener, on, threads) => served,
            _ = input => Ok(()),
        }
    })
}

async fn serve(listener: TcpListener, on: On, threads: usize) -> io::Result<()> {
    match on {
        On::Tonic => floor::tonic::serve(listener).await,
        On::H2 => floor::h2::serve(listener).await,
        On::H2PerCore => {
            let incoming = connections(listener, None, OpenConnections::default());
            let serve = |io, _| async { _ = floor::h2::connection(io).await };
            let cores = Cores::new(start_cores(threads)?);
            serve_each(incoming, &cores, std::future::pending(), serve).await;
            Ok(())
        }
        On::Raw => serve_raw(listener, threads, None).await,
        On::RawDeciding => serve_raw(listener, threads, Some(floor::deciding::service())).await,
    }
}

/// Gives the connections to the cores in turn.
async fn serve_raw(
    listener: TcpListener,
    threads: usize,
    service: Option<DecisionService>,
) -> io::Result<()> {
    for core in start_cores(threads)?.iter().cycle() {
        let (socket, _) = listener.accept().await?;
        socket.set_nodelay(true)?;
        let (socket, service) = (socket.into_std()?, service.clone());
        core.spawn(async move { floor::raw::serve(TcpStream::from_std(socket)?, service).await });
    }
    Ok(())
}

/// Starts threads that each run a runtime until the process ends.
fn start_cores(threads: usize) -> io::Result<Vec<Handle>> {
    let start = |_| {
        let runtime = runtime_builder().build()?;
        let handle = runtime.handle().clone();
        thread::Builder::new().spawn(move || runtime.block_on(std::future::pending::<()>()))?;
        Ok(handle)
    };
    (0..threads).map(start).collect()
}
