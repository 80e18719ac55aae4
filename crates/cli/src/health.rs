//! `ratelease health`: asks whether a pod on this machine is healthy, for container probes.

use std::time::Duration;

use clap::Args;
use tonic::transport::ClientTlsConfig;
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;

use crate::client::{self, Target, TlsFlags};
use crate::out::{CliError, CliResult, Completion, Out, OutFlags, eprint_line};
use crate::safe;
use crate::settings::{Faults, Flags, GrpcListen, HealthListener, HostPort, Listeners, call_at};

pub(crate) const NOTES: &str = "\
Calls /healthcheck at HOST and PORT of the environment, on which `serve` listens; a host that means
all interfaces is called at loopback. Prints nothing if the pod is healthy.

Exit status: 0 healthy, 1 not healthy, 2 the pod cannot be called.

Examples:
  ratelease health
  ratelease health --live
  ratelease health --grpc --timeout 200ms
  ratelease health --grpc 10.0.0.7:8081
  ratelease health --grpc --ca /certs/ca.crt --server-name ratelimit
  HEALTHCHECK CMD [\"/bin/ratelease\", \"health\"]";

/// The page to ask for, as in the reference.
const PATH: &str = "/healthcheck";

/// The page that says whether the process runs.
const LIVE_PATH: &str = "/livez";

const HTTP_OK: u16 = 200;

/// Maximum number of characters of an answer that are printed.
const ANSWER_CHARS_MAX: usize = 200;

/// Flags of `health`.
#[derive(Debug, Args)]
pub struct HealthFlags {
    /// HTTP address to call [default: HOST and PORT]
    #[arg(long, value_name = "HOST:PORT", value_parser = client::host_port, conflicts_with = "grpc")]
    http: Option<HostPort>,
    /// Ask only whether the process runs, with or without rules: for liveness probes, which restart
    /// it
    #[arg(long, conflicts_with = "grpc")]
    live: bool,
    /// Call grpc.health.v1 instead, at this address [default: GRPC_UDS, or else GRPC_HOST and
    /// GRPC_PORT]
    #[arg(long, value_name = "TARGET", num_args = 0..=1, value_parser = Target::parse)]
    grpc: Option<Option<Target>>,
    /// Maximum time for the answer, a duration
    #[arg(long, value_name = "SPAN", default_value = "1s", value_parser = client::span_above_zero)]
    timeout: Duration,
    #[command(flatten)]
    out: OutFlags,
    #[command(flatten)]
    listeners: Flags<HealthListener>,
    #[command(flatten)]
    tls: TlsFlags,
}

/// The result of a health check.
struct Health {
    is_healthy: bool,
    /// The server that was asked.
    target: String,
    /// Its answer.
    answer: String,
}

/// Checks the health of a pod; prints nothing if it is healthy.
pub fn run(flags: HealthFlags, out: &mut Out) -> CliResult {
    let OutFlags { json } = flags.out;
    let checked = check(flags);
    if let Err(error) = &checked
        && json
    {
        out.json(&serde_json::json!({"healthy": false, "error": error.to_string()}))?;
    }
    let Health { is_healthy, target, answer } = checked?;
    if json {
        let answer = answer.trim();
        out.json(&serde_json::json!({"healthy": is_healthy, "target": target, "answer": answer}))?;
    } else if !is_healthy {
        eprint_line(format_args!("ratelease health: {target} is not healthy: {}", answer.trim()));
    }
    Ok(Completion::clean_if(is_healthy))
}

fn check(flags: HealthFlags) -> Result<Health, CliError> {
    let HealthFlags { http, live, grpc, timeout, out: _, listeners, tls } = flags;
    match grpc {
        Some(Some(target)) => ask_grpc(target, tls.config()?, timeout),
        Some(None) => {
            let target = grpc_of(&listeners)?;
            let from = match target {
                Target::Unix(_) => "GRPC_UDS",
                Target::Tcp(_) => "GRPC_HOST and GRPC_PORT",
            };
            ask_grpc(target, tls.config()?, timeout).map_err(|error| addressed(&error, from))
        }
        None if tls.is_on() => {
            Err(CliError::new("the flags for TLS need --grpc: the HTTP port has no TLS"))
        }
        None => {
            let path = if live { LIVE_PATH } else { PATH };
            match http {
                Some(target) => ask_http(&target, path, timeout),
                None => ask_http(&http_of(&listeners)?, path, timeout)
                    .map_err(|error| addressed(&error, "HOST and PORT")),
            }
        }
    }
}

/// The error of a call to an address that the environment names.
fn addressed(error: &CliError, from: &str) -> CliError {
    CliError::new(format_args!("{error}; this address is from {from}, as `serve` reads them"))
}

/// Returns the address at which `serve` listens for HTTP in the same environment.
fn http_of(flags: &Flags<HealthListener>) -> Result<HostPort, Faults> {
    flags.read(|values, faults| call_at(Listeners::read(values, faults).http(), "PORT", faults))
}

/// Returns the address at which `serve` listens for gRPC in the same environment.
fn grpc_of(flags: &Flags<HealthListener>) -> Result<Target, Faults> {
    flags.read(|values, faults| match Listeners::read(values, faults).grpc() {
        GrpcListen::Unix(uds) => Target::Unix(uds.path),
        GrpcListen::Tcp(address) => Target::Tcp(call_at(address, "GRPC_PORT", faults).to_string()),
    })
}

fn ask_http(target: &HostPort, path: &str, within: Duration) -> Result<Health, CliError> {
    let page = client::get(target, path, within)?;
    let answer = safe::line(String::from_utf8_lossy(&page.body).trim());
    let answer: String = answer.chars().take(ANSWER_CHARS_MAX).collect();
    let answer = format!("{} {answer}", page.status);
    Ok(Health { is_healthy: page.status == HTTP_OK, target: target.to_string(), answer })
}

fn ask_grpc(
    target: Target,
    tls: Option<ClientTlsConfig>,
    within: Duration,
) -> Result<Health, CliError> {
    // A single thread, because only one call is awaited.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| CliError::new(format_args!("cannot start: {error}")))?;
    runtime.block_on(async {
        let asked = async {
            let channel = target.connect(tls, within).await?;
            // An empty name asks for the health of the whole server.
            let answer = HealthClient::new(channel).check(HealthCheckRequest::default()).await;
            answer.map_err(|status| target.refused_or_http(&status))
        };
        let answer = tokio::time::timeout(within, asked).await;
        let status = answer.map_err(|_| target.late(within))??.into_inner().status();
        let is_healthy = status == ServingStatus::Serving;
        let answer = status.as_str_name().to_owned();
        Ok(Health { is_healthy, target: target.to_string(), answer })
    })
}
