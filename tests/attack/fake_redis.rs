//! A hostile Redis. It accepts every login and then answers as the attack defines. Until the attack
//! begins, it only replies that it is loading, so that the pod answers without it.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};

/// Commands are short; a pod that sends more than this has gone wrong.
const WORD_BYTES_MAX: usize = 1 << 20;

/// Reply to a command.
pub enum Say {
    Text(String),
    /// This text, and then zeros for as long as the client reads them.
    Endless(String),
}

/// Returns the reply to a command, given the command's words and this server's address.
type Answer = dyn Fn(&[String], SocketAddr) -> Say + Send + Sync;

/// A listening server; its tasks end with the test's runtime.
pub struct FakeRedis {
    pub addr: SocketAddr,
    shared: Arc<Shared>,
}

struct Shared {
    is_hostile: AtomicBool,
    sent: AtomicU64,
    answer: Box<Answer>,
}

// === impl FakeRedis ===

impl FakeRedis {
    /// Starts a server. `answer` gets each command that arrives while it is hostile, and its
    /// address.
    pub async fn start(
        answer: impl Fn(&[String], SocketAddr) -> Say + Send + Sync + 'static,
    ) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let addr = listener.local_addr().expect("its address");
        let answer = Box::new(answer);
        let shared = Shared { is_hostile: AtomicBool::new(false), sent: AtomicU64::new(0), answer };
        let shared = Arc::new(shared);
        let serving = Arc::clone(&shared);
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                tokio::spawn(serve(client, addr, Arc::clone(&serving)));
            }
        });
        Self { addr, shared }
    }

    pub fn attack(&self) {
        self.shared.is_hostile.store(true, Ordering::Relaxed);
    }

    /// Bytes that the server has sent.
    pub fn sent(&self) -> u64 {
        self.shared.sent.load(Ordering::Relaxed)
    }
}

// === impl Shared ===

impl Shared {
    fn answer(&self, words: &[String], own: SocketAddr) -> Say {
        let is_hostile = self.is_hostile.load(Ordering::Relaxed);
        let say = match words.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
            ["PING"] => "+PONG\r\n".to_owned(),
            ["AUTH", ..] => "+OK\r\n".to_owned(),
            ["SCRIPT", ..] => "+name\r\n".to_owned(),
            _ if is_hostile => return (self.answer)(words, own),
            ["CLUSTER", "SLOTS"] => slots(&[own]),
            _ => "-LOADING Redis is loading the dataset in memory\r\n".to_owned(),
        };
        Say::Text(say)
    }

    async fn write(&self, client: &mut BufReader<TcpStream>, bytes: &[u8]) -> Option<()> {
        client.write_all(bytes).await.ok()?;
        self.sent.fetch_add(bytes.len() as u64, Ordering::Relaxed);
        Some(())
    }
}

/// A reply to CLUSTER SLOTS that divides all slots among the masters.
pub fn slots(masters: &[SocketAddr]) -> String {
    let each = 16_384 / masters.len();
    let ranges = masters.iter().enumerate().map(|(at, master)| {
        let (first, last) = (at * each, at * each + each - 1);
        let (host, port) = (master.ip().to_string(), master.port());
        format!("*3\r\n:{first}\r\n:{last}\r\n*2\r\n${}\r\n{host}\r\n:{port}\r\n", host.len())
    });
    format!("*{}\r\n{}", masters.len(), ranges.collect::<String>())
}

async fn serve(client: TcpStream, own: SocketAddr, shared: Arc<Shared>) -> Option<()> {
    let mut client = BufReader::new(client);
    loop {
        let command = read_command(&mut client).await?;
        match shared.answer(&command, own) {
            Say::Text(text) => shared.write(&mut client, text.as_bytes()).await?,
            Say::Endless(head) => {
                shared.write(&mut client, head.as_bytes()).await?;
                let zeros = vec![b'0'; 1 << 18];
                loop {
                    shared.write(&mut client, &zeros).await?;
                }
            }
        }
    }
}

/// The words of a command; `None` once the client has closed the connection.
async fn read_command(client: &mut BufReader<TcpStream>) -> Option<Vec<String>> {
    let mut words = Vec::new();
    for _ in 0..read_number(client, '*').await? {
        let mut word = vec![0; read_number(client, '$').await?.min(WORD_BYTES_MAX) + 2];
        client.read_exact(&mut word).await.ok()?;
        word.truncate(word.len() - 2);
        words.push(String::from_utf8_lossy(&word).into_owned());
    }
    Some(words)
}

async fn read_number(client: &mut BufReader<TcpStream>, mark: char) -> Option<usize> {
    let mut line = String::new();
    client.read_line(&mut line).await.ok()?;
    line.trim_end().strip_prefix(mark)?.parse().ok()
}
