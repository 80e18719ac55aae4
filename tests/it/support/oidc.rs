//! A provider of OpenID Connect: the program of `tests/oidc`.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::{Value, json};
use tempfile::TempDir;

use super::http;
use super::ports::free_port;
use super::process::{Process, leashed};

/// The secret of the client.
pub(crate) const SECRET: &str = "a secret of 7 words & signs?";

/// The password of each user.
pub(crate) const PASSWORD: &str = "open";

/// Maximum time until it serves, on a machine that also compiles.
const START_MAX: Duration = Duration::from_secs(20);

/// A provider. Killed when dropped.
pub(crate) struct Provider {
    _process: Process,
    /// Where it is.
    pub(crate) at: SocketAddr,
    dir: TempDir,
}

// === impl Provider ===

impl Provider {
    /// Starts one for a control plane whose page is at `page`. Of each user it knows the name, which
    /// is the subject too, the first and last name, and the groups.
    pub(crate) async fn start(page: SocketAddr, users: &[(&str, [&str; 2], &[&str])]) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let user = |(id, [first, last], groups): &(&str, [&str; 2], &[&str])| {
            let user = json!({"ID": id, "Username": id, "Password": PASSWORD, "FirstName": first,
                "LastName": last, "Groups": groups});
            ((*id).to_owned(), user)
        };
        let users: serde_json::Map<String, Value> = users.iter().map(user).collect();
        std::fs::write(dir.path().join("users.json"), json!(users).to_string()).unwrap();
        std::fs::write(dir.path().join("secret"), SECRET).unwrap();
        let at = SocketAddr::from(([127, 0, 0, 1], free_port()));
        let mut command = leashed(binary());
        command.args(["-port", &at.port().to_string(), "-secret", SECRET, "-users"]);
        command.arg(dir.path().join("users.json"));
        command.args(["-redirect", &format!("http://{page}/v1/sign-in/callback")]);
        let process = Process::spawn("oidc", command);
        let serves = async || http::get(at, "/keys").await.is_ok_and(|it| it.status == 200);
        process.until("serving", START_MAX, serves).await;
        Self { _process: process, at, dir }
    }

    /// How it names itself.
    pub(crate) fn issuer(&self) -> String {
        format!("http://{}", self.at)
    }

    /// The flags of a control plane that has people sign in here.
    pub(crate) fn flags(&self, page: SocketAddr, roles: &Value) -> Vec<(&'static str, String)> {
        vec![
            ("--public-url", format!("http://{page}")),
            ("--oidc-issuer", self.issuer()),
            ("--oidc-client-id", "limits".to_owned()),
            ("--oidc-client-secret-file", self.dir.path().join("secret").display().to_string()),
            ("--oidc-roles", roles.to_string()),
        ]
    }

    /// Makes another key, and forgets the one before.
    pub(crate) async fn rotate(&self) {
        assert_eq!(http::get(self.at, "/rotate").await.unwrap().status, 200);
    }
}

/// `OIDC_PROVIDER_BIN`, or the path where `scripts/test` installs the program.
fn binary() -> PathBuf {
    let installed = || Path::new(env!("CARGO_MANIFEST_DIR")).join("target/tools/bin/oidc_provider");
    let path = std::env::var_os("OIDC_PROVIDER_BIN").map_or_else(installed, PathBuf::from);
    assert!(
        path.is_file(),
        "no provider at {}: run scripts/test once, which builds tests/oidc, or name a build by \
         OIDC_PROVIDER_BIN",
        path.display()
    );
    path
}
