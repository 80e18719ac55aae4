//! V2, V8, H2, H8, H9, H9b: calls that cost far more to read or to match than to send.

use std::io::Write;
use std::process::Command;
use std::time::Duration;

use flate2::Compression;
use flate2::write::GzEncoder;
use futures_util::future::join_all;
use tonic::Code;

use crate::foe::Foes;
use crate::messages::{DOMAIN, message};
use crate::row::MIB;
use crate::scene::{Plan, Scene};
use crate::support::now;
use crate::support::raw_grpc::{
    self, Connection, SHOULD_RATE_LIMIT, bytes_field, framed, number_field, post,
};

/// Matches of a long value that usually take longer must have scanned it once per pattern. Far
/// above the time of one scan, so that a noisy machine passes; it may stall a few for longer.
const MATCH_MAX: Duration = Duration::from_millis(1_500);
const STALLED_MAX: Duration = Duration::from_secs(10);

#[tokio::test(flavor = "multi_thread")]
async fn v2_a_message_of_half_a_million_descriptors_costs_no_memory() {
    let mut plan = Plan::new("V2", "1 MB of empty descriptors, 4 at once");
    // The bytes of four messages take 12 to 15 MiB, and 16 on a busy machine; half a million
    // descriptors of 24 bytes would take 12 more for each of them.
    plan.during_max = Some(24 * MIB);
    let scene = Scene::start(plan).await;
    // Field 2, of no bytes: an empty descriptor.
    let query = [0x12, 0].repeat((1 << 19) - 1);
    let attacked = scene.attack(async |foes, _| {
        let client = async |foes: &Foes, _| {
            let connection = Connection::open(foes.grpc).await;
            while !foes.is_over() {
                let _ = foes.call(&connection, &query).await;
            }
        };
        foes.crowd(4, client).await;
    });
    attacked.await.row.end();
}

#[tokio::test(flavor = "multi_thread")]
async fn v8_a_long_value_before_a_thousand_patterns_is_matched_at_once() {
    let pattern = |n: usize| {
        let limit = "rate_limit: {unit: hour, requests_per_unit: 9}";
        format!("  - {{key: path, value: 'a*ababab{n}*', {limit}}}\n")
    };
    let rules: String = (0..1_000).map(pattern).collect();
    let plan = Plan::new("V8", "values of 60 and 900 KB before 1000 patterns");
    let scene = Scene::start(plan.with_rules(&rules)).await;
    let took = std::sync::Mutex::new(Vec::new());
    let attacked = scene.attack(async |foes, _| {
        let client = async |nth: usize| {
            let length = if nth == 0 { 900_000 } else { 60_000 };
            let message = message("path", &"ab".repeat(length / 2));
            let connection = Connection::open(foes.grpc).await;
            // Twenty a second: a rate that an attacker can hide among other calls.
            let mut ticks = tokio::time::interval(Duration::from_millis(50));
            while !foes.is_over() {
                ticks.tick().await;
                let begun = now();
                let _ = foes.call(&connection, &message).await;
                took.lock().unwrap().push((nth, begun.elapsed()));
            }
        };
        // Not a crowd, which would cut off the last and slowest call at the end.
        join_all((0..3).map(client)).await;
    });
    let mut row = attacked.await.row;
    let took = took.into_inner().unwrap();
    let slowest = took.iter().map(|(_, took)| *took).max().unwrap_or_default();
    let longest = took.iter().filter(|(nth, _)| *nth == 0).map(|(_, took)| *took);
    let mut longest: Vec<_> = longest.collect();
    longest.sort_unstable();
    let usual = longest.get(longest.len() / 2).copied().unwrap_or_default();
    row.note(&format!("the slowest match took {slowest:.1?}, those of 900 KB usually {usual:.1?}"));
    row.holds(usual <= MATCH_MAX, &format!("matches of 900 KB took {usual:.1?}"));
    row.holds(slowest <= STALLED_MAX, &format!("a match took {slowest:.1?}"));
    row.end();
}

/// A descriptor of one entry, followed by `more` of its fields.
fn descriptor(value: &[u8], more: &[u8]) -> Vec<u8> {
    [&raw_grpc::descriptor("plenty", value), more].concat()
}

fn request(descriptors: &[Vec<u8>]) -> Vec<u8> {
    raw_grpc::request(DOMAIN, descriptors)
}

/// Messages of all shapes, each with the code of its answer.
fn shapes() -> Vec<(&'static str, Vec<u8>, Code)> {
    let of = |more: &[u8]| request(&[descriptor(b"v", more)]);
    let hits = |hits| of(&bytes_field(3, number_field(1, hits)));
    let limit = |amount, unit| {
        of(&bytes_field(2, [number_field(1, amount), number_field(2, unit)].concat()))
    };
    let entry = raw_grpc::descriptor("k", "v");
    let long = |bytes: usize| request(&[descriptor(&vec![b'v'; bytes], &[])]);
    vec![
        ("a value of 60 KB", long(60_000), Code::Ok),
        ("a value above the limit of messages", long(1 << 20), Code::ResourceExhausted),
        (
            "10 000 descriptors",
            request(&vec![descriptor(b"v", &[]); 10_000]),
            Code::InvalidArgument,
        ),
        ("1000 entries", request(&[entry.repeat(1_000)]), Code::InvalidArgument),
        ("the most hits", hits(u64::MAX), Code::Ok),
        ("no hits", hits(0), Code::Ok),
        ("a limit of none", limit(0, 1), Code::Ok),
        ("a limit of the most", limit(u64::from(u32::MAX), 4), Code::Ok),
        ("a limit without a unit", limit(1, 0), Code::InvalidArgument),
        ("a value that is not UTF-8", request(&[descriptor(b"\xff", &[])]), Code::Internal),
        ("no domain", bytes_field(2, descriptor(b"v", &[])), Code::Unknown),
        ("no descriptors", request(&[]), Code::Unknown),
        ("a descriptor twice", request(&vec![descriptor(b"twice", &[]); 2]), Code::Ok),
        ("no protobuf", vec![0xff; 1_000], Code::Internal),
    ]
}

#[tokio::test(flavor = "multi_thread")]
async fn h8_each_shape_of_a_request_gets_its_code() {
    let scene = Scene::start(Plan::new("H8", "requests of every shape, good and bad")).await;
    let shapes = shapes();
    let mut wrong = Vec::new();
    let attacked = scene.attack(async |foes, _| {
        let connection = Connection::open(foes.grpc).await;
        while !foes.is_over() {
            for (name, message, code) in &shapes {
                match foes.call(&connection, message).await {
                    Ok(reply) if reply.code == *code => {}
                    other => wrong.push(format!("{name}: {other:?}")),
                }
            }
        }
    });
    let mut row = attacked.await.row;
    wrong.dedup();
    row.holds(wrong.is_empty(), &wrong.join("; ").chars().take(500).collect::<String>());
    row.end();
}

#[tokio::test(flavor = "multi_thread")]
async fn h2_unknown_methods_and_broken_messages_end_their_call_alone() {
    let scene = Scene::start(Plan::new("H2", "unknown services, methods, broken messages")).await;
    let good = framed(&message("plenty", "interop"));
    let cases = [
        ("/envoy.service.ratelimit.v3.RateLimitService/None", good.clone(), Code::Unimplemented),
        ("/grpc.testing.TestService/EmptyCall", framed(&[]), Code::Unimplemented),
        ("/", framed(&[]), Code::Unimplemented),
        (SHOULD_RATE_LIMIT, framed(&[0xff; 20]), Code::Internal),
        (SHOULD_RATE_LIMIT, good.clone(), Code::Ok),
    ];
    let mut wrong = Vec::new();
    let attacked = scene.attack(async |foes, _| {
        // One connection, which has to stay open through all of it.
        let connection = Connection::open(foes.grpc).await;
        while !foes.is_over() {
            for (path, body, code) in &cases {
                match foes.request(&connection, post(path), body.clone()).await {
                    Ok(reply) if reply.code == *code => {}
                    other => wrong.push(format!("{path}: {other:?}")),
                }
            }
        }
    });
    let mut row = attacked.await.row;
    wrong.dedup();
    row.holds(wrong.is_empty(), &wrong.join("; ").chars().take(500).collect::<String>());
    row.end();
}

/// `bytes` bytes of zeros, compressed by a factor of a thousand.
fn bomb(bytes: usize) -> Vec<u8> {
    let script = format!("head -c {bytes} /dev/zero | gzip -9");
    let made = Command::new("/bin/sh").args(["-c", &script]).output().expect("gzip runs");
    assert!(made.stdout.len() > 1_000, "gzip made nothing: {made:?}");
    made.stdout
}

/// Messages that decompress to more than the limit are refused; those within it, which are a
/// thousand times as long as what was sent, are decided within the memory of a pod.
#[tokio::test(flavor = "multi_thread")]
async fn h9_compressed_messages_take_no_more_memory_than_long_ones() {
    let scene = Scene::start(Plan::new("H9", "gzip bombs: 64 MiB of zeros, and valid MiBs")).await;
    let flagged = |bomb: &[u8]| {
        let length = u32::try_from(bomb.len()).expect("a short bomb").to_be_bytes();
        [&[1], &length[..], bomb].concat()
    };
    let zeros = flagged(&bomb(64 << 20));
    let mut valid = GzEncoder::new(Vec::new(), Compression::best());
    valid.write_all(&message("plenty", &"v".repeat(1_000_000))).expect("memory");
    let valid = flagged(&valid.finish().expect("memory"));
    let (mut decided, mut wrong) = (0, Vec::new());
    let attacked = scene.attack(async |foes, _| {
        let connection = Connection::open(foes.grpc).await;
        let send = async |body: &[u8]| {
            let head = post(SHOULD_RATE_LIMIT).header("grpc-encoding", "gzip");
            foes.request(&connection, head, body.to_vec()).await
        };
        while !foes.is_over() {
            let long = join_all((0..16).map(|_| send(&valid))).await;
            for reply in long.into_iter().flatten() {
                match reply.code {
                    Code::Ok => decided += 1,
                    Code::ResourceExhausted | Code::DeadlineExceeded => {}
                    _ => wrong.push(format!("{reply:?}")),
                }
            }
            if let Ok(reply) = send(&zeros).await
                && reply.code != Code::ResourceExhausted
                && reply.code != Code::DeadlineExceeded
            {
                wrong.push(format!("{reply:?}"));
            }
        }
    });
    let mut row = attacked.await.row;
    row.note(&format!("{decided} MiB decided"));
    row.holds(decided > 0, "no valid message was decided");
    row.holds(wrong.is_empty(), &wrong.join("; ").chars().take(500).collect::<String>());
    row.end();
}

/// A stream of `blocks` deflate blocks that contain nothing, which take their reader the longest for
/// each byte, as a compressed message of gRPC.
fn empty_blocks(blocks: usize) -> Vec<u8> {
    let head = [0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 255];
    let (block, last) = ([0, 0, 0, 0xff, 0xff], [1, 0, 0, 0xff, 0xff]);
    let tail = [0; 8]; // the checksum and the length of no bytes
    let stream = [&head[..], &block.repeat(blocks), &last, &tail].concat();
    let length = u32::try_from(stream.len()).expect("a short stream").to_be_bytes();
    [&[1], &length[..], &stream].concat()
}

/// Decompression is bounded by what is sent: a MiB of empty blocks is refused unread, and those that
/// are short enough are read one at a time, with other calls between them.
#[tokio::test(flavor = "multi_thread")]
async fn h9b_compressed_messages_without_content_take_no_time_of_the_others() {
    let plan = Plan::new("H9b", "gzip of empty blocks: 1 MiB, and 4 KiB without pause");
    let scene = Scene::start(plan).await;
    let bodies = [empty_blocks(1 << 20 >> 3), empty_blocks((4 << 10) / 5 - 8)];
    let mut wrong = Vec::new();
    let mut sent = 0;
    let attacked = scene.attack(async |foes, _| {
        let connection = Connection::open(foes.grpc).await;
        while !foes.is_over() {
            let calls = bodies.iter().cycle().take(32).map(|body| {
                let head = post(SHOULD_RATE_LIMIT).header("grpc-encoding", "gzip");
                foes.request(&connection, head, body.clone())
            });
            for reply in join_all(calls).await.into_iter().flatten() {
                sent += 1;
                // An empty message has no domain.
                if !matches!(
                    reply.code,
                    Code::Unknown
                        | Code::InvalidArgument
                        | Code::ResourceExhausted
                        | Code::DeadlineExceeded
                ) {
                    wrong.push(format!("{reply:?}"));
                }
            }
        }
    });
    let mut row = attacked.await.row;
    row.note(&format!("{sent} answered"));
    row.holds(sent > 0, "nothing was answered");
    row.holds(wrong.is_empty(), &wrong.join("; ").chars().take(500).collect::<String>());
    row.end();
}
