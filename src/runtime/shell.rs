//! The loop of a supervisor: it performs one action and awaits one event.
//!
//! What goes on in user code comes first, then the mailbox, then the deadline. So an attempt that has resolved is
//! settled before anything else is looked at, and a drain that coincides with it is fed right after it, before anything
//! is published.

use std::error::Error;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use super::caught::{self, Boxed, Panicked};
use super::connector::{Attempt, BoxError, Connector, Ended, Reached};
use super::control::Control;
use super::error::Stopped;
use super::mailbox::Post;
use super::suspend;
use super::sync::{Sleep, sleep_until, timeout};
use crate::machine::{Action, Event, Failure, StopReason};
use crate::observe::Cause;

/// What is done with a live connection: lent to a session closure, or shared through links.
pub(super) trait Tenant<C: Connector>: Send {
    /// Takes the connection over. User code runs in `poll_over` only, after the status is published.
    fn begin(&mut self, connection: C::Connection, generation: u64);

    /// Whether it is over; at once where there is no connection.
    fn poll_over(&mut self, cx: &mut Context<'_>) -> Poll<Over>;

    /// Nothing new is to begin with the connection.
    fn wind_down(&mut self);

    /// Ends it in any case, and gives what remains to be done: closing, bounded.
    fn end(&mut self) -> Option<Boxed<()>>;

    /// The machine was suspended: looks after `wait` whether the connection is still there.
    fn check(&mut self, wait: Duration);
}

/// How a session ended.
pub(super) enum Over {
    /// The session said `Break`.
    Finished,
    /// Otherwise; without a cause nobody is to blame.
    Lost(Option<Cause>),
}

pub(super) struct Shell<C: Connector, T: Tenant<C>> {
    pub(super) tenant: T,
    control: Arc<Control>,
    connector: Arc<C>,
    stage: Stage<C>,
    /// The last connection, while it is said goodbye to beside whatever comes next. One at most.
    closing: Boxed<()>,
    /// There while something is due, and when it is set for.
    sleep: Option<Pin<Box<Sleep>>>,
    set_for: Option<Instant>,
    /// Why the last attempt or session ended, if something broke.
    ended_by: Option<Cause>,
}

enum Stage<C: Connector> {
    Close,
    Dial(Boxed<Result<C::Connection, Cause>>),
    Serve,
    Stopped(StopReason),
    Wait,
    WindDown,
}

/// The one event that ends an await.
enum News<C: Connector> {
    Closed,
    Dialled(Result<C::Connection, Cause>),
    Over(Over),
    Posted(Post),
    TimedOut,
}

impl<C: Connector, T: Tenant<C>> Shell<C, T> {
    /// Starts the machine. The caller has made itself the one who runs it.
    pub(super) fn start(control: Arc<Control>, connector: Arc<C>, tenant: T) -> Self {
        control.prepare();
        suspend::watch(&control);
        let ended_by = control.board.last_failure();
        let mut shell = Self {
            tenant,
            control,
            connector,
            stage: Stage::Wait,
            closing: Boxed::none(),
            sleep: None,
            set_for: None,
            ended_by,
        };
        shell.tell(Event::Start, None, None);
        shell
    }

    /// Goes on until supervision ends. Its state is the shell's own: a future around it would hold it twice.
    pub(super) fn poll_drive(&mut self, cx: &mut Context<'_>) -> Poll<Stopped> {
        loop {
            if let Stage::Stopped(reason) = self.stage {
                if !self.closing.is_over() {
                    // A panic in it changes nothing: either way the connection is gone.
                    let _ = ready!(Pin::new(&mut self.closing).poll(cx));
                }
                return Poll::Ready(Stopped::new(reason, self.control.board.last_failure()));
            }
            let news = ready!(self.poll_news(cx));
            self.take(news);
        }
    }

    fn poll_news(&mut self, cx: &mut Context<'_>) -> Poll<News<C>> {
        let _ = Pin::new(&mut self.closing).poll(cx);
        match &mut self.stage {
            Stage::Dial(dial) => {
                if let Poll::Ready(outcome) = Pin::new(dial).poll(cx) {
                    let panicked = |panicked| Err(self.control.cause("connect", Failure::Transient, panicked));
                    return Poll::Ready(News::Dialled(outcome.unwrap_or_else(panicked)));
                }
            }
            Stage::Serve | Stage::WindDown => {
                if let Poll::Ready(over) = self.tenant.poll_over(cx) {
                    return Poll::Ready(News::Over(over));
                }
            }
            Stage::Close if self.closing.is_over() => return Poll::Ready(News::Closed),
            Stage::Close | Stage::Stopped(_) | Stage::Wait => {}
        }
        if let Poll::Ready(post) = self.control.mailbox.poll_take(cx) {
            return Poll::Ready(News::Posted(post));
        }
        self.poll_timer(cx).map(|()| News::TimedOut)
    }

    /// A connection with nothing due has no timer.
    fn poll_timer(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let due = self.control.due();
        if due.is_none() {
            (self.sleep, self.set_for) = (None, None);
            return Poll::Pending;
        }
        let timer = || self.control.clock.timer(due);
        let sleep = match &mut self.sleep {
            Some(sleep) if self.set_for == due => sleep,
            Some(sleep) => {
                sleep.as_mut().reset(timer());
                sleep
            }
            none => none.insert(Box::pin(sleep_until(timer()))),
        };
        self.set_for = due;
        ready!(sleep.as_mut().poll(cx));
        // For the log, or too early for the machine's clock: it is set again.
        self.set_for = None;
        Poll::Ready(())
    }

    fn take(&mut self, news: News<C>) {
        match news {
            News::Closed => self.tell(Event::Closed, None, None),
            News::Dialled(Ok(connection)) => self.tell(Event::Opened, None, Some(connection)),
            News::Dialled(Err(cause)) => self.tell(Event::Failed(cause.failure()), Some(cause), None),
            News::Over(Over::Finished) => self.tell(Event::Finished, None, None),
            News::Over(Over::Lost(cause)) => {
                let failure = cause.as_ref().map_or(Failure::Planned, Cause::failure);
                self.tell(Event::Lost(failure), cause, None);
            }
            News::Posted(post) => self.receive(post),
            News::TimedOut => {
                let late = matches!(self.stage, Stage::Dial(_)).then(|| self.no_answer());
                self.tell(Event::TimedOut, late, None);
            }
        }
    }

    fn receive(&mut self, post: Post) {
        let event = match post {
            Post::Check => {
                if matches!(self.stage, Stage::Serve) {
                    self.tenant.check(self.control.draw_check());
                }
                None
            }
            Post::Drain => Some(Event::Drain),
            Post::Dropped => {
                if self.control.end_if_unowned() {
                    self.replace(Stage::Stopped(StopReason::Dropped), None);
                }
                None
            }
            Post::Reached => self.control.has_reached().then_some(Event::Reached),
            Post::Reconnect => Some(Event::Reconnect),
            Post::Report => return self.believe(),
            Post::Turned => Some(Event::GateTurned),
        };
        if let Some(event) = event {
            self.tell(event, None, None);
        }
    }

    /// Somebody reported that a connection broke. News of another one than is being served is no news.
    fn believe(&mut self) {
        let Some((generation, cause)) = self.control.take_report() else { return };
        if matches!(self.stage, Stage::Serve | Stage::WindDown) && generation == self.control.board.generation() {
            self.tell(Event::Lost(cause.failure()), Some(cause), None);
        } else {
            self.control.board.ignore_report();
        }
    }

    /// Hands the machine one event, does what it says, and publishes it.
    fn tell(&mut self, event: Event, cause: Option<Cause>, opened: Option<C::Connection>) {
        let decision = self.control.decide(event);
        if matches!(self.stage, Stage::Dial(_) | Stage::Serve)
            && matches!(decision.action, Action::Wait | Action::Dial { .. })
        {
            self.ended_by.clone_from(&cause);
        }
        match decision.action {
            Action::Continue => {}
            Action::Close => self.replace(Stage::Close, opened),
            Action::Dial { attempt, generation } => {
                // The other one is closed first: the dial future must not see it as its own.
                self.replace(Stage::Wait, opened);
                let deadline = decision.deadline.unwrap_or(decision.at);
                self.stage = Stage::Dial(self.dial(attempt, generation, deadline));
            }
            Action::Serve { generation } => {
                if let Some(connection) = opened {
                    self.tenant.begin(connection, generation);
                }
                self.stage = Stage::Serve;
            }
            Action::Stop(reason) => self.replace(Stage::Stopped(reason), opened),
            Action::Wait => self.replace(Stage::Wait, opened),
            Action::WindDown => {
                // Opened, and told to end before it was announced.
                if let Some(connection) = opened {
                    self.closing = self.goodbye(connection);
                }
                self.tenant.wind_down();
                self.stage = Stage::WindDown;
            }
        }
        self.control.publish(&decision, cause.filter(|_| decision.action != Action::Continue));
    }

    /// Ends whatever is being done, and closes the connection beside what comes next. An older one that still hangs in
    /// its goodbye is dropped.
    fn replace(&mut self, stage: Stage<C>, opened: Option<C::Connection>) {
        let served = self.tenant.end();
        self.stage = stage;
        if let Some(closing) = opened.map(|connection| self.goodbye(connection)).or(served) {
            self.closing = closing;
        }
    }

    fn goodbye(&self, connection: C::Connection) -> Boxed<()> {
        let (connector, bound) = (Arc::clone(&self.connector), self.control.policy.close);
        Boxed::boxed(goodbye(connector, bound, connection, |connection| connection))
    }

    fn dial(&self, number: u32, generation: u64, deadline: Instant) -> Boxed<Result<C::Connection, Cause>> {
        let previous = self.ended_by.clone();
        let (control, connector) = (Arc::clone(&self.control), Arc::clone(&self.connector));
        let dial = control.next_dial();
        let weak = Arc::downgrade(&control);
        let reached = move || {
            if let Some(control) = weak.upgrade() {
                control.reach(dial);
            }
        };
        let attempt = Attempt { number, generation, deadline, previous, reached: Reached(Arc::new(reached)) };
        Boxed::boxed(async move {
            match caught::run(|| connector.connect(attempt)).await {
                Ok(Ok(connection)) => Ok(connection),
                Ok(Err(error)) => Err(judge(&control, &*connector, "connect", Ended::Dial, error)),
                Err(panicked) => Err(control.cause("connect", Failure::Transient, panicked)),
            }
        })
    }

    fn no_answer(&self) -> Cause {
        self.control.cause("connect", Failure::Timeout, "no answer before the deadline of the attempt")
    }
}

impl<C: Connector, T: Tenant<C>> Drop for Shell<C, T> {
    /// Dropped at an await, or unwound: the dial goes, and what this connection holds of the gate passes on at once.
    fn drop(&mut self) {
        if !matches!(self.stage, Stage::Stopped(_)) {
            drop(self.tenant.end());
            self.stage = Stage::Stopped(StopReason::Dropped);
            self.control.dropped();
        }
    }
}

/// What `error` means, as the connector says; a connector that panics over it does not know.
pub(super) fn judge<C: Connector>(
    control: &Control,
    connector: &C,
    step: &'static str,
    ended: Ended,
    error: impl Into<BoxError>,
) -> Cause {
    let error: BoxError = match caught::call(|| error.into()) {
        Ok(error) => error,
        Err(panicked) => return control.cause(step, Failure::Transient, panicked),
    };
    match caught::call(|| connector.classify(&*error, ended)) {
        Ok(failure) => control.cause(step, failure, error),
        Err(panicked) => control.cause(step, Failure::Transient, Unclassified { error, panicked }),
    }
}

/// What an error means is not known. It is shown only to those who ask: its text is code of the user as well.
#[derive(Debug)]
struct Unclassified {
    error: BoxError,
    panicked: Panicked,
}

impl fmt::Display for Unclassified {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (classify {})", self.error, self.panicked)
    }
}

impl Error for Unclassified {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.error.source()
    }
}

/// Closes a connection within `bound`, and drops it; to be run as [`Boxed`], for that drop is code of the user too.
pub(super) async fn goodbye<C: Connector, H: Send>(
    connector: Arc<C>,
    bound: Duration,
    held: H,
    connection: impl Fn(&H) -> &C::Connection,
) {
    // A panic or a missed bound changes nothing: the connection is dropped, and not while a panic unwinds.
    let _ = timeout(bound, caught::run(|| connector.close(connection(&held)))).await;
    drop(held);
}
