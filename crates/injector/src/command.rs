//! The command line: `inject` adds the sidecar to the pods of manifests from files or standard
//! input, `serve` is the mutating webhook.

use std::fs;
use std::io::{self, Read};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{Args, Parser, Subcommand};
use kube::Client;
use ratelease_cli::out::{CliError, CliResult, Completion, Out, eprint_line};
use ratelease_cli::safe::Safe;
use ratelease_cli::settings::{
    Expected, Fault, Faults, Flags, Section, Sections, Values, optional, path, setting, text,
};
use ratelease_cli::{client, log_limiter, settings};
use serde_json::json;
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;
use tokio_rustls::rustls::crypto::ring;
use tracing::info;

use crate::annotation::Defaults;
use crate::certificate::{SecretNames, ServedCertificate, watched_cluster};
use crate::inject::{Cluster, Verdict, check_defaults};
use crate::manifest::{self, Manifest, Report};
use crate::server::{self, Webhook};

/// The whole command line.
#[derive(Debug, Parser)]
#[command(
    name = "ratelease-injector",
    version,
    about = "Adds the ratelease sidecar to pods",
    propagate_version = true,
    subcommand_required = true,
    arg_required_else_help = true
)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// The ways of injecting.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Add the sidecar to the pods and pod templates of manifests, and print them
    #[command(after_help = INJECT_NOTES)]
    Inject(FilesFlags),
    /// Answer the API server, as a mutating webhook, until a signal arrives
    #[command(after_help = SERVE_NOTES)]
    Serve(Box<ServeFlags>),
}

/// Flags of every way.
#[derive(Debug, Args)]
pub struct InjectFlags {
    /// Default of an annotation, by its name without ratelease.io/, such as redis=redis:6379
    #[arg(long = "default", value_name = "NAME=VALUE")]
    defaults: Vec<String>,
}

// === impl InjectFlags ===

impl InjectFlags {
    /// The defaults.
    ///
    /// # Errors
    /// Names every default that is faulty.
    fn defaults(&self) -> Result<Defaults, CliError> {
        let (defaults, mut faults) = Defaults::read_all(&self.defaults);
        faults.extend(check_defaults(&defaults));
        if faults.is_empty() {
            return Ok(defaults);
        }
        let lines: Vec<_> = faults.iter().map(|fault| format!("--{fault}")).collect();
        Err(CliError::new(lines.join("\n")))
    }
}

// `inject`

const INJECT_NOTES: &str = "\
Reads YAML or JSON, of several documents too, and prints it with the sidecar in each Pod,
Deployment, StatefulSet, DaemonSet, ReplicaSet, ReplicationController, Job, CronJob and PodTemplate,
also within a List. All other documents are printed byte by byte as they are. Faults go to standard
error, and a pod with a fault stays as it is.

Exit status: 0 no fault, 1 a pod has a fault, 2 a file cannot be read; then nothing is printed.

Examples:
  ratelease-injector inject --default redis=redis:6379 shop.yaml | kubectl apply -f -
  helm template shop | ratelease-injector inject --default rules=shop-rules";

/// Maximum bytes of a file.
const FILE_BYTES_MAX: u64 = 64 << 20;

/// Flags of `inject`.
#[derive(Debug, Args)]
pub struct FilesFlags {
    /// Files with manifests; - or none for standard input
    #[arg(value_name = "FILE")]
    files: Vec<PathBuf>,
    #[command(flatten)]
    inject: InjectFlags,
    /// Version of the cluster: before 1.32 some nodes may lack native sidecars
    #[arg(long, value_name = "VERSION", default_value = "1.32", value_parser = Cluster::of)]
    kubernetes_version: Cluster,
    /// Print what became of each pod, a line of JSON each, in place of the manifests
    #[arg(long)]
    json: bool,
}

/// Prints the manifests with the sidecar.
pub fn run_files(flags: &FilesFlags, out: &mut Out) -> CliResult {
    let defaults = flags.inject.defaults()?;
    let stdin = [PathBuf::from("-")];
    let files = if flags.files.is_empty() { &stdin[..] } else { &flags.files };
    let mut manifests = Vec::new();
    let mut faults = Vec::new();
    for file in files {
        let name = file.display().to_string();
        match read(file) {
            Ok(text) => {
                match manifest::inject_all((&name, &text), &defaults, flags.kubernetes_version) {
                    Ok(manifest) => manifests.push(manifest),
                    Err(found) => faults.extend(found.iter().map(ToString::to_string)),
                }
            }
            Err(why) => faults.push(format!("{name}: {why}")),
        }
    }
    if !faults.is_empty() {
        return Err(CliError::new(faults.join("\n")));
    }
    print(&manifests, flags.json, out)
}

fn read(file: &Path) -> Result<String, String> {
    let limited = |from: Box<dyn Read>| {
        let mut bytes = Vec::new();
        from.take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes).map(|_| bytes)
    };
    let bytes = match file.to_str() {
        Some("-") => limited(Box::new(io::stdin())),
        _ => fs::File::open(file).and_then(|file| limited(Box::new(file))),
    };
    let bytes = bytes.map_err(|error| format!("cannot be read: {error}"))?;
    if bytes.len() as u64 > FILE_BYTES_MAX {
        return Err(format!("has more than {} MiB; split it", FILE_BYTES_MAX >> 20));
    }
    String::from_utf8(bytes).map_err(|_| "is not UTF-8; save it as UTF-8".to_owned())
}

fn print(manifests: &[Manifest], is_json: bool, out: &mut Out) -> CliResult {
    let pods = || manifests.iter().flat_map(|manifest| &manifest.pods);
    for (at, manifest) in manifests.iter().enumerate().filter(|_| !is_json) {
        let before = at.checked_sub(1).map(|before| manifests[before].text.as_str());
        out.bytes(between(before, &manifest.text).as_bytes())?;
        out.bytes(manifest.text.as_bytes())?;
    }
    for pod in pods() {
        if is_json {
            out.json(&to_json(pod))?;
        }
        report(pod);
    }
    Ok(Completion::clean_if(pods().all(|pod| pod.faults.is_empty())))
}

/// What separates the documents of two files.
fn between(before: Option<&str>, after: &str) -> &'static str {
    match before {
        None | Some("") => "",
        Some(_) if after.starts_with("---") => "",
        Some(text) if text.ends_with('\n') => "---\n",
        Some(_) => "\n---\n",
    }
}

fn to_json(pod: &Report) -> serde_json::Value {
    let verdict = match pod.verdict {
        Verdict::Injected => "injected",
        Verdict::Kept => "kept",
        Verdict::OptedOut => "opted out",
        Verdict::Refused => "refused",
    };
    let faults = pod
        .faults
        .iter()
        .map(|fault| json!({"place": fault.place, "problem": fault.problem, "fix": fault.fix}));
    json!({
        "pod": pod.place,
        "verdict": verdict,
        "faults": faults.collect::<Vec<_>>(),
        "warnings": pod.warnings,
    })
}

/// Faults and warnings, a line each. They quote the manifest, which may hold anything.
fn report(pod: &Report) {
    for fault in &pod.faults {
        eprint_line(Safe(format_args!("{}: not injected: {fault}", pod.place)));
    }
    for warning in &pod.warnings {
        eprint_line(Safe(format_args!("{}: warning: {warning}", pod.place)));
    }
}

// `serve`

const SERVE_NOTES: &str = "\
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
    struct Settings in "Webhook" {
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
                let cluster = Cluster::of(text).map(Some);
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
pub fn run_server(flags: &ServeFlags) -> CliResult {
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
    let cannot = |error: io::Error| {
        let listen = settings.listen;
        CliError::new(format_args!("cannot listen on {listen}: {error}; choose another --listen"))
    };
    let listener = TcpListener::bind(settings.listen).await.map_err(cannot)?;
    let address = listener.local_addr().map_err(cannot)?;
    let mut stop = std::pin::pin!(stopped()?);
    let (certificate, cluster) = tokio::select! {
        begun = begin(&settings) => begun?,
        () = &mut stop => return Ok(Completion::Clean),
    };
    let tls = certificate.acceptor();
    tokio::spawn(certificate.renew_forever());
    info!(%address, "serving");
    server::serve(listener, tls, Webhook::new(defaults, cluster), stop).await;
    Ok(Completion::Clean)
}

/// Loads the certificate and asks for the version. Waits for an API server that cannot be reached.
async fn begin(
    settings: &Settings,
) -> Result<(ServedCertificate, watch::Receiver<Cluster>), CliError> {
    let needs_client = settings.certificates.is_none() || settings.kubernetes_version.is_none();
    let client = if needs_client { Some(client().await?) } else { None };
    let certificate = match (&settings.certificates, &client) {
        (None, Some(client)) => {
            let Settings { namespace, secret, service, webhook, .. } = settings;
            let lifetime = settings.certificate_lifetime;
            let names = SecretNames { namespace, secret, service, webhook, lifetime };
            ServedCertificate::of_secret(client, &names).await.map_err(CliError::new)?
        }
        (directory, _) => {
            ServedCertificate::of_files(directory.as_deref().unwrap_or(Path::new("."))).map_err(
                |faults| CliError::new(format_args!("the webhook has no certificate: {faults}")),
            )?
        }
    };
    let cluster = match (client, settings.kubernetes_version) {
        (Some(client), None) => watched_cluster(client).await,
        (_, given) => watch::channel(given.unwrap_or(Cluster::UNKNOWN)).1,
    };
    let native_sidecars = cluster.borrow().native_sidecars;
    info!(cluster.native_sidecars = ?native_sidecars, "the cluster");
    Ok((certificate, cluster))
}

async fn client() -> Result<Client, CliError> {
    Client::try_default().await.map_err(|error| {
        let fix = "run it in a pod, or set KUBECONFIG";
        CliError::new(format_args!("no API server is known: {error}; {fix}"))
    })
}

/// Resolves at the first signal that asks the process to end.
fn stopped() -> Result<impl Future<Output = ()>, CliError> {
    let of = |kind| signal(kind).map_err(|error| CliError::new(format_args!("signals: {error}")));
    let mut terminate = of(SignalKind::terminate())?;
    let mut interrupt = of(SignalKind::interrupt())?;
    Ok(async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
    })
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_grammar_has_no_fault() {
        Cli::command().debug_assert();
    }

    /// What `serve` says of faulty flags, a line each.
    fn faults(line: &str) -> Vec<String> {
        let line = ["ratelease-injector", "serve"].into_iter().chain(line.split(' '));
        match Cli::try_parse_from(line).unwrap().command {
            Command::Serve(flags) => {
                let faults = flags.settings.read(Settings::read_all).unwrap_err();
                faults.iter().map(ToString::to_string).collect()
            }
            Command::Inject(_) => panic!("not serve"),
        }
    }

    #[test]
    fn every_faulty_flag_of_serve_is_reported_at_once() {
        let line = "--listen 8443 --certificate-lifetime 0s --kubernetes-version new";
        let expected = [
            "--listen: expected an IP address and a port, found \"8443\"; set --listen, as in \
             --listen=0.0.0.0:8443",
            "--certificate-lifetime: expected a duration above 0 with its unit, found \"0s\"; set \
             --certificate-lifetime, as in --certificate-lifetime=2160h",
            "--kubernetes-version: expected a version, found \"new\"; set --kubernetes-version, as \
             in --kubernetes-version=1.31",
            "--namespace: not set, and the certificate is in a Secret; set it, or --certificates",
        ];
        assert_eq!(faults(line), expected);
        let of_others = faults("--certificates /certs --namespace limits --secret other");
        assert_eq!(of_others.len(), 2, "{of_others:?}");
        assert!(of_others[1].starts_with("--secret: has no effect with --certificates"));
    }
}
