//! The certificate of the webhook, and the version of the cluster: both are kept up to date while
//! the webhook serves.
//!
//! The certificate is in files that others keep, or in a Secret. That one the injector makes
//! itself: an authority signs one certificate and is then forgotten, so that no key of an authority
//! is kept anywhere.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use k8s_openapi::ByteString;
use k8s_openapi::api::admissionregistration::v1::MutatingWebhookConfiguration;
use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, Client};
use ratelease_listener::tls::{CertificateFiles, HandshakeFailure, TlsAcceptor, TlsPort};
use ratelease_tls::{ALPN_HTTP2, FileFaults, LoadedServer, ServerFiles, ServerPems};
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, date_time_ymd,
};
use serde_json::json;
use tokio::sync::watch;
use tokio::time::sleep;
use tokio_rustls::rustls::RootCertStore;
use tokio_rustls::rustls::client::{verify_server_cert_signed_by_trust_anchor, verify_server_name};
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use tokio_rustls::rustls::server::ParsedCertificate;
use tracing::{error, info};

use crate::inject::Cluster;

/// Maximum time between two looks at a Secret, and at the version of the cluster.
const LOOK_MAX: Duration = Duration::from_secs(60);
/// Interval at which files are read: as often as the kubelet would replace them in the worst case.
const FILES_INTERVAL: Duration = Duration::from_secs(10);
/// In its lifetime a certificate is looked at this often, at least.
const LOOKS: u32 = 30;
/// Wait after an error of the API server.
const RETRY: Duration = Duration::from_secs(2);
/// Time that an API server has to learn of a new authority before its certificate is used.
const PROPAGATION: Duration = Duration::from_secs(5);

/// What the port tells its clients and operators. API servers speak HTTP/1.1 to webhooks.
const PORT: TlsPort =
    TlsPort { name: "the webhook", protocols: &[ALPN_HTTP2, b"http/1.1"], advice: advice_for };

fn advice_for(failure: HandshakeFailure) -> Option<&'static str> {
    match failure {
        HandshakeFailure::NotTrusted => {
            Some("check that the caBundle of the webhook's configuration is its authority")
        }
        HandshakeFailure::Incompatible => Some("the client needs TLS 1.2 or 1.3"),
        // Any client of the cluster can cause them.
        _ => None,
    }
}

/// The certificate that is served with, and where it comes from.
pub enum ServedCertificate {
    /// Files that others keep.
    Files(Box<CertificateFiles>),
    /// A Secret that injectors keep.
    Secret(Box<KeptSecret>),
}

/// A Secret with a certificate, of which one is in force.
pub struct KeptSecret {
    keeper: Keeper,
    wanted: Wanted,
    in_force: Certificate,
    acceptor: TlsAcceptor,
}

/// What a Secret is kept with.
pub struct SecretNames<'n> {
    pub namespace: &'n str,
    pub secret: &'n str,
    /// The Service whose name the certificate has.
    pub service: &'n str,
    /// The configuration that the authority is written into.
    pub webhook: &'n str,
    /// The lifetime of a certificate.
    pub lifetime: Duration,
}

// === impl ServedCertificate ===

impl ServedCertificate {
    /// Loads `tls.crt` and `tls.key` of a directory. Blocks.
    ///
    /// # Errors
    /// Every file that cannot be used.
    pub fn of_files(directory: &Path) -> Result<Self, FileFaults> {
        let files = CertificateFiles::load(server_files(directory), PORT)?;
        Ok(Self::Files(Box::new(files)))
    }

    /// Reads the certificate of a Secret, or makes it. Waits for an API server that cannot be
    /// reached.
    ///
    /// # Errors
    /// Why what was made cannot be used.
    pub async fn of_secret(client: &Client, names: &SecretNames<'_>) -> Result<Self, String> {
        let SecretNames { namespace, secret, service, webhook, lifetime } = *names;
        let name = format!("{service}.{namespace}.svc");
        let wanted = Wanted { names: vec![format!("{name}.cluster.local"), name], lifetime };
        let keeper = Keeper::new(client, namespace, secret, webhook);
        let in_force = insist(async || {
            let certificate = keeper.certificate(&wanted, UnixTime::now()).await;
            let certificate = certificate.map_err(|error| error.to_string())?;
            keeper.trust(&certificate.roots).await.map_err(|error| error.to_string())?;
            Ok(certificate)
        })
        .await;
        let loaded = in_force.load(&wanted, UnixTime::now())?;
        let acceptor = TlsAcceptor::new(loaded, PORT);
        Ok(Self::Secret(Box::new(KeptSecret { keeper, wanted, in_force, acceptor })))
    }

    /// What secures connections with the certificate in force.
    pub fn acceptor(&self) -> TlsAcceptor {
        match self {
            Self::Files(files) => files.acceptor().clone(),
            Self::Secret(secret) => secret.acceptor.clone(),
        }
    }

    /// Keeps it up to date; does not return.
    pub async fn renew_forever(self) {
        match self {
            Self::Files(files) => files.renew_forever(FILES_INTERVAL).await,
            Self::Secret(secret) => secret.renew_forever().await,
        }
    }
}

fn server_files(directory: &Path) -> ServerFiles {
    ServerFiles {
        certificate: directory.join("tls.crt"),
        key: directory.join("tls.key"),
        client_roots: None,
        client_name: None,
    }
}

// === impl KeptSecret ===

impl KeptSecret {
    async fn renew_forever(mut self) {
        let interval = (self.wanted.lifetime / LOOKS).clamp(Duration::from_secs(1), LOOK_MAX);
        // The last result, so that each error is logged once.
        let mut last = Ok(());
        loop {
            sleep(interval).await;
            let renewed = self.renew().await;
            if let Err(why) = &renewed
                && renewed != last
            {
                error!("the former certificate stays in force: {why}");
            }
            last = renewed;
        }
    }

    async fn renew(&mut self) -> Result<(), String> {
        let Self { keeper, wanted, in_force, acceptor } = self;
        let now = UnixTime::now();
        let text = |error: ClusterError| error.to_string();
        let certificate = keeper.certificate(wanted, now).await.map_err(text)?;
        let is_new_to_server = keeper.trust(&certificate.roots).await.map_err(text)?;
        if certificate == *in_force {
            return Ok(());
        }
        if is_new_to_server {
            sleep(PROPAGATION).await;
        }
        let loaded = certificate.load(wanted, now)?;
        *in_force = certificate;
        info!(not_after = loaded.not_after.as_secs(), "a new certificate is in force");
        acceptor.replace(loaded);
        Ok(())
    }
}

/// What the cluster of this client can do, which is asked again and again.
pub async fn watched_cluster(client: Client) -> watch::Receiver<Cluster> {
    let (sender, cluster) = watch::channel(insist(|| version(&client)).await);
    tokio::spawn(async move {
        let mut last = Ok(());
        loop {
            sleep(LOOK_MAX).await;
            let asked = version(&client).await.map(|it| {
                sender.send_if_modified(|old| std::mem::replace(old, it) != it);
            });
            if let Err(why) = &asked
                && asked != last
            {
                error!("the version of the cluster cannot be asked: {why}");
            }
            last = asked;
        }
    });
    cluster
}

async fn version(client: &Client) -> Result<Cluster, String> {
    let version =
        client.apiserver_version().await.map_err(|it| ClusterError::from(it).to_string())?;
    Cluster::of(&format!("{}.{}", version.major, version.minor))
}

/// Repeats what asks the API server until it succeeds.
async fn insist<T>(mut ask: impl AsyncFnMut() -> Result<T, String>) -> T {
    let mut last = String::new();
    loop {
        match ask().await {
            Ok(value) => return value,
            Err(why) => {
                if why != last {
                    error!("not ready: {why}");
                }
                last = why;
                sleep(RETRY).await;
            }
        }
    }
}

/// By how much clocks may differ.
const SKEW: Duration = Duration::from_secs(300);
/// The part of its lifetime after which a certificate is replaced: two of three.
const LEFT_PARTS: u32 = 3;

/// A certificate with its key and the authorities that clients are to trust, in PEM.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Certificate {
    pem: Vec<u8>,
    key: Vec<u8>,
    /// The authority of the certificate first.
    roots: Vec<u8>,
}

/// What certificates are to be like.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Wanted {
    /// DNS names, at least one.
    names: Vec<String>,
    lifetime: Duration,
}

// === impl Certificate ===

impl Certificate {
    /// Makes a certificate that is valid from `now`. The authority of `old` stays trusted, since
    /// other injectors serve with its certificate until they see the new one.
    ///
    /// # Errors
    /// Fails if a name is none, or without random numbers.
    fn make(wanted: &Wanted, now: UnixTime, old: Option<&Self>) -> Result<Self, rcgen::Error> {
        // A certificate whose issuer has its own name would count as self-signed.
        let name = format!("ratelease-injector authority {}", now.as_secs());
        let mut authority = params(name, Vec::new(), wanted, now)?;
        authority.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        authority.key_usages = vec![KeyUsagePurpose::KeyCertSign];
        let authority_key = KeyPair::generate()?;
        let mut roots = authority.self_signed(&authority_key)?.pem().into_bytes();
        if let Some(old) = old {
            roots.extend_from_slice(old.own_root());
        }
        let name = "ratelease-injector".to_owned();
        let mut leaf = params(name, wanted.names.clone(), wanted, now)?;
        leaf.use_authority_key_identifier_extension = true;
        leaf.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        let key = KeyPair::generate()?;
        let certificate = leaf.signed_by(&key, &Issuer::new(authority, authority_key))?;
        Ok(Self {
            pem: certificate.pem().into_bytes(),
            key: key.serialize_pem().into_bytes(),
            roots,
        })
    }

    /// The authority of this certificate: the first of the roots, as text.
    fn own_root(&self) -> &[u8] {
        const END: &[u8] = b"-----END CERTIFICATE-----\n";
        let text = self.roots.as_slice();
        let end = text.windows(END.len()).position(|window| window == END);
        end.map_or(&[], |end| &text[..end + END.len()])
    }

    /// The configuration to serve with.
    ///
    /// # Errors
    /// Why these have to be replaced: they cannot be used, do not belong together, have another
    /// name than is wanted, or end soon.
    fn load(&self, wanted: &Wanted, now: UnixTime) -> Result<LoadedServer, String> {
        let pems = ServerPems::new(self.pem.clone(), self.key.clone());
        let loaded =
            server_files(Path::new("")).load(&pems, now).map_err(|faults| faults.to_string())?;
        self.verify(wanted, now)?;
        let left = loaded.not_after.as_secs().saturating_sub(now.as_secs());
        if left < (wanted.lifetime / LEFT_PARTS).as_secs() {
            return Err(format!("ends in {left} s"));
        }
        Ok(loaded)
    }

    /// As the API server will.
    fn verify(&self, wanted: &Wanted, now: UnixTime) -> Result<(), String> {
        let mut roots = RootCertStore::empty();
        for root in CertificateDer::pem_slice_iter(&self.roots) {
            let root = root.map_err(|_| "has an authority that is no PEM".to_owned())?;
            roots.add(root).map_err(|error| format!("has an unusable authority: {error}"))?;
        }
        let certificate = CertificateDer::from_pem_slice(&self.pem);
        let certificate = certificate.map_err(|_| "is no PEM".to_owned())?;
        let parsed = ParsedCertificate::try_from(&certificate).map_err(|it| it.to_string())?;
        let algorithms = ring::default_provider().signature_verification_algorithms.all;
        verify_server_cert_signed_by_trust_anchor(&parsed, &roots, &[], now, algorithms)
            .map_err(|error| format!("is not of its authority: {error}"))?;
        for name in &wanted.names {
            let name = ServerName::try_from(name.as_str()).map_err(|error| error.to_string())?;
            verify_server_name(&parsed, &name)
                .map_err(|_| format!("is not for {}", name.to_str()))?;
        }
        Ok(())
    }
}

fn params(
    name: String,
    names: Vec<String>,
    wanted: &Wanted,
    now: UnixTime,
) -> Result<CertificateParams, rcgen::Error> {
    let mut params = CertificateParams::new(names)?;
    params.distinguished_name.push(DnType::CommonName, name);
    let now = Duration::from_secs(now.as_secs());
    let epoch = date_time_ymd(1970, 1, 1);
    params.not_before = epoch + now.saturating_sub(SKEW);
    params.not_after = epoch + now + wanted.lifetime;
    Ok(params)
}

/// Maximum number of times that a Secret is read again because another injector wrote it.
const ATTEMPTS_MAX: usize = 5;
/// The status of a write that another one came before.
const CONFLICT: u16 = 409;

/// Where the certificate is kept.
#[derive(Clone)]
struct Keeper {
    secrets: Api<Secret>,
    webhooks: Api<MutatingWebhookConfiguration>,
    /// The name of the Secret.
    secret: String,
    /// The name of the configuration.
    webhook: String,
}

/// Why the API server could not be used.
#[derive(Debug, thiserror::Error)]
enum ClusterError {
    #[error("the API server: {0}")]
    Kube(#[from] kube::Error),
    #[error("no certificate can be made: {0}")]
    Make(#[from] rcgen::Error),
    #[error("the Secret {0} was written by others {ATTEMPTS_MAX} times in a row")]
    Contended(String),
}

// === impl Keeper ===

impl Keeper {
    fn new(client: &Client, namespace: &str, secret: &str, webhook: &str) -> Self {
        Self {
            secrets: Api::namespaced(client.clone(), namespace),
            webhooks: Api::all(client.clone()),
            secret: secret.to_owned(),
            webhook: webhook.to_owned(),
        }
    }

    /// The certificate in the Secret; a new one if there is none that can be served with.
    async fn certificate(
        &self,
        wanted: &Wanted,
        now: UnixTime,
    ) -> Result<Certificate, ClusterError> {
        for _ in 0..ATTEMPTS_MAX {
            let found = self.secrets.get_opt(&self.secret).await?;
            let held = found.as_ref().map(read);
            let why = match held.as_ref().map(|held| (held, held.load(wanted, now))) {
                Some((held, Ok(_))) => return Ok(held.clone()),
                Some((_, Err(why))) => why,
                None => "is absent".to_owned(),
            };
            let made = Certificate::make(wanted, now, held.as_ref())?;
            match self.write(found, &made).await {
                Ok(_) => {
                    info!(secret = self.secret, "a new certificate was made: the former {why}");
                    return Ok(made);
                }
                // Another injector was first: its certificate serves as well.
                Err(kube::Error::Api(status)) if status.code == CONFLICT => {}
                Err(error) => return Err(error.into()),
            }
        }
        Err(ClusterError::Contended(self.secret.clone()))
    }

    /// Writes a Secret, unless another injector wrote it since it was `found`.
    async fn write(
        &self,
        found: Option<Secret>,
        certificate: &Certificate,
    ) -> Result<Secret, kube::Error> {
        let data = |bytes: &[u8]| ByteString(bytes.to_vec());
        let data = BTreeMap::from([
            ("tls.crt".to_owned(), data(&certificate.pem)),
            ("tls.key".to_owned(), data(&certificate.key)),
            ("ca.crt".to_owned(), data(&certificate.roots)),
        ]);
        let params = PostParams::default();
        match found {
            // With its version, by which the API server knows whether it is still the same.
            Some(mut secret) => {
                secret.data = Some(data);
                self.secrets.replace(&self.secret, &params, &secret).await
            }
            None => {
                let name = Some(self.secret.clone());
                let secret = Secret {
                    metadata: ObjectMeta { name, ..ObjectMeta::default() },
                    type_: Some("kubernetes.io/tls".to_owned()),
                    data: Some(data),
                    ..Secret::default()
                };
                self.secrets.create(&params, &secret).await
            }
        }
    }

    /// Has the API server trust these authorities. Returns whether it did not before.
    async fn trust(&self, roots: &[u8]) -> Result<bool, ClusterError> {
        let found = self.webhooks.get(&self.webhook).await?;
        let bundle = ByteString(roots.to_vec());
        let stale: Vec<_> = found
            .webhooks
            .into_iter()
            .flatten()
            .filter(|webhook| webhook.client_config.ca_bundle.as_ref() != Some(&bundle))
            .map(|webhook| json!({"name": webhook.name, "clientConfig": {"caBundle": bundle}}))
            .collect();
        if stale.is_empty() {
            return Ok(false);
        }
        // Merges by the names of the webhooks, and leaves all other fields to those who own them.
        let patch = Patch::Strategic(json!({"webhooks": stale}));
        self.webhooks.patch(&self.webhook, &PatchParams::default(), &patch).await?;
        info!(webhook = self.webhook, "the API server trusts the certificate");
        Ok(true)
    }
}

fn read(secret: &Secret) -> Certificate {
    let field = |name: &str| {
        let data = secret.data.as_ref().and_then(|data| data.get(name));
        data.map(|bytes| bytes.0.clone()).unwrap_or_default()
    };
    Certificate { pem: field("tls.crt"), key: field("tls.key"), roots: field("ca.crt") }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY: Duration = Duration::from_secs(86_400);
    /// 2026-01-01.
    const NOW: u64 = 1_767_225_600;

    fn at(days: u64) -> UnixTime {
        UnixTime::since_unix_epoch(Duration::from_secs(NOW + days * DAY.as_secs()))
    }

    fn wanted(name: &str) -> Wanted {
        Wanted { names: vec![name.to_owned()], lifetime: 90 * DAY }
    }

    fn why(certificate: &Certificate, wanted: &Wanted, now: UnixTime) -> String {
        certificate.load(wanted, now).expect_err("has to be replaced")
    }

    #[test]
    fn a_certificate_is_kept_for_two_thirds_of_its_lifetime() {
        let wanted = wanted("injector.limits.svc");
        let certificate = Certificate::make(&wanted, at(0), None).unwrap();
        assert_eq!(certificate.load(&wanted, at(0)).unwrap().not_after, at(90));
        assert!(certificate.load(&wanted, at(59)).is_ok());
        assert_eq!(why(&certificate, &wanted, at(61)), "ends in 2505600 s");
        assert!(why(&certificate, &wanted, at(91)).contains("has expired"));
    }

    #[test]
    fn what_cannot_be_served_is_replaced() {
        let wanted = wanted("a.svc");
        let certificate = Certificate::make(&wanted, at(0), None).unwrap();
        let other = Certificate::make(&wanted, at(0), None).unwrap();
        let now = at(1);
        let of_other_name =
            Wanted { names: vec!["a.svc".into(), "b.svc".into()], lifetime: wanted.lifetime };
        assert_eq!(why(&certificate, &of_other_name, now), "is not for b.svc");
        let mixed = Certificate { key: other.key.clone(), ..certificate.clone() };
        assert!(why(&mixed, &wanted, now).contains("the key of another certificate"));
        let mixed = Certificate { roots: other.roots, ..certificate };
        assert!(why(&mixed, &wanted, now).starts_with("is not of its authority: "));
        let none = Certificate { pem: Vec::new(), key: Vec::new(), roots: Vec::new() };
        assert!(why(&none, &wanted, now).contains("holds no certificate in PEM"));
    }

    #[test]
    fn the_former_authority_stays_trusted_and_the_one_before_does_not() {
        let wanted = wanted("a.svc");
        let first = Certificate::make(&wanted, at(0), None).unwrap();
        let second = Certificate::make(&wanted, at(60), Some(&first)).unwrap();
        let third = Certificate::make(&wanted, at(80), Some(&second)).unwrap();
        let served_by = |certificate: &Certificate, roots: &Certificate| {
            Certificate { roots: roots.roots.clone(), ..certificate.clone() }
                .verify(&wanted, at(81))
        };
        assert_eq!(served_by(&first, &second), Ok(()));
        assert_eq!(served_by(&second, &second), Ok(()));
        assert_eq!(served_by(&second, &third), Ok(()));
        assert!(served_by(&first, &third).is_err());
    }
}
