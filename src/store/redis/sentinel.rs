//! Which server is the master, by the word of the sentinels and its own.
//!
//! Asked over connections of this store rather than by redis-rs's `SentinelClient`, which bounds
//! neither the replies nor where the password of the servers is taken.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::select_ok;
use redis::Value;

use super::fault::{Fault, Kind};
use super::open::{self, open};
use super::site::Site;
use crate::settings::redis::Address;

/// For finding the master: all sentinels are asked at once.
const FIND_TIMEOUT: Duration = Duration::from_secs(3);

/// The server that some sentinel calls the master `name`, and that says so itself. A sentinel that
/// was cut off may still name an old one.
pub(super) async fn find_master(site: &Arc<Site>, name: &str) -> Result<Address, Fault> {
    let sentinels = &site.settings.addresses;
    if sentinels.is_empty() {
        return Err(Fault::new(Kind::Lost, "no address is configured"));
    }
    let asked = sentinels.iter().map(|sentinel| Box::pin(ask(site, sentinel, name)));
    let found = tokio::time::timeout(FIND_TIMEOUT, select_ok(asked)).await;
    let silent = |_| Fault::new(Kind::Lost, "the sentinels did not answer in time");
    found.map_err(silent)?.map(|(master, _)| master)
}

async fn ask(site: &Arc<Site>, sentinel: &Address, name: &str) -> Result<Address, Fault> {
    let at = |fault: Fault| Fault::new(fault.kind, format!("sentinel {sentinel}: {}", fault.text));
    let login = open::sentinel_login(site).await?;
    let asked = open(site, sentinel, login, None, FIND_TIMEOUT).await.map_err(at)?;
    let mut command = redis::cmd("SENTINEL");
    command.arg("GET-MASTER-ADDR-BY-NAME").arg(name);
    let reply = asked.ask(&command).await.map_err(at)?;
    let unknown = || Fault::new(Kind::Lost, format!("no master {name} is known there"));
    let master = named(&reply).ok_or_else(unknown).map_err(at)?;
    says_so(site, &master).await?;
    Ok(master)
}

async fn says_so(site: &Arc<Site>, master: &Address) -> Result<(), Fault> {
    let login = open::server_login(site).await?;
    let server = open(site, master, login, None, FIND_TIMEOUT).await?;
    let reply = server.ask(&redis::cmd("ROLE")).await?;
    match &reply {
        Value::Array(parts) if parts.first().and_then(text) == Some("master") => Ok(()),
        _ => {
            let why = format!("{master} is called the master and is none yet");
            Err(Fault::new(Kind::Lost, why))
        }
    }
}

/// `[host, port]`
fn named(reply: &Value) -> Option<Address> {
    let Value::Array(parts) = reply else { return None };
    let [host, port] = parts.as_slice() else { return None };
    let host = text(host).filter(|host| !host.is_empty())?;
    Address::of_node(host, text(port)?.parse().ok()?)
}

fn text(value: &Value) -> Option<&str> {
    match value {
        Value::BulkString(text) => std::str::from_utf8(text).ok(),
        Value::SimpleString(text) => Some(text),
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
