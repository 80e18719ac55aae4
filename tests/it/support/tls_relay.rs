//! Lets clients that speak plaintext reach a server that speaks TLS: each of their connections has
//! one of its own to the server.

use std::io::Result;
use std::net::SocketAddr;
use std::sync::Arc;
use std::thread;

use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;
use tokio_rustls::rustls::ClientConfig;

use super::raw_grpc::tls;

/// A relay on a thread of its own, which ends with it.
pub(crate) struct TlsRelay {
    pub(crate) addr: SocketAddr,
    _end: oneshot::Sender<()>,
}

// === impl TlsRelay ===

impl TlsRelay {
    /// Starts one to `server`, whose certificate is of its address.
    pub(crate) fn start(server: SocketAddr, config: Arc<ClientConfig>) -> Self {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
        listener.set_nonblocking(true).expect("a listener that does not block");
        let addr = listener.local_addr().expect("its address");
        let (end, ended) = oneshot::channel::<()>();
        thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime.expect("a runtime").block_on(async {
                let listener = TcpListener::from_std(listener).expect("a listener");
                tokio::select! {
                    _ = ended => {}
                    () = accept(listener, server, config) => {}
                }
            });
        });
        Self { addr, _end: end }
    }
}

async fn accept(listener: TcpListener, server: SocketAddr, config: Arc<ClientConfig>) {
    loop {
        if let Ok((client, _)) = listener.accept().await {
            tokio::spawn(relay(client, server, Arc::clone(&config)));
        }
    }
}

/// Ends when either side does.
async fn relay(mut client: TcpStream, server: SocketAddr, config: Arc<ClientConfig>) -> Result<()> {
    client.set_nodelay(true)?;
    let mut server = tls(server, &config).await?;
    tokio::io::copy_bidirectional(&mut client, &mut server).await.map(|_| ())
}
