//! The move from one Redis to another, by the commands of `docs/operate.md`.

use std::process::Command;
use std::time::Duration;

use super::{RULES, rules};
use crate::support::proxy::Proxy;
use crate::support::ratelease::Ratelease;
use crate::support::redis_server::Server;
use crate::support::{http, now, wait_for};

/// A request on `PORT`, of which [`RULES`] lets three pass a year.
const CHARGE: &str =
    r#"{"domain": "shop", "descriptors": [{"entries": [{"key": "user", "value": "a"}]}]}"#;

const PATIENCE: Duration = Duration::from_secs(30);

/// The commands of the block that begins with `redis-cli -h new-redis`, without what they print.
fn commands() -> Vec<&'static str> {
    let page = include_str!("../../../docs/operate.md");
    let from = page.find("$ redis-cli -h new-redis").expect("the block");
    let block = page[from..].split("```").next().expect("its end");
    block.lines().filter_map(|line| line.strip_prefix("$ ")).collect()
}

/// Runs a command of the page, where both names mean servers of this machine.
fn run(command: &str, old: &Server, new: &Server) -> String {
    let [old, new] = [old, new].map(|server| server.port().to_string());
    let command = command
        .replace("old-redis 6379", &format!("127.0.0.1 {old}"))
        .replace("-h old-redis", &format!("-p {old}"))
        .replace("-h new-redis", &format!("-p {new}"));
    let ran = Command::new("bash").args(["-c", &command]).output().expect("bash runs");
    String::from_utf8_lossy(&ran.stdout).into_owned()
}

/// Whether the pod lets the request pass, as Redis says: without it the failure mode denies.
async fn passes(pod: &Ratelease) -> bool {
    let mut client = http::Client::connect(pod.http).await.expect("the pod listens");
    client.send("POST", "/json", &[], CHARGE).await.expect("an answer").status == 200
}

#[tokio::test(flavor = "multi_thread")]
async fn a_move_by_the_commands_of_the_page_keeps_the_counts() {
    let (old, new) = (Server::start(&[]), Server::start(&["--repl-diskless-sync-delay", "0"]));
    old.command::<()>(&["CONFIG", "SET", "repl-diskless-sync-delay", "0"]);
    let name = Proxy::start();
    name.lead_to(old.port());
    let rules =
        rules(&RULES.replace("{name: per_user", "{failure_mode: deny, lease: off, name: per_user"));
    let url = name.addr.to_string();
    let env = [("REDIS_URL", url.as_str()), ("LEASE_MAX_WAIT", "4s"), ("LEASE_WAIT_LIMIT", "4s")];
    let pod = Ratelease::start(rules.path(), &[], &env).await;
    assert!(passes(&pod).await && passes(&pod).await);

    let [follow, is_up, pause, take_over] = commands().try_into().expect("four commands");
    assert_eq!(run(follow, &old, &new).trim(), "OK");
    wait_for("the new server follows", PATIENCE, || {
        run(is_up, &old, &new).contains("master_link_status:up").then_some(())
    });
    assert_eq!(run(pause, &old, &new).trim(), "OK");
    wait_for("the new server has all", PATIENCE, || {
        let (of_old, of_new) = (old.info("replication"), new.info("replication"));
        (of_new.get("slave_repl_offset")? == of_old.get("master_repl_offset")?).then_some(())
    });
    assert_eq!(run(take_over, &old, &new).trim(), "OK");
    name.lead_to(new.port());
    drop(old);

    let begun = now();
    while !passes(&pod).await {
        assert!(begun.elapsed() < PATIENCE, "the pod does not find the new server");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert!(!passes(&pod).await, "the third request used the limit up");
    assert_eq!(new.keys().iter().filter(|key| key.contains('{')).count(), 1);
    pod.is_unharmed();
}
