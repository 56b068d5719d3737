//! A connector of one's own, for a line protocol over TCP: `cargo run --example custom_connector`.
//!
//! The server lives in this process and hangs up after every third answer; the client asks nine questions all the same.

#![expect(clippy::print_stdout, reason = "an example shows what happens")]

use std::error::Error;
use std::io;
use std::net::SocketAddr;
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use steadfast::{Attempt, Connector, Endpoint, Policy, Supervisor};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufStream};
use tokio::net::{TcpListener, TcpStream};

type Lines = BufStream<TcpStream>;

/// How to open one connection: everything else is the supervisor's work.
struct LineProtocol {
    server: SocketAddr,
}

impl Connector for LineProtocol {
    type Connection = Lines;
    type Error = io::Error;

    async fn connect(&self, attempt: Attempt) -> io::Result<Lines> {
        let mut lines = BufStream::new(TcpStream::connect(self.server).await?);
        attempt.reached();
        // A connection counts as open when it is usable, so the greeting belongs here.
        match ask(&mut lines, "hello").await?.as_str() {
            "welcome" => Ok(lines),
            other => Err(io::Error::other(format!("the server greets with {other:?}"))),
        }
    }

    fn endpoint(&self) -> Endpoint {
        Endpoint::new(&format!("lines://{}", self.server))
    }
}

async fn ask(lines: &mut Lines, question: &str) -> io::Result<String> {
    lines.write_all(format!("{question}\n").as_bytes()).await?;
    lines.flush().await?;
    read_line(lines).await?.ok_or_else(|| io::ErrorKind::UnexpectedEof.into())
}

async fn read_line(lines: &mut Lines) -> io::Result<Option<String>> {
    let mut line = String::new();
    let read = lines.read_line(&mut line).await?;
    Ok((read > 0).then(|| line.trim_end().to_owned()))
}

/// Questions in all; the server answers three to a connection.
const QUESTIONS: u32 = 9;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let server = listener.local_addr()?;
    tokio::spawn(serve(listener));

    // Sessions of this example are short, so they are forgiven early.
    let policy = Policy::lone().stable_after(Duration::from_millis(200));
    let supervisor = Supervisor::builder(LineProtocol { server }).policy(policy).build()?;
    let asked = &AtomicU32::new(0);
    let last = supervisor
        .run(|mut lines, session| async move {
            loop {
                let number = asked.load(Ordering::Relaxed) + 1;
                let answer = ask(&mut lines, &format!("question {number}")).await?;
                asked.store(number, Ordering::Relaxed);
                println!("connection {}: {answer}", session.generation());
                if number == QUESTIONS {
                    return Ok::<_, io::Error>(ControlFlow::Break(answer));
                }
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        })
        .await?;
    println!("last: {last}");
    Ok(())
}

/// Answers each line, and hangs up after three answers to a client.
async fn serve(listener: TcpListener) -> io::Result<()> {
    loop {
        let mut lines = BufStream::new(listener.accept().await?.0);
        tokio::spawn(async move {
            for answers in 0..=3 {
                let Some(line) = read_line(&mut lines).await? else { break };
                let answer = if answers == 0 { "welcome".to_owned() } else { format!("{line} answered") };
                lines.write_all(format!("{answer}\n").as_bytes()).await?;
                lines.flush().await?;
            }
            Ok::<_, io::Error>(())
        });
    }
}
