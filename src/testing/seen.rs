//! What a scripted server saw.

use std::time::Duration;

/// What a [`ScriptedServer`](super::ScriptedServer) saw until now. Instants are durations since the server was made.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Seen {
    /// When each dial began.
    pub dials: Vec<Duration>,
    /// When a client ended a connection that was alive until then: by a shutdown of its stream, or by dropping it.
    pub closes: Vec<Duration>,
    /// Dials that are under way.
    pub in_flight: usize,
    /// The most of them at once.
    pub most_in_flight: usize,
    /// Connections whose client's end exists. The client may still be logging in; one that a fault has ended counts until
    /// the client drops it.
    pub open: usize,
    /// The most of them at once.
    pub most_open: usize,
}

impl Seen {
    /// The shortest time between the beginnings of two dials; none with fewer than two.
    #[must_use]
    pub fn shortest_gap(&self) -> Option<Duration> {
        self.dials.windows(2).map(|pair| pair[1].saturating_sub(pair[0])).min()
    }
}
