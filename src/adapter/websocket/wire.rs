//! The transport under the websocket: plain or TLS, with its received bytes counted.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::client::TlsStream;

/// A transport that counts what it receives, so that a byte of a message that is not complete yet is a sign of life.
#[derive(Debug)]
pub(super) struct Wire {
    transport: Transport,
    received: u64,
    version: VersionWatch,
}

#[derive(Debug)]
pub(super) enum Transport {
    Plain(TcpStream),
    Tls(Box<TlsStream<TcpStream>>),
}

impl Wire {
    pub(super) const fn new(transport: Transport) -> Self {
        Self { transport, received: 0, version: VersionWatch { seen: 0, old: false } }
    }

    /// Bytes received so far.
    pub(super) const fn received(&self) -> u64 {
        self.received
    }

    /// Whether the answer to the upgrade came as HTTP/1.0.
    pub(super) const fn is_http_1_0(&self) -> bool {
        self.version.old
    }
}

/// Reads `HTTP/1.0` at the very start of what the server says as `HTTP/1.1`.
///
/// The websocket crate throws away status and headers of an HTTP/1.0 answer, and that is how some proxies send their
/// error pages. The connector asks [`Wire::is_http_1_0`] before it takes such an answer for an upgrade.
#[derive(Debug)]
struct VersionWatch {
    seen: usize,
    old: bool,
}

impl VersionWatch {
    const PREFIX: &[u8] = b"HTTP/1.";

    fn pass(&mut self, bytes: &mut [u8]) {
        for byte in bytes {
            match Self::PREFIX.get(self.seen) {
                Some(expected) if expected == byte => self.seen += 1,
                None if self.seen == Self::PREFIX.len() => {
                    self.old = *byte == b'0';
                    if self.old {
                        *byte = b'1';
                    }
                    self.seen += 1;
                }
                _ => {
                    self.seen = usize::MAX;
                    return;
                }
            }
        }
    }
}

impl AsyncRead for Wire {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        ready!(match &mut self.transport {
            Transport::Plain(stream) => Pin::new(stream).poll_read(cx, buf),
            Transport::Tls(stream) => Pin::new(stream).poll_read(cx, buf),
        })?;
        let new = &mut buf.filled_mut()[before..];
        self.received = self.received.wrapping_add(new.len() as u64);
        self.version.pass(new);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Wire {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        match &mut self.transport {
            Transport::Plain(stream) => Pin::new(stream).poll_write(cx, buf),
            Transport::Tls(stream) => Pin::new(stream).poll_write(cx, buf),
        }
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.transport {
            Transport::Plain(stream) => Pin::new(stream).poll_flush(cx),
            Transport::Tls(stream) => Pin::new(stream).poll_flush(cx),
        }
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.transport {
            Transport::Plain(stream) => Pin::new(stream).poll_shutdown(cx),
            Transport::Tls(stream) => Pin::new(stream).poll_shutdown(cx),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::VersionWatch;

    fn passed(chunks: &[&str]) -> (String, bool) {
        let mut watch = VersionWatch { seen: 0, old: false };
        let mut text = String::new();
        for chunk in chunks {
            let mut bytes = chunk.as_bytes().to_vec();
            watch.pass(&mut bytes);
            text.push_str(std::str::from_utf8(&bytes).unwrap());
        }
        (text, watch.old)
    }

    #[test]
    fn only_an_old_version_at_the_very_start_is_rewritten() {
        let new = |text: &str| (text.to_owned(), false);
        let old = |text: &str| (text.to_owned(), true);
        assert_eq!(passed(&["HTTP/1.0 503 Busy\r\nVia: HTTP/1.0 x"]), old("HTTP/1.1 503 Busy\r\nVia: HTTP/1.0 x"));
        assert_eq!(passed(&["H", "TTP/1", ".", "", "0 503"]), old("HTTP/1.1 503"));
        assert_eq!(passed(&["HTTP/1.1 101\r\n\r\n", "HTTP/1.0"]), new("HTTP/1.1 101\r\n\r\nHTTP/1.0"));
        assert_eq!(passed(&["x HTTP/1.0"]), new("x HTTP/1.0"));
        assert_eq!(passed(&["HTTP", "HTTP/1.0"]), new("HTTPHTTP/1.0"));
    }
}
