//! Keeps the certificate and the version of the cluster up to date while the webhook serves.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use kube::Client;
use ratelease_cli::out::CliError;
use ratelease_tls::{LoadedServer, ServerFiles, ServerPems};
use tokio::sync::watch;
use tokio::time::sleep;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::pki_types::UnixTime;
use tracing::{error, info};

use super::Settings;
use crate::certificate::{Papers, Wanted};
use crate::cluster::{self, Keeper};
use crate::inject::{Cluster, NativeSidecars};

/// A cluster whose version is not known.
const UNKNOWN: Cluster = Cluster { native_sidecars: NativeSidecars::OnSomeNodes };

/// Maximum time between two looks at the certificate.
const LOOK_MAX: Duration = Duration::from_secs(60);
/// Looks at files: as often as the kubelet would replace them in the worst case is enough.
const FILES_LOOK: Duration = Duration::from_secs(10);
/// In its lifetime a certificate is looked at this often, at least.
const LOOKS: u32 = 30;
/// Wait after an error of the API server.
const RETRY: Duration = Duration::from_secs(2);
/// Time that an API server has to learn of a new authority before its certificate is used.
const PROPAGATION: Duration = Duration::from_secs(5);
/// Application protocols: API servers speak HTTP/1.1 to webhooks.
const PROTOCOLS: [&[u8]; 2] = [b"h2", b"http/1.1"];

/// What is kept up to date.
pub(super) struct Upkeep {
    source: Source,
    /// Asked for the version; `None` if a flag says it.
    client: Option<Client>,
    tls: watch::Sender<Arc<ServerConfig>>,
    cluster: watch::Sender<Cluster>,
    /// The last result, so that each error is logged once.
    last: Result<(), String>,
}

/// Where the certificate is.
enum Source {
    Files { files: ServerFiles, in_force: ServerPems },
    Secret { keeper: Box<Keeper>, wanted: Wanted, in_force: Papers },
}

// === impl Upkeep ===

impl Upkeep {
    /// Loads the certificate and asks for the version. Waits for an API server that cannot be
    /// reached.
    pub(super) async fn start(settings: &Settings) -> Result<Self, CliError> {
        let needs_client = settings.certificates.is_none() || settings.kubernetes_version.is_none();
        let client = if needs_client { Some(client().await?) } else { None };
        let (source, loaded) = match (&settings.certificates, &client) {
            (None, Some(client)) => of_secret(settings, client).await?,
            (directory, _) => of_files(directory.as_deref().unwrap_or(Path::new(".")))?,
        };
        let client = client.filter(|_| settings.kubernetes_version.is_none());
        let cluster = match (&client, settings.kubernetes_version) {
            (Some(client), None) => insist(|| version(client)).await,
            (_, given) => given.unwrap_or(UNKNOWN),
        };
        info!(?cluster.native_sidecars, "the cluster");
        let (tls, cluster) = (watch::Sender::new(config(&loaded)), watch::Sender::new(cluster));
        Ok(Self { source, client, tls, cluster, last: Ok(()) })
    }

    /// The configuration in force.
    pub(super) fn tls(&self) -> watch::Receiver<Arc<ServerConfig>> {
        self.tls.subscribe()
    }

    /// What the cluster can do.
    pub(super) fn cluster(&self) -> watch::Receiver<Cluster> {
        self.cluster.subscribe()
    }

    /// Keeps both up to date; never returns.
    pub(super) async fn run(mut self) {
        loop {
            sleep(self.source.interval()).await;
            let result = match self.source.look().await {
                Ok(Some(loaded)) => {
                    info!(not_after = loaded.not_after.as_secs(), "a new certificate is in force");
                    self.tls.send_replace(config(&loaded));
                    Ok(())
                }
                Ok(None) => Ok(()),
                Err(why) => Err(why),
            };
            let version = match &self.client {
                Some(client) => version(client).await.map(|it| {
                    self.cluster.send_if_modified(|old| std::mem::replace(old, it) != it);
                }),
                None => Ok(()),
            };
            self.note(result.and(version));
        }
    }

    fn note(&mut self, result: Result<(), String>) {
        if let Err(why) = &result
            && result != self.last
        {
            error!("the former certificate stays in force: {why}");
        }
        self.last = result;
    }
}

async fn client() -> Result<Client, CliError> {
    Client::try_default().await.map_err(|error| {
        let fix = "run it in a pod, or set KUBECONFIG";
        CliError::new(format_args!("no API server is known: {error}; {fix}"))
    })
}

async fn version(client: &Client) -> Result<Cluster, String> {
    let version = cluster::version(client).await.map_err(|error| error.to_string())?;
    super::super::cluster(&version)
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

fn of_files(directory: &Path) -> Result<(Source, LoadedServer), CliError> {
    let files = ServerFiles {
        certificate: directory.join("tls.crt"),
        key: directory.join("tls.key"),
        client_roots: None,
        client_name: None,
    };
    let in_force = files.read();
    let loaded = files.load(&in_force, UnixTime::now()).map_err(|faults| {
        CliError::new(format_args!("the webhook has no certificate: {faults}"))
    })?;
    Ok((Source::Files { files, in_force }, loaded))
}

async fn of_secret(
    settings: &Settings,
    client: &Client,
) -> Result<(Source, LoadedServer), CliError> {
    let namespace = &settings.namespace;
    let name = format!("{}.{namespace}.svc", settings.service);
    let wanted = Wanted {
        names: vec![format!("{name}.cluster.local"), name],
        lifetime: settings.certificate_lifetime,
    };
    let keeper = Keeper::new(client, namespace, &settings.secret, &settings.webhook);
    let papers = insist(async || {
        let papers = keeper.papers(&wanted, UnixTime::now()).await;
        let papers = papers.map_err(|error| error.to_string())?;
        keeper.trust(&papers.roots).await.map_err(|error| error.to_string())?;
        Ok(papers)
    })
    .await;
    let loaded = papers.load(&wanted, UnixTime::now()).map_err(CliError::new)?;
    Ok((Source::Secret { keeper: Box::new(keeper), wanted, in_force: papers }, loaded))
}

/// The configuration of a certificate, for the protocols of webhooks.
fn config(loaded: &LoadedServer) -> Arc<ServerConfig> {
    let mut config = ServerConfig::clone(&loaded.config);
    config.alpn_protocols = PROTOCOLS.iter().map(|it| it.to_vec()).collect();
    Arc::new(config)
}

// === impl Source ===

impl Source {
    fn interval(&self) -> Duration {
        match self {
            Self::Files { .. } => FILES_LOOK,
            Self::Secret { wanted, .. } => {
                (wanted.lifetime / LOOKS).clamp(Duration::from_secs(1), LOOK_MAX)
            }
        }
    }

    /// A new certificate, if there is one; an error if that of before stays in force.
    async fn look(&mut self) -> Result<Option<LoadedServer>, String> {
        let now = UnixTime::now();
        match self {
            Self::Files { files, in_force } => {
                let pems = files.read();
                // Also the old ones, which may have expired since.
                let loaded = files.load(&pems, now).map_err(|faults| faults.to_string())?;
                Ok((std::mem::replace(in_force, pems.clone()) != pems).then_some(loaded))
            }
            Self::Secret { keeper, wanted, in_force } => {
                let text = |error: cluster::ClusterError| error.to_string();
                let papers = keeper.papers(wanted, now).await.map_err(text)?;
                let is_new_to_server = keeper.trust(&papers.roots).await.map_err(text)?;
                if papers == *in_force {
                    return Ok(None);
                }
                if is_new_to_server {
                    sleep(PROPAGATION).await;
                }
                let loaded = papers.load(wanted, now)?;
                *in_force = papers;
                Ok(Some(loaded))
            }
        }
    }
}
