//! Settings for TLS to Redis: the files, which both Redis have in common.

use ratelease_tls::{ClientFiles, ServerCheck};

use super::fault::Faults;
use super::group::Flags;
use super::table::{OptionalSetting, Setting, settings, switch, text};
use super::tls::ClientFileSettings;

settings! {
    /// Settings for TLS to Redis.
    pub(super) group RedisTlsTable("Redis");

    /// File with the CA certificates that those of the servers must be signed by, PEM; read again
    /// for each connection, like the files below [default: the system's]
    REDIS_TLS_CACERT: OptionalSetting<String> = text("FILE");
    /// File with a client certificate and its intermediates, PEM
    REDIS_TLS_CLIENT_CERT: OptionalSetting<String> = text("FILE");
    /// File with the key of that certificate, PEM
    REDIS_TLS_CLIENT_KEY: OptionalSetting<String> = text("FILE");
    /// Accept a certificate of any name, as long as it is signed by one of the CAs
    REDIS_TLS_SKIP_HOSTNAME_VERIFICATION: Setting<bool> = switch(false);
}

/// The settings that name files.
pub(super) const FILES: ClientFileSettings = ClientFileSettings {
    roots: REDIS_TLS_CACERT,
    certificate: REDIS_TLS_CLIENT_CERT,
    key: REDIS_TLS_CLIENT_KEY,
};

/// Flags for TLS to Redis.
pub(super) type RedisTlsFlags = Flags<RedisTlsTable>;

// === impl RedisTlsFlags ===

impl RedisTlsFlags {
    /// The files, which are not read yet: TLS may be off.
    pub(super) fn resolve(&self, faults: &mut Faults) -> ClientFiles {
        let skips = self.get(&REDIS_TLS_SKIP_HOSTNAME_VERIFICATION, faults);
        let server = if skips == Some(true) { ServerCheck::AnyName } else { ServerCheck::Host };
        ClientFiles { server, ..FILES.resolve(self, faults) }
    }
}
