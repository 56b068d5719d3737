//! One direction of a connection: a bounded buffer whose bytes take their time.

use std::collections::VecDeque;
use std::task::{Context, Waker};
use std::time::{Duration, Instant};

use tokio::io::ReadBuf;

use crate::machine::add;

pub(super) struct Pipe {
    capacity: usize,
    pub(super) bytes: VecDeque<u8>,
    /// When the bytes arrive, so many at each instant. They are taken from the front, so nothing overtakes.
    pub(super) arrivals: VecDeque<(Instant, usize)>,
    /// When the end of the stream arrives, once the writer has ended it.
    pub(super) end: Option<Instant>,
    /// The reader has gone.
    pub(super) unread: bool,
    pub(super) reader: Option<Waker>,
    pub(super) writer: Option<Waker>,
}

/// What a reader finds.
pub(super) enum Found {
    Bytes(usize),
    End,
    /// Nothing yet; something arrives at this instant, if anything is under way.
    Nothing(Option<Instant>),
}

impl Pipe {
    pub(super) const fn new(capacity: usize) -> Self {
        Self {
            capacity,
            bytes: VecDeque::new(),
            arrivals: VecDeque::new(),
            end: None,
            unread: false,
            reader: None,
            writer: None,
        }
    }

    pub(super) fn find(&self, now: Instant) -> Found {
        let arrived = self.arrivals.iter().take_while(|(at, _)| *at <= now).map(|(_, count)| count).sum();
        match (arrived, self.arrivals.front(), self.end) {
            (1.., ..) => Found::Bytes(arrived),
            (_, Some((at, _)), _) => Found::Nothing(Some(*at)),
            (_, None, Some(end)) if end <= now => Found::End,
            (_, None, end) => Found::Nothing(end),
        }
    }

    /// Moves so many bytes, all of which have arrived, out of the pipe.
    pub(super) fn take(&mut self, mut count: usize, into: &mut ReadBuf<'_>) {
        let (front, back) = self.bytes.as_slices();
        let front = &front[..front.len().min(count)];
        into.put_slice(front);
        into.put_slice(&back[..count - front.len()]);
        self.bytes.drain(..count);
        while let Some((_, arrived)) = self.arrivals.front_mut().filter(|_| count > 0) {
            let taken = count.min(*arrived);
            (*arrived, count) = (*arrived - taken, count - taken);
            if *arrived == 0 {
                self.arrivals.pop_front();
            }
        }
        wake(&mut self.writer);
    }

    pub(super) fn room(&self) -> usize {
        self.capacity - self.bytes.len()
    }

    /// Puts bytes for which there is room on the way.
    pub(super) fn put(&mut self, bytes: &[u8], now: Instant, latency: Duration) {
        let at = add(now, latency);
        self.bytes.extend(bytes);
        match self.arrivals.back_mut() {
            Some((last, count)) if *last == at => *count += bytes.len(),
            _ => self.arrivals.push_back((at, bytes.len())),
        }
        wake(&mut self.reader);
    }

    /// Ends the stream behind the last byte.
    pub(super) fn finish(&mut self, now: Instant, latency: Duration) {
        if self.end.is_none() {
            self.end = Some(add(now, latency));
        }
        wake(&mut self.reader);
    }

    pub(super) fn wake(&mut self) {
        wake(&mut self.reader);
        wake(&mut self.writer);
    }
}

pub(super) fn remember(waker: &mut Option<Waker>, cx: &Context<'_>) {
    match waker {
        Some(waker) => waker.clone_from(cx.waker()),
        None => *waker = Some(cx.waker().clone()),
    }
}

fn wake(waker: &mut Option<Waker>) {
    if let Some(waker) = waker.take() {
        waker.wake();
    }
}
