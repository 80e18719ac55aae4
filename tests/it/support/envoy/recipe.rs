//! The bootstraps of `envoy/recipes`, with the addresses of a test.

use std::net::SocketAddr;

use super::ANY_PORT;

/// Port of ratelease in the files of recipes (docs/recipes.md).
const RATELEASE: &str = "8081";

/// Port of the application in the files of recipes (docs/recipes.md).
const APP: &str = "8000";

/// Time that Envoy waits for an answer, longer than the recipes' own: a machine that also compiles
/// must not make a verdict an error.
const TIMEOUT: &str = "8s";

/// Returns a recipe's bootstrap whose time-outs of less than a second are longer.
pub(crate) fn patient(bootstrap: &str) -> String {
    let lines = bootstrap.lines().map(|line| {
        let is_short = line.trim_start().starts_with("timeout: 0.");
        let name = line.split_once("timeout: ").filter(|_| is_short).map(|(name, _)| name);
        name.map_or_else(|| format!("{line}\n"), |name| format!("{name}timeout: {TIMEOUT}\n"))
    });
    lines.collect()
}

/// Returns a recipe's bootstrap with the addresses of a pod and of an application; all other
/// listeners are on ports that Envoy chooses. Each address of a file has the form
/// `socket_address: {address: A, port_value: P}`, on one line.
pub(crate) fn with_addresses(bootstrap: &str, pod: SocketAddr, app: SocketAddr) -> String {
    let lines = bootstrap.lines().map(|line| {
        let Some((before, address)) = line.split_once("socket_address: {address: ") else {
            assert!(!line.contains("socket_address"), "not of that form: {line}");
            return format!("{line}\n");
        };
        let (address, after) = address.split_once('}').expect("an address on one line");
        let (_, port) = address.split_once("port_value: ").expect("a port beside the address");
        let address = match port {
            RATELEASE => pod,
            APP => app,
            _ => ANY_PORT,
        };
        let (host, port) = (address.ip(), address.port());
        format!("{before}socket_address: {{address: {host}, port_value: {port}}}{after}\n")
    });
    lines.collect()
}
