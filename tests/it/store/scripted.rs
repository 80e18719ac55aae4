//! A server whose replies a test defines: it reads commands as Redis does, accepts every login and
//! every script, and leaves the rest to the test.

use std::sync::Arc;

use ratelease_engine::store::redis::{RedisKind, RedisSettings};
use ratelease_rules::Unit;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

use crate::support::redis::tcp;

/// A listening server; its tasks end with the test's runtime.
pub(super) struct Scripted {
    port: u16,
    connections: watch::Receiver<u64>,
}

/// The reaction to a command.
pub(super) enum Act {
    Say(String),
    /// Replies with this, and closes the connection.
    SayAndLeave(String),
}

/// The reply in place of a script's name, which the client ignores.
const LOADED: &str = "+name\r\n";

// === impl Scripted ===

impl Scripted {
    /// `act` gets each command except the first of a connection, which logs in, and SCRIPT LOAD.
    pub(super) async fn start(act: impl AsyncAct) -> Self {
        Self::at(|_| act).await
    }

    /// As [`Scripted::start`], where the reactions depend on the port.
    pub(super) async fn at<A: AsyncAct>(act_at: impl FnOnce(u16) -> A) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let (count, connections) = watch::channel(0);
        let act = Arc::new(act_at(port));
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                count.send_modify(|count| *count += 1);
                tokio::spawn(serve(client, Arc::clone(&act)));
            }
        });
        Self { port, connections }
    }

    pub(super) fn config(&self) -> RedisSettings {
        RedisSettings::new(RedisKind::Single, vec![tcp(self.port)])
    }

    /// Settings that treat the server as a node of a cluster.
    pub(super) fn of_cluster(&self) -> RedisSettings {
        RedisSettings::new(RedisKind::Cluster, vec![tcp(self.port)])
    }

    pub(super) fn port(&self) -> u16 {
        self.port
    }

    /// Number of connections so far.
    pub(super) fn connections(&self) -> u64 {
        *self.connections.borrow()
    }
}

/// An async function from the words of a command to the reaction.
pub(super) trait AsyncAct: Send + Sync + 'static {
    fn act(&self, words: Vec<String>) -> impl Future<Output = Act> + Send;
}

impl<F: Fn(Vec<String>) -> R + Send + Sync + 'static, R: Future<Output = Act> + Send> AsyncAct
    for F
{
    fn act(&self, words: Vec<String>) -> impl Future<Output = Act> + Send {
        self(words)
    }
}

async fn serve(client: TcpStream, act: Arc<impl AsyncAct>) -> Option<()> {
    let mut client = BufReader::new(client);
    let login = read_command(&mut client).await?;
    let reply = match login[0].as_str() {
        "AUTH" => "+OK\r\n",
        "PING" => "+PONG\r\n",
        other => panic!("{other} is no login"),
    };
    client.write_all(reply.as_bytes()).await.ok()?;
    loop {
        let command = read_command(&mut client).await?;
        if command[0] == "SCRIPT" {
            client.write_all(LOADED.as_bytes()).await.ok()?;
            continue;
        }
        match act.act(command).await {
            Act::Say(text) => client.write_all(text.as_bytes()).await.ok()?,
            Act::SayAndLeave(text) => return client.write_all(text.as_bytes()).await.ok(),
        }
    }
}

/// Reads a command such as `*2\r\n$3\r\nGET\r\n$1\r\nk\r\n`; `None` once the client has closed the
/// connection.
async fn read_command(client: &mut BufReader<TcpStream>) -> Option<Vec<String>> {
    let mut words = Vec::new();
    for _ in 0..read_number(client, '*').await? {
        let mut word = vec![0; read_number(client, '$').await? + 2];
        client.read_exact(&mut word).await.ok()?;
        word.truncate(word.len() - 2);
        words.push(String::from_utf8(word).unwrap());
    }
    Some(words)
}

async fn read_number(client: &mut BufReader<TcpStream>, mark: char) -> Option<usize> {
    let mut line = String::new();
    client.read_line(&mut line).await.ok()?;
    line.trim_end().strip_prefix(mark)?.parse().ok()
}

/// The reply of a fixed window's script to [`super::ask`]: `tokens` granted, and as many charged.
pub(super) fn grant_of(tokens: u64) -> String {
    let window = 56;
    let now_us = window * Unit::Year.seconds() * 1_000_000;
    format!("*7\r\n:{tokens}\r\n:{now_us}\r\n:{window}\r\n:{tokens}\r\n:0\r\n:0\r\n:0\r\n")
}
