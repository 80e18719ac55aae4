//! `ratelease-injector serve`: the mutating webhook.

mod upkeep;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use ratelease_cli::client;
use ratelease_cli::log_limiter;
use ratelease_cli::out::{CliError, CliResult, Completion};
use ratelease_cli::settings;
use ratelease_cli::settings::{
    Expected, Fault, Faults, Flags, Section, Sections, Values, optional, path, setting, text,
};
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio_rustls::rustls::crypto::ring;
use tracing::info;

use super::InjectFlags;
use crate::annotation::Defaults;
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
    #[command(flatten)]
    inject: InjectFlags,
    #[command(flatten)]
    settings: Flags<Settings>,
}

/// The name of all that an installation has, unless others are given.
const NAME: &str = "ratelease-injector";

settings! {
    /// Settings of `serve`.
    pub(super) struct Settings in "Webhook" {
        /// Address to listen on
        "--listen" => listen: SocketAddr = setting("IP:PORT", "0.0.0.0:8443", address);
        /// Directory with tls.crt and tls.key, which others keep; the authority in the
        /// configuration of the webhook is then theirs too
        "--certificates" => certificates: Option<PathBuf> = path("DIR");
        /// Namespace of the Secret and of the Service
        "--namespace" => namespace: String = text("NAME");
        /// Secret with the certificate, which is made if it is absent
        "--secret" => secret: String = setting("NAME", NAME, name);
        /// Service that the API server calls: the name in the certificate
        "--service" => service: String = setting("NAME", NAME, name);
        /// MutatingWebhookConfiguration that the certificate's authority is written into
        "--webhook" => webhook: String = setting("NAME", NAME, name);
        /// Lifetime of a certificate; it is replaced after two thirds of it
        "--certificate-lifetime" => certificate_lifetime: Duration =
            setting("SPAN", "2160h", |text| {
                let span = client::span_above_zero(text);
                span.map_err(|_| Expected::new("a duration above 0 with its unit"))
            });
        /// Version of the cluster [default: the API server is asked]
        "--kubernetes-version" => kubernetes_version: Option<Cluster> =
            optional("VERSION", |text| {
                let cluster = super::cluster(text).map(Some);
                cluster.map_err(|_| Expected::new("a version").example("1.31"))
            });
    }
}

fn address(text: &str) -> Result<SocketAddr, Expected> {
    text.parse().map_err(|_| Expected::new("an IP address and a port"))
}

fn name(text: &str) -> Result<String, Expected> {
    Ok(text.to_owned())
}

// === impl Settings ===

impl Sections for Settings {
    const SECTIONS: &'static [Section<'static>] = &[Self::SECTION];
}

impl Settings {
    /// Reads the settings, and reports those that need another one, or exclude it.
    fn read_all(values: Values<'_>, faults: &mut Faults) -> Self {
        let settings = Self::read(values, faults);
        if settings.certificates.is_none() {
            if settings.namespace.is_empty() {
                let problem = "not set, and the certificate is in a Secret";
                faults.add(Fault::new("--namespace", problem, "set it, or --certificates"));
            }
            return settings;
        }
        let of_secret = [
            ("--namespace", &settings.namespace, ""),
            ("--secret", &settings.secret, NAME),
            ("--webhook", &settings.webhook, NAME),
        ];
        for (flag, given, default) in of_secret {
            if given != default {
                let problem = "has no effect with --certificates, which others keep";
                faults.add(Fault::new(flag, problem, "remove one of them").with_found(given));
            }
        }
        settings
    }
}

/// Serves until a signal.
pub(crate) fn run(flags: &ServeFlags) -> CliResult {
    let (settings, defaults) =
        match (flags.settings.read(Settings::read_all), flags.inject.defaults()) {
            (Ok(settings), Ok(defaults)) => (settings, defaults),
            (settings, defaults) => {
                let settings = settings.err().map(|faults| faults.to_string());
                let defaults = defaults.err().map(|faults| faults.to_string());
                let all: Vec<_> = settings.into_iter().chain(defaults).collect();
                return Err(CliError::new(all.join("\n")));
            }
        };
    let log = log_limiter::start();
    let log = log.map_err(|error| CliError::new(format_args!("cannot set up the log: {error}")))?;
    // kube asks for it by name; an error means that it is set already.
    let _ = ring::default_provider().install_default();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime
        .map_err(|error| CliError::new(format_args!("cannot start the runtime: {error}")))?;
    runtime.spawn(log.report_forever());
    runtime.block_on(serve(settings, defaults))
}

async fn serve(settings: Settings, defaults: Defaults) -> CliResult {
    let cannot = |error: std::io::Error| {
        let listen = settings.listen;
        CliError::new(format_args!("cannot listen on {listen}: {error}; choose another --listen"))
    };
    let listener = TcpListener::bind(settings.listen).await.map_err(cannot)?;
    let address = listener.local_addr().map_err(cannot)?;
    let mut stop = std::pin::pin!(stopped()?);
    let upkeep = tokio::select! {
        upkeep = Upkeep::start(&settings) => upkeep?,
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
