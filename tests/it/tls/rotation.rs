//! Certificates that are replaced while calls are made.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use tempfile::TempDir;
use tokio_rustls::rustls::ClientConfig;

use super::{SOON, TlsFiles, client, pod, request, text, write};
use crate::support::papers::{Paper, Papers};
use crate::support::ratelease::Ratelease;
use crate::support::raw_grpc::{Connection, tls};

/// The certificate that a new connection is shown, in DER.
async fn shown(pod: &Ratelease, config: &Arc<ClientConfig>) -> Option<Vec<u8>> {
    let stream = tls(pod.grpc, config).await.ok()?;
    let (_, session) = stream.get_ref();
    session.peer_certificates()?.first().map(|certificate| certificate.to_vec())
}

/// Waits until new connections are shown another certificate than `before`.
async fn changes(pod: &Ratelease, config: &Arc<ClientConfig>, before: &[u8]) -> Vec<u8> {
    let is_new = async || shown(pod, config).await.is_some_and(|shown| shown != before);
    pod.process.until("showing the new certificate", SOON, is_new).await;
    shown(pod, config).await.expect("a certificate")
}

/// Swaps a directory of certificates as the kubelet does with a Secret.
fn swap(dir: &Path, version: &str, paper: &Paper) {
    fs::create_dir(dir.join(version)).unwrap();
    write(&dir.join(version), "tls", paper);
    symlink(version, dir.join("..new")).unwrap();
    fs::rename(dir.join("..new"), dir.join("..data")).unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_secret_is_swapped_under_load_without_a_failed_call() {
    let papers = Papers::new("127.0.0.1");
    let files = TlsFiles::of(&papers);
    let secret = TempDir::new().unwrap();
    swap(secret.path(), "..1", &papers.server);
    for name in ["tls.crt", "tls.key"] {
        symlink(Path::new("..data").join(name), secret.path().join(name)).unwrap();
    }
    let (cert, key) = (secret.path().join("tls.crt"), secret.path().join("tls.key"));
    let env = [
        ("GRPC_SERVER_USE_TLS", "true"),
        ("GRPC_SERVER_TLS_CERT", text(&cert)),
        ("GRPC_SERVER_TLS_KEY", text(&key)),
    ];
    let (pod, _rules) = pod(&env).await;
    let config = files.client(false);
    let first = shown(&pod, &config).await.expect("a certificate");
    // One connection lives through all of it, others come and go.
    let lasting = Connection::open_tls(pod.grpc, &config).await;
    let (end, mut ended) = tokio::sync::watch::channel(false);
    let load = tokio::spawn({
        let (at, config) = (pod.grpc, config.clone());
        async move {
            let mut calls = 0;
            while !*ended.borrow_and_update() {
                let brief = Connection::open_tls(at, &config).await;
                for connection in [&lasting, &brief] {
                    let reply = connection.call(&request()).await;
                    assert_eq!(reply.is_over_limit(), Some(false), "{reply:?}");
                    calls += 1;
                }
            }
            calls
        }
    });
    let mut before = first;
    for version in ["..2", "..3"] {
        swap(secret.path(), version, &papers.another("127.0.0.1"));
        before = changes(&pod, &config, &before).await;
    }
    end.send_replace(true);
    let calls = load.await.expect("no failed call");
    assert!(calls > 10, "{calls}");
    assert_eq!(pod.count("tls_certificates_replaced"), 2);
    assert_eq!(pod.count("tls_certificates_refused"), 0);
    assert_eq!(pod.stop().await, 0);
}

#[tokio::test]
async fn a_pair_that_does_not_match_leaves_the_former_one_in_force_and_is_logged_once() {
    let papers = Papers::new("127.0.0.1");
    let files = TlsFiles::of(&papers);
    let (pod, _rules) = pod(&files.env()).await;
    let config = files.client(false);
    let first = shown(&pod, &config).await.expect("a certificate");
    let other = papers.another("127.0.0.1");
    // As an editor writes it: the certificate alone.
    let temporary = files.dir.path().join("new");
    fs::write(&temporary, &other.cert).unwrap();
    fs::rename(&temporary, &files.server.0).unwrap();
    let line = pod.logs("the former certificate of the gRPC port stays in force").await;
    assert!(line.contains("holds the key of another certificate"), "{line}");
    assert_eq!(shown(&pod, &config).await, Some(first.clone()));
    // Touched, but still the same.
    fs::write(files.dir.path().join("unrelated"), "").unwrap();
    fs::write(&files.server.0, &other.cert).unwrap();
    tokio::time::sleep(Duration::from_secs(1)).await; // for what must not happen
    fs::write(&files.server.1, &other.key).unwrap();
    changes(&pod, &config, &first).await;
    assert_eq!(pod.count("tls_certificates_replaced"), 1);
    assert_eq!(pod.count("tls_certificates_refused"), 1);
    assert_eq!(pod.stop().await, 0);
    assert_eq!(pod.logged("stays in force").len(), 1, "{}", pod.log());
}

#[tokio::test]
async fn another_authority_of_clients_is_taken_over() {
    let (papers, others) = (Papers::new("127.0.0.1"), Papers::new("127.0.0.1"));
    let (files, strangers) = (TlsFiles::of(&papers), TlsFiles::of(&others));
    let (pod, _rules) = pod(&files.mutual()).await;
    let former = Connection::open_tls(pod.grpc, &files.client(true)).await;
    fs::write(&files.root, &others.root).unwrap();
    pod.logs("the gRPC port has a new certificate").await;
    // The client still trusts the former root, which signed the server's certificate.
    let root = files.dir.path().join("former.crt");
    fs::write(&root, &papers.root).unwrap();
    let newcomer = Connection::open_tls(pod.grpc, &client(&root, Some(&strangers.client))).await;
    for connection in [&former, &newcomer] {
        assert_eq!(connection.call(&request()).await.is_over_limit(), Some(false));
    }
    let mut refused = tls(pod.grpc, &client(&root, Some(&files.client))).await.unwrap();
    assert!(tokio::io::AsyncReadExt::read_u8(&mut refused).await.is_err());
    assert_eq!(pod.stop().await, 0);
}
