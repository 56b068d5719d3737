//! Futures that are polled so many times and then dropped.

use std::fmt;
use std::future::{Future, poll_fn};
use std::task::Poll;

/// After how many polls a future is dropped, and at which moment.
#[derive(Clone, Copy)]
pub(crate) struct Cut {
    pub(crate) polls: usize,
    pub(crate) when: When,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum When {
    /// In the poll after which it waits.
    Asleep,
    /// When it is woken from that: what it was woken for has been handed to it, and it never looks.
    Woken,
}

impl Cut {
    /// Both moments after `polls` polls.
    pub(crate) fn after(polls: usize) -> [Self; 2] {
        [When::Asleep, When::Woken].map(|when| Self { polls, when })
    }

    /// What `future` gives if it is ready within that many polls. It must be what its task waits for alone, or its
    /// polls are not its own.
    pub(crate) async fn of<F: Future>(self, future: F) -> Option<F::Output> {
        let (mut future, mut left) = (Box::pin(future), self.polls);
        poll_fn(|cx| {
            if left == 0 {
                return Poll::Ready(None);
            }
            left -= 1;
            match future.as_mut().poll(cx) {
                Poll::Ready(output) => Poll::Ready(Some(output)),
                Poll::Pending if left == 0 && self.when == When::Asleep => Poll::Ready(None),
                Poll::Pending => Poll::Pending,
            }
        })
        .await
    }
}

impl fmt::Debug for Cut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "dropped after {} polls, {:?}", self.polls, self.when)
    }
}

/// Runs `scenario` for each number of polls, from none to as many as its future has. Gives that number.
///
/// `scenario` hands its future to [`Cut::of`] and tells whether it was ready.
pub(crate) fn for_each_cut(name: &str, mut scenario: impl FnMut(Cut) -> bool) -> usize {
    let mut tells = Tells { name, cut: Cut::after(0)[0] };
    for polls in 0..MOST_POLLS {
        let ready = Cut::after(polls).map(|cut| {
            tells.cut = cut;
            scenario(cut)
        });
        if ready == [true; 2] {
            assert!(polls > 1, "{name} has no await to be dropped at");
            return polls;
        }
    }
    panic!("{name} is not ready after {MOST_POLLS} polls");
}

/// More than any scenario needs: one that never ends is told.
const MOST_POLLS: usize = 500;

/// Says which of all the runs has failed.
struct Tells<'a> {
    name: &'a str,
    cut: Cut,
}

impl Drop for Tells<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("{}: {:?}", self.name, self.cut);
        }
    }
}
