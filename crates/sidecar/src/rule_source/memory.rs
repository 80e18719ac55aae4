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
use std::path::Path;
use std::sync::Arc;
use std::thread::sleep;
use std::time::Duration;

use ratelease_rules::{Faults, Loaded};
use ratelease_xds::memory_left;

/// Where control groups of version 2 and of version 1 are. A container sees its own there.
const V2: (&str, &str) = ("/sys/fs/cgroup", "memory.max");
const V1: (&str, &str) = ("/sys/fs/cgroup/memory", "memory.limit_in_bytes");

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
        Self(Arc::new(move || limit_of_process().map_or(usize::MAX, left)))
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

    /// Has `load` compile rules within the memory that is left. Blocks for a moment if that is not
    /// enough.
    ///
    /// # Errors
    /// All faults, or that there is not enough memory.
    pub fn load(
        &self,
        mut load: impl FnMut(usize) -> Result<Loaded, Faults>,
    ) -> Result<Loaded, Faults> {
        match load(self.bytes()) {
            Err(faults) if faults.exceeds_memory() => {
                sleep(FREE_MAX);
                load(self.bytes())
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

/// The limit of the process's memory, in bytes, if there is one.
pub fn limit_of_process() -> Option<usize> {
    let groups = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    limit(&groups, |path| fs::read_to_string(path).ok())
}

/// The lowest limit of the groups that this process is in, by the lines of `/proc/self/cgroup`:
/// those of its own group and of all above it. Of a group that lies elsewhere, as in a container,
/// the limit at the root is that of the container.
fn limit(groups: &str, read: impl Fn(&Path) -> Option<String>) -> Option<usize> {
    let mut lowest = None;
    for line in groups.lines() {
        let mut parts = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(group)) = (parts.next(), parts.next()) else { continue };
        let (root, file) = match controllers {
            "" => V2,
            _ if controllers.split(',').any(|it| it == "memory") => V1,
            _ => continue,
        };
        let below = Path::new(group.trim_start_matches('/'));
        for group in below.ancestors() {
            let text = read(&Path::new(root).join(group).join(file));
            // `max` is no number, and version 1 has a number that no machine reaches.
            let bytes = text.and_then(|text| text.trim().parse::<usize>().ok());
            lowest = [lowest, bytes].into_iter().flatten().min();
        }
    }
    lowest.filter(|bytes| *bytes < isize::MAX.unsigned_abs() / 2)
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

    /// Reads from these files instead of those of the machine.
    fn of(groups: &str, files: &[(&str, &str)]) -> Option<usize> {
        limit(groups, |path| {
            let found = files.iter().find(|(name, _)| Path::new(name) == path);
            found.map(|(_, text)| (*text).to_owned())
        })
    }

    #[test]
    fn the_lowest_limit_of_the_groups_above_the_process_counts() {
        let pod = "0::/kubepods/pod/app\n";
        let v2 = |name: &'static str, bytes| [(name, bytes)];
        assert_eq!(of(pod, &[]), None);
        assert_eq!(of(pod, &v2("/sys/fs/cgroup/memory.max", "max\n")), None);
        assert_eq!(of(pod, &v2("/sys/fs/cgroup/memory.max", "67108864\n")), Some(64 << 20));
        let above = [
            ("/sys/fs/cgroup/kubepods/pod/app/memory.max", "100\n"),
            ("/sys/fs/cgroup/kubepods/pod/memory.max", "50\n"),
            ("/sys/fs/cgroup/kubepods/memory.max", "max\n"),
        ];
        assert_eq!(of(pod, &above), Some(50));
        let v1 = "5:cpu,cpuacct:/\n4:memory:/a\n0::/\n";
        let none = "9223372036854771712\n";
        assert_eq!(of(v1, &v2("/sys/fs/cgroup/memory/a/memory.limit_in_bytes", none)), None);
        assert_eq!(of(v1, &v2("/sys/fs/cgroup/memory/memory.limit_in_bytes", "7")), Some(7));
        assert_eq!(of("nonsense\n:\n", &[]), None);
    }

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
