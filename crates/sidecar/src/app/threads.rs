//! The threads of the process: one for each core, which serve connections; one for the pages of the
//! debug and the metrics port; and the main thread, which runs everything else. Each has a runtime
//! of its own, so that no request is handed from thread to thread, no page delays a request, and no
//! request delays a lease.

use std::convert::Infallible;
use std::io;
use std::num::NonZeroUsize;
use std::sync::mpsc;
use std::thread::{self, available_parallelism};

use ratelease_engine::stripe;
use ratelease_server::accept::{Cores, runtime_builder};
use tokio::runtime::Handle;
use tokio::sync::oneshot;

use super::error::BuildError;

/// The threads besides the main one. They end once this is dropped.
pub(super) struct Threads {
    /// Those that serve connections.
    pub(super) cores: Cores,
    /// The runtime of the debug and the metrics port.
    pub(super) pages: Handle,
    /// The runtimes of all threads, the main one's included.
    pub(super) runtimes: Vec<Handle>,
    _running: Vec<Running>,
}

/// A running thread, which ends once this is dropped.
type Running = oneshot::Sender<Infallible>;

// === impl Threads ===

impl Threads {
    /// Starts as many threads for connections as `cores` says: by default as many as there are
    /// cores that this process may use. It is called in the runtime of the main thread.
    ///
    /// # Errors
    ///
    /// Fails if a thread cannot be started.
    pub(super) fn start(cores: Option<usize>) -> Result<Self, BuildError> {
        // Linux shows 15 bytes of a thread's name.
        let names = (0..count(cores)).map(|core| format!("ratelease-core{core}"));
        let started = names.chain(["ratelease-pages".to_owned()]).map(run_thread);
        let started: io::Result<(Vec<_>, Vec<_>)> = started.collect();
        let (mut runtimes, running) = started.map_err(|error| {
            let hint = "raise the limits on processes and on open files, or set THREADS";
            BuildError::new(format!("cannot start threads: {error}; {hint}"))
        })?;
        let pages = runtimes.pop().unwrap_or_else(Handle::current);
        let cores = Cores::new(runtimes.clone());
        runtimes.extend([pages.clone(), Handle::current()]);
        Ok(Self { cores, pages, runtimes, _running: running })
    }

    /// Runs `make` so that the tasks that it spawns run in the thread of pages, such as those that
    /// encode and compress spans and metrics.
    pub(super) fn on_pages<T>(&self, make: impl FnOnce() -> T) -> T {
        let _entered = self.pages.enter();
        make()
    }
}

/// Number of threads that serve connections. The cores that a process may use are those of its
/// affinity mask, or fewer if its control group has a quota.
fn count(set: Option<usize>) -> usize {
    set.unwrap_or_else(|| available_parallelism().map_or(1, NonZeroUsize::get))
}

/// Starts a thread of this name, which runs a runtime. Returns once it has its stripe, so that the
/// threads of connections, which are started first, share none.
fn run_thread(name: String) -> io::Result<(Handle, Running)> {
    let runtime = runtime_builder().build()?;
    let handle = runtime.handle().clone();
    let (end, ended) = oneshot::channel();
    let (started, starts) = mpsc::channel();
    thread::Builder::new().name(name).spawn(move || {
        stripe::mine();
        drop(started);
        // Nothing is ever sent: it resolves once the sender is dropped.
        let _: Result<Infallible, _> = runtime.block_on(ended);
        // Does not wait for threads that are still blocked.
        runtime.shutdown_background();
    })?;
    // Nothing is ever sent: it returns once the thread has dropped the sender.
    let _: Result<Infallible, _> = starts.recv();
    Ok((handle, end))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn tasks_run_on_the_threads_they_are_given_to_until_the_threads_end() {
        let threads = Threads::start(Some(2)).unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(threads.runtimes.len(), 4);
        let name = || thread::current().name().map(str::to_owned);
        let mut names = Vec::new();
        for runtime in threads.runtimes.iter().take(3) {
            names.push(runtime.spawn(async move { name() }).await.unwrap().unwrap());
        }
        assert_eq!(names, ["ratelease-core0", "ratelease-core1", "ratelease-pages"]);
        let endless = threads.pages.spawn(std::future::pending::<()>());
        drop(threads);
        assert!(endless.await.is_err_and(|ended| ended.is_cancelled()));
    }
}
