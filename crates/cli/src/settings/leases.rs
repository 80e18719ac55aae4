//! Settings for leases and for the buffers of keys.

use std::time::Duration;

use clap::Args;
use ratelease_engine::secret::Secret;
use ratelease_engine::store::PODS_MAX;

use super::fault::Faults;
use super::group::Flags;
use super::table::{SecretSetting, Setting, secret, setting, settings};
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

settings! {
    /// How keys are hashed.
    pub group KeyTable("Leases");

    /// Secret with which keys are hashed, the same in all pods; only as a variable, because flags
    /// show in ps [default: built in]
    KEY_SECRET: SecretSetting = secret("SECRET");
}

/// The flags of every command that has to name the same counts as the pods.
pub type KeyFlags = Flags<KeyTable>;

settings! {
    /// How tokens are leased.
    pub(super) group LeaseTable("Leases");

    /// Maximum time, a duration, for which a request waits for a lease if its caller sets no
    /// deadline
    LEASE_MAX_WAIT: Setting<Duration> =
        setting("SPAN", "5ms", |text| value::duration_within(text, Duration::ZERO..=MAX_WAIT_MAX))
            .alias("max-wait");
    /// Maximum wait, a duration, if the caller sets a deadline (grpc-timeout); at least
    /// --lease-max-wait
    LEASE_WAIT_LIMIT: Setting<Duration> =
        setting("SPAN", "15ms", |text| value::duration_within(text, Duration::ZERO..=MAX_WAIT_MAX));
    /// Number of pods of each domain, 1 to 10000, assumed until Redis reports it
    PODS_EXPECTED: Setting<usize> =
        setting("COUNT", "16", |text| value::count_within(text, 1..=PODS_MAX));
    /// Memory for the buffers of keys, a size; when it is full, idle keys are evicted
    BUFFER_MEMORY: Setting<usize> = setting("SIZE", "64MiB", |text| {
        value::size_within(text, BUFFER_MEMORY_MIN..=BUFFER_MEMORY_MAX)
    });
}

settings! {
    /// How `serve` ends.
    pub(super) group DrainTable("Leases");

    /// Maximum time, a duration, for requests in flight and for giving back leases after a signal
    DRAIN_TIMEOUT: Setting<Duration> =
        setting("SPAN", "10s", |text| value::duration_within(text, Duration::ZERO..=DRAIN_MAX))
            .alias("drain");
}

#[derive(Debug, Args)]
pub(super) struct LeaseFlags {
    #[command(flatten)]
    leases: Flags<LeaseTable>,
    #[command(flatten)]
    key: KeyFlags,
    #[command(flatten)]
    drain: Flags<DrainTable>,
}

// === impl KeyFlags ===

impl KeyFlags {
    /// Resolves the secret; empty for the built-in one.
    pub fn key_secret(&self, faults: &mut Faults) -> Option<Secret> {
        self.secret(&KEY_SECRET, faults).map(Option::unwrap_or_default)
    }
}

// === impl LeaseFlags ===

impl LeaseFlags {
    pub(super) fn resolve(&self, faults: &mut Faults) -> Option<Leases> {
        let max_wait = self.leases.get(&LEASE_MAX_WAIT, faults);
        let wait_limit = self.leases.get(&LEASE_WAIT_LIMIT, faults);
        let pods_expected = self.leases.get(&PODS_EXPECTED, faults);
        let key_secret = self.key.key_secret(faults);
        let buffer_bytes_max = self.leases.get(&BUFFER_MEMORY, faults);
        Some(Leases {
            max_wait: max_wait?,
            wait_limit: wait_limit?,
            pods_expected: u32::try_from(pods_expected?).ok()?,
            buffer_bytes_max: buffer_bytes_max?,
            key_secret: key_secret?,
        })
    }

    pub(super) fn drain(&self, faults: &mut Faults) -> Option<Duration> {
        self.drain.get(&DRAIN_TIMEOUT, faults)
    }
}
