//! The snapshot as the watch uses it: read when there is nothing to load, written when there is.

use std::sync::Arc;

use super::rig::{BAD, PANIC, Rig};
use crate::rule_source::snapshot::Snapshot;

/// A rig whose directory holds `text`, and whose snapshot holds `kept`.
async fn rig(text: &str, kept: &str) -> Rig {
    let mut rig = Rig::new();
    let snapshot = Arc::new(Snapshot::new(rig.above("snapshot")));
    rig.snapshot = Some(Arc::clone(&snapshot));
    let source = ratelease_rules::Source { name: "a.yaml".to_owned(), text: kept.into() };
    snapshot.set_sources(vec![Arc::new(source)]);
    let writing = tokio::spawn(Arc::clone(&snapshot).run());
    while snapshot.read().is_err() {
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    }
    writing.abort();
    rig.write("a.yaml", text);
    rig
}

#[tokio::test]
async fn bad_rules_at_start_leave_the_snapshots_rules_in_force() {
    let mut rig = rig(BAD, "1").await;
    let failed = rig.start().await.expect_err("bad rules");
    assert_eq!((failed.faults, failed.is_unread), (vec!["a.yaml:1:1: bad".to_owned()], false));
    assert_eq!(rig.in_force(), "a.yaml=1");
    assert!(rig.published.is_from_snapshot());
    assert_eq!(rig.published.last_fault().as_deref(), Some("a.yaml:1:1: bad"));
    // The same rules are loaded at last: no other version comes into force.
    let changes = rig.published.changes();
    rig.write("a.yaml", "1");
    rig.until_ok(1).await;
    assert!(!rig.published.is_from_snapshot());
    assert!(!changes.has_changed().expect("open"));
    rig.write("a.yaml", "2");
    rig.until_ok(2).await;
    assert_eq!(rig.in_force(), "a.yaml=2");
}

#[tokio::test]
async fn an_intact_snapshot_of_bad_rules_is_not_used() {
    for kept in [BAD, PANIC] {
        let mut rig = rig(BAD, kept).await;
        let log = rig.log();
        rig.start().await.expect_err("bad rules");
        assert!(rig.published.current().is_none(), "{kept}");
        let lines = log.lines();
        assert!(lines.iter().any(|line| line.contains("its rules have faults")), "{lines:#?}");
        rig.write("a.yaml", "2");
        rig.until_in_force("a.yaml=2").await;
    }
}

#[tokio::test]
async fn good_rules_at_start_do_not_use_the_snapshot() {
    let mut rig = rig("2", "1").await;
    rig.start().await.expect("good rules");
    assert_eq!(rig.compiled(), ["a.yaml=2"]);
    assert!(!rig.published.is_from_snapshot());
}
