//! The command line, and the settings of `serve`, in the table that all servers of ratelease share.

mod sign_in;

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::path::PathBuf;

use clap::{Parser, Subcommand};
use ratelease_cli::grammar;
use ratelease_cli::settings;
use ratelease_cli::settings::{
    Expected, Fault, Faults, Flags, Role, Section, Sections, SettingsError, Values, count_within,
    optional, parsed_secret, path, setting, switch,
};
use ratelease_tls::ServerFiles;
pub use sign_in::SignIn;

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
    #[command(next_line_help = true)]
    Serve(Box<Flags<Settings>>),
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
        database: Flags<DatabaseAddress>,
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
        database: Flags<DatabaseAddress>,
    },
    /// Revoke a token at once
    Revoke {
        /// Where tokens are
        #[command(flatten)]
        database: Flags<DatabaseAddress>,
        /// The id: the part of the token after `rlc_`
        id: String,
    },
}

settings! {
    /// Where the database is, as given.
    pub struct DatabaseAddress in "Database" {
        /// PostgreSQL, as in postgres://user@host/name. Only the variable and the file may have a
        /// password, because the list of processes shows flags [default: SQLite]
        "DATABASE_URL" => postgres: Option<Database> = parsed_secret("URL", "", postgres);
        /// File of the SQLite database, which is made if it is not there
        "CONTROL_DATABASE_FILE" => file: PathBuf =
            setting("FILE", "ratelease-control.db", |text| Ok(PathBuf::from(text)));
    }
}

settings! {
    /// What `serve` has besides, as given.
    struct Given in "Server" {
        /// Address of the API
        "CONTROL_HTTP_LISTEN" => http_listen: SocketAddr =
            setting("IP:PORT", "127.0.0.1:8090", address);
        /// Address for pods, which they have as CONFIG_GRPC_XDS_SERVER_URL
        "CONTROL_PODS_LISTEN" => pods_listen: SocketAddr =
            setting("IP:PORT", "127.0.0.1:18000", address);
        /// Address of /healthz and /metrics alone, for the kubelet and Prometheus: a crowd at the
        /// API does not reach it [default: they are on the port of the API only]
        "CONTROL_PROBE_LISTEN" => probe_listen: Option<SocketAddr> =
            optional("IP:PORT", |text| address(text).map(Some));
        /// Serve the API without TLS on an address that is not loopback, such as behind a proxy
        "CONTROL_HTTP_PLAINTEXT" => http_plaintext: bool = switch(false);
        /// Serve pods without TLS on an address that is not loopback
        "CONTROL_PODS_PLAINTEXT" => pods_plaintext: bool = switch(false);
        /// File with the certificate that pods see, and its intermediates, PEM
        "CONTROL_PODS_TLS_CERT" => certificate: Option<PathBuf> = path("FILE");
        /// File with the key of that certificate, PEM
        "CONTROL_PODS_TLS_KEY" => key: Option<PathBuf> = path("FILE");
        /// File with the CA certificates that those of pods must be signed by, PEM
        "CONTROL_PODS_TLS_CLIENT_CA" => client_roots: Option<PathBuf> = path("FILE");
        /// File with a token of access admin; if it is not there, a token is made and written to it
        "CONTROL_TOKEN_FILE" => token_file: Option<PathBuf> = path("FILE");
        /// The domains that a node may have, as in edge=shop,payments; may be given again for
        /// another node. With TLS the name is one of the pod's certificate; else it is the id that
        /// the pod gives, which is a filter and no access control. A node that is not named may
        /// have all
        "CONTROL_NODE_DOMAINS" => node_domains: BTreeMap<String, Vec<String>> =
            optional("NODE=DOMAINS", node_domains).repeated();
        /// Follow the RateLimitRules of the Kubernetes cluster, by the service account of the pod
        /// or KUBECONFIG: each object defines a domain of its namespace
        "CONTROL_KUBERNETES_RULES" => kubernetes_rules: bool = switch(false);
        /// Namespaces whose objects may define any domain; may be given again for another one
        "CONTROL_KUBERNETES_ANY_DOMAIN" => kubernetes_any_domain: BTreeSet<String> =
            optional("NAMESPACE", namespaces).repeated();
        /// The uid of the namespace kube-system of the cluster whose objects are followed, if it
        /// takes the place of another cluster in this database; no other cluster is followed then
        "CONTROL_KUBERNETES_CLUSTER" => kubernetes_cluster: Option<String> =
            optional("UID", uid);
        /// Maximum bytes of all published rules together, which is what a pod accepts in one
        /// message
        "CONTROL_PUSH_BYTES_MAX" => push_bytes_max: usize =
            setting("BYTES", "15728640", bytes);
        /// Maximum bytes of the published rules of one domain, and of all domains together of a
        /// token that is for some [default: a quarter of --push-bytes-max]
        "CONTROL_DOMAIN_BYTES_MAX" => domain_bytes_max: Option<usize> =
            optional("BYTES", |text| bytes(text).map(Some));
        /// Memory limit of the pods with the least, as in 64Mi. What they could not load is not
        /// published; one domain has the same part of it as of the bytes
        "CONTROL_POD_MEMORY" => pod_memory: usize = setting("SIZE", "64Mi", memory);
        /// Maximum bytes that the writes of one token may add to history, versions and audit log,
        /// which are kept; one of access admin has no such bound
        "CONTROL_TOKEN_BYTES_MAX" => token_bytes_max: i64 =
            setting("BYTES", "4294967296", |text| count_within(text, 1..=i64::MAX));
        /// Requests a minute that a token may make, of which a sixth may come at once
        "CONTROL_TOKEN_REQUESTS_PER_MINUTE" => token_requests: NonZeroU32 =
            setting("COUNT", "6000", a_minute);
        /// Versions a minute that a token may publish, all of which may come at once; one of access
        /// admin has no such bound. Every pod that has the domains compiles each of them
        "CONTROL_TOKEN_VERSIONS_PER_MINUTE" => token_versions: NonZeroU32 =
            setting("COUNT", "60", a_minute);
        /// Requests a minute of an address whose token is not valid. Further ones are refused,
        /// except for tokens that were valid before
        "CONTROL_FAILED_TOKENS_PER_MINUTE" => failed_tokens: NonZeroU32 =
            setting("COUNT", "60", a_minute);
    }
}

/// The objects of Kubernetes that are followed, and the domains that they may define.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Scope {
    /// Namespaces whose objects may define any domain.
    pub any_domain: BTreeSet<String>,
    /// The cluster that takes the place of the one whose objects the database has.
    pub cluster: Option<String>,
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
    /// How people sign in, if they do.
    pub sign_in: Option<SignIn>,
    /// File with the first token.
    pub token_file: Option<PathBuf>,
    /// Which node gets what.
    pub selection: Selection,
    /// Which objects of Kubernetes are followed, if any are.
    pub kubernetes_rules: Option<Scope>,
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

/// Parses the command line; `args` begin with the program's name, and `env` supplies the values of
/// flags that are not given.
///
/// # Errors
/// The help or version text, if it was asked for; else why the arguments are not understood.
pub fn parse(
    args: impl Iterator<Item = OsString>,
    env: &dyn Fn(&str) -> Option<String>,
) -> Result<Command, SettingsError> {
    let args: Vec<_> = args.collect();
    let (CommandLine { command }, _) = grammar::read(Role::Ratelease, &args, env)?;
    Ok(command)
}

// === impl DatabaseAddress ===

impl Sections for DatabaseAddress {
    const SECTIONS: &'static [Section<'static>] = &[Self::SECTION];
}

impl DatabaseAddress {
    /// Reads where the database is. No fault shows a password.
    pub fn database(values: Values<'_>, faults: &mut Faults) -> Database {
        let Self { postgres, file } = Self::read(values, faults);
        postgres.unwrap_or(Database::Sqlite(file))
    }
}

fn postgres(url: &str) -> Result<Option<Database>, Expected> {
    let url = url.trim();
    let is_postgres = url.starts_with("postgres://") || url.starts_with("postgresql://");
    let expected = || Expected::new("postgres://…").example("postgres://user@host/name");
    is_postgres.then(|| Some(Database::Postgres(url.to_owned()))).ok_or_else(expected)
}

// === impl Settings ===

impl Sections for Settings {
    const SECTIONS: &'static [Section<'static>] =
        &[DatabaseAddress::SECTION, Given::SECTION, SignIn::SECTION];
}

impl Settings {
    /// Reads the settings.
    pub fn read(values: Values<'_>, faults: &mut Faults) -> Self {
        let database = DatabaseAddress::database(values, faults);
        let given = Given::read(values, faults);
        given.check(faults);
        let sign_in = SignIn::read(values, faults);
        let files = given.certificate.zip(given.key).zip(given.client_roots);
        let pods_tls = files.map(|((certificate, key), client_roots)| ServerFiles {
            certificate,
            key,
            client_roots: Some(client_roots),
            client_name: None,
        });
        Self {
            database,
            http_listen: given.http_listen,
            pods_listen: given.pods_listen,
            probe_listen: given.probe_listen,
            pods_tls,
            sign_in,
            token_file: given.token_file,
            selection: Selection(given.node_domains),
            kubernetes_rules: given.kubernetes_rules.then_some(Scope {
                any_domain: given.kubernetes_any_domain,
                cluster: given.kubernetes_cluster,
            }),
            push_bytes_max: given.push_bytes_max,
            domain_bytes_max: given.domain_bytes_max.unwrap_or(given.push_bytes_max / 4),
            pod_memory: given.pod_memory,
            token_bytes_max: given.token_bytes_max,
            rates: RateSettings {
                token_requests: given.token_requests,
                failed_tokens: given.failed_tokens,
                token_versions: given.token_versions,
            },
        }
    }
}

// === impl Given ===

impl Given {
    /// Adds a fault for each setting that needs another one.
    fn check(&self, faults: &mut Faults) {
        let is_open = |at: SocketAddr| !at.ip().to_canonical().is_loopback();
        if is_open(self.http_listen)
            && !self.http_plaintext
            && !faults.has("CONTROL_HTTP_PLAINTEXT")
        {
            let problem = "others could read the tokens on their way";
            let fix = "listen on loopback behind a proxy with TLS, or give --http-plaintext";
            let fault = Fault::new("CONTROL_HTTP_LISTEN", problem, fix);
            faults.add(fault.with_found(&self.http_listen.to_string()));
        }
        let files = [
            ("CONTROL_PODS_TLS_CERT", &self.certificate),
            ("CONTROL_PODS_TLS_KEY", &self.key),
            ("CONTROL_PODS_TLS_CLIENT_CA", &self.client_roots),
        ];
        let has_tls = files.iter().any(|(_, file)| file.is_some());
        if is_open(self.pods_listen)
            && !has_tls
            && !self.pods_plaintext
            && !faults.has("CONTROL_PODS_PLAINTEXT")
        {
            let problem = "any client could read the rules";
            let fix = "give --pods-tls-cert, --pods-tls-key and --pods-tls-client-ca, or \
                       --pods-plaintext";
            let fault = Fault::new("CONTROL_PODS_LISTEN", problem, fix);
            faults.add(fault.with_found(&self.pods_listen.to_string()));
        }
        if !self.kubernetes_any_domain.is_empty() && !self.kubernetes_rules {
            let problem = "has no effect without CONTROL_KUBERNETES_RULES";
            let fix = "give --kubernetes-rules, or remove it";
            faults.add(Fault::new("CONTROL_KUBERNETES_ANY_DOMAIN", problem, fix));
        }
        if self.kubernetes_cluster.is_some() && !self.kubernetes_rules {
            let problem = "has no effect without CONTROL_KUBERNETES_RULES";
            let fix = "give --kubernetes-rules, or remove it";
            faults.add(Fault::new("CONTROL_KUBERNETES_CLUSTER", problem, fix));
        }
        for (name, _) in files.iter().filter(|(_, file)| has_tls && file.is_none()) {
            let problem = "a certificate, its key and the CA of pods go together, and this one is \
                           missing";
            faults.add(Fault::new(*name, problem, "set all three, or none"));
        }
    }
}

fn address(text: &str) -> Result<SocketAddr, Expected> {
    text.parse().map_err(|_| Expected::new("an IP address and a port"))
}

fn bytes(text: &str) -> Result<usize, Expected> {
    text.parse().map_err(|_| Expected::new("a number of bytes"))
}

fn a_minute(text: &str) -> Result<NonZeroU32, Expected> {
    count_within(text, NonZeroU32::MIN..=NonZeroU32::MAX)
}

/// Reads bytes as Kubernetes writes them.
fn memory(text: &str) -> Result<usize, Expected> {
    let units = [("Ki", 10), ("Mi", 20), ("Gi", 30), ("", 0)];
    let parts = units.iter().find_map(|(unit, bits)| Some((text.strip_suffix(unit)?, bits)));
    let bytes =
        parts.and_then(|(number, bits)| number.parse::<usize>().ok()?.checked_mul(1 << bits));
    bytes.ok_or_else(|| Expected::new("bytes, as in 64Mi"))
}

/// Reads names of namespaces, which `;` separates.
fn namespaces(text: &str) -> Result<BTreeSet<String>, Expected> {
    let is_name = |name: &str| {
        let of_name = |it: u8| it.is_ascii_lowercase() || it.is_ascii_digit() || it == b'-';
        (1..=63).contains(&name.len()) && name.bytes().all(of_name)
    };
    let all: BTreeSet<_> = text.split(';').map(str::trim).map(str::to_owned).collect();
    let expected = || Expected::new("names of namespaces").example("platform");
    all.iter().all(|name| is_name(name)).then_some(all).ok_or_else(expected)
}

/// Reads the uid of a namespace.
fn uid(text: &str) -> Result<Option<String>, Expected> {
    let is_uid = (1..=64).contains(&text.len()) && text.chars().all(|it| it.is_ascii_graphic());
    let expected =
        || Expected::new("the uid of a namespace").example("8c3d1f0e-5b1c-4a0e-9d55-0f6f3a0a4c11");
    is_uid.then(|| Some(text.to_owned())).ok_or_else(expected)
}

/// Reads the domains of nodes, which `;` separates.
fn node_domains(text: &str) -> Result<BTreeMap<String, Vec<String>>, Expected> {
    let expected = || Expected::new("a node's id and domains").example("edge=shop,payments");
    let mut all = BTreeMap::<String, Vec<String>>::new();
    for item in text.split(';') {
        let (node, domains) = item.split_once('=').ok_or_else(expected)?;
        let domains: Vec<_> = domains.split(',').map(|it| it.trim().to_owned()).collect();
        if node.is_empty() || domains.iter().any(String::is_empty) {
            return Err(expected());
        }
        all.entry(node.to_owned()).or_default().extend(domains);
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resolve_in(args: &[&str], env: &[(&str, &str)]) -> Result<Settings, String> {
        let all = ["ratelease-control", "serve"].iter().chain(args).map(OsString::from);
        let lookup = |name: &str| {
            let found = env.iter().find(|(known, _)| *known == name);
            found.map(|(_, value)| (*value).to_owned())
        };
        let command = parse(all, &lookup).map_err(|error| error.to_string())?;
        assert!(!format!("{command:?}").contains("secret"), "{command:?}");
        match command {
            Command::Serve(flags) => flags.read(Settings::read).map_err(|error| error.to_string()),
            Command::Token(_) => Err("another command".to_owned()),
        }
    }

    fn resolve(args: &[&str]) -> Result<Settings, String> {
        resolve_in(args, &[])
    }

    #[test]
    fn nothing_is_open_but_loopback_unless_it_is_asked_for() {
        let settings = resolve(&[]).unwrap();
        assert!(settings.http_listen.ip().is_loopback() && settings.pods_listen.ip().is_loopback());
        let open = ["--http-listen", "0.0.0.0:1", "--pods-listen", "[::]:2"];
        let faults = resolve(&open).unwrap_err();
        assert!(faults.starts_with("2 settings are faulty:"), "{faults}");
        let asked = [&open[..], &["--http-plaintext", "--pods-plaintext"]].concat();
        assert!(resolve(&asked).is_ok());
        assert!(resolve(&["--pods-listen", "[::ffff:127.0.0.1]:2"]).is_ok());
    }

    #[test]
    fn every_fault_is_reported_at_once_with_its_variable_and_flag() {
        let env = [
            ("CONTROL_HTTP_LISTEN", "8090"),
            ("CONTROL_PODS_PLAINTEXT", "perhaps"),
            ("CONTROL_POD_MEMORY", "64M"),
            ("DATABASE_URL", "mysql://root:secret@db"),
        ];
        let flags = ["--token-bytes-max", "0", "--pods-listen", "0.0.0.0:1"];
        let faults = resolve_in(&flags, &env).unwrap_err();
        assert!(faults.starts_with("5 settings are faulty:"), "{faults}");
        let expected = "CONTROL_HTTP_LISTEN: expected an IP address and a port, found \"8090\"; set \
                        CONTROL_HTTP_LISTEN or --http-listen, as in \
                        CONTROL_HTTP_LISTEN=127.0.0.1:8090";
        assert!(faults.contains(expected), "{faults}");
        for name in ["DATABASE_URL", "CONTROL_TOKEN_BYTES_MAX", "CONTROL_POD_MEMORY"] {
            assert!(faults.contains(&format!("\n  {name}: expected ")), "{faults}");
        }
        assert!(faults.contains("CONTROL_PODS_PLAINTEXT: expected true or false"), "{faults}");
        assert!(!faults.contains("secret"), "{faults}");
    }

    #[test]
    fn defaults_of_rates_are_those_of_their_type() {
        let rates = resolve(&[]).unwrap().rates;
        let default = RateSettings::default();
        assert_eq!(rates.token_requests, default.token_requests);
        assert_eq!(rates.failed_tokens, default.failed_tokens);
    }

    #[test]
    fn pods_have_certificates_if_the_listener_has_one() {
        let cert = ["--pods-tls-cert", "a"];
        let key = [&cert[..], &["--pods-tls-key", "b"]].concat();
        assert!(resolve(&cert).unwrap_err().contains("CONTROL_PODS_TLS_KEY: "));
        assert!(resolve(&key).unwrap_err().contains("CONTROL_PODS_TLS_CLIENT_CA: "));
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
        let env = [("CONTROL_NODE_DOMAINS", "edge=shop;lab=test;edge=payments")];
        assert_eq!(resolve_in(&[], &env).unwrap().selection, Selection(found));
        assert!(resolve(&["--node-domains", "edge"]).is_err());
        assert!(resolve(&["--node-domains", "edge=,"]).is_err());
    }

    #[test]
    fn a_provider_needs_its_client_roles_and_the_public_url() {
        assert_eq!(resolve(&[]).unwrap().sign_in, None);
        let roles = r#"{"groups":{"sre":{"access":"admin"}}}"#;
        let rest = ["--public-url", "https://limits.example", "--oidc-client-id", "limits"];
        let issuer = ["--oidc-issuer", "https://login.example/realms/x"];
        let all = [&issuer[..], &rest, &["--oidc-roles", roles]].concat();
        let found = resolve(&all).unwrap().sign_in.unwrap();
        assert_eq!(found.origin, "https://limits.example");
        assert!(found.is_secure && found.client_secret.is_empty());
        let missing = resolve(&issuer).unwrap_err();
        for name in ["CONTROL_PUBLIC_URL", "CONTROL_OIDC_CLIENT_ID", "CONTROL_OIDC_ROLES"] {
            assert!(missing.contains(&format!("{name}: is missing")), "{missing}");
        }
        let alone = resolve(&["--oidc-client-id", "x"]).unwrap_err();
        assert!(alone.contains("has no effect without CONTROL_OIDC_ISSUER"), "{alone}");
        for (flag, value) in [
            ("--oidc-issuer", "http://login.example"),
            ("--oidc-issuer", "https://login.example/?x=y"),
            ("--public-url", "http://limits.example"),
            ("--public-url", "https://limits.example/limits"),
            ("--public-url", "https://me@limits.example"),
            ("--oidc-roles", "sre=admin"),
            ("--oidc-scopes", "profile"),
        ] {
            let pairs = all.chunks(2).filter(|it| it[0] != flag).flatten().copied();
            let flags: Vec<_> = pairs.chain([flag, value]).collect();
            assert!(resolve(&flags).is_err(), "{flag} {value}");
        }
        let secret = [("CONTROL_OIDC_CLIENT_SECRET", "a secret")];
        let found = resolve_in(&all, &secret).unwrap().sign_in.unwrap();
        assert!(!format!("{found:?}").contains("a secret"), "{found:?}");
        let shown = resolve(&[&all[..], &["--oidc-client-secret", "x"]].concat()).unwrap_err();
        assert!(shown.contains("a secret given as a flag shows in ps"), "{shown}");
    }

    #[test]
    fn objects_are_followed_if_that_is_asked_for() {
        assert_eq!(resolve(&[]).unwrap().kubernetes_rules, None);
        let follow = ["--kubernetes-rules"];
        assert_eq!(resolve(&follow).unwrap().kubernetes_rules.unwrap().any_domain, BTreeSet::new());
        let any = ["--kubernetes-any-domain", "platform", "--kubernetes-any-domain", "edge-1"];
        let found = resolve(&[&follow[..], &any].concat()).unwrap().kubernetes_rules.unwrap();
        let found = found.any_domain;
        assert_eq!(found, BTreeSet::from(["edge-1".to_owned(), "platform".to_owned()]));
        let alone = resolve(&any).unwrap_err();
        assert!(alone.contains("no effect without CONTROL_KUBERNETES_RULES"), "{alone}");
        for bad in ["*", "a,b", "Platform", "a/b"] {
            assert!(resolve(&["--kubernetes-rules", "--kubernetes-any-domain", bad]).is_err());
        }
    }

    #[test]
    fn a_password_is_in_no_message() {
        for url in [
            "mysql://root:secret@db",
            "postgres://root:secret@db/x",
            "postgres://root@db/x?sslmode=disable&password=secret",
        ] {
            let fault = resolve(&["--database-url", url]).unwrap_err();
            let expected = "DATABASE_URL: a secret given as a flag shows in ps";
            assert!(!fault.contains("secret@") && fault.contains(expected), "{fault}");
            assert!(!fault.contains("=secret"), "{fault}");
        }
        let fault = resolve_in(&[], &[("DATABASE_URL", "mysql://root:secret@db")]).unwrap_err();
        assert!(!fault.contains("secret") && fault.contains("DATABASE_URL"), "{fault}");
        let found = resolve(&["--database-url", "postgres://u@db/x?host=a:b"]).unwrap().database;
        assert_eq!(found, Database::Postgres("postgres://u@db/x?host=a:b".into()));
        assert_eq!(format!("{found:?}"), "Postgres(…)");
    }

    #[test]
    fn a_password_comes_from_a_file_or_a_variable() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("url");
        std::fs::write(&path, "postgres://u:secret@db/x\n").unwrap();
        let file = ["--database-url-file", path.to_str().unwrap()];
        let expected = Database::Postgres("postgres://u:secret@db/x".into());
        assert_eq!(resolve(&file).unwrap().database, expected);
        let variable = [("DATABASE_URL", "postgres://u:secret@db/x")];
        assert_eq!(resolve_in(&[], &variable).unwrap().database, expected);
        assert!(resolve_in(&file, &variable).unwrap_err().contains("DATABASE_URL is set too"));
        std::fs::write(&path, "secret").unwrap();
        let fault = resolve(&file).unwrap_err();
        assert!(fault.contains("expected postgres://") && !fault.contains("secret"), "{fault}");
        std::fs::remove_file(&path).unwrap();
        assert!(resolve(&file).unwrap_err().contains("No such file"));
        let sqlite = Database::Sqlite("ratelease-control.db".into());
        assert_eq!(resolve(&[]).unwrap().database, sqlite);
    }
}
