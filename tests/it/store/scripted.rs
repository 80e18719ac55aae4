//! A server that says what a test tells it to: it reads commands as Redis does, logs every client
//! in, takes the scripts that it is sent, and leaves the rest to the test.

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

/// What it does about a command.
pub(super) enum Act {
    Say(String),
    /// Says this, and hangs up.
    SayAndLeave(String),
}

/// In place of the name of a script, which nobody reads.
const LOADED: &str = "+name\r\n";

/// All that redis-rs reads of the reply to HELLO is that it is one.
const HELLO: &str = "%1\r\n+server\r\n+redis\r\n";

// === impl Scripted ===

impl Scripted {
    /// `act` sees each command but the first of a connection, which logs in, and SCRIPT LOAD.
    pub(super) async fn start(act: impl AsyncAct) -> Self {
        Self::at(|_| act).await
    }

    /// As [`Scripted::start`], where what is done depends on the port.
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

    /// As a node of a cluster.
    pub(super) fn of_cluster(&self) -> RedisSettings {
        RedisSettings::new(RedisKind::Cluster, vec![tcp(self.port)])
    }

    pub(super) fn port(&self) -> u16 {
        self.port
    }

    /// Connections so far.
    pub(super) fn connections(&self) -> u64 {
        *self.connections.borrow()
    }
}

/// An async function from the words of a command to what is done about it.
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
    let hello = read_command(&mut client).await?;
    assert_eq!(hello[0], "HELLO");
    client.write_all(HELLO.as_bytes()).await.ok()?;
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

/// `*2\r\n$3\r\nGET\r\n$1\r\nk\r\n`; none once the client has gone.
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

/// What the script of a fixed window says to [`super::ask`]: so many granted, as many charged.
pub(super) fn grant_of(tokens: u64) -> String {
    let window = 56;
    let now_us = window * Unit::Year.seconds() * 1_000_000;
    format!("*4\r\n:{tokens}\r\n:{now_us}\r\n:{window}\r\n:{tokens}\r\n")
}
