//! Sends one request before the run, to check that there is a rate limit server.

use std::time::Duration;

use ratelease_cli::target::Target;
use ratelease_engine::time::Time;
use tokio::time::timeout;

use super::call::{Call, CallResult, Failure};
use super::client::Shared;
use super::flags::Plan;
use super::link::connect;

/// Maximum time to connect and get an answer.
const TRIAL_MAX: Duration = Duration::from_secs(5);

/// The gRPC code for a method that a server does not implement.
const UNIMPLEMENTED: u16 = 12;

/// Sends one request. Accepts any answer that a rate limit server may give, including errors.
///
/// # Errors
///
/// One line that says what answered instead, and what to do.
pub(super) async fn trial(shared: &Shared) -> Result<(), String> {
    let target = &shared.plan.target;
    match timeout(TRIAL_MAX, ask(shared)).await {
        Ok(answered) => answered,
        Err(_) => Err(format!(
            "{target} did not answer within {TRIAL_MAX:?}; name the server's gRPC port with \
             --target"
        )),
    }
}

async fn ask(shared: &Shared) -> Result<(), String> {
    let Plan { target, tls, .. } = &shared.plan;
    let connected = connect(target, tls.as_ref()).await;
    let (send, connection) = connected.map_err(|error| unreachable(target, &error))?;
    let driver = tokio::spawn(connection);
    let not_grpc = |found: String| {
        format!("{target} {found}; name the server's gRPC port with --target, 8081 by default")
    };
    let strange = |error: h2::Error| not_grpc(format!("does not speak HTTP/2: {error}"));
    let mut send = send.ready().await.map_err(strange)?;
    let (response, mut body) = send.send_request(shared.head.clone(), false).map_err(strange)?;
    body.send_data(shared.requests.get(0), true).map_err(strange)?;
    let (_, outcome) = Call::new(Time::default(), response).await;
    drop((send, body));
    match outcome {
        CallResult::Failed(Failure::Grpc(UNIMPLEMENTED)) => Err(not_grpc(
            "is a gRPC server without envoy.service.ratelimit.v3.RateLimitService".into(),
        )),
        CallResult::Failed(Failure::NotGrpc(status)) => {
            Err(not_grpc(format!("answers HTTP {status} and not gRPC")))
        }
        CallResult::Failed(Failure::Lost) => {
            let why = driver.await.ok().and_then(Result::err).map(|error| format!(": {error}"));
            let why = why.unwrap_or_default();
            Err(not_grpc(format!("closed the connection, it does not speak HTTP/2{why}")))
        }
        _ => {
            driver.abort();
            Ok(())
        }
    }
}

/// Describes a failure to connect, with a hint.
pub(super) fn unreachable(target: &Target, error: &std::io::Error) -> String {
    format!("cannot connect to {target}: {error}; start the server, or correct --target")
}
