//! The processor cores of this machine, for tests that keep one busy for seconds: as many of them
//! run at a time as there are cores, since more would starve each other. Tests that mostly wait
//! take none.

use std::sync::LazyLock;

use tokio::sync::{Semaphore, SemaphorePermit};

static COUNT: LazyLock<u32> = LazyLock::new(|| {
    let cores = std::thread::available_parallelism();
    cores.ok().and_then(|cores| u32::try_from(cores.get()).ok()).unwrap_or(1)
});

static FREE: LazyLock<Semaphore> = LazyLock::new(|| Semaphore::new(*COUNT as usize));

/// Waits for a core, which the test has until the permit is dropped.
pub(crate) async fn one_core() -> SemaphorePermit<'static> {
    FREE.acquire().await.expect("it is never closed")
}

/// Waits for all cores: for tests that measure a rate or a time under full load.
pub(crate) async fn all_cores() -> SemaphorePermit<'static> {
    FREE.acquire_many(*COUNT).await.expect("it is never closed")
}
