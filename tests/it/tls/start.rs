//! TlsFiles that a pod cannot start with: each is named, with its reason.

use std::fs;

use super::{RULES, SOON, TlsFiles, text, write};
use crate::support::files::dir_of;
use crate::support::papers::Papers;
use crate::support::ratelease::Ratelease;

/// The lines about settings of a pod that does not start.
async fn faults(env: &[(&str, &str)]) -> Vec<String> {
    let rules = dir_of(&[("rules.yaml", RULES)]);
    let pod = Ratelease::spawn(rules.path(), &[], env);
    assert_eq!(pod.process.exit(SOON).await, 2, "{}", pod.log());
    let lines = pod.log();
    lines.lines().filter(|line| line.contains("_TLS_")).map(str::to_owned).collect()
}

#[tokio::test]
async fn each_file_that_cannot_be_used_is_named_with_its_reason_all_at_once() {
    let papers = Papers::new("127.0.0.1");
    let files = TlsFiles::of(&papers);
    let dir = files.dir.path();
    let expired = write(dir, "expired", &papers.expired("127.0.0.1"));
    let empty = dir.join("empty.pem");
    fs::write(&empty, "nothing\n").unwrap();
    let [cert, key, other_key] =
        [&files.server.0, &files.server.1, &files.client.1].map(|path| text(path));
    let (expired, empty, nowhere) =
        ((text(&expired.0), text(&expired.1)), text(&empty), "/nowhere");
    for (env, expected) in [
        ([nowhere, key, empty], vec!["CERT: the file cannot be read", "CACERT: the file holds no"]),
        ([cert, nowhere, ""], vec!["KEY: the file cannot be read: No such file"]),
        ([empty, empty, ""], vec!["CERT: the file holds no certificate", "KEY: the file holds no"]),
        ([expired.0, expired.1, ""], vec!["CERT: the file holds a certificate that has expired"]),
        ([cert, other_key, ""], vec!["KEY: the file holds the key of another certificate"]),
        ([key, cert, ""], vec!["CERT: the file holds no certificate", "KEY: the file holds no"]),
        ([text(dir), key, ""], vec!["CERT: the file is not a regular file"]),
        (["", "", ""], vec!["CERT: not set", "KEY: not set"]),
    ] {
        let [cert, key, root] = env;
        let found = faults(&[
            ("GRPC_SERVER_USE_TLS", "true"),
            ("GRPC_SERVER_TLS_CERT", cert),
            ("GRPC_SERVER_TLS_KEY", key),
            ("GRPC_CLIENT_TLS_CACERT", root),
        ])
        .await;
        assert_eq!(found.len(), expected.len(), "{env:?}: {found:#?}");
        for (found, expected) in found.iter().zip(expected) {
            assert!(found.contains(expected), "{env:?}: {found}");
        }
    }
}

#[tokio::test]
async fn settings_of_tls_that_contradict_each_other_are_faults() {
    let files = TlsFiles::of(&Papers::new("127.0.0.1"));
    let mut env = files.mutual();
    env.push(("GRPC_SERVER_TLS_CA_CERT", "/another"));
    assert!(faults(&env).await[0].contains("GRPC_CLIENT_TLS_CACERT, which means the same"));
    let mut env = files.env();
    env.push(("GRPC_CLIENT_TLS_SAN", "client.test"));
    assert!(faults(&env).await[0].contains("no certificate is asked of clients"));
}

#[tokio::test]
async fn files_without_tls_are_a_warning() {
    let files = TlsFiles::of(&Papers::new("127.0.0.1"));
    let rules = dir_of(&[("rules.yaml", RULES)]);
    let pod = Ratelease::start(rules.path(), &[], &files.mutual()[1..]).await;
    pod.logs("GRPC_SERVER_TLS_CERT: ignored, gRPC is served in plaintext").await;
    assert_eq!(pod.stop().await, 0);
}
