//! Each thread of a pod has a name that says what it is for: `docs/design.md` lists them.

use std::collections::BTreeSet;
use std::fs;

use super::{RULES, SOON, rules};
use crate::support::ratelease::Ratelease;

/// The name of each thread, as `top -H` shows it: the first 15 bytes.
const NAMES: [&str; 8] = [
    "jemalloc_bg_thd",
    "notify-rs inoti",
    "ratelease",
    "ratelease-core0",
    "ratelease-core1",
    "ratelease-log",
    "ratelease-pages",
    "ratelease-rules",
];

/// The name of the threads that are there while a task blocks, and for some seconds after it.
const AT_TIMES: &str = "ratelease-block";

/// The names of the threads of the process `pid`. A thread that ends meanwhile is left out.
fn names(pid: u32) -> BTreeSet<String> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    let names =
        tasks.flatten().filter_map(|task| fs::read_to_string(task.path().join("comm")).ok());
    names.map(|name| name.trim_end().to_owned()).collect()
}

#[tokio::test]
async fn every_thread_has_a_name_of_its_own() {
    let rules = rules(RULES);
    let pod = Ratelease::start(rules.path(), &[], &[("THREADS", "2")]).await;
    let expected = BTreeSet::from(NAMES.map(str::to_owned));
    // The allocator starts its threads in the background.
    let are_named = async || {
        let mut names = names(pod.process.pid());
        names.remove(AT_TIMES);
        names == expected
    };
    let what = format!("running threads named {expected:?}");
    pod.process.until(&what, SOON, are_named).await;
}
