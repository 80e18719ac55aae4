//! How much memory rules may take while they are loaded: what the process's control group (the
//! container) has left. Beyond its limit the kernel ends the process, and then no limit is in
//! force.
//!
//! ```text
//! limit of the control group
//! ├ what the process has now, with the rules in force and the texts of the new ones
//! ├ reserve (`memory_left`): an eighth and 4 MiB, for requests meanwhile, the kernel, and faults
//! │ that are shown
//! └ left: rules while they are loaded
//! ```

use std::fmt;
use std::fs;
use std::sync::Arc;
use std::thread::sleep;
use std::time::Duration;

use ratelease_rules::{Faults, LoadBounds, Loaded, Pace};
use ratelease_xds::memory_left;

use crate::control_group::memory_limit;

/// What was freed a moment ago is the system's again after this time.
const FREE_MAX: Duration = Duration::from_millis(300);

/// Tells the bytes that rules may take now. A cheap handle.
#[derive(Clone)]
pub struct MemoryLeft(Arc<dyn Fn() -> usize + Send + Sync>);

// === impl MemoryLeft ===

impl MemoryLeft {
    /// What the control group has left; `usize::MAX` without a limit.
    pub fn of_process() -> Self {
        let left = |limit| memory_left(limit, resident().unwrap_or_default());
        Self(Arc::new(move || memory_limit().map_or(usize::MAX, left)))
    }

    /// What this counter says.
    #[cfg(test)]
    pub fn of_counter(bytes: Arc<std::sync::atomic::AtomicUsize>) -> Self {
        Self(Arc::new(move || bytes.load(std::sync::atomic::Ordering::Relaxed)))
    }

    /// The bytes that rules may take now.
    pub fn bytes(&self) -> usize {
        (self.0)()
    }

    /// Has `load` compile rules at this pace, within the memory that is left. Blocks for a moment if
    /// that is not enough.
    ///
    /// # Errors
    /// All faults, or that there is not enough memory.
    pub fn load(
        &self,
        pace: &Pace,
        mut load: impl FnMut(LoadBounds) -> Result<Loaded, Faults>,
    ) -> Result<Loaded, Faults> {
        let mut load = || load(LoadBounds { memory: self.bytes(), pace: pace.clone() });
        match load() {
            Err(faults) if faults.exceeds_memory() => {
                sleep(FREE_MAX);
                load()
            }
            loaded => loaded,
        }
    }
}

impl fmt::Debug for MemoryLeft {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryLeft").finish_non_exhaustive()
    }
}

/// The memory that the process has now, in bytes.
fn resident() -> Option<usize> {
    resident_of(&fs::read_to_string("/proc/self/status").ok()?)
}

/// The resident memory, by the text of `/proc/self/status`. Pages of files count too: the group
/// counts them, and those of this program are needed again as soon as they are dropped, so that a
/// pod without room for them was ended all the same.
fn resident_of(status: &str) -> Option<usize> {
    let bytes = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
        let kib: usize = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
        Some(kib << 10)
    };
    bytes("VmRSS")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_eighth_and_4_mib_stay_free() {
        assert_eq!(memory_left(64 << 20, 20 << 20), 32 << 20);
        assert_eq!(memory_left(16 << 20, 20 << 20), 0);
        assert!(resident().is_some_and(|bytes| bytes > 64 << 10));
    }

    #[test]
    fn pages_of_files_count_too() {
        let status = "Name:	ratelease
VmRSS:	   30 kB
RssAnon:	   10 kB
";
        assert_eq!(resident_of(status), Some(30 << 10));
        assert_eq!(
            resident_of(
                "Name:	ratelease
"
            ),
            None
        );
    }
}
