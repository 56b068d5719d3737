//! Who waits for a turn at a gate, in which order.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use rand::Rng;

use super::super::time::add;
use super::Member;

/// The waiters; the first is the one whose turn is next.
#[derive(Debug, Default)]
pub(super) struct Queue {
    waiters: VecDeque<Waiter>,
    head_since: Option<Instant>,
}

#[derive(Debug)]
struct Waiter {
    member: Member,
    /// When it will ask again.
    told: Option<Instant>,
}

impl Queue {
    pub(super) fn len(&self) -> usize {
        self.waiters.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.waiters.is_empty()
    }

    pub(super) fn head(&self) -> Option<u64> {
        self.waiters.front().map(|waiter| waiter.member.id)
    }

    /// The rank of a member, 0 for the head.
    pub(super) fn rank(&self, member: Member) -> Option<usize> {
        self.waiters.iter().position(|waiter| waiter.member.id == member.id)
    }

    /// Queues behind everyone and gives the rank.
    pub(super) fn join(&mut self, member: Member, now: Instant) -> usize {
        if self.waiters.is_empty() {
            self.head_since = Some(now);
        }
        self.waiters.push_back(Waiter { member, told: None });
        self.waiters.len() - 1
    }

    pub(super) fn remove(&mut self, member: Member, now: Instant) -> bool {
        let Some(rank) = self.rank(member) else { return false };
        self.waiters.remove(rank);
        if rank == 0 {
            self.head_since = Some(now);
        }
        true
    }

    /// Those who could have gone since `opening` and did not come within `turn` go to the back, until `asker` is first.
    pub(super) fn skip_absent(&mut self, opening: Instant, turn: Duration, asker: Member, now: Instant) {
        for _ in 0..self.waiters.len() {
            if self.head() == Some(asker.id) {
                return;
            }
            let lost = add(self.head_since.map_or(opening, |since| since.max(opening)), turn);
            if now < lost {
                return;
            }
            self.waiters.rotate_left(1);
            self.head_since = Some(lost);
        }
    }

    /// Draws who is next.
    pub(super) fn draw_head<R: Rng + ?Sized>(&mut self, now: Instant, rng: &mut R) {
        if self.waiters.len() > 1 {
            self.waiters.swap(0, below(self.waiters.len(), rng));
        }
        self.head_since = Some(now);
    }

    /// One random order for all.
    pub(super) fn shuffle<R: Rng + ?Sized>(&mut self, now: Instant, rng: &mut R) {
        for last in (1..self.waiters.len()).rev() {
            self.waiters.swap(last, below(last + 1, rng));
        }
        self.head_since = Some(now);
    }

    /// Notes until when an asker was told to wait.
    pub(super) fn told(&mut self, rank: usize, until: Instant) {
        if let Some(waiter) = self.waiters.get_mut(rank) {
            waiter.told = Some(until);
        }
    }

    /// The head, and those who stand by in case it does not come, as far as they do not know yet that their turn is
    /// that soon.
    pub(super) fn next_to_wake(&mut self, opening: Instant, turn: Duration) -> impl Iterator<Item = u64> + '_ {
        self.waiters.iter_mut().take(1 + STAND_BY).enumerate().filter_map(move |(rank, waiter)| {
            let due = due(opening, rank, turn);
            if waiter.told.is_some_and(|told| told <= due) {
                return None;
            }
            waiter.told = Some(due);
            Some(waiter.member.id)
        })
    }
}

/// When the waiter of that rank asks: the first at the opening itself, the others a turn longer each, so that whoever
/// does not come is passed over.
pub(super) fn due(opening: Instant, rank: usize, turn: Duration) -> Instant {
    let turns = if rank == 0 { 0 } else { u32::try_from(rank + 1).unwrap_or(u32::MAX) };
    add(opening, turn.saturating_mul(turns))
}

/// Uniform over 0..n by widening multiplication.
fn below<R: Rng + ?Sized>(n: usize, rng: &mut R) -> usize {
    let wide = (u128::from(rng.next_u64()) * n as u128) >> 64;
    usize::try_from(wide).unwrap_or(0)
}

/// How many are told to come soon in case the head does not. A queue where every fourth future is not polled any more
/// then loses a turn for each of them; with none standing by, nobody would notice before some older timer fires.
const STAND_BY: usize = 3;
