//! Requests one page of the program's own HTTP ports, without an async runtime: a probe starts
//! often and must be quick.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::time::Duration;

use ratelease_engine::secret::Secret;
use ratelease_engine::time::{Clock, Time};
use ratelease_rules::parse_duration;

use crate::out::CliError;
use crate::settings::HostPort;

/// Maximum bytes of an answer: `/status` has some tens of thousands.
const ANSWER_BYTES_MAX: u64 = 64 << 20;

/// Bytes per read.
const PIECE_BYTES: usize = 1 << 16;

/// An HTTP answer.
#[derive(Debug, PartialEq, Eq)]
pub struct Page {
    /// The HTTP status, 200 on success.
    pub status: u16,
    /// The bytes after the head.
    pub body: Vec<u8>,
}

/// Requests the page at `path` from `server`. `within` bounds the whole exchange.
///
/// # Errors
/// The server cannot be reached, does not answer in time, or does not answer with HTTP.
pub fn get(server: &HostPort, path: &str, within: Duration) -> Result<Page, CliError> {
    get_with(server, path, &Secret::default(), within)
}

/// Like [`get`], for a server that requires a token.
///
/// # Errors
/// Those of [`get`].
pub fn get_with(
    server: &HostPort,
    path: &str,
    token: &Secret,
    within: Duration,
) -> Result<Page, CliError> {
    exchange(server, path, token, within).map_err(|error| match error.kind() {
        ErrorKind::TimedOut | ErrorKind::WouldBlock => {
            CliError::new(format_args!("{server}: no answer within {within:?}"))
        }
        ErrorKind::InvalidData => CliError::new(format_args!("{server}: {error}")),
        _ => CliError::new(format_args!("{server}: cannot be reached: {error}")),
    })
}

fn exchange(server: &HostPort, path: &str, token: &Secret, within: Duration) -> io::Result<Page> {
    let clock = Clock::start();
    let end = clock.now() + within;
    let mut stream = connect(server, &clock, end)?;
    stream.set_nodelay(true)?;
    stream.set_write_timeout(Some(left(&clock, end)?))?;
    // HTTP/1.0, so that the answer is not chunked and ends with the connection. The host is an
    // address because the debug port does not accept every name.
    let host = stream.peer_addr()?;
    let token = match token.reveal() {
        "" => String::new(),
        token => format!("authorization: Bearer {token}\r\n"),
    };
    let request = format!("GET {path} HTTP/1.0\r\nhost: {host}\r\n{token}accept: */*\r\n\r\n");
    stream.write_all(request.as_bytes())?;
    let mut answer = Vec::new();
    let mut piece = vec![0; PIECE_BYTES];
    loop {
        stream.set_read_timeout(Some(left(&clock, end)?))?;
        let read = stream.read(&mut piece)?;
        if read == 0 {
            return page(&answer);
        }
        answer.extend_from_slice(piece.get(..read).unwrap_or_default());
        if answer.len() as u64 > ANSWER_BYTES_MAX {
            return Err(io::Error::new(ErrorKind::InvalidData, "its answer is too long"));
        }
    }
}

/// Connects to the first address of the server that accepts the connection.
fn connect(server: &HostPort, clock: &Clock, end: Time) -> io::Result<TcpStream> {
    let mut last = io::Error::new(ErrorKind::NotFound, "no such host");
    for address in (server.host.as_str(), server.port).to_socket_addrs()? {
        match TcpStream::connect_timeout(&address, left(clock, end)?) {
            Ok(stream) => return Ok(stream),
            Err(error) => last = error,
        }
    }
    Err(last)
}

fn left(clock: &Clock, end: Time) -> io::Result<Duration> {
    match end.since(clock.now()) {
        Duration::ZERO => Err(ErrorKind::TimedOut.into()),
        left => Ok(left),
    }
}

fn page(answer: &[u8]) -> io::Result<Page> {
    let end = answer.windows(4).position(|end| end == b"\r\n\r\n");
    let status = answer.strip_prefix(b"HTTP/1.").and_then(|line| line.get(2..5));
    let status = status.and_then(|code| std::str::from_utf8(code).ok()?.parse().ok());
    match (status, end) {
        (Some(status), Some(end)) => {
            Ok(Page { status, body: answer.get(end + 4..).unwrap_or_default().to_vec() })
        }
        _ => Err(io::Error::new(ErrorKind::InvalidData, "its answer is not HTTP")),
    }
}

/// Parses a server's address, `HOST:PORT`; an IPv6 address is in brackets.
pub fn host_port(text: &str) -> Result<HostPort, String> {
    let split = text.rsplit_once(':').and_then(|(host, port)| {
        let port = port.parse::<u16>().ok().filter(|port| *port > 0)?;
        // An IPv6 address is in brackets.
        let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
        let is_good = match bare {
            Some(bare) => bare.contains(':'),
            None => !host.is_empty() && !host.contains([':', '/', '[', ']', '@', ' ']),
        };
        is_good.then(|| HostPort::new(bare.unwrap_or(host), port))
    });
    split.ok_or_else(|| "expected HOST:PORT, as in 127.0.0.1:8080".to_owned())
}

/// Parses a flag's duration, which must be above zero.
pub fn span_above_zero(text: &str) -> Result<Duration, String> {
    let span = parse_duration(text).filter(|span| !span.is_zero());
    span.ok_or_else(|| "expected a duration above 0 with its unit, as in 1s".to_owned())
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::thread;

    use super::*;

    const WITHIN: Duration = Duration::from_secs(10);

    /// Starts a server that answers one request with `answer`. If `keeps`, it leaves the connection
    /// open.
    fn server(answer: &'static [u8], keeps: bool) -> HostPort {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut request = [0; 1024];
            let read = stream.read(&mut request).unwrap();
            assert!(request[..read].starts_with(b"GET /page HTTP/1.0\r\n"));
            stream.write_all(answer).unwrap();
            if keeps {
                // Until the client closes the connection.
                let _ = stream.read(&mut request);
            }
        });
        HostPort::new("127.0.0.1", port)
    }

    #[test]
    fn a_page_has_a_status_and_a_body() {
        let server = server(b"HTTP/1.1 503 Service\r\na: b\r\n\r\nbody\r\n\r\nmore", false);
        let page = get(&server, "/page", WITHIN).unwrap();
        assert_eq!(page, Page { status: 503, body: b"body\r\n\r\nmore".to_vec() });
    }

    #[test]
    fn an_answer_that_is_not_http_is_reported() {
        let server = server(b"\x00\x00\x12\x04 not HTTP/1.1 200", false);
        let error = get(&server, "/page", WITHIN).unwrap_err().to_string();
        assert!(error.ends_with("its answer is not HTTP"), "{error}");
    }

    #[test]
    fn a_server_that_hangs_is_left_in_time() {
        let server = server(b"HTTP/1.1 200 OK\r\n\r\n", true);
        let error = get(&server, "/page", Duration::from_millis(50)).unwrap_err().to_string();
        assert!(error.ends_with("no answer within 50ms"), "{error}");
    }

    #[test]
    fn an_unreachable_server_is_reported_with_the_reason() {
        let port = TcpListener::bind(("127.0.0.1", 0)).unwrap().local_addr().unwrap().port();
        let error = get(&HostPort::new("127.0.0.1", port), "/", WITHIN).unwrap_err().to_string();
        assert!(error.starts_with(&format!("127.0.0.1:{port}: cannot be reached: ")), "{error}");
    }
}
