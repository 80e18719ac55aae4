//! `ratelease-injector serve`: the mutating webhook.

mod upkeep;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use ratelease_cli::client;
use ratelease_cli::log_limiter;
use ratelease_cli::out::{CliError, CliResult, Completion};
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio_rustls::rustls::crypto::ring;
use tracing::info;

use super::InjectFlags;
use crate::inject::Cluster;
use crate::server::{self, Webhook};
use upkeep::Upkeep;

pub(super) const NOTES: &str = "\
Answers AdmissionReviews at /inject over HTTPS; at /unlabelled those of pods that ask for the
sidecar in a namespace without the label. No pod is ever refused.

The certificate is in a Secret, which this program makes and replaces, or in a directory that others
keep, such as cert-manager. It is read again every minute at most.

Exit status: 0 after SIGTERM or SIGINT, 2 if it cannot start.

Examples:
  ratelease-injector serve --namespace limits --default redis=redis:6379
  ratelease-injector serve --certificates /certs --default redis=redis:6379";

/// Flags of `serve`.
#[derive(Debug, Args)]
pub struct ServeFlags {
    /// Address to listen on
    #[arg(long, value_name = "IP:PORT", default_value = "0.0.0.0:8443")]
    listen: SocketAddr,
    #[command(flatten)]
    inject: InjectFlags,
    /// Directory with tls.crt and tls.key, which others keep; the authority in the configuration of
    /// the webhook is then theirs too
    #[arg(long, value_name = "DIR", conflicts_with_all = ["namespace", "secret", "webhook"])]
    certificates: Option<PathBuf>,
    /// Namespace of the Secret and of the Service
    #[arg(long, value_name = "NAME", required_unless_present = "certificates")]
    namespace: Option<String>,
    /// Secret with the certificate, which is made if it is absent
    #[arg(long, value_name = "NAME", default_value = "ratelease-injector")]
    secret: String,
    /// Service that the API server calls: the name in the certificate
    #[arg(long, value_name = "NAME", default_value = "ratelease-injector")]
    service: String,
    /// MutatingWebhookConfiguration that the certificate's authority is written into
    #[arg(long, value_name = "NAME", default_value = "ratelease-injector")]
    webhook: String,
    /// Lifetime of a certificate; it is replaced after two thirds of it
    #[arg(long, value_name = "SPAN", default_value = "2160h")]
    #[arg(value_parser = client::span_above_zero)]
    certificate_lifetime: Duration,
    /// Version of the cluster [default: the API server is asked]
    #[arg(long, value_name = "VERSION", value_parser = super::cluster)]
    kubernetes_version: Option<Cluster>,
}

/// Serves until a signal.
pub(crate) fn run(flags: &ServeFlags) -> CliResult {
    let log = log_limiter::start();
    let log = log.map_err(|error| CliError::new(format_args!("cannot set up the log: {error}")))?;
    // kube asks for it by name; an error means that it is set already.
    let _ = ring::default_provider().install_default();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime
        .map_err(|error| CliError::new(format_args!("cannot start the runtime: {error}")))?;
    runtime.spawn(log.report_forever());
    runtime.block_on(serve(flags))
}

async fn serve(flags: &ServeFlags) -> CliResult {
    let defaults = flags.inject.defaults()?;
    let cannot = |error: std::io::Error| {
        let listen = flags.listen;
        CliError::new(format_args!("cannot listen on {listen}: {error}; choose another --listen"))
    };
    let listener = TcpListener::bind(flags.listen).await.map_err(cannot)?;
    let address = listener.local_addr().map_err(cannot)?;
    let mut stop = std::pin::pin!(stopped()?);
    let upkeep = tokio::select! {
        upkeep = Upkeep::start(flags) => upkeep?,
        () = &mut stop => return Ok(Completion::Clean),
    };
    let (tls, cluster) = (upkeep.tls(), upkeep.cluster());
    tokio::spawn(upkeep.run());
    info!(%address, "serving");
    server::serve(listener, tls, Webhook::new(defaults, cluster), stop).await;
    Ok(Completion::Clean)
}

/// Resolves at the first signal that asks the process to end.
fn stopped() -> Result<impl Future<Output = ()>, CliError> {
    let of = |kind| signal(kind).map_err(|error| CliError::new(format_args!("signals: {error}")));
    let (mut terminate, mut interrupt) =
        (of(SignalKind::terminate())?, of(SignalKind::interrupt())?);
    Ok(async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
    })
}
