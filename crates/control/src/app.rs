//! **The process**: opens the database, binds the ports, and runs the tasks until it is stopped.

use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::net::SocketAddr;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use kube::Client;
use ratelease_listener::tls::CertificateFiles;
use ratelease_tls::FileFaults;
use thiserror::Error;
use tokio::net::TcpListener;
use tokio::sync::{Mutex, Notify, oneshot, watch};
use tokio::task::{JoinSet, spawn_blocking};
use tokio::time::{sleep, timeout};
use tokio_rustls::rustls::crypto::ring;
use tracing::warn;

use crate::api::{self, App};
use crate::auth::{Access, Token};
use crate::metrics::ObjectCounts;
use crate::objects;
use crate::oidc::Provider;
use crate::push::{self, Fleet, PodServer, PublishedSet, RolloutCounts, Streams};
use crate::rates::Rates;
use crate::settings::Settings;
use crate::steps;
use crate::store::{Author, Database, Store, StoreError};

/// How long a start waits for PostgreSQL, and the first and the longest pause until it asks again.
const DATABASE_WAIT: Duration = Duration::from_secs(30);
const DATABASE_PAUSE: Duration = Duration::from_millis(500);
const DATABASE_PAUSE_MAX: Duration = Duration::from_secs(8);

/// How long an end waits for a database that is silent.
const LEAVE_MAX: Duration = Duration::from_secs(5);

/// Why the process cannot start, or has ended.
#[derive(Debug, Error)]
pub enum StartError {
    /// The database cannot be used.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// An address cannot be listened on.
    #[error("cannot listen on {0}: {1}")]
    Bind(SocketAddr, #[source] io::Error),
    /// A file of TLS cannot be used.
    #[error("{0}")]
    Tls(FileFaults),
    /// The file of the token cannot be used.
    #[error("{path}: {1}", path = .0.display())]
    TokenFile(PathBuf, String),
    /// The API server of the cluster is not known.
    #[error(
        "CONTROL_KUBERNETES_RULES: no API server is known: {0}; run it in a pod whose service \
         account has a token, or set KUBECONFIG"
    )]
    Kubernetes(String),
    /// The system refuses what a start needs.
    #[error("a listener failed: {0}")]
    Serve(String),
}

/// A process whose ports are bound.
pub struct Control {
    /// Address of the API.
    pub http: SocketAddr,
    /// Address for pods.
    pub pods: SocketAddr,
    /// Address of probes, if they have one of their own.
    pub probes: Option<SocketAddr>,
    /// The first token, if this start made one that no file holds. It is shown only now.
    pub first_token: Option<String>,
    http_listener: TcpListener,
    pods_listener: TcpListener,
    probes_listener: Option<TcpListener>,
    pods_tls: Option<CertificateFiles>,
    provider: Option<Provider>,
    cluster: Option<Client>,
    settings: Settings,
    store: Store,
}

// === impl Control ===

impl Control {
    /// Opens the database and binds the ports. Waits up to 30 s for a PostgreSQL that is away.
    ///
    /// # Errors
    /// Why it cannot start.
    pub async fn start(settings: Settings) -> Result<Self, StartError> {
        let pods_tls = match settings.pods_tls.clone() {
            None => None,
            Some(files) => {
                let loaded =
                    spawn_blocking(move || CertificateFiles::load(files, push::TLS_PORT)).await;
                let loaded = loaded.map_err(|error| StartError::Serve(error.to_string()))?;
                Some(loaded.map_err(StartError::Tls)?)
            }
        };
        let provider = match settings.sign_in.clone() {
            None => None,
            Some(sign_in) => {
                let made = spawn_blocking(move || Provider::new(sign_in)).await;
                let made = made.map_err(|error| StartError::Serve(error.to_string()))?;
                Some(made.map_err(StartError::Tls)?)
            }
        };
        let cluster = match settings.kubernetes_rules {
            Some(_) => Some(cluster().await?),
            None => None,
        };
        let (http_listener, http) = bind(settings.http_listen).await?;
        let (pods_listener, pods) = bind(settings.pods_listen).await?;
        let probes = match settings.probe_listen {
            Some(address) => Some(bind(address).await?),
            None => None,
        };
        let (probes_listener, probes) = probes.unzip();
        let store = open(&settings.database).await?.following_objects(cluster.is_some());
        let first_token = first_token(&store, settings.token_file.as_deref()).await?;
        Ok(Self {
            http,
            pods,
            probes,
            first_token,
            http_listener,
            pods_listener,
            probes_listener,
            pods_tls,
            provider,
            cluster,
            settings,
            store,
        })
    }

    /// Serves until `stop` resolves.
    ///
    /// # Errors
    /// Fails without random numbers.
    pub async fn run(self, stop: impl Future<Output = ()> + Send) -> Result<(), StartError> {
        let Self { settings, store, http_listener, pods_listener, pods_tls, cluster, .. } = self;
        let (probes_listener, provider) = (self.probes_listener, self.provider);
        let (sender, published) = watch::channel(Arc::new(PublishedSet::default()));
        let (polls, polled) = watch::channel(0);
        let wake = Arc::new(Notify::new());
        let streams = Streams::default();
        let mut replica = [0; 8];
        getrandom::fill(&mut replica).map_err(|error| StartError::Serve(error.to_string()))?;
        let replica: String = replica.iter().map(|byte| format!("{byte:02x}")).collect();
        let (counts, fleet) = (RolloutCounts::default(), Fleet::default());
        let mut tasks = JoinSet::new(); // which end with it
        tasks.spawn(push::watch_rollout(
            store.clone(),
            counts.clone(),
            published.clone(),
            Arc::clone(&wake),
        ));
        tasks.spawn(push::follow(store.clone(), Arc::clone(&wake), sender, polls));
        tasks.spawn(push::listen(settings.database.clone(), Arc::clone(&wake)));
        tasks.spawn(push::report(store.clone(), streams.clone(), replica.clone()));
        tasks.spawn(push::report_fleet(store.clone(), fleet.clone(), replica.clone()));
        let app = Arc::new(App {
            store: store.clone(),
            settings: settings.clone(),
            provider,
            rates: Rates::new(settings.rates),
            unread: api::unread_answers(),
            database_up: Mutex::default(),
            metrics: Mutex::default(),
            publishers: Arc::default(),
            follower: wake,
            published: published.clone(),
            streams: streams.clone(),
            counts: counts.clone(),
            objects: ObjectCounts::default(),
            stuck: Default::default(),
        });
        tasks.spawn(steps::take_steps(Arc::clone(&app)));
        if let (Some(client), Some(scope)) = (cluster, settings.kubernetes_rules) {
            tasks.spawn(objects::follow(client, Arc::clone(&app), scope));
        }
        let (end, ended) = oneshot::channel::<()>();
        let ended = ended.map(|_| ()).shared();
        let (reported, polled) = ((counts, fleet), (published, polled));
        let server = PodServer::new(polled, streams, settings.selection, reported, store.clock());
        let pods = push::serve(pods_listener, pods_tls, server, ended.clone());
        let probe_routes = api::probes(Arc::clone(&app));
        let http = api::serve(http_listener, api::router(app), ended.clone());
        let probes = async {
            if let Some(listener) = probes_listener {
                api::serve_probes(listener, probe_routes, ended).await;
            }
        };
        let stopped = async move {
            stop.await;
            drop(end);
        };
        tokio::join!(pods, http, probes, stopped);
        let leave = async {
            tasks.shutdown().await;
            // If it fails, the others forget it when it has been silent for a while.
            let _ = store.forget_replica(&replica).await;
            store.close().await;
        };
        let _ = timeout(LEAVE_MAX, leave).await;
        Ok(())
    }
}

/// The API server of the cluster that this runs in, or that KUBECONFIG names. It is not called yet.
async fn cluster() -> Result<Client, StartError> {
    // kube asks for it by name; an error means that it is set already.
    let _ = ring::default_provider().install_default();
    Client::try_default().await.map_err(|error| StartError::Kubernetes(error.to_string()))
}

async fn bind(addr: SocketAddr) -> Result<(TcpListener, SocketAddr), StartError> {
    let fail = |error| StartError::Bind(addr, error);
    let listener = TcpListener::bind(addr).await.map_err(fail)?;
    let bound = listener.local_addr().map_err(fail)?;
    Ok((listener, bound))
}

/// Opens a database, which may start at the same time.
async fn open(database: &Database) -> Result<Store, StoreError> {
    if let Some(host) = database.host_without_tls() {
        warn!(
            "the connection to the database at {host} is in plain text if the server has no TLS, \
             and its certificate is not verified: append sslmode=verify-full to the URL, or \
             sslmode=disable on a network that is encrypted below"
        );
    }
    let mut last = String::new();
    let mut pause = DATABASE_PAUSE;
    let opening = async {
        loop {
            match Store::open(database).await {
                Err(StoreError::Unavailable(why)) => {
                    warn!("waiting for the database: {why}; asking again in {pause:?}");
                    last = why;
                    sleep(pause).await;
                    pause = (pause * 2).min(DATABASE_PAUSE_MAX);
                }
                opened => return opened,
            }
        }
    };
    let opened = timeout(DATABASE_WAIT, opening).await;
    opened.unwrap_or_else(|_| Err(StoreError::Unavailable(last)))
}

/// Makes sure that there is a token: that of the file, or one that is returned to be shown.
async fn first_token(store: &Store, file: Option<&Path>) -> Result<Option<String>, StartError> {
    let author = Author { name: "serve".to_owned(), reason: "first start".to_owned() };
    let mut write = store.begin(&author).await?;
    let token = match file {
        Some(path) => token_of_file(path)?,
        None if write.has_tokens().await? => return Ok(None),
        None => random_token()?,
    };
    if write.add_token(&token.row("admin", Access::Admin, None, None)).await? {
        write.note_action("token.create", token.id()).await?;
        write.commit().await?;
        return Ok(file.is_none().then(|| token.reveal()));
    }
    drop(write);
    // The database decides: a token that was revoked stays revoked, whatever a file holds.
    let row = store.token(token.id()).await?;
    let caller = row.and_then(|row| token.caller(&row));
    if let (Some(path), false) = (file, caller.is_some_and(|it| it.has(Access::Admin))) {
        let path = path.display();
        let id = token.id();
        warn!(
            "{path}: the token {id} is not a valid one of access admin: it was revoked, has \
             expired, or has another secret or access in the database. Remove the file to have a \
             token made at the next start, or write a valid one to it"
        );
    }
    Ok(None)
}

fn random_token() -> Result<Token, StoreError> {
    Token::random().map_err(|error| StoreError::Internal(error.to_string()))
}

/// Writes a token to a file that only its owner can read. The file is there with all of it or not
/// at all, whenever the process or the machine ends: one without a token would end each later
/// start.
fn write_token(path: &Path, token: &Token) -> io::Result<()> {
    let mut name = path.as_os_str().to_owned();
    name.push(".new");
    let new = PathBuf::from(name);
    match fs::remove_file(&new) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&new)?;
    file.write_all(token.reveal().as_bytes())?;
    file.sync_all()?;
    fs::rename(&new, path)?;
    let dir = path.parent().filter(|it| !it.as_os_str().is_empty());
    fs::File::open(dir.unwrap_or(Path::new(".")))?.sync_all()
}

/// Reads the token of a file; if there is no file, makes one that only its owner can read.
fn token_of_file(path: &Path) -> Result<Token, StartError> {
    let fail = |why: String| StartError::TokenFile(path.to_owned(), why);
    match fs::read_to_string(path) {
        Ok(text) => {
            let expected = "holds no token; remove it to have one made, or write rlc_… to it";
            Token::parse(text.trim()).ok_or_else(|| fail(expected.to_owned()))
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let token = random_token()?;
            write_token(path, &token).map_err(|error| fail(error.to_string()))?;
            Ok(token)
        }
        Err(error) => Err(fail(error.to_string())),
    }
}
