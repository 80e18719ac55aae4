//! Certificates of Redis that Go and OpenSSL accept under the given settings, and others.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use ratelease_engine::store::StoreError;
use ratelease_engine::store::redis::{Address, RedisKind, RedisSettings, RedisStore};
use ratelease_tls::ServerCheck::{AnyName, Host};
use ratelease_tls::{ClientFiles, ServerCheck};
use tempfile::TempDir;

use super::{ask, connected, granted, one, patient};
use crate::support::redis::Server;

/// Certificates that openssl makes, in a directory.
struct Authority {
    dir: TempDir,
}

impl Authority {
    fn new() -> Self {
        let authority = Self { dir: TempDir::new().unwrap() };
        authority.self_signed("ca", "authority", &[]);
        authority
    }

    fn path(&self, name: &str, ending: &str) -> PathBuf {
        self.dir.path().join(format!("{name}.{ending}"))
    }

    fn crt(&self, name: &str) -> PathBuf {
        self.path(name, "crt")
    }

    fn openssl(&self, command: &str) {
        let done = Command::new("openssl").args(command.split(' ')).current_dir(&self.dir).output();
        let done = done.expect("openssl runs");
        assert!(done.status.success(), "{command}: {}", String::from_utf8_lossy(&done.stderr));
    }

    /// Makes a certificate that signed itself, of version 3 and of a CA, as openssl does by
    /// default. A name in a subject is one that hosts are compared with if an extension says it.
    fn self_signed(&self, name: &str, subject: &str, extensions: &[&str]) {
        let extensions: String = extensions.iter().map(|it| format!(" -addext {it}")).collect();
        self.openssl(&format!(
            "req -x509 -newkey rsa:2048 -nodes -days 9 -keyout {name}.key -out {name}.crt \
             -subj /CN={subject}{extensions}"
        ));
    }

    /// Makes a certificate that `issuer` signs: of version 1, unless there are extensions.
    fn signed(&self, name: &str, issuer: &str, extensions: &[&str]) {
        self.openssl(&format!(
            "req -newkey rsa:2048 -nodes -keyout {name}.key -out {name}.csr -subj /CN=localhost"
        ));
        let mut sign = format!(
            "x509 -req -days 9 -set_serial 7 -in {name}.csr -out {name}.crt -CA {issuer}.crt \
             -CAkey {issuer}.key"
        );
        if !extensions.is_empty() {
            fs::write(self.path(name, "ext"), extensions.join("\n")).unwrap();
            sign += &format!(" -extfile {name}.ext");
        }
        self.openssl(&sign);
    }

    /// Makes a certificate of version 1 that signed itself.
    fn self_signed_v1(&self, name: &str) {
        self.openssl(&format!(
            "req -newkey rsa:2048 -nodes -keyout {name}.key -out {name}.csr -subj /CN=localhost"
        ));
        self.openssl(&format!(
            "x509 -req -days 9 -in {name}.csr -out {name}.crt -signkey {name}.key"
        ));
    }

    fn version(&self, name: &str) -> String {
        let text = Command::new("openssl")
            .args(["x509", "-noout", "-text", "-in"])
            .arg(self.crt(name))
            .output()
            .unwrap();
        let text = String::from_utf8(text.stdout).unwrap();
        text.lines().find_map(|line| line.trim().strip_prefix("Version: ")).unwrap().to_owned()
    }

    /// A server with this certificate, which asks for none.
    fn server(&self, name: &str) -> Server {
        self.server_with(&self.crt(name), &self.path(name, "key"), &["--tls-auth-clients", "no"])
    }

    fn server_with(&self, certificate: &Path, key: &Path, further: &[&str]) -> Server {
        let text = |path: &Path| path.to_str().unwrap().to_owned();
        let (certificate, key, roots) = (text(certificate), text(key), text(&self.crt("ca")));
        let files = ["--tls-cert-file", &certificate, "--tls-key-file", &key];
        let port = ["--tls-port", "{free}", "--tls-ca-cert-file", &roots];
        Server::start(&[&files[..], &port, further].concat())
    }
}

fn settings(server: &Server, roots: PathBuf, check: ServerCheck) -> RedisSettings {
    // A name, since the certificates have no address.
    let address = Address::Tcp("localhost".into(), server.tls_port());
    let tls = ClientFiles { roots: Some(roots), identity: None, server: check };
    let mut settings = RedisSettings::new(RedisKind::Single, vec![address]);
    settings.tls = Some(tls);
    patient(settings)
}

async fn is_accepted(server: &Server, roots: PathBuf, check: ServerCheck) {
    granted(&*connected(settings(server, roots, check)).await, ask(10, 1, 0)).await;
}

async fn refusal(server: &Server, roots: PathBuf, check: ServerCheck) -> String {
    let refused = one(&*RedisStore::spawn(settings(server, roots, check), ""), ask(10, 1, 0)).await;
    let Err(StoreError::Unreachable(why)) = refused else { panic!("{refused:?}") };
    assert!(why.contains("invalid peer certificate"), "{why}");
    why
}

const LOCALHOST: &str = "subjectAltName=DNS:localhost";

#[tokio::test(flavor = "multi_thread")]
async fn a_certificate_that_signed_itself_is_accepted_where_it_is_named_itself() {
    let own = Authority::new();
    own.self_signed("self", "localhost", &[LOCALHOST]);
    own.self_signed("other", "localhost", &[LOCALHOST]);
    own.self_signed("elsewhere", "elsewhere", &["subjectAltName=DNS:elsewhere"]);
    let server = own.server("self");
    is_accepted(&server, own.crt("self"), Host).await;
    for roots in ["other", "ca", "elsewhere"] {
        for check in [Host, AnyName] {
            let why = refusal(&server, own.crt(roots), check).await;
            assert!(why.contains("UnknownIssuer"), "{roots}: {why}");
        }
    }
    let elsewhere = own.server("elsewhere");
    let why = refusal(&elsewhere, own.crt("elsewhere"), Host).await;
    assert!(why.contains("not valid for name"), "{why}");
    is_accepted(&elsewhere, own.crt("elsewhere"), AnyName).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_certificate_of_version_1_is_accepted_where_names_are_not_checked() {
    let own = Authority::new();
    own.self_signed_v1("self");
    own.self_signed_v1("other");
    own.signed("signed", "ca", &[]);
    for (name, roots) in [("self", "self"), ("signed", "ca"), ("signed", "signed")] {
        assert!(own.version(name).starts_with("1 "), "{name}: {}", own.version(name));
        let server = own.server(name);
        is_accepted(&server, own.crt(roots), AnyName).await;
        // It cannot have a name that hosts are compared with.
        let why = refusal(&server, own.crt(roots), Host).await;
        assert!(why.contains("not valid for name"), "{name}: {why}");
        let why = refusal(&server, own.crt("other"), AnyName).await;
        assert!(why.contains("UnknownIssuer"), "{name}: {why}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_certificate_of_a_ca_is_accepted_of_a_server_as_one_of_its_issuers_signed_it() {
    let own = Authority::new();
    own.signed("server", "ca", &["basicConstraints=critical,CA:TRUE", LOCALHOST]);
    own.signed("middle", "ca", &["basicConstraints=critical,CA:TRUE"]);
    own.signed("below", "middle", &["basicConstraints=critical,CA:FALSE", LOCALHOST]);
    own.self_signed_v1("old");
    own.signed("of_old", "old", &[LOCALHOST]);
    let cases = [
        ("server", "ca"),
        ("server", "server"),
        ("below", "middle"),
        ("below", "below"),
        ("of_old", "old"),
    ];
    for (name, roots) in cases {
        is_accepted(&own.server(name), own.crt(roots), Host).await;
    }
    // Another authority of the same name.
    let other = Authority::new();
    let why = refusal(&own.server("server"), other.crt("ca"), AnyName).await;
    assert!(why.contains("UnknownIssuer"), "{why}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_named_certificate_is_refused_once_it_has_expired_and_for_another_purpose() {
    let own = Authority::new();
    let purpose = "extendedKeyUsage=clientAuth";
    own.self_signed("client", "localhost", &[LOCALHOST, purpose]);
    let why = refusal(&own.server("client"), own.crt("client"), Host).await;
    assert!(why.contains("does not allow extended key usage"), "{why}");

    let mut params = rcgen::CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
    params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    params.not_before = rcgen::date_time_ymd(1975, 1, 1);
    params.not_after = rcgen::date_time_ymd(2020, 1, 1);
    let key = rcgen::KeyPair::generate().unwrap();
    let expired = params.self_signed(&key).unwrap();
    fs::write(own.path("expired", "der"), expired.der()).unwrap();
    fs::write(own.path("expired-key", "der"), key.serialize_der()).unwrap();
    own.openssl("x509 -inform der -in expired.der -out expired.crt");
    own.openssl("pkey -inform der -in expired-key.der -out expired.key");
    let why = refusal(&own.server("expired"), own.crt("expired"), AnyName).await;
    assert!(why.contains("expired"), "{why}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_may_show_a_certificate_of_version_1() {
    let own = Authority::new();
    own.signed("server", "ca", &[LOCALHOST]);
    own.signed("pod", "ca", &[]);
    assert!(own.version("pod").starts_with("1 "));
    let (certificate, key) = (own.crt("server"), own.path("server", "key"));
    let server = own.server_with(&certificate, &key, &["--tls-auth-clients", "yes"]);
    let mut settings = settings(&server, own.crt("ca"), Host);
    if let Some(tls) = &mut settings.tls {
        tls.identity = Some((own.crt("pod"), own.path("pod", "key")));
    }
    granted(&*connected(settings).await, ask(10, 1, 0)).await;
}
