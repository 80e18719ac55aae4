//! Rules that were written are read back unchanged; a damaged file is not read.

mod pods;

use std::os::unix::fs::symlink;

use tempfile::TempDir;
use tokio::time::timeout;

use super::*;

const PATIENCE: Duration = Duration::from_secs(30);

fn source(name: &str, text: &[u8]) -> Source {
    Source { name: name.to_owned(), text: text.to_vec() }
}

/// Lists of sources with arbitrary bytes, and an empty list.
fn sources() -> Vec<Vec<Source>> {
    vec![
        vec![],
        vec![source("", b"")],
        vec![source("a.yaml", b"domain: a\n"), source("b/\u{fc}.yaml", &[0, 255, b'\n', 7])],
        vec![source("a", b"bc"), source("", b"")],
    ]
}

fn rules(sources: &[Source]) -> PendingWrite {
    let sources = sources.iter().cloned().map(Arc::new).collect();
    PendingWrite { sources: Some(Arc::new(sources)), pods: Arc::default() }
}

fn encode(sources: &[Source]) -> Vec<u8> {
    super::encode(sources, &[]).unwrap()
}

/// Encodes in format 1.
fn encode_first(sources: &[Source]) -> Vec<u8> {
    let hash = digest(sources).to_hex();
    let mut bytes = format!("ratelease-rules 1 {hash}\n").into_bytes();
    for part in sources.iter().flat_map(|it| [it.name.as_bytes(), &it.text]) {
        bytes.extend_from_slice(&(part.len() as u64).to_le_bytes());
        bytes.extend_from_slice(part);
    }
    bytes
}

fn snapshot(dir: &TempDir) -> Snapshot {
    Snapshot::new(dir.path().join("rules.snapshot"))
}

#[test]
fn sources_are_read_back_unchanged() {
    let dir = TempDir::new().unwrap();
    let snapshot = snapshot(&dir);
    for sources in sources() {
        snapshot.write(&rules(&sources)).unwrap();
        assert_eq!(snapshot.read().unwrap(), sources);
    }
    let names: Vec<_> = fs::read_dir(dir.path()).unwrap().map(|it| it.unwrap()).collect();
    assert_eq!(names.len(), 1, "no temporary file is left: {names:?}");
}

#[test]
fn format_1_is_still_read() {
    let dir = TempDir::new().unwrap();
    let snapshot = snapshot(&dir);
    for sources in sources() {
        let first = encode_first(&sources);
        fs::write(snapshot.path(), &first).unwrap();
        assert_eq!(snapshot.read().unwrap(), sources);
        assert_eq!(snapshot.load_pods(), Pods::new());
        for end in 0..first.len() {
            let cut = decode(&first[..end]).unwrap_err();
            assert!(matches!(cut, SnapshotError::Damaged), "{end} of {}: {cut:?}", first.len());
        }
    }
}

#[test]
fn a_truncated_snapshot_is_refused() {
    for sources in sources() {
        let whole = encode(&sources);
        assert_eq!(decode(&whole).unwrap().sources, sources);
        let pods = super::encode::<Source>(&[], &[]).unwrap();
        let section = pods.len() - pods.iter().position(|byte| *byte == b'\n').unwrap() - 1;
        for end in 0..whole.len() - section {
            let cut = decode(&whole[..end]).unwrap_err();
            assert!(matches!(cut, SnapshotError::Damaged), "{end} of {}: {cut:?}", whole.len());
        }
    }
}

#[test]
fn a_changed_byte_invalidates_the_rules_or_the_counts() {
    for sources in sources() {
        let whole = super::encode(&sources, &[("shop".into(), 7)]).unwrap();
        let good = decode(&whole).unwrap();
        for at in 0..whole.len() {
            for bits in [0x01, 0x80, 0xff] {
                let mut changed = whole.clone();
                changed[at] ^= bits;
                if let Ok(kept) = decode(&changed) {
                    assert_eq!((kept.sources, kept.pods), (good.sources.clone(), None), "{at}");
                }
            }
        }
    }
}

#[test]
fn a_newer_format_and_other_files_have_errors_of_their_own() {
    let whole = encode(&[source("a", b"b")]);
    let text = String::from_utf8(whole).unwrap();
    let newer = text.replacen("rules 2 ", "rules 3 ", 1);
    let error = decode(newer.as_bytes()).unwrap_err().to_string();
    assert!(error.contains("format 3, and this version knows formats up to 2"), "{error}");
    let other = decode(b"ratelease-rules 3 in another shape").unwrap_err();
    assert!(matches!(other, SnapshotError::UnknownFormat(3, 2)), "{other}");
    for foreign in ["domain: shop\n", "\0", "ratelease"] {
        let error = decode(foreign.as_bytes()).unwrap_err();
        let is_start = "ratelease-rules ".starts_with(foreign);
        assert_eq!(matches!(error, SnapshotError::NotASnapshot), !is_start, "{foreign:?}: {error}");
    }
    // A length that no file can have.
    for first in [text, String::from_utf8(encode_first(&[source("a", b"b")])).unwrap()] {
        let head = first.split_inclusive('\n').next().unwrap();
        let absurd = [head.as_bytes(), &[0xff; 18]].concat();
        assert!(matches!(decode(&absurd), Err(SnapshotError::Damaged)));
    }
    for length in ["99999999999999999999", "18446744073709551615", "+18", "-1", "", "18 18"] {
        let head = format!("ratelease-rules 2 {} {length}\n", digest::<Source>(&[]).to_hex());
        assert!(matches!(decode(head.as_bytes()), Err(SnapshotError::Damaged)), "{head}");
    }
}

#[test]
fn a_missing_special_or_too_large_file_has_an_error_of_its_own() {
    let dir = TempDir::new().unwrap();
    let snapshot = snapshot(&dir);
    assert!(matches!(snapshot.read(), Err(SnapshotError::Missing)));
    fs::create_dir(snapshot.path()).unwrap();
    assert!(matches!(snapshot.read(), Err(SnapshotError::NotASnapshot)));
    assert!(matches!(snapshot.write(&rules(&[])), Err(SnapshotError::Unwritable(_))));
    fs::remove_dir(snapshot.path()).unwrap();
    symlink("rules.snapshot", snapshot.path()).unwrap();
    assert!(matches!(snapshot.read(), Err(SnapshotError::Unreadable(_))));
    fs::remove_file(snapshot.path()).unwrap();
    // A sparse file: it takes no space on disk.
    File::create(snapshot.path()).unwrap().set_len(SNAPSHOT_BYTES_MAX as u64 + 1).unwrap();
    assert!(matches!(snapshot.read(), Err(SnapshotError::TooLarge)));
    let large = vec![source("a", &vec![b'a'; SNAPSHOT_BYTES_MAX])];
    assert!(matches!(snapshot.write(&rules(&large)), Err(SnapshotError::TooLarge)));
}

#[test]
fn a_failed_write_leaves_the_last_snapshot() {
    let dir = TempDir::new().unwrap();
    let snapshot = snapshot(&dir);
    snapshot.write(&rules(&[source("a", b"1")])).unwrap();
    // A directory in place of the temporary file: it must not be removed as if it were one.
    fs::create_dir(snapshot.temporary()).unwrap();
    assert!(matches!(
        snapshot.write(&rules(&[source("a", b"2")])),
        Err(SnapshotError::Unwritable(_))
    ));
    assert_eq!(snapshot.read().unwrap(), [source("a", b"1")]);
    fs::remove_dir(snapshot.temporary()).unwrap();
    // A temporary file left behind by a killed process does not prevent a write.
    fs::write(snapshot.temporary(), "half").unwrap();
    snapshot.write(&rules(&[source("a", b"3")])).unwrap();
    assert_eq!(snapshot.read().unwrap(), [source("a", b"3")]);
}

#[tokio::test]
async fn a_failed_write_is_counted_and_does_not_delay_the_next() {
    let nowhere = Arc::new(Snapshot::new("/dev/null/rules".into()));
    nowhere.set_sources(vec![Arc::new(source("a", b"1"))]);
    let running = tokio::spawn(Arc::clone(&nowhere).run());
    let failed = async {
        while nowhere.failed.load(Ordering::Relaxed) == 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(PATIENCE, failed).await.expect("a failure that is counted");
    nowhere.set_sources(vec![Arc::new(source("a", b"2"))]);
    let pending = nowhere.pending.lock().sources.clone();
    assert_eq!(
        pending.as_deref(),
        Some(&vec![Arc::new(source("a", b"2"))]),
        "the last one is tried next"
    );
    running.abort();
}

#[tokio::test]
async fn the_last_sources_set_are_written() {
    let dir = TempDir::new().unwrap();
    let snapshot = Arc::new(snapshot(&dir));
    for n in 0..100_u8 {
        snapshot.set_sources(vec![Arc::new(source("a", &[n]))]);
    }
    let running = tokio::spawn(Arc::clone(&snapshot).run());
    let written = async {
        while !snapshot.read().is_ok_and(|read| read == [source("a", &[99])]) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(PATIENCE, written).await.expect("the last one, written");
    running.abort();
}

mod pods_section {
    use super::super::*;

    fn pods(counts: &[(&str, u32)]) -> Pods {
        counts.iter().map(|&(domain, count)| (domain.into(), count)).collect()
    }

    #[test]
    fn a_domain_without_a_new_count_keeps_its_last_one() {
        let earlier = pods(&[("a", 1), ("b", 2)]);
        let now = pods(&[("c", 4), ("b", 3)]);
        assert_eq!(merge(now, &earlier), pods(&[("a", 1), ("b", 3), ("c", 4)]));
        assert_eq!(merge(Pods::new(), &earlier), earlier);
    }

    #[test]
    fn invalid_counts_are_left_out_and_new_counts_take_precedence() {
        let long = "d".repeat(DOMAIN_BYTES_MAX + 1);
        let odd = pods(&[("none", 0), ("many", 10_001), (&long, 1), ("good", 10_000)]);
        assert_eq!(merge(odd, &[]), pods(&[("good", 10_000)]));
        let many = |from: usize, count: u32| -> Pods {
            (from..from + DOMAINS_MAX).map(|n| (format!("{n:05}").into(), count)).collect()
        };
        let merged = merge(many(500, 2), &many(0, 1));
        assert_eq!(merged, many(500, 2));
    }
}
