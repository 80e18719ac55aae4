//! Settings for TLS on the gRPC listener.

use std::path::PathBuf;

use ratelease_tls::{FileRole, ServerFiles};
use tokio_rustls::rustls::pki_types::{ServerName, UnixTime};

use super::fault::{Fault, Faults};
use super::group::Flags;
use super::table::{OptionalSetting, Setting, optional, settings, switch, text};
use super::tls::{add_faults, server_name};

settings! {
    /// Settings for TLS on the gRPC listener.
    pub(super) group GrpcTlsTable("TLS of the gRPC listener");

    /// Serve gRPC over TLS only; /json and the probes of HTTP stay without
    GRPC_SERVER_USE_TLS: Setting<bool> = switch(false);
    /// File with the certificate of the listener and its intermediates, PEM; read again when it
    /// changes, like the files below
    GRPC_SERVER_TLS_CERT: OptionalSetting<String> = text("FILE");
    /// File with the key of that certificate, PEM: PKCS#8, PKCS#1 or SEC1
    GRPC_SERVER_TLS_KEY: OptionalSetting<String> = text("FILE");
    /// File with CA certificates, PEM; clients must then have a certificate that one of them signed
    /// [default: clients need no certificate]
    GRPC_CLIENT_TLS_CACERT: OptionalSetting<String> = text("FILE");
    /// The same under the name that Envoy Gateway sets
    GRPC_SERVER_TLS_CA_CERT: OptionalSetting<String> = text("FILE");
    /// DNS name or IP address that the certificates of clients must have [default: any name]
    GRPC_CLIENT_TLS_SAN: OptionalSetting<ServerName<'static>> = optional("NAME", server_name);
}

/// Flags for TLS on the gRPC listener.
pub(super) type GrpcTlsFlags = Flags<GrpcTlsTable>;

// === impl GrpcTlsFlags ===

impl GrpcTlsFlags {
    /// Resolves the flags; `Some(None)` for a listener without TLS. The files are read, so that
    /// what is wrong with them is reported together with all other faults.
    pub(super) fn resolve(&self, faults: &mut Faults) -> Option<Option<ServerFiles>> {
        let is_on = self.get(&GRPC_SERVER_USE_TLS, faults);
        let client_name = self.optional(&GRPC_CLIENT_TLS_SAN, faults);
        if !is_on? {
            return client_name.map(|_| None);
        }
        let certificate = self.required(&GRPC_SERVER_TLS_CERT, faults);
        let key = self.required(&GRPC_SERVER_TLS_KEY, faults);
        let client_roots = self.client_roots(faults);
        if let (Some(Some(_)), Some(None)) = (&client_name, &client_roots) {
            let problem = "no certificate is asked of clients, so none is checked for this name";
            let fix = "set GRPC_CLIENT_TLS_CACERT too";
            faults.add(Fault::new("GRPC_CLIENT_TLS_SAN", problem, fix));
        }
        let files = ServerFiles {
            certificate: certificate?,
            key: key?,
            client_roots: client_roots?,
            client_name: client_name?,
        };
        let loaded = files.load(&files.read(), UnixTime::now());
        let named_by = |role| {
            let row = match role {
                FileRole::Certificate => &GRPC_SERVER_TLS_CERT,
                FileRole::Key => &GRPC_SERVER_TLS_KEY,
                FileRole::Roots if self.text(&GRPC_CLIENT_TLS_CACERT).is_none() => {
                    &GRPC_SERVER_TLS_CA_CERT
                }
                FileRole::Roots => &GRPC_CLIENT_TLS_CACERT,
            };
            row.row.name.to_owned()
        };
        loaded.map_err(|found| add_faults(found, named_by, faults)).ok()?;
        Some(Some(files))
    }

    /// A warning if files are given for TLS that is off.
    pub(super) fn warning(&self) -> Option<String> {
        let is_off = self.get(&GRPC_SERVER_USE_TLS, &mut Faults::default()) == Some(false);
        let given = [
            &GRPC_SERVER_TLS_CERT,
            &GRPC_SERVER_TLS_KEY,
            &GRPC_CLIENT_TLS_CACERT,
            &GRPC_SERVER_TLS_CA_CERT,
        ];
        let given = given.into_iter().find(|setting| self.text(setting).is_some())?;
        is_off.then(|| {
            let name = given.row.name;
            format!("{name}: ignored, gRPC is served in plaintext; set GRPC_SERVER_USE_TLS=true")
        })
    }

    fn required(&self, setting: &OptionalSetting<String>, faults: &mut Faults) -> Option<PathBuf> {
        let given = self.text(setting).map(PathBuf::from);
        if given.is_none() {
            let problem = "not set, and GRPC_SERVER_USE_TLS is true";
            faults.add(Fault::new(setting.row.name, problem, "name a PEM file"));
        }
        given
    }

    fn client_roots(&self, faults: &mut Faults) -> Option<Option<PathBuf>> {
        let of_reference = self.text(&GRPC_CLIENT_TLS_CACERT);
        let of_gateway = self.text(&GRPC_SERVER_TLS_CA_CERT);
        if let (Some(one), Some(other)) = (of_reference, of_gateway)
            && one != other
        {
            let problem = "GRPC_CLIENT_TLS_CACERT, which means the same, names another file";
            let fault = Fault::new("GRPC_SERVER_TLS_CA_CERT", problem, "set one of the two");
            faults.add(fault.with_found(other));
            return None;
        }
        Some(of_reference.or(of_gateway).map(PathBuf::from))
    }
}
