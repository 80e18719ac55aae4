use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use parking_lot::Mutex;
use tokio::io::{AsyncWriteExt, copy};
use tokio::net::{TcpListener, TcpStream};

use crate::support::{Place, Process, resident};

/// The replicas of the control plane.
pub(crate) struct Replicas {
    all: Mutex<Vec<Replica>>,
    next: AtomicUsize,
    /// The pods that have left a replica that was well, each with when.
    left: Mutex<Vec<String>>,
}

struct Replica {
    process: Option<Process>,
    life: Life,
}

/// One life of a replica, from a start until it is killed.
#[derive(Clone)]
pub(crate) struct Life {
    pub(crate) http: SocketAddr,
    pods: SocketAddr,
    is_over: Arc<AtomicBool>,
}

/// The way of one pod to the replicas: an address that leads to one of them, as a Service does.
pub(crate) struct Route {
    pub(crate) address: SocketAddr,
    /// Whether the pod is being restarted, so that it may leave.
    pub(crate) is_restarting: AtomicBool,
    name: String,
    replicas: Arc<Replicas>,
}

// === impl Replicas ===

impl Replicas {
    pub(crate) fn start(place: &Place, count: usize) -> Self {
        let all = (0..count).map(|_| Replica::start(place)).collect();
        Self { all: Mutex::new(all), next: AtomicUsize::new(0), left: Mutex::default() }
    }

    /// A replica that runs; each call takes another one.
    pub(crate) fn any(&self) -> Option<Life> {
        let all = self.all.lock();
        let next = self.next.fetch_add(1, Ordering::Relaxed);
        let running = all.iter().cycle().skip(next % all.len()).take(all.len());
        running.map(|it| &it.life).find(|it| !it.is_over()).cloned()
    }

    /// Ends a replica: at once, or as Kubernetes does.
    pub(crate) async fn end(&self, at: usize, at_once: bool) {
        let process = self.all.lock().get_mut(at).and_then(|replica| {
            replica.life.is_over.store(true, Ordering::Relaxed);
            replica.process.take()
        });
        let Some(mut process) = process else { return };
        let end = move || if at_once { process.kill() } else { process.stop() };
        tokio::task::spawn_blocking(end).await.unwrap();
    }

    /// Starts a replica again if it does not run.
    pub(crate) fn restart(&self, at: usize, place: &Place) {
        let ended = self.all.lock().get(at).is_some_and(|it| it.process.is_none());
        if ended {
            let replica = Replica::start(place);
            self.all.lock()[at] = replica;
        }
    }

    pub(crate) fn count(&self) -> usize {
        self.all.lock().len()
    }

    pub(crate) fn left(&self) -> Vec<String> {
        self.left.lock().clone()
    }

    /// Resident memory of each, in MiB.
    pub(crate) fn resident(&self) -> Vec<u64> {
        let all = self.all.lock();
        all.iter().filter_map(|it| Some(resident(it.process.as_ref()?.id()) >> 20)).collect()
    }
}

// === impl Replica ===

impl Replica {
    fn start(place: &Place) -> Self {
        let process = Process::start(place, &[]);
        let (http, pods) = (process.http, process.pods);
        Self { process: Some(process), life: Life { http, pods, is_over: Arc::default() } }
    }
}

// === impl Life ===

impl Life {
    fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Relaxed)
    }
}

// === impl Route ===

impl Route {
    pub(crate) async fn open(name: &str, replicas: &Arc<Replicas>) -> Arc<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let route = Arc::new(Self {
            address: listener.local_addr().unwrap(),
            is_restarting: AtomicBool::new(false),
            name: name.to_owned(),
            replicas: Arc::clone(replicas),
        });
        let of_task = Arc::clone(&route);
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                tokio::spawn(Arc::clone(&of_task).carry(client));
            }
        });
        route
    }

    /// Carries one connection until an end closes it.
    async fn carry(self: Arc<Self>, mut client: TcpStream) {
        let Some(life) = self.replicas.any() else { return };
        let Ok(mut server) = TcpStream::connect(life.pods).await else { return };
        let (mut from_client, mut to_client) = client.split();
        let (mut from_server, mut to_server) = server.split();
        let has_left = tokio::select! {
            biased;
            _ = copy(&mut from_server, &mut to_client) => false,
            _ = copy(&mut from_client, &mut to_server) => true,
        };
        if has_left && !life.is_over() && !self.is_restarting.load(Ordering::Relaxed) {
            let clock = jiff::Timestamp::now().strftime("%H:%M:%S").to_string();
            self.replicas.left.lock().push(format!("{} at {clock}", self.name));
        }
        let _ = to_server.shutdown().await;
        let _ = to_client.shutdown().await;
    }
}
