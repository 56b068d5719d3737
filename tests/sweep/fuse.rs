//! A panic at one of the places where code of the user runs.

use std::error::Error;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock};
use std::task::{Context, Poll};

use steadfast::{Attempt, BoxError, Connector, Ended, Endpoint, Failure, classify};
use tokio::task::yield_now;
use tokio::time::sleep;

use crate::common::{Conn, Dialler, ms};

/// Where code of the user runs. A `…Call` is the call that gives the future, before any poll.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
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
    DropSession,
    Observer,
    Session,
    SessionCall,
    Source,
}

/// Panics where it is told to: at so many of its places that are passed one after the other.
pub(crate) struct Fuse {
    places: Vec<Place>,
    first: usize,
    blows: usize,
    passed: AtomicUsize,
    /// Connections that were dropped while a panic unwound: one that panics itself would abort the process.
    unwound: AtomicUsize,
}

impl Fuse {
    pub(crate) fn new(places: &[Place], first: usize, blows: usize) -> Arc<Self> {
        LazyLock::force(&QUIET);
        Arc::new(Self {
            places: places.to_vec(),
            first,
            blows,
            passed: AtomicUsize::default(),
            unwound: AtomicUsize::default(),
        })
    }

    /// A panic in a drop while another one unwinds would abort the process, whoever catches it.
    pub(crate) fn pass(&self, place: Place) {
        if !self.places.contains(&place) || std::thread::panicking() {
            return;
        }
        let number = self.passed.fetch_add(1, Ordering::SeqCst);
        if (self.first..self.first + self.blows).contains(&number) {
            panic!("{BLOWN} {place:?} {number}");
        }
    }

    /// Nothing panics any more. Whether something did.
    pub(crate) fn disarm(&self) -> bool {
        self.passed.fetch_max(self.first + self.blows, Ordering::SeqCst) > self.first
    }

    pub(crate) fn unwound(&self) -> usize {
        self.unwound.load(Ordering::SeqCst)
    }

    /// Whether one panic at one place is asked for.
    pub(crate) fn is_single(&self) -> bool {
        self.places.len() == 1
    }

    pub(crate) fn place(&self) -> Place {
        self.places[0]
    }

    /// What the first panic says.
    pub(crate) fn message(&self) -> String {
        format!("panicked: {BLOWN} {:?} {}", self.places[0], self.first)
    }
}

const BLOWN: &str = "fuse";

/// A thousand reports of panics that were asked for would hide the one that was not.
static QUIET: LazyLock<()> = LazyLock::new(|| {
    let usual = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        if !info.payload_as_str().is_some_and(|message| message.starts_with(BLOWN)) {
            usual(info);
        }
    }));
});

/// A future that panics when it is dropped, ended or not.
pub(crate) struct Watched<F> {
    future: Pin<Box<F>>,
    fuse: Arc<Fuse>,
    place: Place,
}

impl<F> Watched<F> {
    pub(crate) fn new(fuse: &Arc<Fuse>, place: Place, future: F) -> Self {
        Self { future: Box::pin(future), fuse: Arc::clone(fuse), place }
    }
}

impl<F: Future> Future for Watched<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        self.future.as_mut().poll(cx)
    }
}

impl<F> Drop for Watched<F> {
    fn drop(&mut self) {
        self.fuse.pass(self.place);
    }
}

/// A connection that panics when it is dropped.
pub(crate) struct Glass {
    inner: Conn,
    fuse: Arc<Fuse>,
}

impl Drop for Glass {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.fuse.unwound.fetch_add(1, Ordering::SeqCst);
        }
        self.fuse.pass(Place::DropConnection);
    }
}

/// An error that panics when it is looked at.
pub(crate) struct Fault {
    fuse: Arc<Fuse>,
    source: BoxError,
}

impl Fault {
    pub(crate) fn new(fuse: &Arc<Fuse>, source: impl Into<BoxError>) -> Self {
        Self { fuse: Arc::clone(fuse), source: source.into() }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.fuse.pass(Place::Display);
        f.write_str("a fault")
    }
}

impl fmt::Debug for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl Error for Fault {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.fuse.pass(Place::Source);
        Some(&*self.source)
    }
}

/// What becomes an error, and panics over it.
pub(crate) struct Raw(pub(crate) Fault);

impl From<Raw> for BoxError {
    fn from(raw: Raw) -> Self {
        raw.0.fuse.pass(Place::Convert);
        Box::new(raw.0)
    }
}

/// Panics wherever a connector can.
pub(crate) struct Fragile {
    pub(crate) inner: Dialler,
    pub(crate) fuse: Arc<Fuse>,
}

impl Connector for Fragile {
    type Connection = Glass;
    type Error = Raw;

    fn connect(&self, attempt: Attempt) -> impl Future<Output = Result<Glass, Raw>> + Send {
        self.fuse.pass(Place::ConnectCall);
        let pass = || self.fuse.pass(Place::Connect);
        Watched::new(&self.fuse, Place::DropDial, async move {
            pass();
            yield_now().await;
            pass();
            let dialled = self.inner.connect(attempt.clone()).await;
            pass();
            let inner = dialled.map_err(|error| Raw(Fault::new(&self.fuse, error)))?;
            attempt.reached();
            sleep(ms(10)).await;
            pass();
            Ok(Glass { inner, fuse: Arc::clone(&self.fuse) })
        })
    }

    fn endpoint(&self) -> Endpoint {
        self.inner.endpoint()
    }

    fn classify(&self, error: &(dyn Error + 'static), _: Ended) -> Failure {
        self.fuse.pass(Place::Classify);
        classify(error)
    }

    fn close(&self, connection: &Glass) -> impl Future<Output = ()> + Send {
        self.fuse.pass(Place::CloseCall);
        let pass = || self.fuse.pass(Place::Close);
        Watched::new(&self.fuse, Place::DropClose, async move {
            pass();
            yield_now().await;
            pass();
            self.inner.close(&connection.inner).await;
            pass();
        })
    }

    fn check(&self, connection: &Glass) -> impl Future<Output = Result<(), BoxError>> + Send {
        self.fuse.pass(Place::CheckCall);
        let pass = || self.fuse.pass(Place::Check);
        Watched::new(&self.fuse, Place::DropCheck, async move {
            pass();
            yield_now().await;
            pass();
            let checked = self.inner.check(&connection.inner).await;
            pass();
            checked.map_err(|error| Raw(Fault::new(&self.fuse, error)).into())
        })
    }
}
