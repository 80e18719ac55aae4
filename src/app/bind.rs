//! Listeners, bound early so that a port in use is told before anything else starts.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::Path;

use tokio::net::{TcpListener, UnixListener, UnixStream};

use super::Open;
use super::build::BuildError;
use crate::accept::{CONNECTIONS_MAX, OpenConnections};
use crate::settings::HostPort;

/// Anybody in the pod may connect, as to a loopback port: Envoy seldom runs under our user.
const SOCKET_MODE: u32 = 0o666;

/// Of the files that this process may have open, one in so many may be connections of gRPC, and of
/// HTTP: a crowd at one port leaves files for the other, for Redis and for the rules.
const GRPC_PART: usize = 2;
const HTTP_PART: usize = 4;

/// Room for connections, as far as the limit on open files lets there be.
pub(super) fn room() -> Open {
    let limits = std::fs::read_to_string("/proc/self/limits").unwrap_or_default();
    let files = files_max(&limits).unwrap_or(usize::MAX);
    let part = |of: usize| OpenConnections::new((files / of).clamp(1, CONNECTIONS_MAX));
    Open { grpc: part(GRPC_PART), http: part(HTTP_PART) }
}

/// The soft limit on open files in the text of proc(5); `None` if there is none.
fn files_max(limits: &str) -> Option<usize> {
    let line = limits.lines().find_map(|line| line.strip_prefix("Max open files"))?;
    line.split_whitespace().next()?.parse().ok()
}

/// Binds a TCP listener. `name` and `variable` tell people which one, and how to move it.
pub(super) async fn tcp(
    address: &HostPort,
    name: &str,
    variable: &str,
) -> Result<TcpListener, BuildError> {
    let bound = TcpListener::bind((address.host.as_str(), address.port)).await;
    bound.map_err(|error| {
        let mend = match error.kind() {
            io::ErrorKind::AddrInUse => format!("end what uses it, or set {variable}"),
            io::ErrorKind::PermissionDenied => format!("choose a port above 1023 with {variable}"),
            _ => format!("check the host part, or set {variable}"),
        };
        BuildError::new(format!("cannot listen on {address} for {name}: {error}; {mend}"))
    })
}

/// Binds a Unix socket in the place of one that nobody listens on any more.
pub(super) async fn unix(path: &Path) -> Result<UnixListener, BuildError> {
    let fault = |what: &dyn std::fmt::Display| {
        let path = path.display();
        BuildError::new(format!(
            "cannot listen on {path} for gRPC: {what}; set GRPC_UDS to a path that can be made"
        ))
    };
    if let Ok(found) = std::fs::symlink_metadata(path) {
        if !found.file_type().is_socket() {
            return Err(fault(&"something that is not a socket is there"));
        }
        if UnixStream::connect(path).await.is_ok() {
            return Err(fault(&"another process listens on it"));
        }
        std::fs::remove_file(path).map_err(|error| fault(&error))?;
    }
    let listener = UnixListener::bind(path).map_err(|error| fault(&error))?;
    let mode = std::fs::Permissions::from_mode(SOCKET_MODE);
    std::fs::set_permissions(path, mode).map_err(|error| fault(&error))?;
    Ok(listener)
}

/// Where a listener ended up; ports given as 0 are known now.
pub(super) fn local(listener: &TcpListener) -> Result<SocketAddr, BuildError> {
    listener.local_addr().map_err(|error| BuildError::new(error.to_string()))
}

/// The address by which a listener is reached from this machine: "all interfaces" is none to
/// connect to.
pub(super) fn reachable(mut listener: SocketAddr) -> SocketAddr {
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
