//! Logs as Envoy sends them, cut anywhere, against prost; and broken ones.

use std::collections::HashMap;

use envoy_types::pb::envoy::config::core::v3::Node;
use envoy_types::pb::envoy::data::accesslog::v3 as entry_pb;
use envoy_types::pb::envoy::service::accesslog::v3 as pb;
use pb::stream_access_logs_message::{
    HttpAccessLogEntries, Identifier, LogEntries, TcpAccessLogEntries,
};
use proptest::prelude::*;
use prost::Message as _;

use super::*;

/// The parts of a log that were read, in a form to compare.
#[derive(Debug, Default, PartialEq)]
struct Read {
    identified: Vec<(Vec<u8>, Vec<u8>)>,
    entries: Vec<(Id, Option<u64>, Report, bool)>,
    tcp: usize,
}

#[derive(Debug, Clone, PartialEq)]
enum Id {
    Absent,
    Bad,
    Text(String),
}

impl Sink for Read {
    fn identify(&mut self, node: &[u8], log_name: &[u8]) -> Result<(), Fault> {
        self.identified.push((node.to_vec(), log_name.to_vec()));
        Ok(())
    }

    fn http_entry(&mut self, entry: &Entry) -> Result<(), Fault> {
        let id = match entry.id() {
            EntryId::Absent => Id::Absent,
            EntryId::Bad => Id::Bad,
            EntryId::Text(id) => Id::Text(id.to_owned()),
        };
        self.entries.push((id, entry.cost(), entry.report(), entry.is_denied()));
        Ok(())
    }

    fn tcp_entry(&mut self) {
        self.tcp += 1;
    }
}

fn framed(message: &[u8]) -> Vec<u8> {
    let length = u32::try_from(message.len()).unwrap().to_be_bytes();
    [&[0], &length[..], message].concat()
}

/// Reads `bytes` in pieces of these lengths, in turn.
fn read_in(pieces: &[usize], mut bytes: &[u8]) -> Result<Read, Fault> {
    let (mut reader, mut read) = (Reader::new(), Read::default());
    for length in pieces.iter().cycle() {
        let (piece, rest) = bytes.split_at((*length).min(bytes.len()));
        reader.read(piece, &mut read)?;
        bytes = rest;
        if bytes.is_empty() {
            assert!(reader.is_between_messages(), "a whole message");
            return Ok(read);
        }
    }
    unreachable!("there are pieces")
}

fn read(message: &[u8]) -> Result<Read, Fault> {
    read_in(&[usize::MAX], &framed(message))
}

fn entry(
    tags: &[(&str, &str)],
    attempts: u32,
    kind: i32,
    details: &str,
) -> entry_pb::HttpAccessLogEntry {
    let owned = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
    entry_pb::HttpAccessLogEntry {
        common_properties: Some(entry_pb::AccessLogCommon {
            upstream_cluster: "app".into(),
            custom_tags: tags.iter().map(owned).collect(),
            upstream_request_attempt_count: attempts,
            stream_id: "not this one".into(),
            access_log_type: kind,
            ..Default::default()
        }),
        request: Some(entry_pb::HttpRequestProperties {
            path: "/secret?token=1".into(),
            ..Default::default()
        }),
        response: Some(entry_pb::HttpResponseProperties {
            response_code_details: details.into(),
            ..Default::default()
        }),
        ..Default::default()
    }
}

fn message(entries: Vec<entry_pb::HttpAccessLogEntry>) -> Vec<u8> {
    let node = Node { id: "sidecar~1".into(), cluster: "c".into(), ..Default::default() };
    let identifier = Some(Identifier { node: Some(node), log_name: "ratelease".into() });
    let entries = HttpAccessLogEntries { log_entry: entries };
    let log_entries = Some(LogEntries::HttpLogs(entries));
    pb::StreamAccessLogsMessage { identifier, log_entries }.encode_to_vec()
}

#[test]
fn an_end_has_its_id_and_cost_whatever_else_is_logged() {
    let tags = [("user", "alice"), ("ratelease.id", "7f-1"), ("ratelease.hits", "308")];
    let read = read(&message(vec![entry(&tags, 1, 6, "via_upstream")])).unwrap();
    assert_eq!(read.identified, [(b"sidecar~1".to_vec(), b"ratelease".to_vec())]);
    assert_eq!(read.entries, [(Id::Text("7f-1".into()), Some(308), Report::End, false)]);
}

#[test]
fn types_and_denials_are_told_apart() {
    let of = |kind, details| entry(&[("ratelease.id", "a")], 1, kind, details);
    let entries = vec![
        of(0, ""),
        of(5, "via_upstream"),
        of(4, ""),
        of(9, ""),
        of(6, "request_rate_limited"),
        of(6, "request_rate_limited_and_more"),
    ];
    let read = read(&message(entries)).unwrap();
    let found: Vec<_> =
        read.entries.iter().map(|(_, _, report, denied)| (*report, *denied)).collect();
    use Report::{Alive, End, Other};
    let expected =
        [(End, false), (Alive, false), (Other, false), (Other, false), (End, true), (End, false)];
    assert_eq!(found, expected);
}

#[test]
fn a_cost_is_a_whole_number_of_hits_or_unknown() {
    let cost = |attempts, hits: Option<&str>| {
        let tags = hits.map(|hits| ("ratelease.hits", hits));
        let tags: Vec<_> = tags.into_iter().collect();
        read(&message(vec![entry(&tags, attempts, 6, "")])).unwrap().entries[0].1
    };
    for (text, expected) in [
        ("0", Some(0)),
        ("12", Some(12)),
        ("12.9", Some(12)),
        ("1e3", Some(1000)),
        ("9007199254740991", Some(9_007_199_254_740_991)),
        ("9007199254740992", None),
        ("1e300", None),
        ("inf", None),
        ("nan", None),
        ("-1", None),
        ("-0.5", None),
        ("", None),
        ("-", None),
        ("12 ", None),
        ("0x10", None),
        ("00000000000000000000000000000001", Some(1)),
        ("000000000000000000000000000000001", None), // above the maximum length
    ] {
        assert_eq!(cost(1, Some(text)), expected, "{text}");
    }
    assert_eq!(cost(1, None), None);
    assert_eq!(cost(0, Some("12")), Some(0), "it was not sent upstream");
    assert_eq!(cost(0, None), Some(0));
}

#[test]
fn ids_are_text_of_a_bounded_length() {
    let id = |id: &str| {
        read(&message(vec![entry(&[("ratelease.id", id)], 1, 6, "")])).unwrap().entries[0].0.clone()
    };
    assert_eq!(id(""), Id::Absent);
    assert_eq!(id("-"), Id::Absent, "as Envoy writes it");
    let longest = "x".repeat(ID_BYTES_MAX);
    assert_eq!(id(&longest), Id::Text(longest.clone()));
    assert_eq!(id(&(longest + "x")), Id::Bad);
    // A text that is not UTF-8, which prost does not write.
    let mut message = message(vec![entry(&[("ratelease.id", "\u{7f}abc")], 1, 6, "")]);
    let at = message.windows(4).position(|it| it == b"\x7fabc").unwrap();
    message[at] = 0xff;
    assert_eq!(read(&message).unwrap().entries[0].0, Id::Bad);
}

#[test]
fn an_entry_knows_nothing_of_the_one_before() {
    let tags = [("ratelease.id", "a"), ("ratelease.hits", "5")];
    let first = entry(&tags, 1, 5, "request_rate_limited");
    let read = read(&message(vec![first, entry(&[], 1, 0, "")])).unwrap();
    assert_eq!(read.entries[1], (Id::Absent, None, Report::End, false));
}

#[test]
fn entries_of_tcp_are_counted_only() {
    let entries = TcpAccessLogEntries { log_entry: vec![Default::default(); 3] };
    let log_entries = Some(LogEntries::TcpLogs(entries));
    let message = pb::StreamAccessLogsMessage { identifier: None, log_entries }.encode_to_vec();
    assert_eq!(read(&message).unwrap(), Read { tcp: 3, ..Read::default() });
}

#[test]
fn broken_logs_are_refused() {
    let malformed = |message: &[u8]| matches!(read(message), Err(Fault::Malformed(_)));
    // A field that is longer than its message, at each depth.
    for message in [&[0x12, 5, 0x0a][..], &[0x12, 2, 0x0a, 5], &[0x12, 4, 0x0a, 2, 0x0a, 9]] {
        assert!(malformed(message), "{message:?}");
    }
    assert!(malformed(&[0x12, 3, 0x0a, 1, 0x80]), "a number that goes on after its message");
    assert!(malformed(&[0x12]), "a field without its length");
    assert!(malformed(&[0x80; 11]), "a number without end");
    assert!(malformed(&[0x00, 0]), "the field 0");
    assert!(malformed(&[0x10, 1]), "a number for a message");
    assert!(malformed(&[0x1b, 0x1c]), "a group");
    assert!(malformed(&[0x79, 0, 0]), "eight bytes that are two");
    let (mut reader, mut read) = (Reader::new(), Read::default());
    let compressed = [1, 0, 0, 0, 1, 0];
    assert_eq!(reader.read(&compressed, &mut read), Err(Fault::Compressed));
}

#[test]
fn a_huge_message_takes_no_more_memory_than_a_small_one() {
    // A message of 4 GiB, whose first field says that it is as long.
    let mut head = vec![0, 0xff, 0xff, 0xff, 0xff, 0x2a];
    head.extend([0xf9, 0xff, 0xff, 0xff, 0x0f]);
    let (mut reader, mut read) = (Reader::new(), Read::default());
    reader.read(&head, &mut read).unwrap();
    let part = vec![0; 1 << 20];
    for _ in 0..16 {
        reader.read(&part, &mut read).unwrap();
    }
    assert!(!reader.is_between_messages());
    assert!(!reader.open.spilled());
    println!("a reader takes {} bytes", size_of::<Reader>());
    assert!(size_of::<Reader>() < 1024);
}

prop_compose! {
    fn any_entry()(
        tags in prop::collection::hash_map("ratelease.id|ratelease.hits|[a-z.]{0,20}", "[a-z.-]{0,200}[a-z-]|[0-9]{1,20}|\\pc{1,60}x", 0..4),
        attempts in 0_u32..4,
        kind in 0_i32..12,
        details in "via_upstream|request_rate_limited|.{0,40}",
        path in ".{0,300}",
        has_common in prop::bool::weighted(0.9),
        has_response in prop::bool::weighted(0.9),
    ) -> entry_pb::HttpAccessLogEntry {
        let tags: HashMap<String, String> = tags;
        let pairs: Vec<_> = tags.iter().map(|(name, value)| (&**name, &**value)).collect();
        let mut entry = entry(&pairs, attempts, kind, &details);
        entry.request.as_mut().unwrap().path = path;
        entry.common_properties.take_if(|_| !has_common);
        entry.response.take_if(|_| !has_response);
        entry
    }
}

/// The parts of an entry that prost has read.
fn expected(entry: &entry_pb::HttpAccessLogEntry) -> (Id, Option<u64>, Report, bool) {
    let common = entry.common_properties.clone().unwrap_or_default();
    let tag = |name: &str| common.custom_tags.get(name).cloned();
    let id = match tag("ratelease.id").as_deref() {
        None | Some("" | "-") => Id::Absent,
        Some(id) if id.len() > ID_BYTES_MAX => Id::Bad,
        Some(id) => Id::Text(id.to_owned()),
    };
    let hits = tag("ratelease.hits").filter(|hits| hits.len() <= NUMBER_BYTES_MAX);
    // The generated texts are whole numbers, or none at all.
    let cost = hits.and_then(|hits| hits.parse::<u64>().ok()).filter(|hits| *hits <= AMOUNT_MAX);
    let cost = if common.upstream_request_attempt_count == 0 { Some(0) } else { cost };
    use entry_pb::AccessLogType::{DownstreamEnd, DownstreamPeriodic, NotSet};
    let report = match common.access_log_type() {
        NotSet | DownstreamEnd => Report::End,
        DownstreamPeriodic => Report::Alive,
        _ => Report::Other,
    };
    let details = entry.response.clone().unwrap_or_default().response_code_details;
    (id, cost, report, details == "request_rate_limited")
}

proptest! {
    #[test]
    fn every_log_is_read_as_by_prost_however_it_is_cut(
        messages in prop::collection::vec(prop::collection::vec(any_entry(), 0..4), 1..4),
        pieces in prop::collection::vec(1_usize..40, 1..20),
    ) {
        let bytes: Vec<u8> =
            messages.iter().flat_map(|entries| framed(&message(entries.clone()))).collect();
        let read = read_in(&pieces, &bytes).unwrap();
        prop_assert_eq!(read.identified.len(), messages.len());
        let expected: Vec<_> = messages.iter().flatten().map(expected).collect();
        prop_assert_eq!(read.entries, expected);
    }

    #[test]
    fn no_bytes_panic_and_cuts_change_nothing(
        bytes in prop::collection::vec(prop_oneof![any::<u8>(), 0_u8..40], 0..200),
        pieces in prop::collection::vec(1_usize..40, 1..20),
    ) {
        let whole = (Reader::new(), Read::default());
        let (mut reader, mut at_once) = whole;
        let first = reader.read(&bytes, &mut at_once);
        let (mut reader, mut in_parts) = (Reader::new(), Read::default());
        let mut rest = &bytes[..];
        let mut second = Ok(());
        for length in pieces.iter().cycle() {
            let (piece, after) = rest.split_at((*length).min(rest.len()));
            second = reader.read(piece, &mut in_parts);
            rest = after;
            if rest.is_empty() || second.is_err() {
                break;
            }
        }
        prop_assert_eq!((first, at_once), (second, in_parts));
    }
}
