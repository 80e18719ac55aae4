//! Access logs of Envoy: our reader, which is given pieces of them, against prost.

use envoy_types::pb::envoy::data::accesslog::v3::HttpAccessLogEntry;
use envoy_types::pb::envoy::service::accesslog::v3::StreamAccessLogsMessage;
use envoy_types::pb::envoy::service::accesslog::v3::stream_access_logs_message::LogEntries;
use prost::Message;
use prost::encoding::{DecodeContext, decode_key, skip_field};
use ratelease_server::grpc::{Entry, EntryId, Fault, Reader, Report, Sink};

use crate::run;

/// Maximum length of an id.
const ID_BYTES_MAX: usize = 128;

/// The parts of a log that were read.
#[derive(Debug, Default, PartialEq)]
struct Read {
    node: Vec<u8>,
    log_name: Vec<u8>,
    entries: Vec<ReadEntry>,
}

/// An entry: the id, `None` if that is bad; the event; whether the request was denied; and whether it
/// was not sent upstream.
type ReadEntry = (Option<String>, Report, bool, bool);

#[test]
fn logs_in_pieces_are_read_as_prost_reads_them() {
    let words = &["\u{12}\0", "\u{a}\u{1}", "ratelease.id", "ratelease.hits", "\u{0}"];
    run::mutated("access_log", words, 20_000, |message| {
        let at_once = read(message, message.len().max(1));
        let in_pieces = read(message, 1 + message.len() / 7);
        let bytewise = read(message, 1);
        assert_eq!((&at_once, &at_once), (&in_pieces, &bytewise), "cuts change nothing");
        let (Ok(read), Ok(theirs)) = (at_once, StreamAccessLogsMessage::decode(message)) else {
            return false;
        };
        // Prost keeps the last kind of entries of a message.
        if !has_tcp_entries(message) {
            assert_eq!(read, of(&theirs));
        }
        true
    });
}

/// Reads the message in pieces of this length.
fn read(message: &[u8], length: usize) -> Result<Read, Fault> {
    let prefix = u32::try_from(message.len()).unwrap().to_be_bytes();
    let log = [&[0], &prefix[..], message].concat();
    let (mut reader, mut read) = (Reader::new(), Read::default());
    for piece in log.chunks(length) {
        reader.read(piece, &mut read)?;
    }
    assert!(reader.is_between_messages(), "a whole message");
    Ok(read)
}

fn has_tcp_entries(mut message: &[u8]) -> bool {
    while !message.is_empty() {
        let (field, kind) = decode_key(&mut message).unwrap();
        skip_field(kind, field, &mut message, DecodeContext::default()).unwrap();
        if field == 3 {
            return true;
        }
    }
    false
}

fn of(message: &StreamAccessLogsMessage) -> Read {
    let identifier = message.identifier.clone().unwrap_or_default();
    let entries = match &message.log_entries {
        Some(LogEntries::HttpLogs(logs)) => logs.log_entry.iter().map(of_entry).collect(),
        _ => Vec::new(),
    };
    let (node, log_name) = (identifier.node.unwrap_or_default().id, identifier.log_name);
    Read { node: cut(&node, 256), log_name: cut(&log_name, 32), entries }
}

fn cut(text: &str, length: usize) -> Vec<u8> {
    text.bytes().take(length).collect()
}

fn of_entry(entry: &HttpAccessLogEntry) -> ReadEntry {
    let common = entry.common_properties.clone().unwrap_or_default();
    let id = common.custom_tags.get("ratelease.id").cloned().unwrap_or_default();
    let id = if id == "-" { String::new() } else { id };
    let report = match common.access_log_type {
        0 | 6 => Report::End,
        5 => Report::Alive,
        _ => Report::Other,
    };
    let details = entry.response.clone().unwrap_or_default().response_code_details;
    let is_denied = details == "request_rate_limited";
    let is_unsent = common.upstream_request_attempt_count == 0;
    (Some(id).filter(|id| id.len() <= ID_BYTES_MAX), report, is_denied, is_unsent)
}

// === impl Read ===

impl Sink for Read {
    fn identify(&mut self, node: &[u8], log_name: &[u8]) -> Result<(), Fault> {
        (self.node, self.log_name) = (node.to_vec(), log_name.to_vec());
        Ok(())
    }

    fn http_entry(&mut self, entry: &Entry) -> Result<(), Fault> {
        let id = match entry.id() {
            EntryId::Absent => Some(String::new()),
            EntryId::Bad => None,
            EntryId::Text(id) => Some(id.to_owned()),
        };
        if let Some(hits) = entry.cost() {
            assert!(hits <= ratelease_rules::AMOUNT_MAX, "{hits}");
        }
        self.entries.push((id, entry.report(), entry.is_denied(), entry.is_unsent()));
        Ok(())
    }

    fn tcp_entry(&mut self) {}
}
