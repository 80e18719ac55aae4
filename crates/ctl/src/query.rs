//! `ratectl query`: sends one rate limit call to a server of Envoy's protocol and prints the
//! answer.

mod flags;
mod show;
pub(crate) mod wire;

use std::time::Duration;

use ratelease_cli::out::{CliError, CliResult, Completion, Out};
use ratelease_engine::time::Clock;
use ratelease_rules::request::Request;
use serde_json::json;
use tokio::time::timeout;
use tonic::transport::Channel;

pub(super) use flags::{NOTES, QueryFlags};
use wire::{Reply, ask};

/// The protocol's name of a denial.
const OVER_LIMIT: &str = "OVER_LIMIT";

/// Sends the calls and prints the answers. A denial is a finding, and so is an answer that is
/// neither OK nor a denial.
pub(super) fn run(flags: &QueryFlags, out: &mut Out) -> CliResult {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| {
        CliError::new(format_args!("cannot start: {error}; raise the limit on open files"))
    })?;
    let answered = runtime.block_on(query(flags, out));
    if let Err(error) = &answered
        && flags.out.json
    {
        let target = flags.target.to_string();
        out.json(&json!({ "target": target, "error": error.to_string() }))?;
    }
    answered
}

async fn query(flags: &QueryFlags, out: &mut Out) -> CliResult {
    let tls = flags.tls.config()?;
    let request = flags.request();
    let channel = flags.target.connect(tls, flags.timeout).await?;
    let clock = Clock::start();
    let (mut passed, mut denied) = (0, 0);
    for number in 1..=flags.repeat {
        let sent = clock.now();
        let reply = answer(flags, channel.clone(), &request).await?;
        let took = clock.now().since(sent);
        match reply.code.as_str() {
            "OK" => passed += 1,
            _ => denied += 1,
        }
        print(flags, (number, &reply, took), out)?;
        // Flushed so that each answer is shown when it arrives.
        out.flush()?;
        if out.is_closed() {
            break;
        }
    }
    if flags.repeat > 1 && !flags.out.json {
        out.line(format_args!("{passed} passed, {denied} denied"))?;
    }
    Ok(Completion::clean_if(denied == 0))
}

async fn answer(
    flags: &QueryFlags,
    channel: Channel,
    request: &Request<'_>,
) -> Result<Reply, CliError> {
    let QueryFlags { target, timeout: within, .. } = flags;
    match timeout(*within, ask(channel, request)).await {
        Ok(reply) => reply.map_err(|status| target.refused(&status)),
        Err(_) => Err(target.late(*within)),
    }
}

fn print(
    flags: &QueryFlags,
    (number, reply, took): (u32, &Reply, Duration),
    out: &mut Out,
) -> Result<(), CliError> {
    if flags.out.json {
        let mut line = json!(reply);
        line["target"] = flags.target.to_string().into();
        line["took_ms"] = (took.as_secs_f64() * 1e3).into();
        return out.json(&line);
    }
    if flags.repeat > 1 {
        return out.line(show::brief(number, reply, out.painter()));
    }
    out.line(show::full(&flags.descriptors, reply, took, out.painter()))
}
