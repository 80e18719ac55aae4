//! A server that does handshakes with the configuration of ratelease, and then waits for the
//! client's end. It serves on a thread for each core, as ratelease does.

use std::io;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::thread;
use std::time::SystemTime;

use ratelease_listener::runtime_builder;
use ratelease_tls::ServerFiles;
use tokio::io::AsyncReadExt;
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Handle;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::pki_types::UnixTime;

/// Prints the address, and serves until the process is ended.
pub fn serve(certificate: &Path, key: &Path) -> ExitCode {
    let files = ServerFiles {
        certificate: certificate.to_owned(),
        key: key.to_owned(),
        client_roots: None,
        client_name: None,
    };
    let now = SystemTime::UNIX_EPOCH.elapsed().expect("a clock after 1970");
    let loaded = files.load(&files.read(), UnixTime::since_unix_epoch(now)).expect("good files");
    let runtime = runtime_builder().build().expect("a runtime");
    match runtime.block_on(accept(&TlsAcceptor::from(Arc::clone(&loaded.config)))) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("floor: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Gives the connections to the cores in turn.
async fn accept(acceptor: &TlsAcceptor) -> io::Result<()> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    println!("{}", listener.local_addr()?);
    let cores = thread::available_parallelism()?.get();
    let cores: Vec<_> = (0..cores).map(|_| start_core()).collect::<io::Result<_>>()?;
    for core in cores.iter().cycle() {
        let (socket, _) = listener.accept().await?;
        socket.set_nodelay(true)?;
        core.spawn(handshake(socket.into_std()?, acceptor.clone()));
    }
    Ok(())
}

/// Starts a thread that runs a runtime until the process ends.
fn start_core() -> io::Result<Handle> {
    let runtime = runtime_builder().build()?;
    let handle = runtime.handle().clone();
    thread::Builder::new().spawn(move || runtime.block_on(std::future::pending::<()>()))?;
    Ok(handle)
}

async fn handshake(socket: std::net::TcpStream, acceptor: TlsAcceptor) -> io::Result<()> {
    let mut stream = acceptor.accept(TcpStream::from_std(socket)?).await?;
    stream.read(&mut [0]).await.map(drop)
}
