//! What the log says, and how much.

mod common;

use std::fmt::{self, Write};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use common::{Answer, BROKEN, Conn, ENDPOINT, REFUSED, Server, lock, ms, plain, secs};
use steadfast::{Attempt, Backoff, BoxError, Connector, Endpoint, Failure, Gate, Growth, Jitter, Policy, Supervisor};
use tokio::time::{Instant, sleep};
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Metadata, Subscriber, span};

/// One line: when, in milliseconds, at which level, and its fields as text.
#[derive(Clone, Debug)]
struct Line {
    at: u128,
    level: Level,
    span: u64,
    text: String,
}

/// Writes down every line.
struct Book {
    start: Instant,
    spans: AtomicU64,
    opened: Mutex<Vec<String>>,
    lines: Mutex<Vec<Line>>,
}

#[derive(Clone)]
struct Reader(Arc<Book>);

impl Reader {
    /// Reads what this thread logs from now on.
    fn open() -> (Self, tracing::subscriber::DefaultGuard) {
        let book =
            Book { start: Instant::now(), spans: AtomicU64::new(1), opened: Mutex::default(), lines: Mutex::default() };
        let reader = Self(Arc::new(book));
        let guard = tracing::subscriber::set_default(reader.clone());
        (reader, guard)
    }

    fn lines(&self) -> Vec<Line> {
        lock(&self.0.lines).clone()
    }
}

struct Text<'a>(&'a mut String);

impl Visit for Text<'_> {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        let _ = write!(self.0, "{}={value:?} ", field.name());
    }
}

impl Subscriber for Reader {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target().starts_with("steadfast")
    }

    fn new_span(&self, attributes: &span::Attributes<'_>) -> span::Id {
        let mut text = format!("{} ", attributes.metadata().name());
        attributes.record(&mut Text(&mut text));
        lock(&self.0.opened).push(text);
        span::Id::from_u64(self.0.spans.fetch_add(1, Ordering::Relaxed))
    }

    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}

    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut text = String::new();
        event.record(&mut Text(&mut text));
        lock(&self.0.lines).push(Line {
            at: self.0.start.elapsed().as_millis(),
            level: *event.metadata().level(),
            span: event.parent().map_or(0, span::Id::into_u64),
            text,
        });
    }

    fn enter(&self, _: &span::Id) {}

    fn exit(&self, _: &span::Id) {}
}

/// Fails about seven times a second.
fn nervous() -> Policy {
    let cap = ms(150);
    Policy::default()
        .quick(Backoff::new(cap, cap).jitter(Jitter::None))
        .growing(Growth::fixed(cap).jitter(Jitter::None))
        .recovery_spread(secs(0))
}

/// The number in that field of a line.
fn number(line: &Line, field: &str) -> u64 {
    let (_, rest) = line.text.split_once(&format!(" {field}=")).expect("every line has it");
    rest.split(' ').next().and_then(|number| number.parse().ok()).expect("a number")
}

fn suppressed(line: &Line) -> u64 {
    number(line, "suppressed")
}

#[tokio::test(start_paused = true)]
async fn each_supervisor_has_a_span_and_each_outcome_a_line() {
    let (reader, _guard) = Reader::open();
    let server = Server::answers([REFUSED]);
    let supervisor = Supervisor::builder(server.connector()).policy(plain()).name("prices").seed(7).build().unwrap();
    let link = supervisor.keep().unwrap();
    link.ready().await.unwrap();
    sleep(secs(20)).await;
    link.current().unwrap().report("broken pipe");
    sleep(secs(20)).await;
    link.handle().drain().await;
    assert_eq!(*lock(&reader.0.opened), ["supervisor name=\"prices\" endpoint=test://server:1 "]);
    let lines = reader.lines();
    assert!(lines.iter().all(|line| line.span == 1));
    let says = [
        (Level::WARN, "attempt failed", "cause=connect test://server:1 failed (unreachable): dial 0"),
        (Level::INFO, "connected", "generation=1"),
        (Level::WARN, "connection ended", "cause=report test://server:1 failed (transient): broken pipe"),
        (Level::INFO, "stopped", "generation=2"),
    ];
    let told: Vec<_> = lines.iter().map(|line| (line.at, line.level, &line.text)).collect();
    for (level, message, field) in says {
        let found = lines.iter().any(|l| l.level == level && l.text.contains(message) && l.text.contains(field));
        assert!(found, "{message}, {field} in {told:#?}");
    }
    assert!(lines[0].text.contains("wait=Backoff sleep=1s"), "{told:#?}");
}

#[tokio::test(start_paused = true)]
async fn the_first_failure_comes_at_once_and_then_one_line_a_second_tells_the_rest() {
    let (reader, _guard) = Reader::open();
    let server = Server::new(|n| if n % 2 == 0 { REFUSED } else { BROKEN });
    let link = Supervisor::builder(server.connector()).policy(nervous()).seed(7).build().unwrap().keep().unwrap();
    sleep(ms(14_990)).await;
    let lines = reader.lines();
    let failures = server.dial_count() as u64;
    assert!(failures > 90, "{failures}");
    assert_eq!(lines[0].at, 0);
    assert!(lines.windows(2).all(|pair| pair[1].at - pair[0].at >= 1_000), "{lines:#?}");
    assert!((12..=15).contains(&lines.len()), "{}", lines.len());
    let told: u64 = lines.iter().map(|line| 1 + suppressed(line)).sum();
    assert!(failures - told < 8, "{told} of {failures} are accounted for, the rest by the next line");
    drop(link);
}

#[tokio::test(start_paused = true)]
async fn a_gate_of_forty_writes_ten_lines_a_second() {
    let (reader, _guard) = Reader::open();
    let gate = Gate::builder(ENDPOINT).policy(Policy::default()).build().unwrap();
    let server = Server::healthy();
    let builder = Supervisor::builder(server.connector()).policy(Policy::default()).gate(&gate);
    let links: Vec<_> = (0..40).map(|n| builder.clone().seed(n).build().unwrap().keep().unwrap()).collect();
    for link in &links {
        link.ready().await.unwrap();
    }
    sleep(secs(20)).await;
    let began = reader.lines().len();
    for link in &links {
        link.current().unwrap().report("reset");
    }
    sleep(ms(1)).await;
    let at_once = reader.lines()[began..].to_vec();
    assert_eq!(at_once.len(), 10, "{at_once:#?}");
    sleep(secs(60)).await;
    let lines = reader.lines();
    assert!(lines.windows(11).all(|window| window[10].at - window[0].at >= 1_000));
    // What was left out is told by the next line of the gate, whoever's it is.
    assert!(number(&lines[began + 10], "gate_suppressed") >= 30, "{lines:#?}");
}

struct Leaky;

impl Connector for Leaky {
    type Connection = Conn;
    type Error = BoxError;

    async fn connect(&self, _attempt: Attempt) -> Result<Conn, BoxError> {
        Err(Failure::Unauthorized.because("refused").into())
    }

    fn endpoint(&self) -> Endpoint {
        Endpoint::new("wss://user:hunter2@host:9/path?token=hunter2#hunter2")
    }
}

#[tokio::test(start_paused = true)]
async fn credentials_of_the_endpoint_are_nowhere() {
    let (reader, _guard) = Reader::open();
    let supervisor = Supervisor::builder(Leaky).policy(plain()).build().unwrap();
    let link = supervisor.keep().unwrap();
    sleep(secs(10)).await;
    let mut said: Vec<_> = reader.lines().into_iter().map(|line| line.text).collect();
    said.extend(lock(&reader.0.opened).clone());
    said.push(format!("{supervisor:?} {link:?} {:?} {:?}", link.handle(), link.handle().status()));
    said.push(link.handle().status().last_failure.unwrap().to_string());
    assert!(said.iter().any(|text| text.contains("wss://host:9")), "{said:?}");
    assert!(said.iter().all(|text| !text.contains("hunter2") && !text.contains("user")), "{said:?}");
}

#[tokio::test(start_paused = true)]
async fn a_flapping_server_is_told_once_a_second() {
    let (reader, _guard) = Reader::open();
    let server = Server::new(|_| Answer::Accept(0));
    let supervisor = Supervisor::builder(server.connector()).policy(nervous()).seed(7).build().unwrap();
    let running = supervisor.run(|_conn, _| async {
        sleep(ms(50)).await;
        Err::<std::ops::ControlFlow<()>, _>("dropped by the server")
    });
    let _ = tokio::time::timeout(ms(9_990), running).await;
    let lines = reader.lines();
    assert!(server.dial_count() > 20, "{}", server.dial_count());
    assert!(lines.windows(2).all(|pair| pair[1].at - pair[0].at >= 1_000), "{lines:#?}");
    assert!(lines.len() >= 8, "{lines:#?}");
}

#[tokio::test(start_paused = true)]
async fn a_connection_that_is_back_within_a_second_is_told_of() {
    let (reader, _guard) = Reader::open();
    let server = Server::healthy();
    let link = Supervisor::builder(server.connector()).policy(plain()).seed(7).build().unwrap().keep().unwrap();
    link.ready().await.unwrap();
    sleep(secs(60)).await;
    link.current().unwrap().report("reset");
    sleep(secs(60)).await;
    let lines = reader.lines();
    let last = lines.last().expect("some line");
    assert!(last.text.contains("connected") && last.text.contains("generation=2"), "{lines:#?}");
    assert!(lines.windows(2).all(|pair| pair[1].at - pair[0].at >= 1_000), "{lines:#?}");
    assert_eq!(lines.len(), 3, "{lines:#?}");
}

#[tokio::test(start_paused = true)]
async fn why_a_wait_of_minutes_was_begun_is_told_although_the_loss_was_told_just_before() {
    let (reader, _guard) = Reader::open();
    let server = Server::healthy();
    let gate = Gate::builder(ENDPOINT).policy(Policy::default()).build().unwrap();
    let builder = Supervisor::builder(server.connector()).policy(Policy::default()).gate(&gate);
    let links: Vec<_> = (0..40).map(|n| builder.clone().seed(n).build().unwrap().keep().unwrap()).collect();
    for link in &links {
        link.ready().await.unwrap();
    }
    sleep(secs(60)).await;
    server.turn(|_| Answer::Fail(0, Failure::Throttled { retry_after: Some(secs(600)) }));
    let before = reader.lines().len();
    for link in &links {
        link.current().unwrap().report("reset");
    }
    sleep(secs(5)).await;
    let lines = reader.lines().split_off(before);
    assert!(lines.iter().any(|line| line.text.contains("throttled, retry after 600s")), "{lines:#?}");
    assert!(lines.windows(11).all(|window| window[10].at - window[0].at >= 1_000));
}

#[tokio::test(start_paused = true)]
async fn why_a_connection_ended_at_once_is_told_by_the_next_line() {
    let (reader, _guard) = Reader::open();
    let server = Server::new(|_| Answer::Accept(0));
    let supervisor = Supervisor::builder(server.connector()).policy(plain()).seed(7).build().unwrap();
    let running = supervisor.run(|_conn, _| async { Err::<std::ops::ControlFlow<()>, _>("dropped by the server") });
    let _ = tokio::time::timeout(secs(60), running).await;
    let lines = reader.lines();
    assert!(lines.len() >= 3, "{lines:#?}");
    assert!(lines[1..].iter().all(|line| line.text.contains("dropped by the server")), "{lines:#?}");
}

#[tokio::test(start_paused = true)]
async fn a_session_that_says_it_is_over_is_no_warning() {
    let (reader, _guard) = Reader::open();
    let server = Server::new(|_| Answer::Accept(0));
    let supervisor = Supervisor::builder(server.connector()).policy(plain()).seed(7).build().unwrap();
    let running = supervisor.run(|_conn, _| async {
        sleep(secs(20)).await;
        Ok::<_, std::io::Error>(std::ops::ControlFlow::<()>::Continue(()))
    });
    let _ = tokio::time::timeout(secs(60), running).await;
    let lines = reader.lines();
    assert!(lines.iter().any(|line| line.text.contains("connection ended")), "{lines:#?}");
    assert!(lines.iter().all(|line| line.level == Level::INFO), "{lines:#?}");
}

#[tokio::test(start_paused = true)]
async fn forty_that_fail_a_hundred_times_each_write_a_line_a_second_each_with_how_many_it_stands_for() {
    let (reader, _guard) = Reader::open();
    let mut server = Server::new(|n| if n / 40 % 2 == 0 { REFUSED } else { BROKEN });
    Arc::get_mut(&mut server).unwrap().endpoint = Endpoint::new("wss://user:hunter2@host:9/path?token=hunter2");
    // A gate each, so that none is bounded by what the others write.
    let builder = Supervisor::builder(server.connector()).policy(nervous());
    let links: Vec<_> = (0..40).map(|n| builder.clone().seed(n).build().unwrap().keep().unwrap()).collect();
    sleep(ms(15_100)).await;
    let failures = server.dial_count();
    assert!(failures > 40 * 95, "{failures}");
    let lines = reader.lines();
    for span in 1..=40 {
        let own: Vec<_> = lines.iter().filter(|line| line.span == span).collect();
        assert_eq!(own[0].at, 0, "the first failure at once");
        assert!(own.windows(2).all(|pair| pair[1].at - pair[0].at >= 1_000), "{own:#?}");
        assert!((13..=16).contains(&own.len()), "{}", own.len());
        let told: u64 = own.iter().map(|line| 1 + suppressed(line)).sum();
        let made = failures as u64 / 40;
        assert!(told <= made && made - told < 8, "{told} of {made} are accounted for, the rest by the next line");
    }
    for message in ["(unreachable)", "(transient)"] {
        assert!(lines.iter().any(|line| line.text.contains(message)), "{message}");
    }
    assert!(lines.iter().all(|line| !line.text.contains("hunter2") && !line.text.contains("user")), "{lines:#?}");
    drop(links);
}

#[tokio::test(start_paused = true)]
async fn what_the_log_says_is_slept_to_the_nanosecond() {
    let (reader, _guard) = Reader::open();
    let throttled = Failure::Throttled { retry_after: Some(secs(7)) };
    let refused = Answer::Fail(0, Failure::Unauthorized);
    let server = Server::answers([REFUSED, BROKEN, Answer::Fail(0, throttled), BROKEN, refused, refused]);
    // No wait is under a second, so that no line is left out.
    let policy = Policy::default().quick(Backoff::new(secs(2), secs(30)));
    let waits = Arc::new(Mutex::new(Vec::new()));
    let record = Arc::clone(&waits);
    let builder = Supervisor::builder(server.connector()).policy(policy).seed(7);
    let builder = builder.on_transition(move |t| lock(&record).push((t.at, t.wait.zip(t.until))));
    builder.build().unwrap().keep().unwrap().ready().await.unwrap();
    let waits = lock(&waits).clone();
    let mut said = reader.lines().into_iter().filter(|line| line.text.contains("attempt failed"));
    for two in waits.windows(2) {
        let (told, Some((wait, until))) = two[0] else { continue };
        let text = said.next().expect("a line for each").text;
        let sleep = until.duration_since(told);
        assert!(text.contains(&format!("wait={wait:?} sleep={sleep:?} ")), "{sleep:?}: {text}");
        let late = two[1].0.checked_duration_since(until).expect("not before");
        assert!(late <= ms(1), "{late:?}");
    }
    assert!(said.next().is_none());
    assert!(waits.iter().filter(|(_, wait)| wait.is_some()).count() >= 6, "{waits:?}");
}
