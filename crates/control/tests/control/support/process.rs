//! A control plane as a process of its own, so that it can be killed and its memory be read.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use super::{Place, wait_for};

/// A control plane as a process.
pub(crate) struct Process {
    child: Child,
    log: PathBuf,
    pub(crate) http: SocketAddr,
    #[allow(dead_code)] // of the attacks only
    pub(crate) pods: SocketAddr,
}

impl Process {
    pub(crate) fn start(place: &Place, flags: &[&str]) -> Self {
        Self::start_with(place, flags, &[])
    }

    /// Starts one with these variables too.
    pub(crate) fn start_with(place: &Place, flags: &[&str], env: &[(&str, String)]) -> Self {
        let binary = std::env::var_os("RATELEASE_CONTROL_BIN");
        let binary = binary.unwrap_or_else(|| env!("CARGO_BIN_EXE_ratelease-control").into());
        let mut command = Command::new(binary);
        command.arg("serve").args(["--http-listen", "127.0.0.1:0", "--pods-listen", "127.0.0.1:0"]);
        command.args(flags).envs(env.iter().map(|(name, value)| (name, value)));
        command.arg("--token-file").arg(place.token_file()).env_remove("DATABASE_URL");
        match &place.postgres {
            Some(postgres) => command.env("DATABASE_URL", postgres.url()),
            None => command.arg("--database-file").arg(place.dir.path().join("rules.db")),
        };
        let log = place.dir.path().join("control.log");
        let stderr = File::options().create(true).append(true).open(&log).unwrap();
        let mut child = command.stdout(Stdio::piped()).stderr(stderr).spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let line = lines.next().expect("it says where it listens").unwrap();
        let http = line.split("http://").nth(1).and_then(|it| it.split(',').next());
        let http = http.unwrap_or_else(|| panic!("{line}")).parse().unwrap();
        let pods = line.rsplit_once("pods on ").unwrap_or_else(|| panic!("{line}")).1;
        let pods = pods.parse().unwrap();
        Self { child, log, http, pods }
    }

    /// Waits until the log of this process, or of one before it at the same place, has a text.
    #[allow(dead_code)] // of the tests of objects only
    pub(crate) async fn await_log(&self, text: &str) {
        let has_text = async || {
            let log = std::fs::read_to_string(&self.log).unwrap_or_default();
            log.contains(text).then_some(())
        };
        wait_for(&format!("'{text}' in the log"), has_text).await;
    }

    /// Resident memory in bytes.
    #[allow(dead_code)] // of the attacks only
    pub(crate) fn memory(&self) -> u64 {
        resident(self.child.id())
    }

    /// Time of processors that it has taken.
    #[allow(dead_code)] // of the attacks only
    pub(crate) fn cpu(&self) -> Duration {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.child.id())).unwrap();
        // The second field is the name of the program, which may have spaces; utime and stime are the
        // 14th and the 15th, in ticks of 10 ms.
        let fields = stat.rsplit_once(')').unwrap().1.split_whitespace();
        let ticks: u64 = fields.skip(11).take(2).map(|it| it.parse::<u64>().unwrap()).sum();
        Duration::from_millis(10 * ticks)
    }

    /// Number of threads.
    #[allow(dead_code)] // of the attacks only
    pub(crate) fn threads(&self) -> usize {
        std::fs::read_dir(format!("/proc/{}/task", self.child.id())).unwrap().count()
    }

    #[allow(dead_code)] // of the attacks only
    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// Ends it as Kubernetes does.
    #[allow(dead_code)] // of the churn only
    pub(crate) fn stop(&mut self) {
        let id = self.child.id().to_string();
        let told = Command::new("kill").args(["-s", "TERM", &id]).status();
        assert!(told.unwrap().success());
        self.child.wait().unwrap();
    }

    #[allow(dead_code)] // of the tests of kills only
    pub(crate) fn kill(&mut self) {
        self.child.kill().unwrap(); // SIGKILL
        self.child.wait().unwrap();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Resident memory of a process in bytes; 0 if it has ended.
pub(crate) fn resident(process: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = line.and_then(|it| it.trim().strip_suffix(" kB")?.parse::<u64>().ok());
    kib.unwrap_or_default() << 10
}
