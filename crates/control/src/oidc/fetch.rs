//! Requests to the provider, bounded in time and bytes. Redirects are not followed.

use std::path::PathBuf;
use std::time::Duration;

use bytes::Bytes;
use http::request::Builder;
use http::{StatusCode, header};
use http_body_util::{BodyExt, Full, Limited};
use hyper_rustls::HttpsConnector;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use ratelease_tls::{ClientFiles, FileFaults};
use tokio::time::timeout;

use super::SignInError;

/// Maximum time of a request: a sign-in makes three at most, within the time of a request of ours.
const TIME_MAX: Duration = Duration::from_secs(3);

/// Maximum bytes of an answer: keys, and tokens with hundreds of groups.
const ANSWER_BYTES_MAX: usize = 256 << 10;

/// A client of the provider.
#[derive(Debug)]
pub struct Fetcher(Client<HttpsConnector<HttpConnector>, Full<Bytes>>);

// === impl Fetcher ===

impl Fetcher {
    /// Trusts the certificates of a file, or the system's.
    ///
    /// # Errors
    /// The file cannot be used.
    pub fn new(roots: Option<PathBuf>) -> Result<Self, FileFaults> {
        let files = ClientFiles { roots, ..ClientFiles::default() };
        let tls = files.load(&files.read(), None)?;
        let mut http = HttpConnector::new();
        http.enforce_http(false);
        http.set_connect_timeout(Some(TIME_MAX));
        let connector = HttpsConnector::from((http, tls));
        Ok(Self(Client::builder(TokioExecutor::new()).build(connector)))
    }

    /// Sends a request, and reads the answer.
    ///
    /// # Errors
    /// There is no answer in time, or it is too large.
    pub async fn send(
        &self,
        request: Builder,
        body: String,
    ) -> Result<(StatusCode, Bytes), SignInError> {
        let place = request.uri_ref().and_then(|it| it.host()).unwrap_or_default().to_owned();
        let failed = |why: String| SignInError::Provider(format!("at {place}: {why}"));
        let request = request.header(header::ACCEPT, "application/json");
        let request = request.body(Full::from(body)).map_err(|error| failed(error.to_string()))?;
        let answered = async {
            let response = self.0.request(request).await.map_err(|error| failed(causes(&error)))?;
            let (parts, body) = response.into_parts();
            let body = Limited::new(body, ANSWER_BYTES_MAX).collect().await;
            let body = body.map_err(|error| failed(causes(&*error)))?.to_bytes();
            Ok((parts.status, body))
        };
        let late = |_| Err(failed(format!("no answer within {TIME_MAX:?}")));
        timeout(TIME_MAX, answered).await.unwrap_or_else(late)
    }
}

/// An error with what caused it.
fn causes(error: &(dyn std::error::Error + 'static)) -> String {
    let mut words = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        words.push_str(&format!(": {cause}"));
        next = cause.source();
    }
    words
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
    use tokio::net::{TcpListener, TcpStream};

    use super::*;

    /// A connection that has sent the head of its request.
    async fn asked(listener: &TcpListener) -> BufReader<TcpStream> {
        let mut stream = BufReader::new(listener.accept().await.unwrap().0);
        let mut line = String::new();
        while stream.read_line(&mut line).await.unwrap() > 2 {
            line.clear();
        }
        stream
    }

    /// Asks a server that sends `begin`, and then `more` without end, or nothing.
    async fn refusal(begin: &'static str, more: &'static [u8]) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/keys", listener.local_addr().unwrap());
        let server = tokio::spawn(async move {
            let mut stream = asked(&listener).await;
            stream.write_all(begin.as_bytes()).await.unwrap();
            while !more.is_empty() && stream.write_all(more).await.is_ok() {}
            std::future::pending::<()>().await;
        });
        let fetcher = Fetcher::new(None).unwrap();
        let asked = fetcher.send(http::Request::get(&url), String::new()).await;
        server.abort();
        asked.unwrap_err().to_string()
    }

    #[tokio::test]
    async fn an_endless_and_a_silent_answer_are_given_up() {
        let head = "HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n";
        let endless = refusal(head, &[b' '; 4096]).await;
        assert!(endless.contains("length limit exceeded"), "{endless}");
        for begin in ["", head] {
            let silent = refusal(begin, b"").await;
            assert!(silent.contains("no answer within 3s"), "{silent}");
        }
    }

    #[tokio::test]
    async fn a_redirect_is_not_followed() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/", listener.local_addr().unwrap());
        let place = url.clone();
        tokio::spawn(async move {
            let mut stream = asked(&listener).await;
            let answer =
                format!("HTTP/1.1 302 Found\r\nlocation: {place}\r\ncontent-length: 0\r\n\r\n");
            stream.write_all(answer.as_bytes()).await.unwrap();
            std::future::pending::<()>().await;
        });
        let fetcher = Fetcher::new(None).unwrap();
        let (status, _) = fetcher.send(http::Request::get(&url), String::new()).await.unwrap();
        assert_eq!(status, StatusCode::FOUND);
    }
}
