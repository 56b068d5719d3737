//! The loop that everybody writes: doubled delays up to a cap, no jitter, nothing shared.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use tokio_tungstenite::tungstenite::Error;
use tokio_tungstenite::{WebSocketStream, client_async};

use crate::meter::{Client, Meter, Online};
use crate::schedule::Schedule;

/// The delay after the n-th failure in a row; the last one is kept.
const DELAYS: [Duration; 4] =
    [Duration::from_millis(500), Duration::from_secs(1), Duration::from_secs(2), Duration::from_secs(4)];
const CONNECT_LIMIT: Duration = Duration::from_secs(10);

/// Starts the clients; they run until the set is dropped.
pub(crate) fn spawn(clients: u16, server: SocketAddr, meter: &Arc<Meter>) -> JoinSet<String> {
    (0..clients).map(|number| run(Schedule::start_of(number), server, meter.client(number))).collect()
}

async fn run(start: Duration, server: SocketAddr, client: Client) -> String {
    sleep(start).await;
    let mut failures = 0;
    loop {
        client.dials();
        if let Ok(Ok(socket)) = timeout(CONNECT_LIMIT, connect(server)).await {
            failures = 0;
            read(socket, client.connected()).await;
        }
        sleep(DELAYS[failures]).await;
        failures = (failures + 1).min(DELAYS.len() - 1);
    }
}

async fn connect(server: SocketAddr) -> Result<WebSocketStream<TcpStream>, Error> {
    let stream = TcpStream::connect(server).await?;
    let (socket, _response) = client_async(format!("ws://{server}/"), stream).await?;
    Ok(socket)
}

async fn read(mut socket: WebSocketStream<TcpStream>, online: Online) {
    while let Some(Ok(message)) = socket.next().await {
        if message.is_close() {
            break;
        }
        online.message(&message);
    }
    online.knows_of_gap();
}
