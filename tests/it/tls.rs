//! TLS with real certificates: on the gRPC port, and to Redis.

mod handshake;
pub(crate) mod redis;
mod rotation;
mod start;

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use ratelease_tls::{ALPN_HTTP2, ClientFiles, ServerCheck};
use tempfile::TempDir;
use tokio_rustls::rustls::ClientConfig;

use crate::support::files::dir_of;
use crate::support::papers::{Paper, Papers};
use crate::support::ratelease::Ratelease;
use crate::support::raw_grpc::bytes_field;

/// Limit for steps that take milliseconds, on a machine that also compiles.
const SOON: Duration = Duration::from_secs(10);

const RULES: &str = "
domain: test
descriptors:
  - key: plenty
    rate_limit: {unit: year, requests_per_unit: 4000000000}
";

/// PEM files of a certificate authority, a server and a client.
pub(crate) struct Files {
    dir: TempDir,
    pub(crate) root: PathBuf,
    server: (PathBuf, PathBuf),
    pub(crate) client: (PathBuf, PathBuf),
}

// === impl Files ===

impl Files {
    pub(crate) fn of(papers: &Papers) -> Self {
        let dir = TempDir::new().unwrap();
        let root = dir.path().join("ca.crt");
        fs::write(&root, &papers.root).unwrap();
        let server = write(dir.path(), "tls", &papers.server);
        let client = write(dir.path(), "client", &papers.client);
        Self { dir, root, server, client }
    }

    /// The environment of a pod with this certificate.
    pub(crate) fn env(&self) -> Vec<(&'static str, &str)> {
        vec![
            ("GRPC_SERVER_USE_TLS", "true"),
            ("GRPC_SERVER_TLS_CERT", text(&self.server.0)),
            ("GRPC_SERVER_TLS_KEY", text(&self.server.1)),
        ]
    }

    /// The same, for clients with a certificate.
    fn mutual(&self) -> Vec<(&'static str, &str)> {
        let mut env = self.env();
        env.push(("GRPC_CLIENT_TLS_CACERT", text(&self.root)));
        env
    }

    /// A client that trusts this authority, with or without its certificate.
    fn client(&self, has_certificate: bool) -> Arc<ClientConfig> {
        client(&self.root, has_certificate.then_some(&self.client))
    }
}

/// Writes a certificate and its key.
fn write(dir: &Path, name: &str, paper: &Paper) -> (PathBuf, PathBuf) {
    let paths = (dir.join(format!("{name}.crt")), dir.join(format!("{name}.key")));
    fs::write(&paths.0, &paper.cert).unwrap();
    fs::write(&paths.1, &paper.key).unwrap();
    paths
}

fn client(root: &Path, identity: Option<&(PathBuf, PathBuf)>) -> Arc<ClientConfig> {
    let (roots, identity) = (Some(root.to_owned()), identity.cloned());
    let files = ClientFiles { roots, identity, server: ServerCheck::Host };
    let mut config = files.load(&files.read(), None).expect("good files");
    config.alpn_protocols = vec![ALPN_HTTP2.to_vec()];
    Arc::new(config)
}

fn text(path: &Path) -> &str {
    path.to_str().expect("UTF-8")
}

/// A request of the key that has plenty.
fn request() -> Vec<u8> {
    let entry = [bytes_field(1, "plenty"), bytes_field(2, "a")].concat();
    [bytes_field(1, "test"), bytes_field(2, bytes_field(1, entry))].concat()
}

async fn pod(env: &[(&str, &str)]) -> (Ratelease, TempDir) {
    let rules = dir_of(&[("rules.yaml", RULES)]);
    (Ratelease::start(rules.path(), &[], env).await, rules)
}
