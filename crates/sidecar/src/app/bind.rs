//! Binds listeners early, so that a port in use is reported before any other part starts.

use std::fs::{File, TryLockError};
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::unix::fs::{FileTypeExt, PermissionsExt, chown};
use std::path::Path;
use std::time::Duration;

use ratelease_cli::settings::{HostPort, Uds};
use tokio::net::{TcpListener, TcpSocket, UnixListener, UnixSocket, UnixStream, lookup_host};
use tracing::debug;

use super::BuildError;
use super::ConnectionLimits;
use ratelease_listener::{CONNECTIONS_MAX, OpenConnections};

/// Maximum number of connections of a listener that wait to be accepted; the kernel may have a
/// lower one (`net.core.somaxconn`). Linux drops the first packet of a connection for which there
/// is no room, and its client tries again after one second and after three: too late for a probe.
/// With the 128 of `std`, a crowd of 600 that reconnects does that to a probe. Many more could not
/// be accepted before their clients give up.
const BACKLOG: u32 = 1024;

/// Number of attempts to lock the directory of a Unix socket, and the pause between two attempts.
/// The lock is held for as long as it takes to connect to a socket of this machine.
const LOCK_TRIES: u32 = 100;
const LOCK_PAUSE: Duration = Duration::from_millis(20);

/// One in this many of the files that this process may have open may be a connection: of gRPC, of
/// `PORT`, and of the debug and the metrics port each. A crowd at one port thus leaves files for
/// the others, for Redis and for the rules.
const GRPC_DIVISOR: usize = 2;
const HTTP_DIVISOR: usize = 8;
const PAGES_DIVISOR: usize = 16;

/// Maximum however many files there are: probes and pages have few clients, each of which takes
/// memory.
const HTTP_MAX: usize = 1024;
const PAGES_MAX: usize = 64;

/// Files that the runtime of a thread has open: for events, for being woken, and for signals.
const RUNTIME_FILES: usize = 4;

/// Creates the connection pools, sized by the limit on open files less those of `runtimes`.
pub fn connection_limits(runtimes: usize) -> ConnectionLimits {
    let limits = std::fs::read_to_string("/proc/self/limits").unwrap_or_default();
    let files = files_max(&limits).unwrap_or(usize::MAX).saturating_sub(runtimes * RUNTIME_FILES);
    let part = |of: usize, max: usize| (files / of).clamp(1, max);
    let pages = || OpenConnections::new(part(PAGES_DIVISOR, PAGES_MAX));
    let grpc = OpenConnections::for_calls(part(GRPC_DIVISOR, CONNECTIONS_MAX));
    let http = OpenConnections::new(part(HTTP_DIVISOR, HTTP_MAX));
    ConnectionLimits { grpc, http, debug: pages(), metrics: pages() }
}

/// The soft limit on open files in the text of proc(5); `None` if the text has none.
fn files_max(limits: &str) -> Option<usize> {
    let line = limits.lines().find_map(|line| line.strip_prefix("Max open files"))?;
    line.split_whitespace().next()?.parse().ok()
}

/// Binds a TCP listener. `name` and `variable` appear in errors: which listener it is, and how to
/// change its address.
pub async fn tcp(
    address: &HostPort,
    name: &str,
    variable: &str,
) -> Result<TcpListener, BuildError> {
    listen(address).await.map_err(|error| {
        let hint = match error.kind() {
            io::ErrorKind::AddrInUse => format!("end what uses it, or set {variable}"),
            io::ErrorKind::PermissionDenied => format!("choose a port above 1023 with {variable}"),
            _ => format!("check the host part, or set {variable}"),
        };
        BuildError::new(format!("cannot listen on {address} for {name}: {error}; {hint}"))
    })
}

/// Listens on the first address of a host that can be bound.
async fn listen(HostPort { host, port }: &HostPort) -> io::Result<TcpListener> {
    let mut last = None;
    for address in lookup_host((host.as_str(), *port)).await? {
        match listen_on(address) {
            Ok(listener) => return Ok(listener),
            Err(error) => last = Some(error),
        }
    }
    Err(last.unwrap_or_else(|| io::Error::new(io::ErrorKind::NotFound, "the host has no address")))
}

fn listen_on(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
    // A pod that restarts takes its port again while connections of the former are in TIME_WAIT.
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

/// Binds a Unix socket and replaces one that no process listens on any more. No client can connect
/// before the socket has its mode and group.
pub async fn unix(uds: &Uds) -> Result<UnixListener, BuildError> {
    let Uds { path, mode, group } = uds;
    let fault = |setting: &str, what: &dyn std::fmt::Display| {
        let path = path.display();
        BuildError::new(format!("cannot listen on {path} for gRPC: {what}; {setting}"))
    };
    const HINT: &str = "set GRPC_UDS to a path that can be made";
    let _lock = lock_directory_of(path).await;
    remove_stale(path).await.map_err(|what| fault(HINT, &what))?;
    let socket = UnixSocket::new_stream().map_err(|error| fault(HINT, &error))?;
    socket.bind(path).map_err(|error| fault(HINT, &error))?;
    let mode = std::fs::Permissions::from_mode(*mode);
    std::fs::set_permissions(path, mode).map_err(|error| fault(HINT, &error))?;
    if let Some(group) = group {
        chown(path, None, Some(*group)).map_err(|error| {
            let hint = "set GRPC_UDS_GROUP to a group that this process is in";
            fault(hint, &format_args!("cannot give it to the group {group}: {error}"))
        })?;
    }
    socket.listen(BACKLOG).map_err(|error| fault(HINT, &error))
}

/// Acquires a lock that is held from the check of `path` until the socket is listened on: two
/// processes that start together would both find the path free, and the second would replace the
/// socket of the first. The lock is on the directory, so that no file is left behind. Without it,
/// such as where others hold it or the file system has none, the process starts all the same.
async fn lock_directory_of(path: &Path) -> Option<File> {
    let parent = path.parent().filter(|it| !it.as_os_str().is_empty());
    let directory = parent.unwrap_or(Path::new("."));
    let lock = lock_directory(directory).await;
    lock.inspect_err(|error| {
        let directory = directory.display();
        debug!(
            "cannot lock {directory}; this matters only if two pods start at the same time: {error}"
        );
    })
    .ok()
}

async fn lock_directory(directory: &Path) -> io::Result<File> {
    let lock = File::open(directory)?;
    for _ in 0..LOCK_TRIES {
        match lock.try_lock() {
            Ok(()) => return Ok(lock),
            Err(TryLockError::WouldBlock) => tokio::time::sleep(LOCK_PAUSE).await,
            Err(TryLockError::Error(error)) => return Err(error),
        }
    }
    Err(io::Error::new(io::ErrorKind::WouldBlock, "another process holds the lock"))
}

/// Removes the socket at `path` if no process listens on it. Only a refused connection proves that:
/// any other failure may mean that a listener is busy.
async fn remove_stale(path: &Path) -> Result<(), String> {
    let Ok(found) = std::fs::symlink_metadata(path) else { return Ok(()) };
    if !found.file_type().is_socket() {
        return Err("the path exists and is not a socket".to_owned());
    }
    match UnixStream::connect(path).await {
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
            std::fs::remove_file(path).map_err(|error| error.to_string())
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        // Its queue of connections is full.
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Err(IN_USE.to_owned()),
        Err(error) => Err(format!("whether a process listens on it is unknown: {error}")),
        Ok(_) => Err(IN_USE.to_owned()),
    }
}

const IN_USE: &str = "another process listens on it";

/// The address a listener is bound to; a port given as 0 is resolved.
pub fn local_address(listener: &TcpListener) -> Result<SocketAddr, BuildError> {
    listener.local_addr().map_err(|error| BuildError::new(error.to_string()))
}

/// The address at which a listener is reached from this machine, since a client cannot connect to
/// "all interfaces".
pub fn reachable_address(mut listener: SocketAddr) -> SocketAddr {
    if listener.ip().is_unspecified() {
        match listener {
            SocketAddr::V4(_) => listener.set_ip(Ipv4Addr::LOCALHOST.into()),
            SocketAddr::V6(_) => listener.set_ip(Ipv6Addr::LOCALHOST.into()),
        }
    }
    listener
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn processes_that_start_together_bind_a_unix_socket_one_after_the_other() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("grpc.sock");
        let uds = Uds { path: path.clone(), mode: 0o600, group: None };
        let other = File::open(directory.path()).unwrap();
        other.lock().unwrap();
        let mut bound = std::pin::pin!(unix(&uds));
        assert!(futures_util::poll!(&mut bound).is_pending() && !path.exists());
        other.unlock().unwrap();
        let _listener = bound.await.unwrap();
        let second = unix(&uds).await.err().map(|error| error.to_string()).unwrap();
        assert!(second.contains(IN_USE), "{second}");
    }

    #[tokio::test]
    async fn a_crowd_that_no_one_accepts_yet_keeps_no_client_from_connecting() {
        let somaxconn = std::fs::read_to_string("/proc/sys/net/core/somaxconn").unwrap();
        let waiting = somaxconn.trim().parse().unwrap_or(600).min(600);
        let any = HostPort { host: "localhost".to_owned(), port: 0 };
        // Less than a second: the kernel drops the first packet if the queue is full.
        let limit = Duration::from_millis(900);
        let crowd = async || {
            let listener = tcp(&any, "gRPC", "GRPC_PORT").await.unwrap();
            let address = local_address(&listener).unwrap();
            let connect = || std::net::TcpStream::connect_timeout(&address, limit).ok();
            let clients: Vec<_> = (0..waiting).map_while(|_| connect()).collect();
            (listener, address, clients)
        };
        let mut met = crowd().await;
        if met.2.len() < waiting {
            // A busy machine may delay a client as long; a queue that is full does so each time.
            drop(met);
            met = crowd().await;
        }
        let (_listener, address, clients) = met;
        assert_eq!(clients.len(), waiting);
        let used = tcp(&HostPort { port: address.port(), ..any }, "gRPC", "GRPC_PORT").await;
        let error = used.map(drop).unwrap_err().to_string();
        assert!(error.contains("end what uses it, or set GRPC_PORT"), "{error}");
    }

    #[test]
    fn the_limit_on_open_files_is_read_or_is_none() {
        let head =
            "Limit                     Soft Limit           Hard Limit           Units     \n";
        let line = |soft| format!("{head}Max open files            {soft}    524288    files\n");
        for (text, expected) in [
            (line("1024"), Some(1024)),
            (line("unlimited"), None),
            (head.to_owned(), None),
            (String::new(), None),
        ] {
            assert_eq!(files_max(&text), expected, "{text}");
        }
    }
}
