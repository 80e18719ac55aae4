//! `query` and `health` over TLS, against a server written for the test, with certificates made for
//! it.

use std::fs;
use std::path::PathBuf;

use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_service_server::{
    RateLimitService, RateLimitServiceServer,
};
use envoy_types::pb::envoy::service::ratelimit::v3::{RateLimitRequest, RateLimitResponse};
use tempfile::TempDir;
use tokio::net::TcpListener;
use tokio_stream::wrappers::TcpListenerStream;
use tonic::transport::{Certificate as Pem, Identity, Server, ServerTlsConfig};
use tonic::{Request, Response, Status};

use super::{Ran, run};
use crate::support::papers::Papers;

/// A service that answers OK to every request.
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

/// The name in the server's certificate; the clients connect to an address.
const NAME: &str = "ratelimit.test";

/// Starts the server, which requires client certificates, and returns its address.
async fn serve(papers: &Papers) -> String {
    let identity = Identity::from_pem(&papers.server.cert, &papers.server.key);
    let tls = ServerTlsConfig::new().identity(identity).client_ca_root(Pem::from_pem(&papers.root));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let target = listener.local_addr().unwrap().to_string();
    let mut server = Server::builder().tls_config(tls).unwrap();
    // From the beginning, its health service reports SERVING for the whole server.
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
async fn both_sides_show_certificates_and_a_client_without_one_is_refused() {
    let papers = Papers::new(NAME);
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
        // The address does not match the name in the certificate.
        ([&["--ca", ca][..], &own].concat(), "certificate"),
        // The system's roots do not include this one.
        ([&["--tls"][..], &own, &named].concat(), "certificate"),
        ([&["--ca", empty][..], &own, &named].concat(), "empty.pem: holds nothing in PEM"),
        // Without a client certificate.
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
    assert!(ran.err.contains("need --grpc"), "{ran:?}");
}
