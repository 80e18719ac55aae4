//! Who gets a connection, and what is said of those who do not.

use std::sync::Arc;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::rustls::ClientConfig;

use super::{SOON, TlsFiles, client, pod, request, write};
use crate::support::papers::Papers;
use crate::support::ratelease::Ratelease;
use crate::support::raw_grpc::{Connection, tls};

/// Fails unless the client is refused, before it can send anything that is read.
async fn is_refused(pod: &Ratelease, config: &Arc<ClientConfig>) {
    // With TLS 1.3 a client learns only from the first read that its certificate is not accepted.
    let read = async {
        let mut stream = tls(pod.grpc, config).await?;
        stream.read_u8().await
    };
    let read = tokio::time::timeout(SOON, read).await.expect("an end of the connection");
    assert!(read.is_err(), "{read:?}");
}

#[tokio::test]
async fn calls_and_health_are_answered_over_tls_and_nothing_in_plaintext() {
    let files = TlsFiles::of(&Papers::new("127.0.0.1"));
    let (pod, _rules) = pod(&files.env()).await;
    let connection = Connection::open_tls(pod.grpc, &files.client(false)).await;
    assert_eq!(connection.call(&request()).await.is_over_limit(), Some(false));
    let mut plain = TcpStream::connect(pod.grpc).await.unwrap();
    plain.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").await.unwrap();
    let mut answer = Vec::new();
    // The answer is at most an alert of TLS (21).
    let _ = tokio::time::timeout(SOON, plain.read_to_end(&mut answer)).await.expect("an end");
    assert!(answer.first().is_none_or(|first| *first == 21), "{answer:?}");
    pod.logs("give Envoy's cluster for it a transport_socket with TLS").await;
    assert_eq!(pod.count("tls_handshakes"), 1);
    assert_eq!(pod.count("tls_handshakes_not_tls"), 1);
    assert!(pod.count("tls_certificate_not_after") > 4_000_000_000);
    assert_eq!(pod.stop().await, 0);
}

#[tokio::test]
async fn a_client_needs_a_certificate_of_the_authority_and_of_the_name() {
    let papers = Papers::new("127.0.0.1");
    let (files, strangers) = (TlsFiles::of(&papers), TlsFiles::of(&Papers::new("127.0.0.1")));
    let mut env = files.mutual();
    env.push(("GRPC_CLIENT_TLS_SAN", crate::support::papers::CLIENT));
    let (pod, _rules) = pod(&env).await;
    let connection = Connection::open_tls(pod.grpc, &files.client(true)).await;
    assert_eq!(connection.call(&request()).await.is_over_limit(), Some(false));
    is_refused(&pod, &files.client(false)).await;
    pod.logs("or unset GRPC_CLIENT_TLS_CACERT").await;
    is_refused(&pod, &client(&files.root, Some(&strangers.client))).await;
    pod.logs("check the client's certificate, GRPC_CLIENT_TLS_CACERT").await;
    let other = write(files.dir.path(), "other", &papers.another("other.test"));
    is_refused(&pod, &client(&files.root, Some(&other))).await;
    let expired =
        write(files.dir.path(), "expired", &papers.expired(crate::support::papers::CLIENT));
    is_refused(&pod, &client(&files.root, Some(&expired))).await;
    // The pod counts the last one after its client has been told.
    let kinds = ["tls_handshakes_no_certificate", "tls_handshakes_bad_certificate"];
    let are_counted = async || kinds.map(|kind| pod.count(kind)) == [1, 3];
    pod.process.until("counting one and three", SOON, are_counted).await;
    // The name under which Envoy Gateway sets the authority means the same.
    assert_eq!(pod.stop().await, 0);
    assert_eq!(pod.logged("check the client's certificate").len(), 1, "each kind is logged once");
}

#[tokio::test]
async fn the_authority_may_have_the_name_of_envoy_gateway() {
    let files = TlsFiles::of(&Papers::new("127.0.0.1"));
    let mut env = files.env();
    env.push(("GRPC_SERVER_TLS_CA_CERT", super::text(&files.root)));
    let (pod, _rules) = pod(&env).await;
    is_refused(&pod, &files.client(false)).await;
    let connection = Connection::open_tls(pod.grpc, &files.client(true)).await;
    assert_eq!(connection.call(&request()).await.is_over_limit(), Some(false));
    assert_eq!(pod.stop().await, 0);
}

#[tokio::test]
async fn a_client_that_does_not_trust_the_certificate_is_named_in_the_log() {
    let files = TlsFiles::of(&Papers::new("127.0.0.1"));
    let strangers = TlsFiles::of(&Papers::new("127.0.0.1"));
    let (pod, _rules) = pod(&files.env()).await;
    is_refused(&pod, &strangers.client(false)).await;
    pod.logs("check that the client trusts the CA of GRPC_SERVER_TLS_CERT").await;
    assert_eq!(pod.count("tls_handshakes_not_trusted"), 1);
    assert_eq!(pod.stop().await, 0);
}

#[tokio::test]
async fn half_a_handshake_ends_in_time_and_delays_no_other() {
    let files = TlsFiles::of(&Papers::new("127.0.0.1"));
    let (pod, _rules) = pod(&files.env()).await;
    // The head of a record of 512 bytes, and the beginning of a ClientHello.
    let half = [22, 3, 1, 2, 0, 1, 0, 1, 252, 3, 3];
    let mut halves = Vec::new();
    for _ in 0..300 {
        let mut stream = TcpStream::connect(pod.grpc).await.unwrap();
        stream.write_all(&half).await.unwrap();
        halves.push(stream);
    }
    let connection = Connection::open_tls(pod.grpc, &files.client(false)).await;
    assert_eq!(connection.call(&request()).await.is_over_limit(), Some(false));
    // At most 256 are in progress; those that began first are closed for later ones.
    let abandoned = async || pod.count("tls_handshakes_abandoned") >= 300 - 256;
    pod.process.until("giving up the first", SOON, abandoned).await;
    let mut first = halves.remove(0);
    let read = tokio::time::timeout(SOON, first.read_u8()).await.expect("an end");
    assert!(read.is_err(), "{read:?}");
    // The last one is closed once its time for the preface is over, 10 s.
    let mut last = halves.pop().expect("one of them");
    let read = tokio::time::timeout(2 * SOON, last.read_u8()).await.expect("an end");
    assert!(read.is_err(), "{read:?}");
    assert_eq!(pod.stop().await, 0);
}
