//! Child processes that cannot outlive the test, even if it is killed.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::FileExt;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use tokio::sync::watch;

/// A running child. When dropped, it is killed, and has ended before `drop` returns.
pub(crate) struct Process {
    name: String,
    pid: u32,
    log: File,
    exit: watch::Receiver<Option<i32>>,
    /// The write end of a pipe that the child's guard reads. The kernel closes it when this process
    /// ends, however it ends, and then the guard kills the child.
    leash: Option<ChildStdin>,
    reaper: Option<JoinHandle<()>>,
}

/// Number of log lines in the message of a failure.
const LOG_LINES_SHOWN: usize = 30;

/// Interval at which [`Process::until`] checks.
const POLL: Duration = Duration::from_millis(10);

/// Runs its arguments in the background, with the log on its own stderr; prints the pid to stdout;
/// and kills the child once its own stdin is at an end. Its status is the child's, or 128 + n after
/// signal n.
///
/// The child starts with default dispositions of the signals that end a process: processes started
/// by nohup or by a script's `&` ignore some of them, and the shell itself ignores SIGINT and
/// SIGQUIT in its background processes.
const GUARD: &str = r#"
exec 3<&0
env --default-signal=HUP,INT,QUIT,TERM "$@" >&2 3<&- </dev/null &
child=$!
{ read -r _; kill -KILL "$child"; } <&3 >/dev/null 2>&1 3<&- &
guard=$!
exec 3<&- </dev/null
echo "$child"
exec >/dev/null 2>&1
wait "$child"
status=$?
kill "$guard"
exit "$status"
"#;

/// A command that runs `program` with default dispositions of the signals that end a process,
/// whatever this process has inherited. It has no leash, so the test has to wait for the child.
pub(crate) fn undisturbed(program: impl AsRef<std::ffi::OsStr>) -> Command {
    let mut command = Command::new("env");
    command.arg("--default-signal=HUP,INT,QUIT,TERM").arg(program);
    command
}

/// A command that runs `program` on a leash, for [`Process::spawn`]: add arguments and environment.
pub(crate) fn leashed(program: impl AsRef<std::ffi::OsStr>) -> Command {
    let mut command = Command::new("/bin/sh");
    command.args(["-c", GUARD, "guard"]).arg(program);
    command
}

// === impl Process ===

impl Process {
    /// Starts a [`leashed`] command. `name` is for messages.
    pub(crate) fn spawn(name: &str, mut command: Command) -> Self {
        // Two descriptions of one file that no longer has a name, so that it needs no removal.
        let log = tempfile::NamedTempFile::new().expect("a temporary file for a log");
        let written = log.reopen().expect("the log, opened again");
        let mut shell = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(written)
            .spawn()
            .unwrap_or_else(|error| panic!("cannot start a shell for {name}: {error}"));
        let leash = shell.stdin.take();
        let mut reported = String::new();
        let stdout = shell.stdout.take().expect("stdout is piped");
        BufReader::new(stdout).read_line(&mut reported).expect("the shell tells the child's pid");
        let (exited, exit) = watch::channel(None);
        let mut process =
            Self { name: name.to_owned(), pid: 0, log: log.into_file(), exit, leash, reaper: None };
        process.reaper = Some(thread::spawn(move || reap(shell, &exited)));
        process.pid = reported.trim().parse().unwrap_or_else(|_| process.fail("did not start"));
        process
    }

    pub(crate) fn pid(&self) -> u32 {
        self.pid
    }

    /// Everything that the process has written to stdout and stderr.
    pub(crate) fn log(&self) -> String {
        let length = self.log.metadata().map_or(0, |data| data.len());
        let mut bytes = vec![0; usize::try_from(length).expect("a log that fits in memory")];
        self.log.read_exact_at(&mut bytes, 0).expect("a readable log");
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// As [`memory`], for this process.
    pub(crate) fn memory(&self, line: &str) -> u64 {
        memory(self.pid, line)
    }

    /// Its exit status, or 128 + n after signal n; `None` while it runs.
    pub(crate) fn exited(&self) -> Option<i32> {
        *self.exit.borrow()
    }

    /// Waits for its end and returns [`Process::exited`]. Fails the test after `within`.
    pub(crate) async fn exit(&self, within: Duration) -> i32 {
        let mut exit = self.exit.clone();
        let ended = tokio::time::timeout(within, exit.wait_for(Option::is_some)).await;
        match ended.map(|status| *status.expect("the reaper tells before it ends")) {
            Ok(Some(status)) => status,
            _ => self.fail(&format!("still runs after {within:?}")),
        }
    }

    /// Sends a signal by its short name, such as `TERM`, `KILL`, `STOP`, `CONT`.
    pub(crate) fn signal(&self, signal: &str) {
        if let Some(status) = self.exited() {
            self.fail(&format!("has ended with status {status} before SIG{signal}"));
        }
        let sent = Command::new("/bin/sh")
            .args(["-c", r#"kill -s "$0" "$1""#, signal, &self.pid.to_string()])
            .status();
        assert!(sent.is_ok_and(|status| status.success()), "SIG{signal} not sent to {}", self.name);
    }

    /// Calls `ready` until it returns true. Fails the test, showing the log, after `within` or when
    /// the process ends earlier.
    pub(crate) async fn until<F>(&self, what: &str, within: Duration, ready: F)
    where
        F: AsyncFn() -> bool,
    {
        let asked = async {
            while !ready().await {
                if let Some(status) = self.exited() {
                    self.fail(&format!("ended with status {status} before it was {what}"));
                }
                tokio::time::sleep(POLL).await;
            }
        };
        if tokio::time::timeout(within, asked).await.is_err() {
            self.fail(&format!("is not {what} after {within:?}"));
        }
    }

    /// Fails the test with a reason and the end of the log.
    pub(crate) fn fail(&self, reason: &str) -> ! {
        panic!("{} {reason}; the end of its log:\n{}", self.name, self.log_end());
    }

    fn log_end(&self) -> String {
        let log = self.log();
        let lines: Vec<_> = log.lines().collect();
        lines[lines.len().saturating_sub(LOG_LINES_SHOWN)..].join("\n")
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        drop(self.leash.take());
        if let Some(reaper) = self.reaper.take() {
            // An error means that the reaper panicked, which it has reported itself.
            drop(reaper.join());
        }
        if thread::panicking() {
            eprintln!("--- the end of the log of {}:\n{}\n---", self.name, self.log_end());
        }
    }
}

/// A line of `/proc/PID/status`, in bytes: `VmRSS`, or `VmHWM`, which is the peak of the former.
/// Fails the test if there is no such process.
pub(crate) fn memory(pid: u32, line: &str) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("a running process");
    let text = status.lines().find_map(|text| text.strip_prefix(line)?.strip_prefix(':'));
    let kib = text.and_then(|text| text.strip_suffix("kB")?.trim().parse::<u64>().ok());
    1024 * kib.unwrap_or_else(|| panic!("no {line} in {status}"))
}

/// Time that the threads of a process have run so far (proc(5), `schedstat`).
pub(crate) fn cpu_time(pid: u32) -> Duration {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).expect("a running process");
    let stats = tasks.map(|task| {
        let file = task.expect("a thread").path().join("schedstat");
        std::fs::read_to_string(file).expect("a running thread")
    });
    let ran = |stat: String| stat.split_whitespace().next().and_then(|it| it.parse().ok());
    Duration::from_nanos(stats.map(|stat| ran(stat).unwrap_or(0_u64)).sum())
}

fn reap(mut shell: Child, exited: &watch::Sender<Option<i32>>) {
    let code = |status: ExitStatus| status.code().or_else(|| status.signal().map(|n| 128 + n));
    let status = shell.wait().expect("a child of ours can be waited for");
    exited.send_replace(code(status));
}
