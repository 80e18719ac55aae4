//! Settings for leases and for the buffers of keys.

use std::time::Duration;

use clap::Args;
use ratelease_engine::secret::{Secret, SecretFile};
use ratelease_engine::store::PODS_MAX;

use super::fault::Faults;
use super::flag::FILE;
use super::value;

/// Maximum of the wait for a lease: past it any caller has given up.
const MAX_WAIT_MAX: Duration = Duration::from_secs(10);
/// Maximum drain; Kubernetes' longest usual grace period is far below.
const DRAIN_MAX: Duration = Duration::from_secs(3600);
/// Minimum memory for buffers: some two hundred keys.
const BUFFER_MEMORY_MIN: usize = 64 * value::KIB;
/// Maximum memory for buffers: that of a whole machine.
const BUFFER_MEMORY_MAX: usize = 64 * value::GIB;

/// How tokens are leased and buffers are kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Leases {
    /// Maximum time for which a request waits for a lease if its caller sets no deadline, 0 to 10
    /// s.
    pub max_wait: Duration,
    /// Maximum wait if the caller sets a deadline, 0 to 10 s; raised to `max_wait` if below.
    pub wait_limit: Duration,
    /// Assumed number of pods of each domain until the store reports it, 1 to 10 000.
    pub pods_expected: u32,
    /// Maximum bytes for the buffers of keys, 64 KiB to 64 GiB.
    pub buffer_bytes_max: usize,
    /// Secret with which keys are hashed; empty for the built-in one.
    pub key_secret: Secret,
}

/// How keys are hashed: the flag of everything that has to name the same counts as the pods.
#[derive(Debug, Args)]
#[command(next_help_heading = "Leases")]
pub struct KeyFlags {
    /// Secret under which keys are hashed, the same in all pods; only in the environment, since
    /// flags show in ps [default: built in]
    #[arg(long, env = "KEY_SECRET", value_name = "SECRET")]
    key_secret: Option<Secret>,
    /// File that holds it, in place of KEY_SECRET
    #[arg(long, env = "KEY_SECRET_FILE", value_name = "FILE", value_hint = FILE)]
    key_secret_file: Option<SecretFile>,
}

#[derive(Debug, Args)]
#[command(next_help_heading = "Leases")]
pub(super) struct LeaseFlags {
    /// What a request waits for a lease at most if its caller names no deadline, a duration
    #[arg(
        long,
        visible_alias = "max-wait",
        env = "LEASE_MAX_WAIT",
        value_name = "SPAN",
        default_value = "5ms"
    )]
    lease_max_wait: String,
    /// What it waits at most if its caller names a deadline (grpc-timeout), a duration; at least
    /// --lease-max-wait
    #[arg(long, env = "LEASE_WAIT_LIMIT", value_name = "SPAN", default_value = "15ms")]
    lease_wait_limit: String,
    /// Pods of each domain, 1 to 10000, until Redis says how many there are
    #[arg(long, env = "PODS_EXPECTED", value_name = "COUNT", default_value = "16")]
    pods_expected: String,
    /// Memory for the buffers of keys, a size; when it is full, idle keys give way
    #[arg(long, env = "BUFFER_MEMORY", value_name = "SIZE", default_value = "64MiB")]
    buffer_memory: String,
    #[command(flatten)]
    key: KeyFlags,
    /// On a signal, what requests in flight and leases to give back may take, a duration
    #[arg(
        long,
        visible_alias = "drain",
        env = "DRAIN_TIMEOUT",
        value_name = "SPAN",
        default_value = "10s"
    )]
    drain_timeout: String,
}

// === impl KeyFlags ===

impl KeyFlags {
    /// Resolves the secret; empty for the built-in one.
    pub fn secret(&self, faults: &mut Faults) -> Option<Secret> {
        let (given, file) = (self.key_secret.as_ref(), self.key_secret_file.as_ref());
        faults.secret("KEY_SECRET", given, file).map(Option::unwrap_or_default)
    }
}

// === impl LeaseFlags ===

impl LeaseFlags {
    pub(super) fn resolve(&self, faults: &mut Faults) -> Option<Leases> {
        let wait = value::duration_within(Duration::ZERO..=MAX_WAIT_MAX, "5ms");
        let max_wait = faults.parse("LEASE_MAX_WAIT", &self.lease_max_wait, wait);
        let limit = value::duration_within(Duration::ZERO..=MAX_WAIT_MAX, "15ms");
        let wait_limit = faults.parse("LEASE_WAIT_LIMIT", &self.lease_wait_limit, limit);
        let pods = value::count_within(1..=PODS_MAX, "16");
        let pods = faults.parse("PODS_EXPECTED", &self.pods_expected, pods);
        let size = value::size_within(BUFFER_MEMORY_MIN..=BUFFER_MEMORY_MAX, "64MiB");
        let key_secret = self.key.secret(faults);
        let buffer_bytes_max = faults.parse("BUFFER_MEMORY", &self.buffer_memory, size);
        Some(Leases {
            max_wait: max_wait?,
            wait_limit: wait_limit?,
            pods_expected: u32::try_from(pods?).ok()?,
            buffer_bytes_max: buffer_bytes_max?,
            key_secret: key_secret?,
        })
    }

    pub(super) fn drain(&self, faults: &mut Faults) -> Option<Duration> {
        let span = value::duration_within(Duration::ZERO..=DRAIN_MAX, "10s");
        faults.parse("DRAIN_TIMEOUT", &self.drain_timeout, span)
    }
}
