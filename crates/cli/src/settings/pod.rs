//! Where a pod's listeners are, for commands that call the pod in the environment of `serve`.

use std::path::PathBuf;

use ratelease_engine::secret::Secret;

use super::fault::{Fault, Faults};
use super::group::{Flags, Values};
use super::listeners::{
    DEBUG_HOST, DEBUG_PORT, DEBUG_TOKEN, GRPC_HOST, GRPC_PORT, GRPC_UDS, HOST, PORT,
};
use super::table::{Group, Row, Setting};
use super::value::HostPort;

/// The settings of the listeners that answer whether a pod is healthy.
#[derive(Debug)]
pub enum HealthListenerTable {}

impl Group for HealthListenerTable {
    const HEADING: &'static str = "Listeners";
    const ROWS: &'static [Row] = &[HOST.row, PORT.row, GRPC_HOST.row, GRPC_PORT.row, GRPC_UDS.row];
    const IS_HIDDEN: bool = true;
}

/// The settings of the debug listener.
#[derive(Debug)]
pub enum DebugListenerTable {}

impl Group for DebugListenerTable {
    const HEADING: &'static str = "Listeners";
    const ROWS: &'static [Row] = &[DEBUG_HOST.row, DEBUG_PORT.row, DEBUG_TOKEN.row];
    const IS_HIDDEN: bool = true;
}

/// Hidden flags of the listeners that answer whether a pod is healthy.
pub type HealthListenerFlags = Flags<HealthListenerTable>;

/// Hidden flags of the debug listener.
pub type DebugListenerFlags = Flags<DebugListenerTable>;

// === impl HealthListenerFlags ===

impl HealthListenerFlags {
    /// Returns the address at which to call the HTTP listener.
    pub fn http(&self, faults: &mut Faults) -> Option<HostPort> {
        address(self, (&HOST, &PORT), faults)
    }

    /// Returns the Unix socket of the gRPC listener, if it has one.
    pub fn grpc_socket(&self, faults: &mut Faults) -> Option<Option<PathBuf>> {
        self.optional(&GRPC_UDS, faults)
    }

    /// Returns the address at which to call the gRPC listener, if it has no Unix socket.
    pub fn grpc(&self, faults: &mut Faults) -> Option<HostPort> {
        address(self, (&GRPC_HOST, &GRPC_PORT), faults)
    }
}

// === impl DebugListenerFlags ===

impl DebugListenerFlags {
    /// Returns the address at which to call the debug listener.
    pub fn address(&self, faults: &mut Faults) -> Option<HostPort> {
        address(self, (&DEBUG_HOST, &DEBUG_PORT), faults)
    }

    /// Returns the token that the debug listener requires; empty for none.
    pub fn token(&self, faults: &mut Faults) -> Option<Secret> {
        self.secret(&DEBUG_TOKEN, faults).map(Option::unwrap_or_default)
    }
}

/// Returns the address at which to call a listener.
fn address(
    values: &Values,
    (host, port): (&Setting<String>, &Setting<u16>),
    faults: &mut Faults,
) -> Option<HostPort> {
    let (host, number) = (values.get(host, faults), values.get(port, faults));
    if number == Some(0) {
        let problem = "0 lets the listener choose its port, which is not known here";
        faults.add(Fault::new(values.name(&port.row), problem, "name the address with a flag"));
        return None;
    }
    Some(HostPort::new(host?, number?).reachable())
}
