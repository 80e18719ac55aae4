//! Finds the master, by the sentinels' replies and the server's own.
//!
//! Uses connections of this store rather than redis-rs's `SentinelClient`, which limits neither the
//! replies nor the servers to which it sends the password.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::select_ok;
use redis::Value;

use super::context::StoreContext;
use super::fault::{Fault, Kind};
use super::open::{Peer, open};
use crate::store::redis::settings::Address;

/// Timeout for finding the master: all sentinels are asked at once.
const FIND_TIMEOUT: Duration = Duration::from_secs(3);
/// The part of it for connecting to a server that a sentinel named: an old master may have vanished
/// silently.
const MASTER_TIMEOUT: Duration = Duration::from_secs(1);

/// Finds the server that a sentinel names as the master `name`, and that confirms it. A sentinel
/// that was cut off may still name an old master.
pub(super) async fn find_master(context: &Arc<StoreContext>, name: &str) -> Result<Address, Fault> {
    let sentinels = &context.settings.addresses;
    if sentinels.is_empty() {
        return Err(Fault::new(Kind::Lost, "no address is configured"));
    }
    let asked = sentinels.iter().map(|sentinel| Box::pin(ask(context, sentinel, name)));
    let found = tokio::time::timeout(FIND_TIMEOUT, select_ok(asked)).await;
    let silent = |_| Fault::new(Kind::Lost, "the sentinels did not answer in time");
    found.map_err(silent)?.map(|(master, _)| master)
}

async fn ask(
    context: &Arc<StoreContext>,
    sentinel: &Address,
    name: &str,
) -> Result<Address, Fault> {
    let master = named_by(context, sentinel, name).await;
    let master = master.map_err(|fault| fault.at(&format!("sentinel {sentinel}")))?;
    let answer =
        is_master(context, &master).await.map_err(|fault| fault.at(&master.to_string()))?;
    if answer {
        return Ok(master);
    }
    Err(Fault::new(Kind::Lost, format!("{master} is called the master and is none yet")))
}

async fn named_by(
    context: &Arc<StoreContext>,
    sentinel: &Address,
    name: &str,
) -> Result<Address, Fault> {
    let asked = open(context, sentinel, Peer::Sentinel, None, FIND_TIMEOUT).await?;
    let mut command = redis::cmd("SENTINEL");
    command.arg("GET-MASTER-ADDR-BY-NAME").arg(name);
    let reply = asked.ask(&command).await?;
    let unknown = || Fault::new(Kind::Lost, format!("no master {name} is known there"));
    named(&reply).ok_or_else(unknown)
}

async fn is_master(context: &Arc<StoreContext>, server: &Address) -> Result<bool, Fault> {
    let server = open(context, server, Peer::Server, None, MASTER_TIMEOUT).await?;
    match server.ask(&redis::cmd("ROLE")).await {
        Ok(Value::Array(parts)) => Ok(parts.first().and_then(text) == Some("master")),
        Ok(_) => Ok(false),
        // The user may only have permission for INFO.
        Err(fault) if matches!(fault.kind, Kind::Denied | Kind::Refused) => {
            let reply = server.ask(redis::cmd("INFO").arg("REPLICATION")).await?;
            Ok(text(&reply).is_some_and(|info| info.lines().any(|line| line == "role:master")))
        }
        Err(fault) => Err(fault),
    }
}

/// Reads `[host, port]`.
fn named(reply: &Value) -> Option<Address> {
    let Value::Array(parts) = reply else { return None };
    let [host, port] = parts.as_slice() else { return None };
    let host = text(host).filter(|host| !host.is_empty())?;
    Address::of_node(host, text(port)?.parse().ok()?)
}

fn text(value: &Value) -> Option<&str> {
    match value {
        Value::BulkString(text) => std::str::from_utf8(text).ok(),
        Value::SimpleString(text) | Value::VerbatimString { text, .. } => Some(text),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_master_is_a_host_and_a_port() {
        let reply = |parts: &[&str]| {
            Value::Array(parts.iter().map(|it| Value::BulkString((*it).into())).collect())
        };
        let master = Address::Tcp("10.0.0.1".into(), 6379);
        assert_eq!(named(&reply(&["10.0.0.1", "6379"])), Some(master));
        for parts in [&["10.0.0.1"][..], &["", "6379"], &["a b", "6379"], &["a", "99999"]] {
            assert_eq!(named(&reply(parts)), None, "{parts:?}");
        }
        assert_eq!(named(&Value::Nil), None);
    }
}
