//! Configurations of listeners, and files that make none.

use std::fs;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};
use tokio_rustls::{TlsAcceptor, TlsConnector};

use super::*;
use crate::tests::{Authority, write};
use crate::{ClientFiles, ServerCheck};

/// 2026-01-01.
const NOW: UnixTime = UnixTime::since_unix_epoch(Duration::from_secs(1_767_225_600));

fn faults(files: &ServerFiles) -> Vec<(FileRole, String)> {
    let found = files.load(&files.read(), NOW).expect_err("faults");
    found.into_iter().map(|fault| (fault.role, fault.problem)).collect()
}

#[test]
fn each_file_that_cannot_be_used_is_a_fault_of_its_own() {
    let dir = tempfile::tempdir().unwrap();
    let authority = Authority::new();
    let good = authority.write_paper(dir.path(), "a.test", 4096);
    let other = authority.write_paper(dir.path(), "b.test", 4096);
    let expired = authority.write_paper(dir.path(), "a.test", 2020);
    let empty = dir.path().join("empty");
    fs::write(&empty, "").unwrap();
    let files = |certificate: &PathBuf, key: &PathBuf, roots: Option<&PathBuf>| ServerFiles {
        certificate: certificate.clone(),
        key: key.clone(),
        client_roots: roots.cloned(),
        client_name: None,
    };
    use FileRole::{Certificate, Key, Roots};
    let has = |files: &ServerFiles, expected: &[(FileRole, &str)]| {
        let found = faults(files);
        assert_eq!(found.len(), expected.len(), "{found:?}");
        for ((role, problem), (expected_role, expected)) in found.iter().zip(expected) {
            assert!(role == expected_role && problem.contains(expected), "{found:?}");
        }
    };
    let nowhere = dir.path().join("nowhere");
    has(
        &files(&nowhere, &empty, Some(&empty)),
        &[(Certificate, "cannot be read"), (Key, "no private key"), (Roots, "no certificate")],
    );
    has(&files(&expired.0, &expired.1, None), &[(Certificate, "has expired")]);
    has(&files(&good.0, &other.1, None), &[(Key, "the key of another certificate")]);
    has(&files(&good.1, &good.0, None), &[(Certificate, "no certificate"), (Key, "no private")]);
    has(&files(&dir.path().to_owned(), &good.1, None), &[(Certificate, "not a regular file")]);
    let nonsense = write(dir.path(), "nonsense", "CERTIFICATE", b"nonsense");
    has(&files(&nonsense, &good.1, None), &[(Certificate, "cannot be used")]);
    has(&files(&good.0, &good.1, Some(&nonsense)), &[(Roots, "cannot be used")]);
    let loaded = files(&good.0, &good.1, None);
    assert!(loaded.load(&loaded.read(), NOW).unwrap().not_after > NOW);
}

#[test]
fn a_change_of_any_file_is_seen_in_what_was_read() {
    let dir = tempfile::tempdir().unwrap();
    let authority = Authority::new();
    let (certificate, key) = authority.write_paper(dir.path(), "a.test", 4096);
    let root = authority.write_root(dir.path());
    let files = ServerFiles { certificate, key, client_roots: Some(root), client_name: None };
    for path in files.paths() {
        let before = files.read();
        assert!(before == files.read());
        let content = fs::read(path).unwrap();
        fs::write(path, [&content[..], b"\n"].concat()).unwrap();
        assert!(before != files.read(), "{}", path.display());
    }
}

/// Connects a client to a listener, and exchanges a byte each way.
async fn meet(listener: &ServerFiles, client: &ClientFiles) -> std::io::Result<()> {
    let (near, far) = duplex(64 * 1024);
    let config = listener.load(&listener.read(), NOW).unwrap().config;
    let accept = async {
        let mut stream = TlsAcceptor::from(config).accept(far).await?;
        let byte = stream.read_u8().await?;
        stream.write_u8(byte).await?;
        stream.flush().await
    };
    let config = Arc::new(client.load(&client.read(), Some(NOW)).unwrap());
    let connect = async {
        let name = ServerName::try_from("server.test").unwrap();
        let mut stream = TlsConnector::from(config).connect(name, near).await?;
        stream.write_u8(7).await?;
        stream.flush().await?;
        assert_eq!(stream.read_u8().await?, 7);
        Ok(())
    };
    tokio::try_join!(accept, connect).map(|_| ())
}

#[tokio::test]
async fn both_sides_are_authenticated_by_authority_and_name() {
    let dir = tempfile::tempdir().unwrap();
    let (authority, stranger) = (Authority::new(), Authority::new());
    let root = authority.write_root(dir.path());
    let server = authority.write_paper(dir.path(), "server.test", 4096);
    let client = authority.write_paper(dir.path(), "client.test", 4096);
    let strange = stranger.write_paper(dir.path(), "stranger.test", 4096);
    let named = |name: &str| Some(ServerName::try_from(name.to_owned()).unwrap());
    let listener = ServerFiles {
        certificate: server.0,
        key: server.1,
        client_roots: Some(root.clone()),
        client_name: named("client.test"),
    };
    let good = ClientFiles { roots: Some(root), identity: Some(client), server: ServerCheck::Host };
    meet(&listener, &good).await.unwrap();
    let another = ServerFiles { client_name: named("another.test"), ..listener.clone() };
    assert!(meet(&another, &good).await.is_err(), "the client's name");
    let anonymous = ClientFiles { identity: None, ..good.clone() };
    assert!(meet(&listener, &anonymous).await.is_err(), "no certificate");
    let strange = ClientFiles { identity: Some(strange), ..good.clone() };
    assert!(meet(&listener, &strange).await.is_err(), "the client's authority");
    let open = ServerFiles { client_roots: None, client_name: None, ..listener.clone() };
    meet(&open, &anonymous).await.unwrap();
}

#[tokio::test]
async fn a_server_is_checked_by_the_name_that_the_client_names() {
    let dir = tempfile::tempdir().unwrap();
    let (authority, stranger) = (Authority::new(), Authority::new());
    let (certificate, key) = authority.write_paper(dir.path(), "other.test", 4096);
    let listener = ServerFiles { certificate, key, client_roots: None, client_name: None };
    let name = |name: &str| ServerCheck::Name(ServerName::try_from(name.to_owned()).unwrap());
    let root = authority.write_root(dir.path());
    for (server, is_good) in [
        (ServerCheck::Host, false),
        (name("other.test"), true),
        (name("another.test"), false),
        (ServerCheck::AnyName, true),
    ] {
        let client = ClientFiles { roots: Some(root.clone()), identity: None, server };
        let met = meet(&listener, &client).await;
        assert_eq!(met.is_ok(), is_good, "{:?}: {met:?}", client.server);
    }
    let elsewhere = tempfile::tempdir().unwrap();
    let roots = Some(stranger.write_root(elsewhere.path()));
    let client = ClientFiles { roots, identity: None, server: ServerCheck::AnyName };
    assert!(meet(&listener, &client).await.is_err(), "any name, but not any authority");
}

/// The certificates of a chain in which each of some layers could be signed by each of the next: no
/// root has the name of the last.
fn bushy(layers: usize, width: usize, empty: usize) -> Vec<CertificateDer<'static>> {
    let mut chain = Vec::new();
    for layer in 0..layers {
        for _ in 0..width {
            chain.push(crate::tests::unsigned_ca(&layer.to_string(), &(layer + 1).to_string()));
        }
    }
    chain.extend((0..empty).map(|_| CertificateDer::from(Vec::new())));
    chain
}

#[test]
#[allow(clippy::disallowed_methods, reason = "30 s are far more than it takes")]
fn a_chain_that_is_made_to_be_searched_for_ever_is_refused_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let authority = Authority::new();
    let root = authority.write_root(dir.path());
    let end = crate::tests::unsigned_ca("end", "0");
    let listener = ServerFiles {
        certificate: root.clone(),
        key: root.clone(),
        client_roots: Some(root.clone()),
        client_name: None,
    };
    let roots = pem::roots(&pem::read(&root)).unwrap();
    let clients = listener.client_check(roots).unwrap();
    for chain in [bushy(6, 7, 10_000), bushy(1, 5, 0), bushy(0, 0, 5)] {
        let begun = std::time::Instant::now();
        assert!(clients.verify_client_cert(&end, &chain, NOW).is_err());
        assert!(begun.elapsed() < Duration::from_secs(30), "{:?}", begun.elapsed());
    }
}
