//! Keys in the forms that people have them in, as OpenSSL writes them.

use std::path::Path;
use std::process::Command;

use super::{client, pod, request, text};
use crate::support::raw_grpc::Connection;

/// Runs OpenSSL.
fn openssl(args: &[&str]) {
    let output = Command::new("openssl").args(args).output().expect("openssl is installed");
    assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
}

/// Makes a key by these arguments, and a certificate for it.
fn make(dir: &Path, key_args: &[&str]) -> (String, String) {
    let path = |name: &str| text(&dir.join(name)).to_owned();
    let (key, certificate) = (path("tls.key"), path("tls.crt"));
    openssl(&[key_args, &["-out", &key]].concat());
    let subject = ["-subj", "/CN=pod", "-addext", "subjectAltName=IP:127.0.0.1"];
    let leaf = ["-addext", "basicConstraints=critical,CA:FALSE", "-days", "2"];
    let request = ["req", "-x509", "-new", "-key", &key, "-out", &certificate];
    openssl(&[&request[..], &subject, &leaf].concat());
    (certificate, key)
}

#[tokio::test]
async fn keys_of_every_form_and_kind_are_served_with() {
    for (header, key_args) in [
        ("BEGIN RSA PRIVATE KEY", &["genrsa", "-traditional"][..]),
        ("BEGIN PRIVATE KEY", &["genpkey", "-algorithm", "RSA"]),
        ("BEGIN EC PRIVATE KEY", &["ecparam", "-name", "prime256v1", "-genkey", "-noout"]),
        (
            "BEGIN PRIVATE KEY",
            &["genpkey", "-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:P-384"],
        ),
        ("BEGIN PRIVATE KEY", &["genpkey", "-algorithm", "ED25519"]),
        // As OpenSSL writes it by default: the parameters come first.
        ("BEGIN EC PARAMETERS", &["ecparam", "-name", "prime256v1", "-genkey"]),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let (certificate, key) = make(dir.path(), key_args);
        assert!(std::fs::read_to_string(&key).unwrap().contains(header), "{key_args:?}");
        let env = [
            ("GRPC_SERVER_USE_TLS", "true"),
            ("GRPC_SERVER_TLS_CERT", &certificate),
            ("GRPC_SERVER_TLS_KEY", &key),
        ];
        let (pod, _rules) = pod(&env).await;
        let config = client(Path::new(&certificate), None);
        let connection = Connection::open_tls(pod.grpc, &config).await;
        assert_eq!(connection.call(&request()).await.is_over_limit(), Some(false), "{key_args:?}");
        assert_eq!(pod.stop().await, 0);
    }
}
