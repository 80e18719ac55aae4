//! A PostgreSQL server of a test, on a free port.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use tempfile::TempDir;
use tokio::time::sleep;

use super::ports::free_port;
use super::{now, wait_for};

/// What it logs if processes of its former run have not ended.
const STILL_IN_USE: &str = "shared memory block";

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
        let dir = directory();
        let data = dir.path().join("data");
        let mut init = command("initdb");
        init.args(["--username=postgres", "--auth=trust", "--no-sync", "--encoding=UTF8"]);
        let made = init.args(["--locale=C.UTF-8", "--pgdata"]).arg(&data).output().unwrap();
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
        let port = free_port();
        let process = run(dir.path(), port);
        let mut server = Self { dir, port, process };
        server.ready().await;
        server
    }

    pub(crate) fn url(&self) -> String {
        url(self.port)
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    /// Starts a standby that follows this server, and from now on has every commit before it is
    /// acknowledged.
    pub(crate) async fn synchronous_standby(&self) -> Self {
        let dir = directory();
        let data = dir.path().join("data");
        let mut copy = command("pg_basebackup");
        copy.args(["--write-recovery-conf", "--no-sync", "--checkpoint=fast", "--pgdata"]);
        copy.arg(&data).args(["--dbname", &self.url()]);
        let copied = copy.output().unwrap();
        assert!(copied.status.success(), "{}", String::from_utf8_lossy(&copied.stderr));
        let port = free_port();
        let process = run(dir.path(), port);
        let mut standby = Self { dir, port, process };
        standby.ready().await;
        // After the copy: the standby must not wait for one of its own once it is promoted.
        self.sql("ALTER SYSTEM SET synchronous_standby_names = '*'").await;
        self.sql("SELECT pg_reload_conf()").await;
        let follows = "SELECT count(*) FROM pg_stat_replication WHERE sync_state = 'sync'";
        wait_for("a standby that follows", async || (self.sql(follows).await == "1").then_some(()))
            .await;
        standby
    }

    /// Makes a standby the primary.
    pub(crate) async fn promote(&self) {
        assert_eq!(self.sql("SELECT pg_promote(true, 60)").await, "t");
    }

    /// Waits until a session waits for a lock of this kind.
    pub(crate) async fn waits_for_lock(&self, kind: &str) {
        let sql =
            format!("SELECT count(*) FROM pg_locks WHERE locktype = '{kind}' AND NOT granted");
        let waits = async || (self.sql(&sql).await != "0").then_some(());
        wait_for("a session that waits for a lock", waits).await;
    }

    /// The value that a statement returns, once the server takes it.
    async fn sql(&self, statement: &str) -> String {
        let answered = async || {
            let mut psql = command("psql");
            psql.args(["--no-psqlrc", "--tuples-only", "--no-align", "--dbname", &self.url()]);
            let done = psql.args(["--command", statement]).output().unwrap();
            done.status.success().then(|| String::from_utf8(done.stdout).unwrap())
        };
        wait_for(statement, answered).await.trim().to_owned()
    }

    /// Ends the server at once, as a crash does.
    pub(crate) fn kill(&mut self) {
        // The first process ends the others when it has to end at once.
        self.signal("QUIT");
        self.process.wait().unwrap();
    }

    /// Kills every process of the server with SIGKILL, and waits for the first one.
    pub(crate) fn crash(&mut self) {
        self.signal_all("KILL");
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

    /// Waits until it takes statements: it takes connections before.
    async fn ready(&mut self) {
        let end = now() + START_MAX;
        while !self.takes_statements() {
            let log = fs::read_to_string(self.dir.path().join("log")).unwrap_or_default();
            if self.process.try_wait().unwrap().is_some() {
                // The processes of one that was killed take a moment to end.
                assert!(log.contains(STILL_IN_USE), "it has ended:\n{log}");
                self.process = run(self.dir.path(), self.port);
            }
            assert!(now() < end, "no PostgreSQL within {START_MAX:?}:\n{log}");
            sleep(Duration::from_millis(20)).await;
        }
    }

    fn takes_statements(&self) -> bool {
        let mut asked = command("pg_isready");
        asked.args(["--host=127.0.0.1", &format!("--port={}", self.port)]);
        asked.stdout(Stdio::null()).stderr(Stdio::null()).status().unwrap().success()
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

/// The URL of the server on this port.
pub(crate) fn url(port: u16) -> String {
    format!("postgres://postgres@127.0.0.1:{port}/postgres?sslmode=disable")
}

/// A directory of the user that the server runs as.
fn directory() -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    if is_root() {
        let status = Command::new("chown").arg("postgres").arg(dir.path()).status();
        assert!(status.unwrap().success(), "the user postgres is missing: {INSTALL}");
    }
    dir
}

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
