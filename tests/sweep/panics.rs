//! A panic at every place where code of the user runs: it is told, it is charged as a failed attempt or session where
//! it ended one, and supervision goes on.

use std::ops::ControlFlow;
use std::sync::{Arc, Mutex};

use steadfast::machine::{Action, Event, Transition};
use steadfast::testing::ManualClock;
use steadfast::{Cause, Clock, Failure, Handle, Lease, Link, Session, State, StopReason, Supervisor};
use tokio::task::{JoinHandle, yield_now};
use tokio::time::{sleep, timeout};

use crate::common::{Answer, Dialler, Manner, lock, ms, plain, secs};
use crate::formats::Formats;
use crate::fuse::Place::{self, *};
use crate::fuse::{Fault, Fragile, Fuse, Glass, Raw, Watched};
use crate::world::{World, in_paused_time, opens_at, served_by};

const RUN: [Place; 14] = [
    Classify,
    Close,
    CloseCall,
    Connect,
    ConnectCall,
    Convert,
    Display,
    DropClose,
    DropConnection,
    DropDial,
    DropSession,
    Observer,
    Session,
    SessionCall,
];
const KEEP: [Place; 15] = [
    Check,
    CheckCall,
    Classify,
    Close,
    CloseCall,
    Connect,
    ConnectCall,
    Convert,
    Display,
    DropCheck,
    DropClose,
    DropConnection,
    DropDial,
    Observer,
    Source,
];

/// A panic here ends an attempt or a session, so the status says so. (One over an error's text or source may be the
/// log's.)
fn is_told(place: Place) -> bool {
    matches!(place, Check | CheckCall | Classify | Connect | ConnectCall | Convert | Session | SessionCall)
}

/// One supervisor that may panic, another one behind the same gate, and all that can be seen of them.
struct Stage {
    world: World,
    fuse: Arc<Fuse>,
    supervisor: Arc<Supervisor<Fragile>>,
    other: JoinHandle<Link<Dialler>>,
    /// Each with how many attempts the gate knew of afterwards.
    transitions: Arc<Mutex<Vec<(Transition, usize)>>>,
    watching: JoinHandle<Vec<Cause>>,
}

impl Stage {
    fn new(fuse: Arc<Fuse>, clock: Clock) -> Self {
        // The third dial ends at its deadline.
        let world = World::new([Answer::Fail(0, Failure::Transient), Answer::Accept(50), Answer::Silent]);
        let connector = Fragile { inner: world.server.connector(), fuse: Arc::clone(&fuse) };
        let transitions = Arc::new(Mutex::new(Vec::new()));
        let (record, passed, gate) = (Arc::clone(&transitions), Arc::clone(&fuse), world.gate.clone());
        let supervisor = Supervisor::builder(connector)
            .policy(plain().attempt_deadline(secs(3)).close(secs(1)))
            .gate(&world.gate)
            .clock(clock)
            .seed(7)
            .on_transition(move |transition| {
                lock(&record).push((*transition, gate.status().in_flight));
                passed.pass(Observer);
            })
            .build()
            .expect("valid settings");
        let watching = tokio::spawn(causes(supervisor.handle()));
        let (gate, next) = (world.gate.clone(), Arc::clone(&world.next));
        let other = tokio::spawn(async move {
            // It waits behind the first attempt of the one that may panic.
            yield_now().await;
            let link = World::other_of(&gate, &next, 99);
            timeout(secs(10), link.ready()).await.expect("those who share the gate are served").unwrap();
            link
        });
        Self { world, fuse, supervisor: Arc::new(supervisor), other, transitions, watching }
    }

    /// It is over, in spite of what happened on the way. Whether anything did.
    async fn end_whole(self, sessions: u64) -> bool {
        let Self { world, fuse, supervisor, other, transitions, watching } = self;
        let blown = fuse.disarm();
        let status = supervisor.handle().status();
        assert_eq!(status.stopped, Some(StopReason::Drained));
        assert!(status.generation >= sessions, "it came back each time: {status:?}");
        let causes: Vec<String> = watching.await.expect("no panic").iter().map(ToString::to_string).collect();
        if blown && is_told(fuse.place()) && fuse.is_single() {
            assert!(causes.iter().any(|cause| cause.contains(&fuse.message())), "{}: {causes:#?}", fuse.message());
        }
        follows_the_curve(&lock(&transitions));
        assert_eq!(fuse.unwound(), 0, "no connection is dropped while a panic unwinds");
        let other = other.await.expect("no panic");
        assert_eq!(other.current().expect("it is still live").generation(), 1);
        let gate = world.gate.status();
        assert_eq!((gate.in_flight, gate.waiting), (0, 0), "{gate:?}");
        assert_eq!((world.server.open().now(), world.server.in_flight().now()), (0, 0), "open and half open");
        let next = world.other(&world.next, 100);
        served_by(opens_at(&gate), &next).await;
        // And it can be begun again.
        let again = supervisor.run(|_, session| async move { Ok::<_, Raw>(ControlFlow::Break(session.generation())) });
        assert!(timeout(secs(60), again).await.expect("served again").expect("not stopped") > status.generation);
        blown
    }
}

/// All that the status ever gave as the last failure.
async fn causes(mut handle: Handle) -> Vec<Cause> {
    while handle.status().state == State::Idle {
        sleep(ms(1)).await;
    }
    let mut causes = Vec::new();
    loop {
        match handle.changed().await {
            Ok(status) => causes.extend(status.last_failure),
            Err(stopped) => {
                causes.extend(stopped.cause);
                return causes;
            }
        }
    }
}

/// After each failed attempt its slot is free, and there is a wait of at least the curve's base; nobody dials before it
/// is over.
fn follows_the_curve(transitions: &[(Transition, usize)]) {
    for (transition, in_flight) in transitions {
        let dials = matches!(transition.action, Action::Dial { .. });
        assert_eq!(*in_flight, usize::from(dials), "after {transition:?}");
    }
    for pair in transitions.windows(2) {
        let pair = [pair[0].0, pair[1].0];
        if let (Action::Wait, Event::Failed(_) | Event::TimedOut, State::Connecting) =
            (pair[0].action, pair[0].event, pair[0].from)
        {
            let until = pair[0].until.expect("a wait has an end");
            assert!(until >= pair[0].at + secs(1), "{pair:?}");
            if matches!(pair[1].action, Action::Dial { .. }) {
                assert!(pair[1].at >= until && pair[1].at <= until + ms(2), "{pair:?}");
            }
        }
    }
}

/// Sweeps a story: a panic at each number of these places that it passes, and as many more as are asked for.
fn sweep<Fut: Future<Output = bool>>(places: &[Place], blows: usize, story: impl Fn(Arc<Fuse>) -> Fut) -> usize {
    (0..)
        .find(|first| {
            let fuse = Fuse::new(places, *first, blows);
            let tells = Tells(Arc::clone(&fuse));
            let _formats = tracing::subscriber::set_default(Formats);
            let blown = in_paused_time(story(Arc::clone(&tells.0)));
            !blown
        })
        .expect("it ends")
}

/// Says which of all the runs has failed.
struct Tells(Arc<Fuse>);

impl Drop for Tells {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("with {}", self.0.message());
        }
    }
}

/// A life in `run`: a session that fails young, one that is over, one that is reconnected, one that is drained.
async fn run(fuse: Arc<Fuse>) -> bool {
    let stage = Stage::new(fuse, Clock::system());
    *lock(&stage.world.server.close) = Manner::Hangs;
    let (supervisor, fuse) = (Arc::clone(&stage.supervisor), Arc::clone(&stage.fuse));
    let running = tokio::spawn(async move { supervisor.run(|lease, session| live(&fuse, lease, session)).await });
    sleep(secs(60)).await;
    stage.supervisor.handle().reconnect();
    sleep(secs(60)).await;
    *lock(&stage.world.server.close) = Manner::Fine;
    let handle = stage.supervisor.handle();
    timeout(secs(6), handle.drain()).await.expect("drained within its bound");
    assert_eq!(running.await.expect("no panic").unwrap_err().reason, StopReason::Drained);
    stage.end_whole(4).await
}

fn live(
    fuse: &Arc<Fuse>,
    lease: Lease<Glass>,
    session: Session,
) -> impl Future<Output = Result<ControlFlow<()>, Raw>> + use<> {
    fuse.pass(SessionCall);
    let passing = Arc::clone(fuse);
    Watched::new(fuse, DropSession, async move {
        let pass = || passing.pass(Session);
        let _lease = lease;
        pass();
        match session.generation() {
            1 => {
                sleep(ms(200)).await;
                pass();
                return Err(Raw(Fault::new(&passing, Failure::Transient.because("lost"))));
            }
            2 => sleep(secs(15)).await,
            _ => {
                session.draining().await;
                pass();
                sleep(ms(300)).await;
            }
        }
        pass();
        Ok(ControlFlow::Continue(()))
    })
}

/// A life in `keep`: a report of a young connection, a check that is fine, one that fails, one that hangs until its
/// connection is reported, and a drain while it is held.
async fn keep(fuse: Arc<Fuse>) -> bool {
    let clock = ManualClock::new();
    let stage = Stage::new(Arc::clone(&fuse), clock.clock());
    *lock(&stage.world.server.close) = Manner::Hangs;
    let link = stage.supervisor.keep().expect("it is idle");
    let handle = link.handle();
    let report = || {
        let live = link.current().expect("it is back by now");
        live.report(Raw(Fault::new(&fuse, Failure::Transient.because("broken"))));
    };
    sleep(secs(17)).await;
    report();
    for manner in [Manner::Fine, Manner::Fails, Manner::Hangs] {
        sleep(secs(42)).await;
        *lock(&stage.world.server.check) = manner;
        clock.suspend(secs(3_600));
        // Noticed at the next full 5 s, which is in 1 s; a check that hangs does so for 3 s.
        sleep(secs(3)).await;
    }
    report();
    sleep(secs(45)).await;
    *lock(&stage.world.server.close) = Manner::Fine;
    let held = link.current().expect("it is back by now");
    drop(handle.drain());
    sleep(ms(500)).await;
    drop(held);
    timeout(secs(2), handle.drain()).await.expect("drained within its bound");
    drop(link);
    stage.end_whole(4).await
}

#[test]
fn a_panic_anywhere_in_keep_is_told_and_got_over() {
    for place in KEEP {
        for blows in [1, 2] {
            assert!(sweep(&[place], blows, keep) > 0, "{place:?} is never passed");
        }
    }
}

#[test]
fn panics_in_a_row_at_different_places_of_keep_are_got_over() {
    for blows in [2, 3] {
        assert!(sweep(&KEEP, blows, keep) > 60);
    }
}

#[test]
fn a_panic_anywhere_in_run_is_told_and_got_over() {
    for place in RUN {
        for blows in [1, 2] {
            assert!(sweep(&[place], blows, run) > 0, "{place:?} is never passed");
        }
    }
}

#[test]
fn panics_in_a_row_at_different_places_of_run_are_got_over() {
    for blows in [2, 3] {
        assert!(sweep(&RUN, blows, run) > 60);
    }
}
