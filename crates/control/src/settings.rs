//! The command line: flags, each with its environment variable.

mod database;

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::num::NonZeroU32;
use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};
pub use database::DatabaseFlags;
use ratelease_tls::ServerFiles;

use crate::auth::Access;
use crate::push::Selection;
use crate::rates::RateSettings;
use crate::store::Database;

/// Keeps the rules of a fleet in one database, and pushes each published version to every pod.
#[derive(Debug, Parser)]
#[command(name = "ratelease-control", version)]
pub struct CommandLine {
    /// What to do
    #[command(subcommand)]
    pub command: Command,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Serve the API and the pods
    Serve(Box<ServeFlags>),
    /// Make, list or revoke tokens of the API
    #[command(subcommand)]
    Token(TokenCommand),
}

/// What to do with tokens.
#[derive(Debug, Subcommand)]
pub enum TokenCommand {
    /// Make a token, and print it: it is shown only now
    Create {
        /// Where tokens are
        #[command(flatten)]
        database: DatabaseFlags,
        /// What it is called in history and audit log
        #[arg(long)]
        name: String,
        /// What it may do: read, write or admin
        #[arg(long, default_value = "read")]
        access: Access,
        /// The domains that it may use, separated by commas [default: all]
        #[arg(long, value_delimiter = ',')]
        domains: Option<Vec<String>>,
        /// Days for which it is valid [default: until it is revoked]
        #[arg(long)]
        days: Option<u32>,
    },
    /// List tokens, without their secrets
    List {
        /// Where tokens are
        #[command(flatten)]
        database: DatabaseFlags,
    },
    /// Revoke a token at once
    Revoke {
        /// Where tokens are
        #[command(flatten)]
        database: DatabaseFlags,
        /// The id: the part of the token after `rlc_`
        id: String,
    },
}

/// Flags of `serve`.
#[derive(Debug, Clone, Args)]
pub struct ServeFlags {
    /// Where the rules are
    #[command(flatten)]
    database: DatabaseFlags,
    /// Address of the API
    #[arg(long, env = "CONTROL_HTTP_LISTEN", default_value = "127.0.0.1:8090")]
    http_listen: SocketAddr,
    /// Address for pods, which they have as CONFIG_GRPC_XDS_SERVER_URL
    #[arg(long, env = "CONTROL_PODS_LISTEN", default_value = "127.0.0.1:18000")]
    pods_listen: SocketAddr,
    /// Address of /healthz and /metrics alone, for the kubelet and Prometheus: a crowd at the API
    /// does not reach it [default: they are on the port of the API only]
    #[arg(long, env = "CONTROL_PROBE_LISTEN")]
    probe_listen: Option<SocketAddr>,
    /// Serve the API without TLS on an address that is not loopback, such as behind a proxy
    #[arg(long, env = "CONTROL_HTTP_PLAINTEXT")]
    http_plaintext: bool,
    /// Serve pods without TLS on an address that is not loopback
    #[arg(long, env = "CONTROL_PODS_PLAINTEXT")]
    pods_plaintext: bool,
    /// File with the certificate that pods see, and its intermediates, PEM
    #[arg(long, env = "CONTROL_PODS_TLS_CERT", requires = "pods_tls_key")]
    pods_tls_cert: Option<PathBuf>,
    /// File with the key of that certificate, PEM
    #[arg(long, env = "CONTROL_PODS_TLS_KEY", requires = "pods_tls_client_ca")]
    pods_tls_key: Option<PathBuf>,
    /// File with the CA certificates that those of pods must be signed by, PEM
    #[arg(long, env = "CONTROL_PODS_TLS_CLIENT_CA", requires = "pods_tls_cert")]
    pods_tls_client_ca: Option<PathBuf>,
    /// File with a token of access admin; if it is not there, a token is made and written to it
    #[arg(long, env = "CONTROL_TOKEN_FILE")]
    token_file: Option<PathBuf>,
    /// The domains that a node may have, as in edge=shop,payments; may be given again for another
    /// node. With TLS the name is one of the pod's certificate; else it is the id that the pod
    /// gives, which is a filter and no access control. A node that is not named may have all
    #[arg(long, env = "CONTROL_NODE_DOMAINS", value_delimiter = ';', value_parser = node_domains)]
    node_domains: Vec<(String, Vec<String>)>,
    /// Maximum bytes of all published rules together, which is what a pod accepts in one message
    #[arg(long, env = "CONTROL_PUSH_BYTES_MAX", default_value_t = 15 << 20)]
    push_bytes_max: usize,
    /// Maximum bytes of the published rules of one domain, and of all domains together of a token
    /// that is for some [default: a quarter of --push-bytes-max]
    #[arg(long, env = "CONTROL_DOMAIN_BYTES_MAX")]
    domain_bytes_max: Option<usize>,
    /// Memory limit of the pods with the least, as in 64Mi. What they could not load is not
    /// published; one domain has the same part of it as of the bytes
    #[arg(long, env = "CONTROL_POD_MEMORY", default_value = "64Mi", value_parser = memory)]
    pod_memory: usize,
    /// Maximum bytes that the writes of one token may add to history, versions and audit log, which
    /// are kept; one of access admin has no such bound
    #[arg(long, env = "CONTROL_TOKEN_BYTES_MAX", default_value_t = 4 << 30,
        value_parser = clap::value_parser!(i64).range(1..))]
    token_bytes_max: i64,
    /// Requests a minute that a token may make, of which a sixth may come at once
    #[arg(long, env = "CONTROL_TOKEN_REQUESTS_PER_MINUTE",
        default_value_t = RateSettings::default().token_requests)]
    token_requests_per_minute: NonZeroU32,
    /// Requests a minute of an address whose token is not valid. Further ones are refused, except
    /// for tokens that were valid before
    #[arg(long, env = "CONTROL_FAILED_TOKENS_PER_MINUTE",
        default_value_t = RateSettings::default().failed_tokens)]
    failed_tokens_per_minute: NonZeroU32,
}

/// Settings of `serve`.
#[derive(Debug, Clone)]
pub struct Settings {
    /// The database.
    pub database: Database,
    /// Address of the API.
    pub http_listen: SocketAddr,
    /// Address for pods.
    pub pods_listen: SocketAddr,
    /// Address of probes and metrics alone, if they have one.
    pub probe_listen: Option<SocketAddr>,
    /// TLS for pods.
    pub pods_tls: Option<ServerFiles>,
    /// File with the first token.
    pub token_file: Option<PathBuf>,
    /// Which node gets what.
    pub selection: Selection,
    /// Maximum bytes of all published rules together.
    pub push_bytes_max: usize,
    /// Maximum bytes of the published rules of one domain.
    pub domain_bytes_max: usize,
    /// The limit of the memory of a pod, in bytes.
    pub pod_memory: usize,
    /// Maximum bytes that the writes of one token may add to what is kept.
    pub token_bytes_max: i64,
    /// How many requests there may be.
    pub rates: RateSettings,
}

// === impl ServeFlags ===

impl ServeFlags {
    /// The settings.
    ///
    /// # Errors
    /// Every fault, one a line.
    pub fn resolve(self) -> Result<Settings, String> {
        let mut faults = Vec::new();
        let is_open = |at: SocketAddr| !is_loopback(at.ip());
        if is_open(self.http_listen) && !self.http_plaintext {
            faults.push(format!(
                "--http-listen {}: others could read the tokens on their way. Listen on loopback \
                 behind a proxy with TLS, or give --http-plaintext",
                self.http_listen
            ));
        }
        if is_open(self.pods_listen) && self.pods_tls_cert.is_none() && !self.pods_plaintext {
            faults.push(format!(
                "--pods-listen {}: any client could read the rules. Give --pods-tls-cert, \
                 --pods-tls-key and --pods-tls-client-ca, or --pods-plaintext",
                self.pods_listen
            ));
        }
        let database = self.database.resolve().map_err(|fault| faults.push(fault)).ok();
        let (Some(database), true) = (database, faults.is_empty()) else {
            return Err(faults.join("\n"));
        };
        let pods_tls = self.pods_tls_cert.zip(self.pods_tls_key).map(|(certificate, key)| {
            let client_roots = self.pods_tls_client_ca;
            ServerFiles { certificate, key, client_roots, client_name: None }
        });
        let mut selection = BTreeMap::<String, Vec<String>>::new();
        for (node, domains) in self.node_domains {
            selection.entry(node).or_default().extend(domains);
        }
        Ok(Settings {
            database,
            http_listen: self.http_listen,
            pods_listen: self.pods_listen,
            probe_listen: self.probe_listen,
            pods_tls,
            token_file: self.token_file,
            selection: Selection(selection),
            push_bytes_max: self.push_bytes_max,
            domain_bytes_max: self.domain_bytes_max.unwrap_or(self.push_bytes_max / 4),
            pod_memory: self.pod_memory,
            token_bytes_max: self.token_bytes_max,
            rates: RateSettings {
                token_requests: self.token_requests_per_minute,
                failed_tokens: self.failed_tokens_per_minute,
            },
        })
    }
}

fn is_loopback(ip: IpAddr) -> bool {
    ip.to_canonical().is_loopback()
}

/// Reads bytes as Kubernetes writes them.
fn memory(text: &str) -> Result<usize, String> {
    let units = [("Ki", 10), ("Mi", 20), ("Gi", 30), ("", 0)];
    let parts = units.iter().find_map(|(unit, bits)| Some((text.strip_suffix(unit)?, bits)));
    let bytes =
        parts.and_then(|(number, bits)| number.parse::<usize>().ok()?.checked_mul(1 << bits));
    bytes.ok_or_else(|| "expected bytes, as in 64Mi".to_owned())
}

fn node_domains(text: &str) -> Result<(String, Vec<String>), String> {
    let expected = || "expected a node's id and domains, as in edge=shop,payments".to_owned();
    let (node, domains) = text.split_once('=').ok_or_else(expected)?;
    let domains: Vec<_> = domains.split(',').map(|it| it.trim().to_owned()).collect();
    let is_good = !node.is_empty() && domains.iter().all(|it| !it.is_empty());
    if is_good { Ok((node.to_owned(), domains)) } else { Err(expected()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resolve(args: &[&str]) -> Result<Settings, String> {
        let all = [&["ratelease-control", "serve"], args].concat();
        match CommandLine::try_parse_from(all).map_err(|error| error.to_string())?.command {
            Command::Serve(flags) => flags.resolve(),
            Command::Token(_) => Err("another command".to_owned()),
        }
    }

    #[test]
    fn nothing_is_open_but_loopback_unless_it_is_asked_for() {
        let settings = resolve(&[]).unwrap();
        assert!(settings.http_listen.ip().is_loopback() && settings.pods_listen.ip().is_loopback());
        let open = ["--http-listen", "0.0.0.0:1", "--pods-listen", "[::]:2"];
        let faults = resolve(&open).unwrap_err();
        assert_eq!(faults.lines().count(), 2, "{faults}");
        let asked = [&open[..], &["--http-plaintext", "--pods-plaintext"]].concat();
        assert!(resolve(&asked).is_ok());
        assert!(resolve(&["--pods-listen", "[::ffff:127.0.0.1]:2"]).is_ok());
    }

    #[test]
    fn pods_have_certificates_if_the_listener_has_one() {
        let cert = ["--pods-tls-cert", "a"];
        let key = [&cert[..], &["--pods-tls-key", "b"]].concat();
        assert!(resolve(&cert).is_err() && resolve(&key).is_err());
        let all = [&key[..], &["--pods-tls-client-ca", "c", "--pods-listen", "0.0.0.0:1"]].concat();
        let files = resolve(&all).unwrap().pods_tls.unwrap();
        assert_eq!(files.client_roots, Some("c".into()));
    }

    #[test]
    fn the_memory_of_pods_is_written_as_in_kubernetes() {
        assert_eq!(resolve(&[]).unwrap().pod_memory, 64 << 20);
        for (text, bytes) in [("96Mi", 96 << 20), ("1Gi", 1 << 30), ("67108864", 64 << 20)] {
            assert_eq!(resolve(&["--pod-memory", text]).unwrap().pod_memory, bytes);
        }
        for text in ["", "Mi", "64M", "-1", "99999999999Gi"] {
            assert!(resolve(&["--pod-memory", text]).is_err(), "{text}");
        }
    }

    #[test]
    fn nodes_are_given_domains() {
        let two = ["--node-domains", "edge=shop,payments", "--node-domains", "lab=test"];
        let Selection(found) = resolve(&two).unwrap().selection;
        assert_eq!(found["edge"], ["shop", "payments"]);
        assert_eq!(found["lab"], ["test"]);
        assert!(resolve(&["--node-domains", "edge"]).is_err());
        assert!(resolve(&["--node-domains", "edge=,"]).is_err());
    }
}
