//! Files of certificates and keys, as settings name them.

use std::path::PathBuf;

use ratelease_tls::{ClientFiles, FileFault, FileFaults, FileRole};
use tokio_rustls::rustls::pki_types::{ServerName, UnixTime};

use super::fault::{Expected, Fault, Faults};
use super::group::Values;
use super::table::OptionalSetting;

/// The settings that name the files of a client.
pub(super) struct ClientFileSettings {
    pub(super) roots: OptionalSetting<String>,
    pub(super) certificate: OptionalSetting<String>,
    pub(super) key: OptionalSetting<String>,
}

// === impl ClientFileSettings ===

impl ClientFileSettings {
    /// The files that are given, which are not read yet: TLS may be off. A certificate without its
    /// key is a fault.
    pub(super) fn resolve(&self, values: &Values, faults: &mut Faults) -> ClientFiles {
        let path = |setting: &_| values.text(setting).map(PathBuf::from);
        let (certificate, key) = (path(&self.certificate), path(&self.key));
        let missing = match (&certificate, &key) {
            (Some(_), None) => Some(&self.key),
            (None, Some(_)) => Some(&self.certificate),
            _ => None,
        };
        if let Some(missing) = missing {
            let problem = "a client certificate and its key go together, and this one is missing";
            faults.add(Fault::new(missing.row.name, problem, "set both, or neither"));
        }
        let roots = path(&self.roots);
        ClientFiles { roots, identity: certificate.zip(key), ..ClientFiles::default() }
    }

    /// Adds a fault for each of the files that cannot be used.
    pub(super) fn check(&self, files: &ClientFiles, faults: &mut Faults) {
        let named_by = |role| {
            let setting = match role {
                FileRole::Certificate => &self.certificate,
                FileRole::Key => &self.key,
                FileRole::Roots => &self.roots,
            };
            setting.row.name.to_owned()
        };
        if let Err(found) = files.load(&files.read(), Some(UnixTime::now())) {
            add_faults(found, named_by, faults);
        }
    }
}

/// Parses a name that a certificate may have.
pub(super) fn server_name(text: &str) -> Result<ServerName<'static>, Expected> {
    let name = ServerName::try_from(text.to_owned());
    name.map_err(|_| Expected::new("a DNS name or an IP address").example("envoy.shop.internal"))
}

/// Adds a fault for each file that cannot be used. `named_by` tells the setting that names the file
/// of a role.
pub(super) fn add_faults(
    found: FileFaults,
    named_by: impl Fn(FileRole) -> String,
    faults: &mut Faults,
) {
    for FileFault { role, path, problem } in found {
        let fix = match role {
            FileRole::Certificate => "name a PEM file with a certificate that is valid now",
            FileRole::Key => "name the PEM file with the key of the certificate named beside it",
            FileRole::Roots => "name a PEM file of the certificates to trust",
        };
        let name = named_by(role);
        faults.add(match path {
            Some(path) => Fault::new(name, format!("the file {problem}"), fix)
                .in_file(&path.to_string_lossy()),
            None => Fault::new(name, problem, fix),
        });
    }
}
