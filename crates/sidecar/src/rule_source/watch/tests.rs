//! Tests with a real directory, real events and real time: which rules come into force after
//! changes of the files.

mod rig;
mod snapshot;

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use notify::event::{AccessKind, AccessMode, CreateKind, DataChange, Flag, ModifyKind};
use notify::{Event, EventKind};

use super::*;
use crate::file_watch::DIRECTORIES_MAX;
use rig::{BAD, PANIC, Rig};

/// Writes a file beside `path`, then renames it into place.
fn replace(path: &Path, text: &str) {
    let temporary = path.with_extension("tmp");
    fs::write(&temporary, text).expect("write");
    fs::rename(temporary, path).expect("rename");
}

/// Swaps the link at `path` for one to `target`, in one step.
fn relink(path: &Path, target: impl AsRef<Path>) {
    let temporary = path.with_file_name("..link");
    symlink(target, &temporary).expect("link");
    fs::rename(temporary, path).expect("rename");
}

#[tokio::test]
async fn files_added_changed_renamed_into_place_and_removed_come_into_force() {
    let mut rig = Rig::new();
    rig.write("a.yaml", "1");
    rig.start().await.expect("good rules");
    assert_eq!(rig.in_force(), "a.yaml=1");
    rig.write("b.yaml", "1");
    rig.until_in_force("a.yaml=1 b.yaml=1").await;
    rig.write("a.yaml", "2");
    rig.until_in_force("a.yaml=2 b.yaml=1").await;
    replace(&rig.path("a.yaml"), "3");
    rig.until_in_force("a.yaml=3 b.yaml=1").await;
    fs::rename(rig.path("b.yaml"), rig.path("c.yaml")).expect("rename");
    rig.until_in_force("a.yaml=3 c.yaml=1").await;
    fs::remove_file(rig.path("a.yaml")).expect("remove");
    rig.until_in_force("c.yaml=1").await;
    fs::remove_file(rig.path("c.yaml")).expect("remove");
    rig.until_in_force("").await;
    assert_eq!(rig.published.loads_failed(), 0);
}

#[tokio::test]
#[allow(clippy::disallowed_methods)] // measures real time
async fn a_change_is_live_within_a_second() {
    let mut rig = Rig::new();
    rig.write("a.yaml", "0");
    rig.start().await.expect("good rules");
    let mut waits = Vec::new();
    for n in 1..=5 {
        let start = Instant::now();
        rig.write("a.yaml", &n.to_string());
        rig.until_in_force(&format!("a.yaml={n}")).await;
        waits.push(start.elapsed());
    }
    // The best of five: other processes may load the machine.
    assert!(waits.iter().min() < Some(&Duration::from_secs(1)), "{waits:?}");
}

#[tokio::test]
async fn a_config_map_may_be_swapped_again_and_again() {
    let mut rig = Rig::new();
    let dir = rig.path("");
    let version = |n: u32| dir.join(format!("..2026_{n}"));
    let mount = |n: u32| {
        fs::create_dir(version(n)).expect("directory");
        for name in ["a.yaml", "b.yaml"] {
            fs::write(version(n).join(name), n.to_string()).expect("write");
        }
        // The link's target is relative, like the kubelet's.
        relink(&dir.join("..data"), format!("..2026_{n}"));
    };
    mount(0);
    for name in ["a.yaml", "b.yaml"] {
        symlink(format!("..data/{name}"), dir.join(name)).expect("link");
    }
    rig.start().await.expect("good rules");
    for n in 1..=4 {
        mount(n);
        fs::remove_dir_all(version(n - 1)).expect("remove");
        rig.until_in_force(&format!("a.yaml={n} b.yaml={n}")).await;
    }
    // A mixture of two versions was never in force.
    let versions: Vec<_> = (0..=4).map(|n| format!("a.yaml={n} b.yaml={n}")).collect();
    assert_eq!(rig.compiled(), versions);
    assert_eq!(rig.published.loads_failed(), 0);
}

#[tokio::test]
async fn the_directory_may_be_removed_restored_and_replaced() {
    let mut rig = Rig::new();
    rig.write("a.yaml", "1");
    rig.start().await.expect("good rules");
    for n in 2..=4 {
        fs::remove_dir_all(rig.path("")).expect("remove");
        rig.until_failed(n - 1).await;
        assert_eq!(rig.in_force(), format!("a.yaml={}", n - 1), "the last good rules stay");
        fs::create_dir(rig.path("")).expect("directory");
        rig.write("a.yaml", &n.to_string());
        rig.until_in_force(&format!("a.yaml={n}")).await;
    }
    // Immediately, so that the new directory may have the inode number of the old one.
    for n in 5..=8 {
        fs::remove_dir_all(rig.path("")).expect("remove");
        fs::create_dir(rig.path("")).expect("directory");
        rig.write("a.yaml", &format!("{n} new"));
        rig.until_in_force(&format!("a.yaml={n} new")).await;
        rig.write("a.yaml", &format!("{n} edited"));
        rig.until_in_force(&format!("a.yaml={n} edited")).await;
    }
    let aside = rig.above("aside");
    fs::rename(rig.path(""), &aside).expect("rename");
    fs::create_dir(rig.path("")).expect("directory");
    rig.write("a.yaml", "moved");
    rig.until_in_force("a.yaml=moved").await;
    // The directory now in place is watched, not the one that was moved away.
    rig.write("a.yaml", "edited");
    rig.until_in_force("a.yaml=edited").await;
}

#[tokio::test]
async fn a_directory_that_is_missing_at_first_is_found_when_it_appears() {
    let mut rig = Rig::below("not/yet/here");
    let failed = rig.start().await.expect_err("nothing there");
    assert!(failed.to_string().contains("not/yet/here"), "{failed}");
    assert!(rig.published.current().is_none());
    assert_eq!(rig.published.last_fault(), Some(failed.to_string()));
    fs::create_dir_all(rig.path("")).expect("directories");
    rig.write("a.yaml", "1");
    rig.until_in_force("a.yaml=1").await;
    assert_eq!(rig.published.last_fault(), None);
}

#[tokio::test]
async fn a_root_that_is_a_link_may_be_swapped() {
    let mut rig = Rig::below("current/shop/config");
    rig.root = Some(rig.above("current"));
    swap_current(rig).await;
}

#[tokio::test]
async fn a_link_on_the_path_may_be_swapped_without_a_root() {
    swap_current(Rig::below("current/shop/config")).await;
}

async fn swap_current(mut rig: Rig) {
    for version in ["v1", "v2", "v3"] {
        let dir = rig.above(version).join("shop/config");
        fs::create_dir_all(&dir).expect("directories");
        fs::write(dir.join("a.yaml"), version).expect("write");
    }
    symlink("v1", rig.above("current")).expect("link");
    rig.start().await.expect("good rules");
    assert_eq!(rig.in_force(), "a.yaml=v1");
    relink(&rig.above("current"), "v2");
    rig.until_in_force("a.yaml=v2").await;
    relink(&rig.above("current"), rig.above("v3"));
    rig.until_in_force("a.yaml=v3").await;
    rig.write("a.yaml", "edited");
    rig.until_in_force("a.yaml=edited").await;
    fs::remove_file(rig.above("current")).expect("remove");
    rig.until_failed(1).await;
    symlink("v1", rig.above("current")).expect("link");
    rig.until_in_force("a.yaml=v1").await;
}

#[tokio::test]
async fn a_directory_between_the_root_and_the_rules_may_be_replaced() {
    let mut rig = Rig::below("data/shop/config");
    fs::create_dir_all(rig.path("")).expect("directories");
    rig.write("a.yaml", "1");
    rig.root = Some(rig.above("data"));
    rig.start().await.expect("good rules");
    fs::create_dir_all(rig.above("new/shop/config")).expect("directories");
    fs::write(rig.above("new/shop/config/a.yaml"), "2").expect("write");
    fs::rename(rig.above("data/shop"), rig.above("old")).expect("rename");
    fs::rename(rig.above("new/shop"), rig.above("data/shop")).expect("rename");
    rig.until_in_force("a.yaml=2").await;
    fs::rename(rig.above("data"), rig.above("older")).expect("rename");
    fs::create_dir_all(rig.path("")).expect("directories");
    rig.write("a.yaml", "3");
    rig.until_in_force("a.yaml=3").await;
}

#[tokio::test]
async fn nested_directories_are_watched_as_they_appear_and_disappear() {
    let mut rig = Rig::new();
    rig.start().await.expect("an empty directory is a good one");
    assert_eq!(rig.in_force(), "");
    fs::create_dir_all(rig.path("x/y")).expect("directories");
    rig.write("x/y/a.yaml", "1");
    rig.until_in_force("x/y/a.yaml=1").await;
    rig.write("x/y/a.yaml", "2");
    rig.until_in_force("x/y/a.yaml=2").await;
    fs::rename(rig.path("x"), rig.path("z")).expect("rename");
    rig.until_in_force("z/y/a.yaml=2").await;
    rig.write("z/y/a.yaml", "3");
    rig.until_in_force("z/y/a.yaml=3").await;
    fs::remove_dir_all(rig.path("z")).expect("remove");
    rig.until_in_force("").await;
}

#[tokio::test]
async fn files_and_directories_behind_links_are_watched_where_they_are() {
    let mut rig = Rig::new();
    fs::create_dir_all(rig.above("else/where")).expect("directories");
    fs::write(rig.above("else/a"), "1").expect("write");
    fs::write(rig.above("else/where/b.yaml"), "1").expect("write");
    symlink("../else/a", rig.path("a.yaml")).expect("link");
    symlink(rig.above("else/where"), rig.path("sub")).expect("link");
    rig.start().await.expect("good rules");
    assert_eq!(rig.in_force(), "a.yaml=1 sub/b.yaml=1");
    fs::write(rig.above("else/a"), "2").expect("write");
    rig.until_in_force("a.yaml=2 sub/b.yaml=1").await;
    replace(&rig.above("else/where/b.yaml"), "2");
    rig.until_in_force("a.yaml=2 sub/b.yaml=2").await;
}

#[tokio::test]
async fn bad_rules_leave_the_good_ones_and_are_counted_and_logged_once() {
    let mut rig = Rig::new();
    let log = rig.log();
    rig.write("a.yaml", "1");
    rig.start().await.expect("good rules");
    let good = rig.published.current().expect("rules");
    rig.write("a.yaml", BAD);
    rig.until_failed(1).await;
    let current = rig.published.current().expect("rules");
    assert!(Arc::ptr_eq(&good, &current), "the very same rules stay");
    assert_eq!(rig.published.last_fault().as_deref(), Some("a.yaml:1:1: bad"));
    // The same content again causes an event and a reading, and nothing else.
    let readings = rig.readings();
    replace(&rig.path("a.yaml"), BAD);
    rig.until_readings(readings + 1).await;
    rig.write("b.yaml", BAD);
    rig.until_failed(2).await;
    assert_eq!(rig.published.last_fault().as_deref(), Some("a.yaml:1:1: bad\nb.yaml:1:1: bad"));
    let lines: Vec<_> = log.lines().into_iter().filter(|line| line.contains("ERROR")).collect();
    let count = |text: &str| lines.iter().filter(|line| line.contains(text)).count();
    assert_eq!((lines.len(), count("refused"), count("a.yaml:1:1: bad")), (5, 2, 2), "{lines:#?}");
}

#[tokio::test]
async fn restoring_the_rules_in_force_clears_the_fault_without_a_new_version() {
    let mut rig = Rig::new();
    rig.write("a.yaml", "1");
    rig.start().await.expect("good rules");
    let changes = rig.published.changes();
    rig.write("a.yaml", BAD);
    rig.until_failed(1).await;
    rig.write("a.yaml", "1");
    rig.until_ok(2).await;
    assert_eq!(rig.published.last_fault(), None);
    assert!(!changes.has_changed().expect("open"));
    // A file that becomes bad again is a new fault.
    rig.write("a.yaml", BAD);
    rig.until_failed(2).await;
}

#[tokio::test]
async fn the_first_load_is_counted_and_not_logged() {
    let mut rig = Rig::new();
    let log = rig.log();
    rig.write("a.yaml", BAD);
    let failed = rig.start().await.expect_err("bad rules");
    assert_eq!(failed.faults, ["a.yaml:1:1: bad"]);
    assert_eq!((rig.published.loads_ok(), rig.published.loads_failed()), (0, 1));
    assert_eq!(log.lines(), [""; 0]);
    rig.write("a.yaml", "1 odd");
    rig.until_in_force("a.yaml=1 odd").await;
    assert!(log.lines().iter().any(|line| line.contains("rules: a.yaml:1:3: odd")));
}

#[tokio::test]
async fn a_partly_written_file_is_refused_until_it_is_complete() {
    let mut rig = Rig::new();
    rig.write("a.yaml", "1");
    rig.start().await.expect("good rules");
    rig.write("a.yaml", "2 trunc");
    rig.until_failed(1).await;
    assert_eq!(rig.in_force(), "a.yaml=1");
    rig.write("a.yaml", "2 truncated no more");
    rig.until_in_force("a.yaml=2 truncated no more").await;
}

#[tokio::test]
async fn many_quick_writes_are_few_loads() {
    let mut rig = Rig::new();
    rig.write("a.yaml", "0");
    rig.start().await.expect("good rules");
    for n in 1..=50 {
        rig.write("a.yaml", &n.to_string());
    }
    rig.until_in_force("a.yaml=50").await;
    let compiled = rig.compiled();
    assert!(compiled.len() <= 4, "{} loads: {compiled:?}", compiled.len());
}

#[tokio::test]
async fn continuous_changes_do_not_delay_a_load_forever() {
    let mut rig = Rig::new();
    rig.write("a.yaml", "0");
    rig.start().await.expect("good rules");
    let is_over = Arc::new(AtomicBool::new(false));
    let (path, stop) = (rig.path("b.yaml"), Arc::clone(&is_over));
    let writer = thread::spawn(move || {
        let mut n = 0;
        while !stop.load(Ordering::Relaxed) {
            n += 1;
            replace(&path, &n.to_string());
            thread::yield_now();
        }
        n
    });
    rig.until_ok(3).await;
    is_over.store(true, Ordering::Relaxed);
    let last = writer.join().expect("writer");
    rig.until_in_force(&format!("a.yaml=0 b.yaml={last}")).await;
}

#[tokio::test]
async fn without_events_polling_finds_a_change() {
    let mut rig = Rig::new();
    rig.write("a.yaml", "1");
    rig.start_blind(Duration::from_millis(50)).await.expect("good rules");
    rig.write("a.yaml", "2");
    rig.until_in_force("a.yaml=2").await;
    let readings = rig.readings();
    rig.until_readings(readings + 3).await;
    assert_eq!(rig.compiled().len(), 2, "what is known is not compiled again");
}

#[tokio::test]
async fn a_loader_panic_is_a_fault_and_the_watch_goes_on() {
    let mut rig = Rig::new();
    rig.write("a.yaml", "1");
    rig.start().await.expect("good rules");
    rig.write("a.yaml", PANIC);
    rig.until_failed(1).await;
    assert!(rig.published.last_fault().is_some_and(|fault| fault.contains("panicked")));
    assert_eq!(rig.published.panics(), 1);
    rig.write("a.yaml", "2");
    rig.until_in_force("a.yaml=2").await;
}

#[tokio::test]
async fn a_dropped_watcher_ends_its_thread() {
    let mut rig = Rig::new();
    rig.start().await.expect("good rules");
    let loader = rig.loader_alive();
    assert!(loader.upgrade().is_some());
    rig.stop();
    rig.until_gone(&loader).await;
}

#[test]
fn reading_a_file_is_irrelevant_and_lost_events_are_relevant() {
    let dir = tempfile::tempdir().expect("directory");
    let path = dir.path().canonicalize().expect("path");
    let watch_set = WatchSet::directory(&path, None);
    let event = |kind, name: &str| Event::new(kind).add_path(path.join(name));
    let access = EventKind::Access(AccessKind::Open(AccessMode::Any));
    let data = EventKind::Modify(ModifyKind::Data(DataChange::Any));
    assert!(!watch_set.is_relevant(&event(access, "a.yaml")));
    assert!(watch_set.is_relevant(&event(data, "a.yaml")));
    assert!(watch_set.is_relevant(&event(EventKind::Create(CreateKind::Folder), "x")));
    assert!(watch_set.is_relevant(&Event::new(EventKind::Other).set_flag(Flag::Rescan)));
    let beside = Event::new(data).add_path(path.with_file_name("unrelated"));
    assert!(!watch_set.is_relevant(&beside), "what lies beside the directory is no rule");
    assert!(watch_set.is_relevant(&Event::new(EventKind::Create(CreateKind::Any)).add_path(path)));
}

#[test]
fn link_cycles_and_too_many_directories_are_bounded() {
    let dir = tempfile::tempdir().expect("directory");
    let path = dir.path().canonicalize().expect("path");
    symlink("b", path.join("a")).expect("link");
    symlink("a", path.join("b")).expect("link");
    symlink(".", path.join("self")).expect("link");
    symlink("nowhere", path.join("dangling")).expect("link");
    assert!(!WatchSet::directory(&path, None).is_truncated);
    for n in 0..DIRECTORIES_MAX {
        fs::create_dir(path.join(n.to_string())).expect("directory");
    }
    let watch_set = WatchSet::directory(&path, None);
    assert!(watch_set.is_truncated);
    assert_eq!(watch_set.directories.len(), DIRECTORIES_MAX);
}
