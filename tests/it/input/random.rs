//! Messages with random faults.

use std::time::Duration;

use futures_util::stream;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tonic::Code;

use super::{descriptor, good, hits, limit, pod, refund, request};
use crate::support::http::Client;
use crate::support::now;
use crate::support::raw_grpc::{Connection, SHOULD_RATE_LIMIT, framed, number_field, post};
use crate::support::rng::Rng;

const SPAN: Duration = Duration::from_millis(1500);

const JSON: &str = r#"{"domain":"test","hitsAddend":7,"descriptors":[{"entries":[
    {"key":"three","value":"v"}],"limit":{"requestsPerUnit":"10","unit":"WEEK"},
    "isNegativeHits":true},{"entries":[{"key":"plenty","value":"\u00e9"}],"hits_addend":"3"}]}"#;

/// Puts a few random faults into `bytes`.
fn spoilt(mut bytes: Vec<u8>, rng: &mut Rng) -> Vec<u8> {
    for _ in 0..=rng.below(3) {
        let at = usize::try_from(rng.below(bytes.len() as u64 + 1)).unwrap();
        let end = bytes.len().min(at + usize::try_from(rng.below(9)).unwrap());
        match rng.below(6) {
            0 => bytes.truncate(at),
            1 => drop(bytes.drain(at..end)),
            2 => drop(bytes.splice(at..end, rng.next_u64().to_le_bytes())),
            3 => drop(bytes.splice(at..at, bytes[at..end].to_vec())),
            4 => bytes[at..end].fill(0xFF),
            _ => bytes[at..end].iter_mut().for_each(|byte| *byte ^= 1 << rng.below(8)),
        }
    }
    bytes
}

#[tokio::test(flavor = "multi_thread")]
async fn random_faults_leave_the_server_serving() {
    let mut rng = Rng::new();
    let (pod, _rules) = pod().await;
    let grpc = Connection::open(pod.grpc).await;
    let mut http = Client::connect(pod.http).await.unwrap();
    let whole = [
        good(),
        [good(), number_field(3, 9)].concat(),
        request("test", &[[descriptor("three", "v"), limit(7), hits(2)].concat()]),
        request("test", &[[descriptor("plenty", "v"), hits(u64::MAX), refund()].concat()]),
        request("test", &vec![descriptor("three", "w").repeat(3); 9]),
    ];
    let (mut served, mut refused) = (0, 0);
    let end = now() + SPAN;
    while now() < end {
        let message = &whole[usize::try_from(rng.below(whole.len() as u64)).unwrap()];
        let body = match rng.below(4) {
            0 => spoilt(framed(message), &mut rng),
            _ => framed(&spoilt(message.clone(), &mut rng)),
        };
        // An error would be the connection's, which must stay open.
        let reply = grpc.request(post(SHOULD_RATE_LIMIT), stream::iter([body])).await.unwrap();
        match reply.code {
            Code::Ok => served += 1,
            _ => refused += 1,
        }
        let (json, body) = ([("content-type", "application/json")], spoilt(JSON.into(), &mut rng));
        let answer = http.send("POST", "/json", &json, body).await.unwrap();
        assert!([200, 400, 403, 429].contains(&answer.status), "{answer:?}");
        let mut stream = TcpStream::connect(pod.grpc).await.unwrap();
        let bytes = [b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0", &framed(message)[..]];
        // The server may close the connection before all is written.
        let _ = stream.write_all(&spoilt(bytes.concat(), &mut rng)).await;
    }
    println!("{served} served, {refused} refused");
    assert!(served > 0 && refused > 0, "{served} served, {refused} refused");
    assert_eq!(grpc.call(&good()).await.is_over_limit(), Some(false));
    assert_eq!(Connection::open(pod.grpc).await.call(&good()).await.is_over_limit(), Some(false));
    pod.is_unharmed();
}
