//! A small HTTP/1.1 client that keeps its connection, with only what Envoy and the admin pages
//! need.

use std::io::{Error, ErrorKind, Result};
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpSocket, TcpStream};

/// One connection, one request at a time.
pub(crate) struct Client {
    stream: BufReader<TcpStream>,
}

#[derive(Debug, Clone)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    /// Names in lower case, in their original order.
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: String,
}

/// No answer of a pod takes this long: a test fails instead of hanging.
const ANSWER_MAX: Duration = Duration::from_secs(30);

/// Sends a GET on a connection of its own.
pub(crate) async fn get(addr: SocketAddr, path: &str) -> Result<Answer> {
    Client::connect(addr).await?.get(path, &[]).await
}

// === impl Client ===

impl Client {
    pub(crate) async fn connect(addr: SocketAddr) -> Result<Self> {
        let stream = TcpStream::connect(addr).await?;
        stream.set_nodelay(true)?;
        Ok(Self { stream: BufReader::new(stream) })
    }

    /// As [`Client::connect`], from this address of the machine.
    pub(crate) async fn connect_from(source: IpAddr, addr: SocketAddr) -> Result<Self> {
        let socket = TcpSocket::new_v4()?;
        socket.bind(SocketAddr::new(source, 0))?;
        let stream = socket.connect(addr).await?;
        stream.set_nodelay(true)?;
        Ok(Self { stream: BufReader::new(stream) })
    }

    pub(crate) async fn get(&mut self, path: &str, headers: &[(&str, &str)]) -> Result<Answer> {
        self.send("GET", path, headers, "").await
    }

    /// Sends a request. After an error the connection cannot be used again. A body is JSON unless
    /// `headers` contain another type.
    pub(crate) async fn send(
        &mut self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: impl AsRef<[u8]>,
    ) -> Result<Answer> {
        let body = body.as_ref();
        let mut head = format!("{method} {path} HTTP/1.1\r\n");
        if !headers.iter().any(|(name, _)| *name == "host") {
            head += "host: test\r\n";
        }
        for (name, value) in headers {
            head += &format!("{name}: {value}\r\n");
        }
        if !body.is_empty() && !headers.iter().any(|(name, _)| *name == "content-type") {
            head += "content-type: application/json\r\n";
        }
        let head = format!("{head}content-length: {}\r\n\r\n", body.len());
        let request = [head.as_bytes(), body].concat();
        let exchange = async {
            // A server that refuses a long body answers before it has read the body, and closes.
            let written = self.stream.get_mut().write_all(&request).await;
            let answer = self.answer().await;
            if answer.is_err() { written.and(answer) } else { answer }
        };
        tokio::time::timeout(ANSWER_MAX, exchange).await?
    }

    /// Sends bytes unchanged.
    pub(crate) async fn write(&mut self, bytes: &[u8]) -> Result<()> {
        self.stream.get_mut().write_all(bytes).await
    }

    /// Makes the end of the connection a reset (RST) in place of a close (FIN).
    pub(crate) fn resets_at_its_end(&self) -> Result<()> {
        self.stream.get_ref().set_zero_linger()
    }

    /// Reads the next answer.
    pub(crate) async fn answer(&mut self) -> Result<Answer> {
        let mut answer = self.head().await?;
        answer.body = String::from_utf8_lossy(&self.body(&answer).await?).into_owned();
        Ok(answer)
    }

    /// Reads the next answer without its body, which may have no end.
    pub(crate) async fn head(&mut self) -> Result<Answer> {
        let status_line = self.line().await?;
        let status = status_line.split(' ').nth(1).and_then(|code| code.parse().ok());
        let status = status.ok_or_else(|| malformed(&status_line))?;
        let mut headers = Vec::new();
        loop {
            let line = self.line().await?;
            if line.is_empty() {
                break;
            }
            let (name, value) = line.split_once(':').ok_or_else(|| malformed(&line))?;
            headers.push((name.to_ascii_lowercase(), value.trim().to_owned()));
        }
        Ok(Answer { status, headers, body: String::new() })
    }

    /// Reads the body of an answer of which [`Client::head`] has read the rest.
    pub(crate) async fn body(&mut self, head: &Answer) -> Result<Vec<u8>> {
        let mut body = Vec::new();
        if head.header("transfer-encoding").is_some_and(|coding| coding == "chunked") {
            loop {
                let line = self.line().await?;
                let size = u64::from_str_radix(&line, 16).map_err(|_| malformed(&line))?;
                self.exactly(size, &mut body).await?;
                self.line().await?;
                if size == 0 {
                    return Ok(body);
                }
            }
        }
        if let Some(length) = head.header("content-length") {
            let length = length.parse().map_err(|_| malformed(length))?;
            self.exactly(length, &mut body).await?;
        } else if head.status != 204 && head.status != 304 {
            self.stream.read_to_end(&mut body).await?;
        }
        Ok(body)
    }

    async fn exactly(&mut self, length: u64, body: &mut Vec<u8>) -> Result<()> {
        let read = (&mut self.stream).take(length).read_to_end(body).await?;
        if read as u64 == length { Ok(()) } else { Err(ErrorKind::UnexpectedEof.into()) }
    }

    /// The next line, without its end.
    async fn line(&mut self) -> Result<String> {
        let mut line = String::new();
        self.stream.read_line(&mut line).await?;
        match line.strip_suffix("\r\n") {
            Some(text) => Ok(text.to_owned()),
            None => Err(ErrorKind::UnexpectedEof.into()),
        }
    }
}

// === impl Answer ===

impl Answer {
    /// The first header of this name, given in lower case.
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(n, _)| n == name).map(|(_, value)| value.as_str())
    }
}

fn malformed(what: &str) -> Error {
    Error::new(ErrorKind::InvalidData, format!("not HTTP/1.1: {what:?}"))
}
