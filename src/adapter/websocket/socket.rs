//! The stream of an open websocket, as its reader and its writer poll it.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

use futures_util::{SinkExt, StreamExt};
use tokio::io::AsyncWrite;
use tokio::time::{Instant, Sleep, sleep, timeout};
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::error::CapacityError;
use tokio_tungstenite::tungstenite::protocol::CloseFrame;
use tokio_tungstenite::tungstenite::protocol::frame::coding::CloseCode;
use tokio_tungstenite::tungstenite::{self, Bytes, Message, Utf8Bytes};

use super::error::Error;
use super::heartbeat::{Beat, Heartbeat, now};
use super::request::Secrets;
use super::wire::Wire;

/// How long a close may take in all, and how long the echo of the server's close.
const CLOSE_WITHIN: Duration = Duration::from_secs(2);
const ECHO_WITHIN: Duration = Duration::from_secs(1);
/// A control frame holds 125 bytes, two of them the code.
const MAX_REASON: usize = 123;

/// An open websocket.
pub(super) struct Socket {
    stream: WebSocketStream<Wire>,
    opened_at: Instant,
    secrets: Arc<Secrets>,
    /// Somebody writes and flushes; otherwise the reader flushes what is `unflushed`.
    writing: bool,
    unflushed: bool,
    hurried: bool,
    /// The server's close, until our echo is out or has taken too long.
    closing: Option<(Error, Pin<Box<Sleep>>)>,
    reader: Option<Waker>,
    writer: Option<Waker>,
}

impl Socket {
    pub(super) const fn new(stream: WebSocketStream<Wire>, opened_at: Instant, secrets: Arc<Secrets>) -> Self {
        Self {
            stream,
            opened_at,
            secrets,
            writing: false,
            unflushed: false,
            hurried: false,
            closing: None,
            reader: None,
            writer: None,
        }
    }

    pub(super) fn into_stream(self) -> WebSocketStream<Wire> {
        self.stream
    }

    pub(super) fn wake_all(&mut self) {
        wake(&mut self.reader);
        wake(&mut self.writer);
    }

    pub(super) fn hurry(&mut self) {
        self.hurried = true;
        wake(&mut self.reader);
    }

    /// The next message, or why there is none. An error is the end.
    pub(super) fn poll_next(
        &mut self,
        heartbeat: &mut Heartbeat,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Message, Error>> {
        remember(&mut self.reader, cx);
        loop {
            if self.closing.is_some() {
                return self.poll_echo(cx).map(Err);
            }
            match self.stream.poll_next_unpin(cx) {
                Poll::Ready(Some(Ok(Message::Close(frame)))) => self.start_echo(frame),
                Poll::Ready(Some(Ok(message))) => {
                    heartbeat.heard(self.stream.get_ref().received());
                    if heartbeat.is_overdue() {
                        heartbeat.asked(now());
                        self.ping();
                        // The message comes first; what is wrong with the stream is found by the next read.
                        let _ = self.poll_flush(cx);
                    }
                    if message.is_text() || message.is_binary() {
                        return Poll::Ready(Ok(message));
                    }
                }
                Poll::Ready(Some(Err(error))) => return Poll::Ready(Err(self.fail(error, cx))),
                Poll::Ready(None) => return Poll::Ready(Err(Error::broken(tungstenite::Error::ConnectionClosed))),
                Poll::Pending => {
                    ready!(self.poll_heartbeat(heartbeat, cx))?;
                }
            }
        }
    }

    /// With nothing left to read: pending until a ping was sent, then the stream is to be polled again.
    fn poll_heartbeat(&mut self, heartbeat: &mut Heartbeat, cx: &mut Context<'_>) -> Poll<Result<(), Error>> {
        heartbeat.heard(self.stream.get_ref().received());
        if std::mem::take(&mut self.hurried) {
            heartbeat.hurry();
        }
        let beat = heartbeat.poll(cx);
        if beat == Poll::Ready(Beat::Ping) {
            self.ping();
        }
        self.poll_flush(cx)?;
        match ready!(beat) {
            Beat::Ping => Poll::Ready(Ok(())),
            Beat::Dead { waited } => Poll::Ready(Err(Error::Silent { waited })),
        }
    }

    /// One ping in the queue is enough, should the peer not read.
    fn ping(&mut self) {
        if !self.unflushed {
            self.unflushed = true;
            // What is wrong with the stream is found by the flush.
            let _ = self.stream.start_send_unpin(Message::Ping(Bytes::new()));
        }
    }

    /// Flushes on the reader's behalf, which would take the wake-ups of a writer.
    fn poll_flush(&mut self, cx: &mut Context<'_>) -> Result<(), Error> {
        if self.unflushed && !self.writing {
            match self.stream.poll_flush_unpin(cx) {
                Poll::Ready(result) => {
                    self.unflushed = false;
                    result.map_err(Error::broken)?;
                }
                Poll::Pending => {}
            }
        }
        Ok(())
    }

    /// Queues the message, then flushes it; from the moment that `unsent` is empty it may be on the wire.
    pub(super) fn poll_write(&mut self, unsent: &mut Option<Message>, cx: &mut Context<'_>) -> Poll<Result<(), Error>> {
        if let Some((closed, _)) = &self.closing {
            return Poll::Ready(Err(closed.clone()));
        }
        self.writing = true;
        remember(&mut self.writer, cx);
        if unsent.is_some() {
            // What is ahead goes first: until then it is certain that nothing of this message went out, and afterwards
            // there is room for it.
            ready!(self.stream.poll_flush_unpin(cx)).map_err(Error::broken)?;
        }
        if let Some(message) = unsent.take() {
            self.unflushed = true;
            self.stream.start_send_unpin(message).map_err(Error::broken)?;
        }
        ready!(self.stream.poll_flush_unpin(cx)).map_err(Error::broken)?;
        self.unflushed = false;
        self.writing = false;
        Poll::Ready(Ok(()))
    }

    /// The reader takes over what a cancelled writer left.
    pub(super) fn stop_writing(&mut self) {
        self.writing = false;
        self.writer = None;
        if self.unflushed {
            wake(&mut self.reader);
        }
    }

    /// The echo was queued by the websocket crate; it goes out with the next flush.
    fn start_echo(&mut self, frame: Option<CloseFrame>) {
        let frame = frame.unwrap_or(CloseFrame { code: CloseCode::Status, reason: Utf8Bytes::from_static("") });
        let error = Error::Closed {
            code: frame.code.into(),
            reason: self.secrets.hide(&frame.reason).into(),
            lived: now() - self.opened_at,
        };
        self.closing = Some((error, Box::pin(sleep(ECHO_WITHIN))));
        wake(&mut self.writer);
    }

    fn poll_echo(&mut self, cx: &mut Context<'_>) -> Poll<Error> {
        let flushed = self.stream.poll_flush_unpin(cx).is_ready();
        let Some((error, within)) = &mut self.closing else { return Poll::Pending };
        if flushed || within.as_mut().poll(cx).is_ready() { Poll::Ready(error.clone()) } else { Poll::Pending }
    }

    /// Tells the server what was wrong with its bytes, as far as that goes without waiting.
    fn fail(&mut self, error: tungstenite::Error, cx: &mut Context<'_>) -> Error {
        let code = match &error {
            tungstenite::Error::Capacity(CapacityError::MessageTooLong { .. }) => Some(CloseCode::Size),
            tungstenite::Error::Utf8(_) => Some(CloseCode::Invalid),
            tungstenite::Error::Protocol(tungstenite::error::ProtocolError::ResetWithoutClosingHandshake) => None,
            tungstenite::Error::Protocol(_) => Some(CloseCode::Protocol),
            _ => None,
        };
        if let Some(code) = code {
            let frame = CloseFrame { code, reason: Utf8Bytes::default() };
            if self.stream.start_send_unpin(Message::Close(Some(frame))).is_ok() {
                let _ = self.stream.poll_flush_unpin(cx);
            }
        }
        Error::broken(error)
    }
}

fn wake(waker: &mut Option<Waker>) {
    if let Some(waker) = waker.take() {
        waker.wake();
    }
}

fn remember(waker: &mut Option<Waker>, cx: &Context<'_>) {
    match waker {
        Some(waker) => waker.clone_from(cx.waker()),
        None => *waker = Some(cx.waker().clone()),
    }
}

/// Sends the close, waits for the peer's, closes the socket: within one bound that no traffic extends.
pub(super) async fn say_goodbye(mut stream: WebSocketStream<Wire>, frame: Option<CloseFrame>) {
    let frame = frame.map(|frame| CloseFrame { reason: shortened(&frame.reason), ..frame });
    let _ = timeout(CLOSE_WITHIN, async {
        if stream.send(Message::Close(frame)).await.is_err() {
            return;
        }
        // Bytes that nobody read would make the kernel answer with a reset, which can overtake the close frame.
        while let Some(Ok(message)) = stream.next().await {
            if message.is_close() {
                break;
            }
        }
        let _ = poll_fn(|cx| Pin::new(stream.get_mut()).poll_shutdown(cx)).await;
    })
    .await;
}

fn shortened(reason: &Utf8Bytes) -> Utf8Bytes {
    let end = (0..=reason.len().min(MAX_REASON)).rev().find(|&end| reason.is_char_boundary(end));
    reason.as_str()[..end.unwrap_or(0)].into()
}
