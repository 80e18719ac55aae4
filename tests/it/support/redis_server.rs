//! One `redis-server` process that ends with the test process, however the latter ends.
//!
//! `REDIS_SERVER_BIN` names the program that every test starts instead, such as another version of
//! Redis, or Valkey: a path, or a name on PATH.

use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use super::ports::free_port;
use super::wait_for;

/// A running server. Dropping it kills the process and removes its directory.
pub struct Server {
    port: u16,
    dir: PathBuf,
    arguments: Vec<String>,
    env: Vec<(&'static str, String)>,
    program: OsString,
    /// `user:password@` of the tests' own commands, or `:password@`.
    login: Option<String>,
    process: Process,
}

struct Process {
    /// A shell that kills the server once its standard input closes. The test process holds the
    /// other end, so that the server ends with the test process, even after SIGKILL.
    shell: Child,
    pid: u32,
}

#[derive(Default)]
struct Start<'a> {
    arguments: &'a [&'a str],
    password: Option<&'a str>,
    file: Option<&'a str>,
    user: Option<(&'a str, &'a str)>,
    env: &'a [(&'static str, String)],
    program: Option<&'a Path>,
}

/// Longer than an attempt to connect, which a stranger on the port may leave without an answer.
const START_PATIENCE: Duration = Duration::from_secs(40);
/// Times for connecting and logging in, and for a reply, on a busy machine.
const CONNECT_MAX: Duration = Duration::from_secs(15);
const REPLY_MAX: Duration = Duration::from_secs(20);
/// Attempts to start, since another process may take the port before the server binds it.
const PORT_TRIES: usize = 5;

/// `$1` is the directory, the rest the server's command line. A line `keep` keeps the directory.
const SHELL: &str = r#"
dir=$1; shift
env --default-signal=HUP,INT,QUIT,TERM "$@" >/dev/null 2>&1 &
pid=$!
echo $pid
read word
kill -9 $pid
wait $pid
[ "$word" = keep ] || rm -rf "$dir"
"#;

// === impl Server ===

impl Server {
    /// Starts a server on a free port. `arguments` are command line options; `{free}` in them
    /// stands for another free port, and `{dir}` for the server's directory.
    pub fn start(arguments: &[&str]) -> Self {
        Self::start_somewhere(&Start { arguments, ..Start::default() })
    }

    /// As [`Server::start`], with a server that requires this password.
    pub fn start_protected(arguments: &[&str], password: &str) -> Self {
        Self::start_somewhere(&Start { arguments, password: Some(password), ..Start::default() })
    }

    /// As [`Server::start`], with additional environment variables.
    pub fn start_with_env(arguments: &[&str], env: &[(&'static str, String)]) -> Self {
        Self::start_somewhere(&Start { arguments, env, ..Start::default() })
    }

    /// As [`Server::start`], with a configuration file of this content.
    pub fn start_with_file(arguments: &[&str], file: &str) -> Self {
        Self::start_somewhere(&Start { arguments, file: Some(file), ..Start::default() })
    }

    /// As [`Server::start_with_file`], where the tests' own commands log in as this user.
    pub fn start_as(arguments: &[&str], file: &str, user: (&str, &str)) -> Self {
        let (file, user) = (Some(file), Some(user));
        Self::start_somewhere(&Start { arguments, file, user, ..Start::default() })
    }

    /// As [`Server::start`], with another program than the other tests'.
    pub fn start_program(program: &Path, arguments: &[&str]) -> Self {
        let program = Some(program);
        Self::start_somewhere(&Start { arguments, program, ..Start::default() })
    }

    /// Starts a server on this port, which must be free.
    pub fn start_on(port: u16, arguments: &[&str]) -> Self {
        let start = Start { arguments, ..Start::default() };
        Self::try_start(port, &start).expect("the port is taken")
    }

    fn start_somewhere(start: &Start) -> Self {
        (0..PORT_TRIES)
            .find_map(|_| Self::try_start(free_port(), start))
            .expect("redis-server found no free port")
    }

    fn try_start(port: u16, start: &Start) -> Option<Self> {
        let dir = tempfile::Builder::new().prefix("ratelease-redis-").tempdir().unwrap().keep();
        let mut all: Vec<String> = Vec::new();
        if let Some(file) = start.file {
            std::fs::write(dir.join("conf"), file).unwrap();
            all.push("{dir}/conf".into());
        }
        let common = ["--bind", "127.0.0.1", "--save", "", "--appendonly", "no", "--port"];
        all.extend(common.iter().map(ToString::to_string));
        all.extend([port.to_string()]);
        all.extend(["--dir", "{dir}", "--logfile", "{dir}/log"].map(ToOwned::to_owned));
        if let Some(password) = start.password {
            all.extend(["--requirepass".into(), password.into()]);
        }
        all.extend(start.arguments.iter().map(ToString::to_string));
        for argument in &mut all {
            *argument = argument.replace("{dir}", &dir.display().to_string());
            if argument.contains("{free}") {
                *argument = argument.replace("{free}", &free_port().to_string());
            }
        }
        let program = start.program.map_or_else(redis_server, |program| program.into());
        let process = Process::start(&dir, &program, &all, start.env);
        let user = start.user.or_else(|| start.password.map(|password| ("", password)));
        let login = user.map(|(user, password)| format!("{user}:{password}@"));
        let env = start.env.to_vec();
        let server = Self { port, dir, arguments: all, env, program, login, process };
        server.wait_until_up().then_some(server)
    }

    /// Returns false if another process took the port first.
    fn wait_until_up(&self) -> bool {
        wait_for("redis-server answers", START_PATIENCE, || {
            let log = std::fs::read_to_string(self.dir.join("log")).unwrap_or_default();
            if log.contains("Address already in use") || log.contains("Failed listening") {
                return Some(false);
            }
            assert!(!log.contains("FATAL"), "redis-server does not start: {log}");
            let info = self.try_info("server")?;
            // The process that answers on the port must be ours.
            Some(info.get("process_id")? == &self.process.pid.to_string())
        })
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    /// The port for TLS, if there is one.
    pub fn tls_port(&self) -> u16 {
        let reported: Vec<String> = self.command(&["CONFIG", "GET", "tls-port"]);
        reported[1].parse().expect("a port")
    }

    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// A connection for the test's own commands.
    pub fn connect(&self) -> redis::Connection {
        self.try_connect().unwrap()
    }

    fn try_connect(&self) -> redis::RedisResult<redis::Connection> {
        let login = self.login.as_deref().unwrap_or_default();
        let client = redis::Client::open(format!("redis://{login}127.0.0.1:{}", self.port))?;
        let connection = client.get_connection_with_timeout(CONNECT_MAX)?;
        connection.set_read_timeout(Some(REPLY_MAX))?;
        Ok(connection)
    }

    /// The reply to a command, given as words.
    #[track_caller]
    pub fn command<T: redis::FromRedisValue>(&self, words: &[&str]) -> T {
        self.try_command(words).unwrap_or_else(|error| panic!("{words:?}: {error}"))
    }

    pub fn try_command<T: redis::FromRedisValue>(&self, words: &[&str]) -> redis::RedisResult<T> {
        let (name, rest) = words.split_first().unwrap();
        redis::cmd(name).arg(rest).query(&mut self.try_connect()?)
    }

    /// A section of INFO, as names and values.
    pub fn info(&self, section: &str) -> HashMap<String, String> {
        parse_info(&self.command::<String>(&["INFO", section]))
    }

    fn try_info(&self, section: &str) -> Option<HashMap<String, String>> {
        self.try_command::<String>(&["INFO", section]).ok().as_deref().map(parse_info)
    }

    /// Calls of each command since the server began (or CONFIG RESETSTAT), including those inside
    /// scripts.
    pub fn command_calls(&self) -> HashMap<String, u64> {
        let calls = |stats: &str| {
            stats.split(',').find_map(|it| it.strip_prefix("calls=")).unwrap().parse().unwrap()
        };
        self.info("commandstats")
            .into_iter()
            .map(|(name, stats)| (name.trim_start_matches("cmdstat_").to_owned(), calls(&stats)))
            .collect()
    }

    /// Calls of one command, such as `evalsha` or `config|get`.
    pub fn calls(&self, command: &str) -> u64 {
        self.command_calls().get(command).copied().unwrap_or(0)
    }

    /// Every key of this server.
    pub fn keys(&self) -> Vec<String> {
        self.command(&["KEYS", "*"])
    }

    /// Kills the process at once; the directory remains.
    pub fn kill(&self) {
        self.process.signal("KILL");
    }

    /// Stops the process with SIGSTOP; its sockets stay open.
    pub fn stop(&self) {
        self.process.signal("STOP");
    }

    /// Resumes a stopped process.
    pub fn cont(&self) {
        self.process.signal("CONT");
    }

    /// Restarts the server on its port and in its directory, and kills it first if it still runs.
    pub fn start_again(&mut self) {
        self.process.end("keep");
        self.process = Process::start(&self.dir, &self.program, &self.arguments, &self.env);
        assert!(self.wait_until_up(), "its port was taken meanwhile");
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.process.end("");
    }
}

// === impl Process ===

impl Process {
    fn start(
        dir: &Path,
        program: &OsStr,
        arguments: &[String],
        env: &[(&'static str, String)],
    ) -> Self {
        let mut shell = Command::new("sh")
            .args(["-c", SHELL, "sh"])
            .arg(dir)
            .arg(program)
            .args(arguments)
            .envs(env.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut pid = String::new();
        BufReader::new(shell.stdout.take().unwrap()).read_line(&mut pid).unwrap();
        Self { shell, pid: pid.trim().parse().unwrap() }
    }

    fn signal(&self, signal: &str) {
        let status = Command::new("kill")
            .args([&format!("-{signal}"), &self.pid.to_string()])
            .status()
            .unwrap();
        assert!(status.success(), "kill -{signal} {}", self.pid);
    }

    fn end(&mut self, word: &str) {
        if let Some(mut stdin) = self.shell.stdin.take() {
            let _ = writeln!(stdin, "{word}");
        }
        let _ = self.shell.wait();
    }
}

/// The program to run: `REDIS_SERVER_BIN`, or `redis-server` on PATH.
fn redis_server() -> OsString {
    std::env::var_os("REDIS_SERVER_BIN").unwrap_or_else(|| "redis-server".into())
}

fn parse_info(text: &str) -> HashMap<String, String> {
    let pairs = text.lines().filter_map(|line| line.split_once(':'));
    pairs.map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
}
