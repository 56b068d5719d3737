//! Who waits for a turn at a gate, in which order.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use rand::Rng;

use super::super::time::add;
use super::Member;

/// The waiters; the first is the one whose turn is next.
#[derive(Debug, Default)]
pub(super) struct Queue {
    waiters: VecDeque<Member>,
    head_since: Option<Instant>,
    told: Option<(u64, Instant)>,
}

impl Queue {
    pub(super) fn len(&self) -> usize {
        self.waiters.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.waiters.is_empty()
    }

    pub(super) fn head(&self) -> Option<u64> {
        self.waiters.front().map(|member| member.id)
    }

    /// The rank of a member, 0 for the head.
    pub(super) fn rank(&self, member: Member) -> Option<usize> {
        self.waiters.iter().position(|waiter| waiter.id == member.id)
    }

    /// Queues behind everyone and gives the rank.
    pub(super) fn join(&mut self, member: Member, now: Instant) -> usize {
        if self.waiters.is_empty() {
            self.head_since = Some(now);
        }
        self.waiters.push_back(member);
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

    /// Notes until when the asker at the head was told to wait.
    pub(super) fn told(&mut self, member: Member, until: Instant) {
        if self.head() == Some(member.id) {
            self.told = Some((member.id, until));
        }
    }

    /// The head, if it does not know yet that it can go (or ask) at `opening`.
    pub(super) fn next_to_wake(&mut self, opening: Instant) -> Option<u64> {
        let head = self.head()?;
        if self.told.is_some_and(|(id, until)| id == head && until <= opening) {
            return None;
        }
        self.told = Some((head, opening));
        Some(head)
    }
}

/// Uniform over 0..n by widening multiplication.
fn below<R: Rng + ?Sized>(n: usize, rng: &mut R) -> usize {
    let wide = (u128::from(rng.next_u64()) * n as u128) >> 64;
    usize::try_from(wide).unwrap_or(0)
}
