//! The webhook as a process, and calls of it over TLS.

use std::fs;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair, date_time_ymd};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned, crypto};

/// Time for anything to happen.
pub(crate) const WITHIN: Duration = Duration::from_secs(30);
pub(crate) const NAME: &str = "ratelease-injector.limits.svc";

/// An authority, and a directory with a certificate of it.
pub(crate) struct Authority {
    pub(crate) issuer: Issuer<'static, KeyPair>,
    pub(crate) root: CertificateDer<'static>,
    pub(crate) dir: TempDir,
}

/// A webhook that is ended with this.
pub(crate) struct Webhook {
    pub(crate) child: Child,
    pub(crate) address: SocketAddr,
    pub(crate) lines: std::sync::mpsc::Receiver<String>,
}

/// The monotonic clock.
pub(crate) fn now() -> Instant {
    // Tests on real sockets run in real time.
    #[allow(clippy::disallowed_methods)]
    Instant::now()
}

// === impl Authority ===

impl Authority {
    pub(crate) fn new() -> Self {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().unwrap();
        let root = params.self_signed(&key).unwrap().der().clone();
        let authority =
            Self { issuer: Issuer::new(params, key), root, dir: TempDir::new().unwrap() };
        authority.write_certificate(4000);
        authority
    }

    /// Writes a certificate that is valid until the first day of a year.
    pub(crate) fn write_certificate(&self, year: i32) {
        let mut params = CertificateParams::new(vec![NAME.to_owned()]).unwrap();
        params.not_after = date_time_ymd(year, 1, 1);
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        fs::write(self.dir.path().join("tls.crt"), certificate.pem()).unwrap();
        fs::write(self.dir.path().join("tls.key"), key.serialize_pem()).unwrap();
    }

    /// A connection that trusts this authority, with the protocol of API servers.
    pub(crate) fn connect(&self, to: SocketAddr) -> StreamOwned<ClientConnection, TcpStream> {
        self.over(TcpStream::connect(to).unwrap())
    }

    /// The same over this socket.
    pub(crate) fn over(&self, stream: TcpStream) -> StreamOwned<ClientConnection, TcpStream> {
        let mut roots = RootCertStore::empty();
        roots.add(self.root.clone()).unwrap();
        let provider = Arc::new(crypto::ring::default_provider());
        let config = ClientConfig::builder_with_provider(provider);
        let config = config.with_safe_default_protocol_versions().unwrap();
        let mut config = config.with_root_certificates(roots).with_no_client_auth();
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        let name = ServerName::try_from(NAME).unwrap();
        stream.set_read_timeout(Some(WITHIN)).unwrap();
        StreamOwned::new(ClientConnection::new(Arc::new(config), name).unwrap(), stream)
    }

    /// The status and the body of an answer.
    pub(crate) fn post(&self, to: SocketAddr, path: &str, body: &[u8]) -> (u16, String) {
        self.try_post(to, path, body).unwrap()
    }

    /// The same of a webhook that may have ended.
    pub(crate) fn try_post(
        &self,
        to: SocketAddr,
        path: &str,
        body: &[u8],
    ) -> io::Result<(u16, String)> {
        let mut stream = self.over(TcpStream::connect(to)?);
        let head = format!(
            "POST {path} HTTP/1.1\r\nhost: a\r\nconnection: close\r\ncontent-length: {}\r\n\r\n",
            body.len()
        );
        stream.write_all(head.as_bytes())?;
        // A body that is too large is refused before its end.
        let _ = stream.write_all(body);
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        let answer = String::from_utf8(answer).unwrap();
        let parts = answer.split_once("\r\n\r\n");
        let (head, body) = parts.ok_or_else(|| io::Error::other(format!("answer: {answer:?}")))?;
        Ok((head[9..12].parse().unwrap(), body.to_owned()))
    }
}

// === impl Webhook ===

impl Webhook {
    pub(crate) fn start(directory: &Path) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_ratelease-injector"));
        command.args(["serve", "--listen", "127.0.0.1:0", "--kubernetes-version", "1.31"]);
        command.args(["--default", "redis=redis:6379", "--default", "rules=shop-rules"]);
        command.arg("--certificates").arg(directory).env_clear().stderr(Stdio::piped());
        let mut child = command.stdin(Stdio::null()).spawn().unwrap();
        let stderr = BufReader::new(child.stderr.take().unwrap());
        let (sender, lines) = std::sync::mpsc::channel();
        thread::spawn(move || {
            stderr.lines().map_while(Result::ok).for_each(|line| {
                let _ = sender.send(line);
            });
        });
        let address = SocketAddr::from(([127, 0, 0, 1], 0));
        let mut webhook = Self { child, address, lines };
        let line = webhook.await_line("serving address=");
        webhook.address = line.rsplit_once('=').unwrap().1.parse().unwrap();
        webhook
    }

    /// The next line of its log with this text.
    pub(crate) fn await_line(&self, text: &str) -> String {
        loop {
            let line = self.lines.recv_timeout(WITHIN).unwrap_or_else(|_| panic!("no line {text}"));
            if line.contains(text) {
                return line;
            }
        }
    }
}

impl Drop for Webhook {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub(crate) fn review(annotations: &Value) -> Value {
    json!({
        "apiVersion": "admission.k8s.io/v1",
        "kind": "AdmissionReview",
        "request": {
            "uid": "u-1",
            "resource": {"group": "", "version": "v1", "resource": "pods"},
            "namespace": "shop",
            "operation": "CREATE",
            "object": {
                "metadata": {"name": "web", "annotations": annotations},
                "spec": {"containers": [{"name": "envoy"}]},
            },
        },
    })
}
