//! The last good rules, kept in a file: they take effect if a start finds none to load.

use std::fs;
use std::path::Path;

use tempfile::TempDir;

use super::{QUICK_END, RULES, SOON, decide, refuses_to_start, rules};
use crate::support::files::put;
use crate::support::ratelease::Ratelease;

/// A rules directory, and a path for the snapshot beside it.
struct Place {
    dir: TempDir,
    rules: TempDir,
}

impl Place {
    fn new() -> Self {
        Self { dir: TempDir::new().unwrap(), rules: rules(RULES) }
    }

    fn snapshot(&self) -> std::path::PathBuf {
        self.dir.path().join("rules.snapshot")
    }

    fn spawn(&self, rules: &Path) -> Ratelease {
        let snapshot = self.snapshot();
        let env = [("RULES_SNAPSHOT", snapshot.to_str().unwrap()), QUICK_END];
        Ratelease::spawn(rules, &[], &env)
    }

    /// Runs a pod until it has written its rules, and ends it.
    async fn keep(&self) {
        let pod = self.spawn(self.rules.path());
        pod.ready().await;
        let written = async || self.snapshot().exists();
        pod.process.until("written", SOON, written).await;
        assert_eq!(pod.stop().await, 0);
    }
}

async fn serves(pod: &Ratelease) {
    assert_eq!(decide(pod, "hundred", "v").await.is_over_limit(), Some(false));
    pod.is_unharmed();
}

#[tokio::test(flavor = "multi_thread")]
async fn without_rules_to_load_those_of_the_snapshot_are_in_force_until_there_are() {
    let place = Place::new();
    place.keep().await;
    let dir = place.dir.path().join("rules");
    fs::write(place.dir.path().join("file"), "").unwrap();
    fs::create_dir(place.dir.path().join("bad")).unwrap();
    fs::write(place.dir.path().join("bad/test.yaml"), "domain: [").unwrap();
    let faults = [
        ("rules", "does not exist"),
        ("file", "is not a directory"),
        ("bad", "test.yaml:2:1: error loading config file"),
    ];
    for (broken, fault) in faults {
        let pod = place.spawn(&place.dir.path().join(broken));
        pod.ready().await;
        serves(&pod).await;
        pod.logs("the rules of the snapshot are in force: ").await;
        pod.logs("the rules of the snapshot are in force until these faults are fixed").await;
        let reported = &pod.status()["rules"];
        assert_eq!(
            (&reported["from_snapshot"], &reported["count"]),
            (&true.into(), &4.into()),
            "{reported}"
        );
        assert!(reported["last_fault"].as_str().is_some_and(|it| it.contains(fault)), "{reported}");
        assert_eq!(reported["loads_ok"], 0, "{reported}");
    }
    let pod = place.spawn(&dir);
    pod.ready().await;
    fs::create_dir(&dir).unwrap();
    put(dir.join("test.yaml"), format!("{RULES}  - key: more\n"));
    let replaced = async || pod.status()["rules"]["from_snapshot"] == false;
    pod.process.until("using the directory", SOON, replaced).await;
    let reported = &pod.status()["rules"];
    assert_eq!(
        (&reported["loads_ok"], &reported["last_fault"]),
        (&1.into(), &().into()),
        "{reported}"
    );
    serves(&pod).await;
    assert_eq!(pod.stop().await, 0);
}

/// A unit test tries each place where a damaged file may be cut.
#[tokio::test(flavor = "multi_thread")]
async fn a_snapshot_that_is_not_whole_is_refused() {
    let place = Place::new();
    place.keep().await;
    let missing = place.dir.path().join("rules");
    let whole = fs::read(place.snapshot()).unwrap();
    let newer = String::from_utf8_lossy(&whole).replacen(" 2 ", " 3 ", 1).into_bytes();
    for (name, bytes, why) in [
        ("cut", &whole[..whole.len() / 2], "the file is damaged or truncated; remove it"),
        ("empty", &[], "the file is damaged or truncated; remove it"),
        ("foreign", RULES.as_bytes(), "the file is not a snapshot of rules; choose another file"),
        (
            "newer",
            &newer,
            "the file has format 3, and this version knows formats up to 2 only; remove it",
        ),
    ] {
        fs::write(place.snapshot(), bytes).unwrap();
        let pod = place.spawn(&missing);
        assert_eq!(pod.process.exit(SOON).await, 1, "{name}: {}", pod.process.log());
        let log = pod.process.log();
        assert!(log.contains("the snapshot of the rules is not used: "), "{name}: {log}");
        assert!(log.contains(why), "{name}: {log}");
        assert!(log.contains("rules: does not exist"), "{name}: {log}");
        assert_eq!(fs::read(place.snapshot()).unwrap(), bytes, "{name}: it is not touched");
    }
    // Good rules replace an unusable file.
    place.keep().await;
    let pod = place.spawn(place.rules.path());
    pod.ready().await;
    let restored = async || fs::read(place.snapshot()).is_ok_and(|it| it == whole);
    pod.process.until("writing the snapshot anew", SOON, restored).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_snapshot_that_cannot_be_written_is_logged_once_and_harms_nothing() {
    let rules = rules(RULES);
    for path in ["/dev/null/snapshot", "/no/such/directory/snapshot", "/proc/snapshot"] {
        let pod = Ratelease::start(rules.path(), &[], &[("RULES_SNAPSHOT", path), QUICK_END]).await;
        pod.logs("the rules are in force, but not kept as a snapshot: ").await;
        let counted = async || pod.count("snapshot_failures") > 0;
        pod.process.until("counting the failure", SOON, counted).await;
        put(rules.path().join("more.yaml"), "domain: more\n");
        let loaded = async || pod.status()["rules"]["loads_ok"] == 2;
        pod.process.until("loading more", SOON, loaded).await;
        fs::remove_file(rules.path().join("more.yaml")).unwrap();
        serves(&pod).await;
        assert_eq!(pod.stop().await, 0);
        super::only_line(&pod, "not kept as a snapshot");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_snapshot_a_directory_that_cannot_be_read_still_ends_the_start() {
    let place = Place::new();
    let missing = place.dir.path().join("rules");
    let pod = place.spawn(&missing);
    assert_eq!(pod.process.exit(SOON).await, 1);
    assert!(pod.process.log().contains("the file does not exist yet"), "{}", pod.process.log());
    refuses_to_start(&missing, &[], &["rules: does not exist"]).await;
}
