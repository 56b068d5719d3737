//! `keep`: whichever connection is live, shared through links.

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;
use std::time::Instant;

use super::board::stopped;
use super::connector::{BoxError, Connector, Ended};
use super::control::{Control, Owner};
use super::error::{NotReady, Stopped};
use super::handle::Handle;
use super::shell::judge;
use super::sync::{ArcSwapOption, AtomicU64, Counted, Guard, Ordering, timeout_at};

/// Shared access to whichever connection of a supervisor is live. Cheap to clone.
///
/// All the links of a supervisor own its connection together: with the last of them it ends. A [`Handle`] does not.
pub struct Link<C: Connector> {
    slot: Arc<Slot<C>>,
    owner: Counted<Owner>,
}

/// Where the live connection is found.
pub(super) struct Slot<C: Connector> {
    current: ArcSwapOption<Lent<C>>,
    /// The live generation, 0 between two: set after `current` is filled, taken back before it is emptied. Whoever
    /// takes it back has ended the generation.
    generation: AtomicU64,
    pub(super) control: Arc<Control>,
    pub(super) connector: Arc<C>,
}

/// One connection, with its number.
pub(super) struct Lent<C: Connector> {
    pub(super) connection: C::Connection,
    generation: u64,
    slot: Arc<Slot<C>>,
}

impl<C: Connector> Slot<C> {
    pub(super) fn new(control: Arc<Control>, connector: Arc<C>) -> Self {
        Self { current: ArcSwapOption::empty(), generation: AtomicU64::new(0), control, connector }
    }

    pub(super) fn fill(self: &Arc<Self>, connection: C::Connection, generation: u64) -> Arc<Lent<C>> {
        let lent = Arc::new(Lent { connection, generation, slot: Arc::clone(self) });
        self.current.store(Some(Arc::clone(&lent)));
        self.generation.store(generation, Ordering::Release);
        lent
    }

    /// Ends a generation for all who look from now on, and tells whether it was live until now.
    pub(super) fn retire(&self, lent: &Arc<Lent<C>>) -> bool {
        let live = self.generation.compare_exchange(lent.generation, 0, Ordering::AcqRel, Ordering::Acquire).is_ok();
        // Not a store: by now the next one may be there.
        self.current.compare_and_swap(lent, None);
        live
    }

    #[inline]
    fn live(&self) -> Option<Live<C>> {
        let lent = self.current.load();
        let generation = lent.as_ref()?.generation;
        // The slot is at hand; what was lent would have to be followed to it.
        (self.generation.load(Ordering::Acquire) == generation).then_some(Live { lent })
    }
}

impl<C: Connector> Link<C> {
    pub(super) const fn new(slot: Arc<Slot<C>>, owner: Counted<Owner>) -> Self {
        Self { slot, owner }
    }

    /// The live connection, if there is one at this instant; never an ended one.
    #[must_use]
    #[inline]
    pub fn current(&self) -> Option<Live<C>> {
        self.slot.live()
    }

    /// A link for hot loops: it remembers the connection and looks again only when the generation has changed.
    #[must_use]
    pub fn cached(&self) -> CachedLink<C> {
        CachedLink { link: self.clone(), generation: 0, live: None }
    }

    /// Waits for a live connection. **Without bound**: while the server is down it waits, and
    /// [`ready_by`](Self::ready_by) is what a request with a deadline wants.
    ///
    /// # Errors
    ///
    /// [`Stopped`] when supervision has ended, with the cause.
    ///
    /// # Cancel safety
    ///
    /// Safe: nothing is lost.
    pub async fn ready(&self) -> Result<Live<C>, Stopped> {
        if let Some(live) = self.current() {
            return Ok(live);
        }
        let board = &self.slot.control.board;
        board.until_arrival(|| self.current().map(Ok).or_else(|| board.stopped().map(Err))).await
    }

    /// Waits for a live connection until `deadline`, and no longer than it makes sense: it fails as soon as the wait is
    /// chosen that does not fit. The connection itself goes on for others.
    ///
    /// # Errors
    ///
    /// [`NotReady`]: the deadline has passed, the next attempt cannot start before it, or supervision has ended; with
    /// the cause.
    ///
    /// # Cancel safety
    ///
    /// Safe: nothing is lost.
    pub async fn ready_by(&self, deadline: Instant) -> Result<Live<C>, NotReady> {
        if let Some(live) = self.current() {
            return Ok(live);
        }
        let control = &self.slot.control;
        let ready = control.board.until(|| match self.current() {
            Some(live) => Some(Ok(live)),
            None => not_ready(control, deadline).map(Err),
        });
        match timeout_at(control.clock.timer(Some(deadline)), ready).await {
            Ok(outcome) => outcome,
            Err(_) => Err(NotReady::Elapsed { cause: control.last_failure() }),
        }
    }

    /// Control and view.
    #[must_use]
    pub fn handle(&self) -> Handle {
        Handle::new(Arc::clone(&self.slot.control))
    }
}

/// Why there will be no connection before `deadline`, as far as is known now.
fn not_ready(control: &Control, deadline: Instant) -> Option<NotReady> {
    let (status, now) = (control.board.status(), control.clock.now());
    if let Some(stopped) = stopped(&status) {
        return Some(NotReady::Stopped(stopped));
    }
    let earliest = status.earliest.filter(|earliest| *earliest > deadline.max(now))?;
    let wait = earliest.saturating_duration_since(now);
    Some(NotReady::TooLate { cause: control.last_failure(), wait, why: status.wait })
}

impl<C: Connector> Clone for Link<C> {
    fn clone(&self) -> Self {
        Self { slot: Arc::clone(&self.slot), owner: Counted::clone(&self.owner) }
    }
}

impl<C: Connector> fmt::Debug for Link<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Link")
            .field("generation", &self.slot.generation.load(Ordering::Acquire))
            .finish_non_exhaustive()
    }
}

/// A connection that was live when it was lent; dereferences to it.
///
/// The supervisor ends a generation by closing it, so what is held for longer is a closed connection. May be held across
/// an await and sent to another thread. A thread borrows up to eight at once; what it lends beyond that counts a
/// reference, which costs several times as much where threads share the connection. A clone counts one from the start
/// and borrows nothing: for tasks that hold on to it.
pub struct Live<C: Connector> {
    /// Never empty. Borrowed from the slot, so that lending writes to no count that threads share; whoever empties the
    /// slot turns what is still borrowed into counted references.
    lent: Guard<Option<Arc<Lent<C>>>>,
}

impl<C: Connector> Live<C> {
    /// Its number, never used twice by its supervisor.
    #[must_use]
    #[inline]
    pub fn generation(&self) -> u64 {
        self.lent().generation
    }

    /// Whether it is still the live one.
    #[must_use]
    #[inline]
    pub fn is_live(&self) -> bool {
        let lent = self.lent();
        lent.slot.generation.load(Ordering::Acquire) == lent.generation
    }

    /// Says that it broke. From now on nobody is lent it any more, and the supervisor replaces it; what the error means
    /// is up to [`Connector::classify`]. Ignored, and counted in the status, if this generation is already gone.
    pub fn report(&self, error: impl Into<BoxError>) {
        let lent = self.lent();
        let Slot { control, connector, .. } = &*lent.slot;
        if lent.slot.retire(lent) {
            let cause = judge(control, &**connector, "report", Ended::Report, error);
            control.report(lent.generation, cause);
        } else {
            control.board.ignore_report();
        }
    }

    /// Counted, so that it may be kept.
    fn counted(self) -> Self {
        Self { lent: Guard::from_inner(Guard::into_inner(self.lent)) }
    }

    #[inline]
    fn lent(&self) -> &Arc<Lent<C>> {
        let Some(lent) = &*self.lent else { unreachable!("only what was found is lent") };
        lent
    }
}

impl<C: Connector> Clone for Live<C> {
    fn clone(&self) -> Self {
        Self { lent: Guard::from_inner(Some(Arc::clone(self.lent()))) }
    }
}

impl<C: Connector> Deref for Live<C> {
    type Target = C::Connection;

    #[inline]
    fn deref(&self) -> &C::Connection {
        &self.lent().connection
    }
}

impl<C: Connector> fmt::Debug for Live<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Live").field("generation", &self.generation()).finish_non_exhaustive()
    }
}

/// A link that remembers the live connection: for loops that ask for it a million times a second.
///
/// An idle one holds the memory of the last connection it gave, not its descriptor, which the supervisor closes. A
/// drain waits for whoever holds a connection, so an idle cache costs it its bound.
pub struct CachedLink<C: Connector> {
    link: Link<C>,
    /// That of `live`, 0 without one.
    generation: u64,
    live: Option<Live<C>>,
}

impl<C: Connector> CachedLink<C> {
    /// The live connection, if there is one at this instant; never an ended one.
    #[must_use]
    #[inline]
    pub fn current(&mut self) -> Option<&Live<C>> {
        if self.link.slot.generation.load(Ordering::Acquire) != self.generation {
            self.look_again();
        }
        self.live.as_ref()
    }

    #[cold]
    fn look_again(&mut self) {
        self.live = self.link.current().map(Live::counted);
        self.generation = self.live.as_ref().map_or(0, Live::generation);
    }

    /// The link that it was made from.
    #[must_use]
    pub const fn link(&self) -> &Link<C> {
        &self.link
    }
}

impl<C: Connector> fmt::Debug for CachedLink<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CachedLink").field("live", &self.live).finish_non_exhaustive()
    }
}
