//! The task behind the links.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use super::caught::{self, Boxed};
use super::connector::{Connector, Ended};
use super::control::Control;
use super::link::{Lent, Slot};
use super::shell::{Over, Tenant, goodbye, judge};
use super::supervisor::Membership;
use super::sync::{Sleep, sleep, timeout};
use crate::machine::Failure;
use crate::observe::Cause;

/// Puts each connection into the slot, and takes it out again.
pub(super) struct Kept<C: Connector> {
    pub(super) slot: Arc<Slot<C>>,
    pub(super) live: Option<Arc<Lent<C>>>,
    pub(super) checking: Boxed<Result<(), Cause>>,
    /// Set while a drain waits for those who hold the connection.
    pub(super) looking: Option<Pin<Box<Sleep>>>,
    /// Keeps the place in the gate.
    pub(super) _membership: Membership,
}

impl<C> Tenant<C> for Kept<C>
where
    C: Connector,
    C::Connection: Sync,
{
    fn begin(&mut self, connection: C::Connection, generation: u64) {
        self.live = Some(self.slot.fill(connection, generation));
    }

    fn poll_over(&mut self, cx: &mut Context<'_>) -> Poll<Over> {
        let Some(live) = &self.live else { return Poll::Ready(Over::Lost(None)) };
        if let Some(looking) = &mut self.looking {
            // Looked at every now and then: a bell in every `Live` would cost those who use it a million times.
            while Arc::strong_count(live) > 1 {
                ready!(looking.as_mut().poll(cx));
                looking.set(sleep(LOOK));
            }
            return Poll::Ready(Over::Lost(None));
        }
        match ready!(Pin::new(&mut self.checking).poll(cx)) {
            Ok(Ok(())) => Poll::Pending,
            Ok(Err(cause)) => Poll::Ready(Over::Lost(Some(cause))),
            Err(panicked) => {
                let cause = self.slot.control.cause("check", Failure::Transient, panicked);
                Poll::Ready(Over::Lost(Some(cause)))
            }
        }
    }

    fn wind_down(&mut self) {
        if let Some(live) = &self.live {
            self.slot.retire(live);
        }
        self.checking = Boxed::none();
        self.looking = Some(Box::pin(sleep(LOOK)));
    }

    fn end(&mut self) -> Option<Boxed<()>> {
        let live = self.live.take()?;
        self.slot.retire(&live);
        (self.checking, self.looking) = (Boxed::none(), None);
        let bound = self.slot.control.policy.close;
        Some(Boxed::boxed(goodbye(Arc::clone(&self.slot.connector), bound, live, |live| &live.connection)))
    }

    fn check(&mut self, wait: Duration) {
        if self.checking.is_over()
            && let Some(live) = self.live.clone()
        {
            let (control, connector) = (Arc::clone(&self.slot.control), Arc::clone(&self.slot.connector));
            self.checking = Boxed::boxed(check(live, control, connector, wait));
        }
    }
}

/// Asks after `wait` whether the other side is still there.
async fn check<C>(live: Arc<Lent<C>>, control: Arc<Control>, connector: Arc<C>, wait: Duration) -> Result<(), Cause>
where
    C: Connector,
    C::Connection: Sync,
{
    sleep(wait).await;
    match timeout(control.policy.attempt_deadline, caught::run(|| connector.check(&live.connection))).await {
        Ok(Ok(Ok(()))) => Ok(()),
        Ok(Ok(Err(error))) => Err(judge(&control, &*connector, "check", Ended::Report, error)),
        Ok(Err(panicked)) => Err(control.cause("check", Failure::Transient, panicked)),
        Err(elapsed) => Err(control.cause("check", Failure::Timeout, elapsed)),
    }
}

/// How often a drain looks whether the connection is still held.
const LOOK: Duration = Duration::from_millis(10);
