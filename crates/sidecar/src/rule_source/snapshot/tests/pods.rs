//! Pod counts beside the rules.

use super::*;

fn pods(counts: &[(&str, u32)]) -> Pods {
    counts.iter().map(|&(domain, count)| (domain.into(), count)).collect()
}

/// A file whose section of counts is `body`, with a valid hash.
fn with_section(sources: &[Source], body: &[u8]) -> Vec<u8> {
    let mut whole = encode(sources);
    let section = format!("ratelease-pods {}\n", blake3::hash(&[]).to_hex());
    assert!(whole.ends_with(section.as_bytes()));
    whole.truncate(whole.len() - section.len());
    let hash = blake3::hash(body).to_hex();
    whole.extend_from_slice(format!("ratelease-pods {hash}\n").as_bytes());
    whole.extend_from_slice(body);
    whole
}

fn count(domain: &str, count: u32) -> Vec<u8> {
    let length = (domain.len() as u64).to_le_bytes();
    [&length[..], domain.as_bytes(), &count.to_le_bytes()].concat()
}

/// Waits until `is_there` returns true for the content of the file.
async fn split_at_byte(snapshot: &Snapshot, is_there: impl Fn(&SnapshotContent) -> bool) {
    let written = async {
        while !snapshot.read_all().is_ok_and(|kept| is_there(&kept)) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(PATIENCE, written).await.expect("a file with what was to be kept");
}

#[test]
fn counts_are_read_back_beside_the_rules() {
    let many: Pods = (0..DOMAINS_MAX).map(|n| (format!("{n:05}").into(), 10_000)).collect();
    for counts in [pods(&[]), pods(&[("", 1), ("sh\u{f6}p", 10_000)]), many] {
        for sources in sources() {
            let whole = super::super::encode(&sources, &counts).unwrap();
            let kept = SnapshotContent { sources, pods: Some(counts.clone()) };
            assert_eq!(decode(&whole).unwrap(), kept);
        }
    }
}

#[test]
fn truncated_counts_leave_the_rules_intact() {
    let counts = pods(&[("a", 7), ("b", 300)]);
    for sources in sources() {
        let whole = super::super::encode(&sources, &counts).unwrap();
        let rules = encode(&sources).len() - "ratelease-pods \n".len() - 64;
        let none = decode(&whole[..rules]).unwrap();
        assert_eq!(none, SnapshotContent { sources: sources.clone(), pods: Some(Pods::new()) });
        for end in rules + 1..whole.len() {
            let cut = decode(&whole[..end]).unwrap();
            assert_eq!(cut, SnapshotContent { sources: sources.clone(), pods: None }, "{end}");
        }
        let longer = decode(&[&whole[..], b"x"].concat()).unwrap();
        assert_eq!(longer, SnapshotContent { sources, pods: None });
    }
}

#[test]
fn invalid_counts_are_refused_even_with_a_correct_hash() {
    let sources = [source("a", b"b")];
    let good = with_section(&sources, &count("shop", 3));
    assert_eq!(decode(&good).unwrap().pods, Some(pods(&[("shop", 3)])));
    let many: Vec<u8> = (0..=DOMAINS_MAX).flat_map(|n| count(&n.to_string(), 1)).collect();
    for (why, body) in [
        ("no pods", count("shop", 0)),
        ("more than a store counts", count("shop", 10_001)),
        ("more than there can be", count("shop", u32::MAX)),
        ("a good one before it", [count("a", 1), count("b", 0)].concat()),
        ("a long domain", count(&"d".repeat(1025), 1)),
        ("many domains", many),
        ("a length beyond the end", vec![0xff; 12]),
        ("no text", [&1_u64.to_le_bytes()[..], &[0xff], &1_u32.to_le_bytes()].concat()),
        ("half a count", count("shop", 3)[..14].to_vec()),
    ] {
        let kept = decode(&with_section(&sources, &body)).unwrap();
        assert_eq!((&kept.sources[..], kept.pods), (&sources[..], None), "{why}");
    }
}

#[test]
fn counts_beyond_the_maximum_size_are_not_written() {
    let counts = pods(&[("none", 0), ("good", 2), ("many", 10_001)]);
    let whole = super::super::encode::<Source>(&[], &counts).unwrap();
    assert_eq!(decode(&whole).unwrap().pods, Some(pods(&[("good", 2)])));
    // Rules that leave no room are written without counts.
    let text = vec![b'a'; SNAPSHOT_BYTES_MAX - encode(&[source("a", b"")]).len() - 7];
    let whole = super::super::encode(&[source("a", &text)], &counts).unwrap();
    assert!(whole.len() <= SNAPSHOT_BYTES_MAX);
    assert_eq!(decode(&whole).unwrap().pods, Some(Pods::new()));
}

#[tokio::test]
async fn changed_counts_are_written_beside_the_rules_of_the_file() {
    let dir = TempDir::new().unwrap();
    let snapshot = Arc::new(snapshot(&dir));
    let running = tokio::spawn(Arc::clone(&snapshot).run());
    // Without rules there is no file to add them to.
    snapshot.set_pods(pods(&[("shop", 3)]));
    snapshot.set_sources(vec![Arc::new(source("a", b"1"))]);
    split_at_byte(&snapshot, |kept| kept.pods == Some(pods(&[("shop", 3)]))).await;
    assert_eq!(snapshot.read().unwrap(), [source("a", b"1")]);
    snapshot.set_pods(pods(&[("shop", 4), ("chat", 2)]));
    split_at_byte(&snapshot, |kept| kept.pods == Some(pods(&[("chat", 2), ("shop", 4)]))).await;
    assert_eq!(snapshot.read().unwrap(), [source("a", b"1")]);
    // The next rules are written with the counts.
    snapshot.set_sources(vec![Arc::new(source("a", b"2"))]);
    split_at_byte(&snapshot, |kept| kept.sources == [source("a", b"2")]).await;
    assert_eq!(snapshot.read_all().unwrap().pods, Some(pods(&[("chat", 2), ("shop", 4)])));
    running.abort();
}

#[tokio::test]
async fn a_restart_loads_the_counts_and_keeps_them_with_new_rules() {
    let dir = TempDir::new().unwrap();
    let counts = pods(&[("shop", 400)]);
    let written = PendingWrite { pods: Arc::new(counts.clone()), ..rules(&[source("a", b"1")]) };
    snapshot(&dir).write(&written).unwrap();
    let restarted = Arc::new(snapshot(&dir));
    assert_eq!(restarted.load_pods(), counts);
    restarted.set_sources(vec![Arc::new(source("a", b"2"))]);
    let running = tokio::spawn(Arc::clone(&restarted).run());
    split_at_byte(&restarted, |kept| kept.sources == [source("a", b"2")]).await;
    assert_eq!(restarted.read_all().unwrap().pods, Some(counts));
    running.abort();
}

#[test]
fn a_damaged_or_missing_file_has_no_counts() {
    let dir = TempDir::new().unwrap();
    let snapshot = snapshot(&dir);
    assert_eq!(snapshot.load_pods(), Pods::new());
    let whole = super::super::encode(&[source("a", b"1")], &pods(&[("shop", 4)])).unwrap();
    for bytes in [&whole[..whole.len() - 1], &whole[..20], b"domain: shop\n"] {
        fs::write(snapshot.path(), bytes).unwrap();
        assert_eq!(snapshot.load_pods(), Pods::new());
    }
    fs::write(snapshot.path(), &whole).unwrap();
    assert_eq!(snapshot.load_pods(), pods(&[("shop", 4)]));
}

#[tokio::test(start_paused = true)]
async fn counts_are_read_every_ten_seconds_and_written_only_if_changed() {
    let dir = TempDir::new().unwrap();
    let snapshot = Arc::new(snapshot(&dir));
    snapshot.write(&rules(&[source("a", b"1")])).unwrap();
    let looks = AtomicU64::new(0);
    // Returns another count at every second call.
    let counts = || {
        let look = looks.fetch_add(1, Ordering::Relaxed);
        pods(&[("shop", 1 + u32::try_from(look / 2).unwrap())])
    };
    let running = tokio::spawn(Arc::clone(&snapshot).run());
    let follow = snapshot.track_pods(counts);
    assert!(timeout(Duration::from_millis(61_500), follow).await.is_err(), "it never returns");
    assert_eq!(looks.load(Ordering::Relaxed), 6);
    split_at_byte(&snapshot, |kept| kept.pods == Some(pods(&[("shop", 3)]))).await;
    assert_eq!(snapshot.written.load(Ordering::Relaxed), 3);
    running.abort();
}
