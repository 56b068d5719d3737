//! The same clients under supervision.

use std::convert::Infallible;
use std::error::Error;
use std::net::SocketAddr;
use std::ops::ControlFlow;
use std::sync::Arc;

use steadfast::machine::{Action, GateStatus, Mode};
use steadfast::websocket::{self, WebSocketConnector};
use steadfast::{Gate, Lease, Session, Supervisor};
use tokio::task::JoinSet;
use tokio::time::sleep;

use crate::meter::{Client, Meter};
use crate::schedule::{Schedule, now};

/// Who shares what.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Gates {
    /// One for all clients.
    Shared,
    /// One for each: what is left is jitter.
    Own,
}

/// Starts the clients, with the default policy; they run until the set is dropped, and one that ends says why.
pub(crate) fn spawn(
    clients: u16,
    server: SocketAddr,
    meter: &Arc<Meter>,
    sharing: Gates,
    seed: u64,
) -> Result<(JoinSet<String>, Vec<Gate>), Box<dyn Error>> {
    let url = format!("ws://{server}/");
    let mut tasks = JoinSet::new();
    let mut gates: Vec<Gate> = Vec::new();
    for number in 0..clients {
        let gate = match (sharing, gates.last()) {
            (Gates::Shared, Some(gate)) => gate.clone(),
            (Gates::Shared, None) | (Gates::Own, _) => {
                let gate = Gate::builder(url.as_str()).build()?;
                gates.push(gate.clone());
                gate
            }
        };
        let client = meter.client(number);
        let dialling = client.clone();
        let supervisor = Supervisor::builder(WebSocketConnector::new(url.as_str())?)
            .gate(&gate)
            .name(&format!("client {number}"))
            .seed(seed.wrapping_add(u64::from(number)))
            .on_transition(move |transition| {
                if let Action::Dial { .. } = transition.action {
                    dialling.dials();
                }
            })
            .build()?;
        tasks.spawn(async move {
            sleep(Schedule::start_of(number)).await;
            let ended = supervisor.run(|connection, session| read(connection, session, client.clone())).await;
            ended.map_or_else(|stopped| stopped.to_string(), |never| match never {})
        });
    }
    Ok((tasks, gates))
}

async fn read(
    connection: Lease<websocket::Connection>,
    session: Session,
    client: Client,
) -> Result<ControlFlow<Infallible>, websocket::Error> {
    let online = client.connected();
    if session.generation() > 1 {
        online.knows_of_gap();
    }
    loop {
        match connection.next().await {
            Ok(message) => online.message(&message),
            Err(error) => {
                online.knows_of_gap();
                return Err(error);
            }
        }
    }
}

/// What the gates do, in a line.
pub(crate) fn describe(gates: &[Gate]) -> String {
    match gates {
        [] => "no gate".to_owned(),
        [gate] => one(&gate.status()),
        gates => many(gates),
    }
}

fn one(status: &GateStatus) -> String {
    let mut line = format!("gate {}", name(status.mode));
    if let Some(until) = status.until {
        let left = until.saturating_duration_since(now()).as_secs_f64();
        line += &format!(" for {left:.1} s");
    }
    if let Some(pace) = status.pace {
        line += &format!(", pace {pace:.1}/s");
    }
    line
}

fn many(gates: &[Gate]) -> String {
    let modes: Vec<_> = gates.iter().map(|gate| gate.status().mode).collect();
    let counts = [Mode::Closed, Mode::Open, Mode::HalfOpen, Mode::Paced].map(|mode| {
        let count = modes.iter().filter(|other| **other == mode).count();
        (count > 0).then(|| format!("{count} {}", name(mode)))
    });
    format!("gates {}", counts.into_iter().flatten().collect::<Vec<_>>().join(", "))
}

fn name(mode: Mode) -> &'static str {
    match mode {
        Mode::Closed => "closed",
        Mode::Open => "open",
        Mode::HalfOpen => "half-open",
        Mode::Paced => "paced",
        _ => "in a mode this demo does not know",
    }
}
