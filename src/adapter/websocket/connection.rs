//! One open websocket.

use std::fmt;
use std::future::poll_fn;
use std::mem;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::time::timeout;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::http::HeaderMap;
use tokio_tungstenite::tungstenite::protocol::CloseFrame;

use super::error::{Error, SendError};
use super::heartbeat::{Heartbeat, now};
use super::request::Secrets;
use super::socket::{Socket, say_goodbye};
use super::wire::Wire;

/// What a connection is held to.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    pub(super) ping_interval: Duration,
    pub(super) pong_timeout: Duration,
    pub(super) send_timeout: Duration,
    pub(super) max_message_size: usize,
}

impl Limits {
    /// How long the kernel may believe in a peer that acknowledges nothing: as long as we do.
    pub(super) fn patience(self) -> Duration {
        self.ping_interval.saturating_add(self.pong_timeout).max(self.send_timeout)
    }
}

/// One open websocket: [`next`](Self::next) gives messages, [`send`](Self::send) takes them, both through `&self`, so
/// one task can wait for the next message while others send.
///
/// **Somebody has to be in `next` all the time.** Pings are sent and answered there, and a peer that is gone is noticed
/// there; what takes long belongs into another task.
///
/// An end is never silent: `next` gives an error that says why, and from then on everything gives that error.
/// Dropping the connection closes the socket without a close frame; [`close`](Self::close) sends one.
pub struct Connection {
    state: Mutex<State>,
    /// One reader and one writer at a time: the socket remembers one waker for each.
    reading: tokio::sync::Mutex<Heartbeat>,
    writing: tokio::sync::Mutex<()>,
    limits: Limits,
    peer: Option<SocketAddr>,
    answer: HeaderMap,
}

/// What the protocol allows in a ping or pong.
const MAX_CONTROL: usize = 125;

/// The lock is held for one poll and never across an await.
enum State {
    Open(Box<Socket>),
    Ended(Error),
}

impl Connection {
    pub(super) fn new(
        stream: WebSocketStream<Wire>,
        limits: Limits,
        peer: Option<SocketAddr>,
        answer: HeaderMap,
        secrets: Arc<Secrets>,
    ) -> Self {
        let now = now();
        let received = stream.get_ref().received();
        Self {
            state: Mutex::new(State::Open(Box::new(Socket::new(stream, now, secrets)))),
            reading: Heartbeat::new(limits.ping_interval, limits.pong_timeout, received, now).into(),
            writing: ().into(),
            limits,
            peer,
            answer,
        }
    }

    /// Waits for the next text or binary message. Pings are answered, pings of our own are sent.
    ///
    /// It never waits for ever on a dead peer: when nothing at all came for ping interval plus pong timeout it gives
    /// [`Error::Silent`].
    ///
    /// # Errors
    ///
    /// Why the connection ended. Also a close frame is an error, [`Error::Closed`], whose class says whether the server
    /// meant it well; after the first error the connection is gone, and each call gives that error.
    ///
    /// # Cancel safety
    ///
    /// No message is lost.
    pub async fn next(&self) -> Result<Message, Error> {
        let mut heartbeat = self.reading.lock().await;
        poll_fn(|cx| self.poll_next(&mut heartbeat, cx)).await
    }

    fn poll_next(&self, heartbeat: &mut Heartbeat, cx: &mut Context<'_>) -> Poll<Result<Message, Error>> {
        let mut state = self.lock();
        let result = match &mut *state {
            State::Ended(error) => Err(error.clone()),
            State::Open(socket) => std::task::ready!(socket.poll_next(heartbeat, cx)),
        };
        if let Err(error) = &result {
            state.end(error);
        }
        Poll::Ready(result)
    }

    /// Sends one message and waits until it is handed to the operating system, at most for the send timeout.
    ///
    /// `Ok` does not say that the peer got it; nothing but an answer can. Messages of several tasks go out one after the
    /// other, each whole. A [`Message::Close`] is [`close`](Self::close).
    ///
    /// # Errors
    ///
    /// [`SendError`] tells whether the message certainly did not go out. If it was begun and did not get through in
    /// time, its outcome is unknown and the connection ends ([`Error::Stuck`]), because the rest of it would still go
    /// out later.
    ///
    /// # Cancel safety
    ///
    /// Dropped before the first poll, or while other messages are ahead, nothing was sent. Dropped later, the message
    /// still goes out whole as long as the connection lives: what follows is in order behind it.
    pub async fn send(&self, message: Message) -> Result<(), SendError> {
        let is_control = matches!(message, Message::Ping(_) | Message::Pong(_));
        let limit = if is_control { MAX_CONTROL } else { self.limits.max_message_size };
        let size = message.len();
        if size > limit {
            return Err(SendError { message: Some(message), error: Error::TooLong { size, limit } });
        }
        let message = match message {
            Message::Close(frame) => {
                self.close(frame).await;
                return Ok(());
            }
            message => message,
        };
        let mut unsent = Some(message);
        let error = match timeout(self.limits.send_timeout, self.write(&mut unsent)).await {
            Ok(Ok(())) => return Ok(()),
            Ok(Err(error)) => error,
            Err(_) => {
                let error = Error::Stuck { waited: self.limits.send_timeout };
                if unsent.is_none() {
                    self.lock().end(&error);
                }
                error
            }
        };
        Err(SendError { message: unsent, error })
    }

    /// Takes the message out of `unsent` at the moment it is queued.
    async fn write(&self, unsent: &mut Option<Message>) -> Result<(), Error> {
        let _turn = self.writing.lock().await;
        let _writing = Writing(self);
        poll_fn(|cx| match &mut *self.lock() {
            State::Ended(error) => Poll::Ready(Err(error.clone())),
            State::Open(socket) => socket.poll_write(unsent, cx),
        })
        .await
    }

    /// Ends the connection politely: sends what is queued and the close frame, waits for the peer's, and closes the
    /// socket. All of that takes 2 s at most, whatever the peer does; then the socket is closed anyway.
    ///
    /// Everybody else who uses the connection gets [`Error::ClosedHere`] at once. On an ended connection it does
    /// nothing: a dead peer is not told.
    ///
    /// # Cancel safety
    ///
    /// Dropped once polled, the socket closes with what was written by then.
    pub async fn close(&self, frame: Option<CloseFrame>) {
        let ended = self.lock().end(&Error::ClosedHere);
        if let State::Open(socket) = ended {
            say_goodbye(socket.into_stream(), frame).await;
        }
    }

    /// Sends a ping now in place of later; `next` delivers the verdict within the pong timeout.
    pub(super) fn hurry(&self) -> Result<(), Error> {
        match &mut *self.lock() {
            State::Ended(error) => Err(error.clone()),
            State::Open(socket) => {
                socket.hurry();
                Ok(())
            }
        }
    }

    /// The address at the other end.
    #[must_use]
    pub const fn peer_addr(&self) -> Option<SocketAddr> {
        self.peer
    }

    /// The headers of the server's answer to the upgrade (`Sec-WebSocket-Protocol`, cookies): not for logs.
    #[must_use]
    pub const fn answer(&self) -> &HeaderMap {
        &self.answer
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Lets go of the socket and wakes whoever waits on it. Gives back what was before; the first end stays.
    fn end(&mut self, error: &Error) -> Self {
        if let Self::Open(socket) = self {
            socket.wake_all();
            return mem::replace(self, Self::Ended(error.clone()));
        }
        Self::Ended(error.clone())
    }
}

/// A write in progress; dropped when it is done or cancelled.
struct Writing<'a>(&'a Connection);

impl Drop for Writing<'_> {
    fn drop(&mut self) {
        if let State::Open(socket) = &mut *self.0.lock() {
            socket.stop_writing();
        }
    }
}

/// Without headers.
impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ended = match &*self.lock() {
            State::Open(_) => None,
            State::Ended(error) => Some(error.clone()),
        };
        f.debug_struct("Connection").field("peer", &self.peer).field("ended", &ended).finish_non_exhaustive()
    }
}
