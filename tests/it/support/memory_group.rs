//! A control group with a limit of memory, as a container has one.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

use super::process::leashed;

/// A group, of version 2 or 1 as the machine has it. Removed when dropped, after its processes.
pub(crate) struct MemoryGroup {
    directory: PathBuf,
    is_v2: bool,
}

// === impl MemoryGroup ===

impl MemoryGroup {
    /// Makes a group with this limit; returns the reason if this machine cannot (it takes root).
    pub(crate) fn make(bytes: usize) -> Result<Self, String> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let root = Path::new("/sys/fs/cgroup");
        let is_v2 = root.join("cgroup.controllers").exists();
        let name = format!("ratelease-{}-{number}", std::process::id());
        let directory = if is_v2 { root.join(name) } else { root.join("memory").join(name) };
        let fail = |error: io::Error| format!("{}: {error}", directory.display());
        fs::create_dir(&directory).map_err(fail)?;
        let group = Self { directory: directory.clone(), is_v2 };
        group.limit(bytes).map_err(fail)?;
        Ok(group)
    }

    /// Gives the group another limit.
    pub(crate) fn limit(&self, bytes: usize) -> io::Result<()> {
        let file = if self.is_v2 { "memory.max" } else { "memory.limit_in_bytes" };
        fs::write(self.directory.join(file), bytes.to_string())
    }

    /// A leashed command that joins the group, then becomes `program`.
    pub(crate) fn command(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let joins = format!("echo $$ > {}/cgroup.procs && exec \"$@\"", self.directory.display());
        let mut command = leashed("/bin/sh");
        command.args(["-c", &joins, "sh"]).arg(program);
        command
    }

    /// The most memory that the group has used, in bytes.
    pub(crate) fn peak(&self) -> usize {
        let file = if self.is_v2 { "memory.peak" } else { "memory.max_usage_in_bytes" };
        let text = fs::read_to_string(self.directory.join(file)).unwrap_or_default();
        text.trim().parse().unwrap_or_default()
    }
}

impl Drop for MemoryGroup {
    fn drop(&mut self) {
        // Fails only if a process is left, which was killed, and then the group stays empty.
        let _ = fs::remove_dir(&self.directory);
    }
}
