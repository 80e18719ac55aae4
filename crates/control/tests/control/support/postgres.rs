//! A PostgreSQL server of a test, on a free port.

use std::fs;
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use tempfile::TempDir;
use tokio::net::TcpStream;
use tokio::time::sleep;

use super::now;

/// Maximum time of a start, on a machine that also compiles.
const START_MAX: Duration = Duration::from_secs(60);

/// A server. It ends with this, and with the thread that started it.
pub(crate) struct Postgres {
    dir: TempDir,
    port: u16,
    process: Child,
}

// === impl Postgres ===

impl Postgres {
    pub(crate) async fn start() -> Self {
        let dir = tempfile::tempdir().unwrap();
        if is_root() {
            let status = Command::new("chown").arg("postgres").arg(dir.path()).status();
            assert!(status.unwrap().success(), "the user postgres is missing: {INSTALL}");
        }
        let data = dir.path().join("data");
        let mut init = command("initdb");
        init.args(["--username=postgres", "--auth=trust", "--no-sync", "--encoding=UTF8"]);
        let made = init.args(["--locale=C.UTF-8", "--pgdata"]).arg(&data).output().unwrap();
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let process = run(dir.path(), port);
        let mut server = Self { dir, port, process };
        server.ready().await;
        server
    }

    pub(crate) fn url(&self) -> String {
        format!("postgres://postgres@127.0.0.1:{}/postgres?sslmode=disable", self.port)
    }

    /// Ends the server at once, as a crash does.
    pub(crate) fn kill(&mut self) {
        // The first process ends the others when it is told to end at once.
        self.signal("QUIT");
        self.process.wait().unwrap();
    }

    /// Starts it again.
    pub(crate) async fn restart(&mut self) {
        self.process = run(self.dir.path(), self.port);
        self.ready().await;
    }

    /// Stops every process of the server, or has them go on.
    pub(crate) fn signal_all(&self, signal: &str) {
        let children = format!("/proc/{0}/task/{0}/children", self.process.id());
        let children = fs::read_to_string(children).unwrap();
        self.signal(signal);
        for child in children.split_whitespace() {
            kill(signal, child);
        }
    }

    fn signal(&self, signal: &str) {
        kill(signal, &self.process.id().to_string());
    }

    async fn ready(&mut self) {
        let end = now() + START_MAX;
        let addr = SocketAddr::from(([127, 0, 0, 1], self.port));
        while TcpStream::connect(addr).await.is_err() {
            let log = fs::read_to_string(self.dir.path().join("log")).unwrap_or_default();
            assert!(self.process.try_wait().unwrap().is_none(), "it has ended:\n{log}");
            assert!(now() < end, "no PostgreSQL within {START_MAX:?}:\n{log}");
            sleep(Duration::from_millis(20)).await;
        }
    }
}

impl Drop for Postgres {
    fn drop(&mut self) {
        self.signal("CONT");
        self.kill();
    }
}

/// What to do without PostgreSQL.
const INSTALL: &str = "apt-get install --no-install-recommends postgresql";

fn run(dir: &Path, port: u16) -> Child {
    let log = fs::File::create(dir.join("log")).unwrap();
    let mut postgres = command("postgres");
    postgres.arg("-D").arg(dir.join("data")).args(["-c", "listen_addresses=127.0.0.1"]);
    postgres.args(["-c", &format!("port={port}")]);
    postgres.args(["-c", &format!("unix_socket_directories={}", dir.display())]);
    postgres.stderr(log).stdout(Stdio::null()).spawn().unwrap()
}

/// A program of PostgreSQL, as a user that it runs as, which ends with this thread.
fn command(program: &str) -> Command {
    let path = binaries().join(program);
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "KILL"]);
    if is_root() {
        command.args(["--reuid", "postgres", "--regid", "postgres", "--clear-groups"]);
    }
    command.arg(path).current_dir("/");
    command
}

/// The newest version that is installed.
fn binaries() -> PathBuf {
    let versions = fs::read_dir("/usr/lib/postgresql").into_iter().flatten();
    let versions = versions.map(|entry| entry.unwrap().path().join("bin"));
    let mut found: Vec<_> = versions.filter(|dir| dir.join("initdb").exists()).collect();
    found.sort();
    found.pop().unwrap_or_else(|| panic!("PostgreSQL is missing: {INSTALL}"))
}

fn is_root() -> bool {
    fs::metadata("/proc/self").is_ok_and(|it| std::os::unix::fs::MetadataExt::uid(&it) == 0)
}

fn kill(signal: &str, process: &str) {
    let _ = Command::new("kill").args(["-s", signal, process]).stderr(Stdio::null()).status();
}
