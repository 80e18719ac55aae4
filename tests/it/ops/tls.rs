//! `query` and `health` over TLS, against a server written for the test, with certificates made for
//! it.

use std::fs;
use std::path::PathBuf;

use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_service_server::{
    RateLimitService, RateLimitServiceServer,
};
use envoy_types::pb::envoy::service::ratelimit::v3::{RateLimitRequest, RateLimitResponse};
use rcgen::{BasicConstraints, Certificate, CertificateParams, IsCa, Issuer, KeyPair};
use tempfile::TempDir;
use tokio::net::TcpListener;
use tokio_stream::wrappers::TcpListenerStream;
use tonic::transport::{Certificate as Pem, Identity, Server, ServerTlsConfig};
use tonic::{Request, Response, Status};

use super::{Ran, run};

/// Answers OK to all.
struct Always;

#[tonic::async_trait]
impl RateLimitService for Always {
    async fn should_rate_limit(
        &self,
        _: Request<RateLimitRequest>,
    ) -> Result<Response<RateLimitResponse>, Status> {
        Ok(Response::new(RateLimitResponse { overall_code: 1, ..Default::default() }))
    }
}

/// A certificate and its key, in PEM.
struct Paper {
    cert: String,
    key: String,
}

/// A root with what it has signed for a server and a client.
struct Papers {
    root: String,
    server: Paper,
    client: Paper,
}

/// The name in the server's certificate; what is asked is an address.
const NAME: &str = "ratelimit.test";

// === impl Papers ===

impl Papers {
    fn new() -> Self {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().unwrap();
        let root = params.self_signed(&key).unwrap();
        let issuer = Issuer::new(params, key);
        let sign = |name: &str| {
            let key = KeyPair::generate().unwrap();
            let params = CertificateParams::new(vec![name.to_owned()]).unwrap();
            let cert = params.signed_by(&key, &issuer).unwrap();
            Paper { cert: pem_of(&cert), key: pem("PRIVATE KEY", &key.serialize_der()) }
        };
        Self { root: pem_of(&root), server: sign(NAME), client: sign("client.test") }
    }
}

fn pem_of(cert: &Certificate) -> String {
    pem("CERTIFICATE", cert.der())
}

/// RFC 7468, by hand: rcgen's own would bring a second base64 crate.
fn pem(label: &str, der: &[u8]) -> String {
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let four = |bytes: &[u8]| {
        let bits = (0..3).fold(0, |bits, at| bits << 8 | usize::from(*bytes.get(at).unwrap_or(&0)));
        let sign = |at: usize| char::from(ALPHABET[bits >> (18 - 6 * at) & 63]);
        (0..4).map(move |at| if at > bytes.len() { '=' } else { sign(at) }).collect::<String>()
    };
    // 48 bytes are a line of 64 characters.
    let lines = der.chunks(48).map(|line| line.chunks(3).map(four).collect::<String>());
    let body = lines.collect::<Vec<_>>().join("\n");
    format!("-----BEGIN {label}-----\n{body}\n-----END {label}-----\n")
}

/// Starts the server, which wants a certificate of its clients too, and gives its address.
async fn serve(papers: &Papers) -> String {
    let identity = Identity::from_pem(&papers.server.cert, &papers.server.key);
    let tls = ServerTlsConfig::new().identity(identity).client_ca_root(Pem::from_pem(&papers.root));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let target = listener.local_addr().unwrap().to_string();
    let mut server = Server::builder().tls_config(tls).unwrap();
    // Its health service says SERVING of the server as a whole from the beginning.
    let (_, health) = tonic_health::server::health_reporter();
    let server = server.add_service(RateLimitServiceServer::new(Always)).add_service(health);
    tokio::spawn(server.serve_with_incoming(TcpListenerStream::new(listener)));
    target
}

async fn query(target: &str, flags: &[&str]) -> Ran {
    let base = ["query", "--target", target, "--domain", "d", "k=v", "--timeout", "20s"];
    run(&[&base[..], flags].concat()).await
}

async fn health(target: &str, flags: &[&str]) -> Ran {
    let grpc = format!("--grpc={target}");
    run(&[&["health", &grpc, "--timeout", "20s"][..], flags].concat()).await
}

#[tokio::test(flavor = "multi_thread")]
async fn both_sides_show_certificates_and_whoever_has_none_is_turned_away() {
    let papers = Papers::new();
    let target = serve(&papers).await;
    let dir = TempDir::new().unwrap();
    let write = |name: &str, text: &str| -> PathBuf {
        fs::write(dir.path().join(name), text).unwrap();
        dir.path().join(name)
    };
    let (ca, cert) = (write("ca.pem", &papers.root), write("cert.pem", &papers.client.cert));
    let (key, empty) = (write("key.pem", &papers.client.key), write("empty.pem", "nothing\n"));
    let [ca, cert, key, empty] = [&ca, &cert, &key, &empty].map(|path| path.to_str().unwrap());

    let own = ["--cert", cert, "--key", key];
    let named = ["--server-name", NAME];
    let all = [&["--ca", ca][..], &own, &named].concat();
    let ran = query(&target, &all).await.ended(0);
    assert!(ran.out.starts_with("OK  in "), "{ran:?}");
    let ran = health(&target, &all).await.ended(0);
    assert_eq!((ran.out.as_str(), ran.err.as_str()), ("", ""));

    for (flags, reason) in [
        // The name is not that of the address.
        ([&["--ca", ca][..], &own].concat(), "certificate"),
        // The system trusts others.
        ([&["--tls"][..], &own, &named].concat(), "certificate"),
        ([&["--ca", empty][..], &own, &named].concat(), "empty.pem: holds nothing in PEM"),
        // Without a certificate of ours.
        ([&["--ca", ca][..], &named].concat(), &target),
        // Without TLS.
        (Vec::new(), &target),
    ] {
        for ran in [query(&target, &flags).await, health(&target, &flags).await] {
            let ran = ran.ended(2);
            assert!(ran.err.contains(reason) && ran.err.lines().count() == 1, "{flags:?}: {ran:?}");
        }
    }
    let ran = run(&[&["health", "--http", &target][..], &all].concat()).await.ended(2);
    assert!(ran.err.contains("go with --grpc"), "{ran:?}");
}
