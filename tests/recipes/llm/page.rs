//! The commands of docs/llm.md, run as they are, on the ports of a test.

use std::fs;
use std::path::Path;

use tokio::process::Command;

use super::Rig;

/// What the test starts in their place, with the same files.
const SERVERS: &str = "\
$ python3 scripts/lib/fake_llm.py 8000 &
$ ratelease serve --rules envoy/recipes/llm-holds/rules &
$ envoy -c envoy/recipes/llm-holds/envoy.yaml &
";

#[tokio::test]
async fn the_commands_of_the_page_print_what_it_shows() {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/llm.md");
    let page = fs::read_to_string(page).unwrap();
    let blocks: Vec<_> =
        page.split("```console\n").skip(1).map(|it| it.split("```").next()).collect();
    let [Some(servers), Some(asks), Some(_demo)] = blocks[..] else { panic!("{blocks:?}") };
    assert_eq!(servers, SERVERS);

    let rig = Rig::start("llm-holds").await;
    let (envoy, llm) = (rig.recipe.envoy.ingress.to_string(), rig.llm.address.to_string());
    let mut script = String::new();
    let mut shown = String::new();
    for line in asks.lines() {
        if let Some(command) = line.strip_prefix("$ ") {
            script += &format!("{command}\n");
        } else if script.ends_with("\\\n") {
            script += &format!("{line}\n");
        } else {
            shown += &format!("{line}\n");
        }
    }
    let script = script.replace("localhost:10000", &envoy).replace("localhost:8000", &llm);
    let files = tempfile::TempDir::new().unwrap();
    let mut shell = Command::new("bash");
    shell.args(["-ec", &script]).current_dir(files.path());
    let ran = shell.output().await.unwrap();
    assert_eq!(String::from_utf8_lossy(&ran.stdout), shown, "{ran:?}");
    rig.recipe.envoy.stop().await;
    assert_eq!(rig.recipe.pod.expect("a pod").stop().await, 0);
}
