//! PEM files of a certificate authority, a server and a client.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use ratelease_tls::{ALPN_HTTP2, ClientFiles, ServerCheck};
use tempfile::TempDir;
use tokio_rustls::rustls::ClientConfig;

use super::papers::{Paper, Papers};

/// The files, which are removed with this.
pub(crate) struct TlsFiles {
    pub(crate) dir: TempDir,
    pub(crate) root: PathBuf,
    pub(crate) server: (PathBuf, PathBuf),
    pub(crate) client: (PathBuf, PathBuf),
}

// === impl TlsFiles ===

impl TlsFiles {
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
    pub(crate) fn mutual(&self) -> Vec<(&'static str, &str)> {
        let mut env = self.env();
        env.push(("GRPC_CLIENT_TLS_CACERT", text(&self.root)));
        env
    }

    /// A client that trusts this authority, with or without its certificate.
    pub(crate) fn client(&self, has_certificate: bool) -> Arc<ClientConfig> {
        client(&self.root, has_certificate.then_some(&self.client))
    }
}

/// Writes a certificate and its key.
pub(crate) fn write(dir: &Path, name: &str, paper: &Paper) -> (PathBuf, PathBuf) {
    let paths = (dir.join(format!("{name}.crt")), dir.join(format!("{name}.key")));
    fs::write(&paths.0, &paper.cert).unwrap();
    fs::write(&paths.1, &paper.key).unwrap();
    paths
}

/// A client that trusts `root`, for HTTP/2.
pub(crate) fn client(root: &Path, identity: Option<&(PathBuf, PathBuf)>) -> Arc<ClientConfig> {
    let (roots, identity) = (Some(root.to_owned()), identity.cloned());
    let files = ClientFiles { roots, identity, server: ServerCheck::Host };
    let mut config = files.load(&files.read(), None).expect("good files");
    config.alpn_protocols = vec![ALPN_HTTP2.to_vec()];
    Arc::new(config)
}

pub(crate) fn text(path: &Path) -> &str {
    path.to_str().expect("UTF-8")
}
