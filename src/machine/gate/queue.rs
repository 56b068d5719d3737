//! Who waits for a turn at a gate, in which order.

use std::time::{Duration, Instant};

use rand::Rng;

use super::super::time::add;
use super::Member;
use super::line::{Line, below};

/// The waiters; the first is the one whose turn is next.
///
/// What each operation costs stands at [`Line`]: whoever asks for its turn is found in a number of steps that does not
/// depend on how many wait.
#[derive(Debug, Default)]
pub(super) struct Queue {
    /// With the instant at which each was told to ask again. There is none until somebody waits.
    line: Option<Box<Line<Option<Instant>>>>,
    head_since: Option<Instant>,
}

impl Queue {
    pub(super) fn len(&self) -> usize {
        self.line.as_ref().map_or(0, |line| line.len())
    }

    pub(super) fn is_empty(&self) -> bool {
        self.line.as_ref().is_none_or(|line| line.is_empty())
    }

    /// The rank of a member, 0 for the head.
    pub(super) fn rank(&self, member: Member) -> Option<usize> {
        self.line.as_ref()?.rank(member.id)
    }

    /// Queues behind everyone and gives the rank.
    pub(super) fn join(&mut self, member: Member, now: Instant) -> usize {
        if self.is_empty() {
            self.head_since = Some(now);
        }
        self.line.get_or_insert_default().push(member.id, None)
    }

    pub(super) fn remove(&mut self, member: Member, now: Instant) {
        if self.line.as_mut().is_some_and(|line| line.remove(member.id) == Some(0)) {
            self.head_since = Some(now);
        }
    }

    /// Those who could have gone since `opening` and did not come within `turn` go to the back, until `asker` is first.
    pub(super) fn skip_absent(&mut self, opening: Instant, turn: Duration, asker: Member, now: Instant) {
        let Some(line) = &mut self.line else { return };
        for _ in 0..line.len() {
            if line.first() == Some(asker.id) {
                return;
            }
            let lost = add(self.head_since.map_or(opening, |since| since.max(opening)), turn);
            if now < lost {
                return;
            }
            line.rotate();
            self.head_since = Some(lost);
        }
    }

    /// Draws who is next.
    pub(super) fn draw_head<R: Rng + ?Sized>(&mut self, now: Instant, rng: &mut R) {
        if let Some(line) = self.line.as_mut().filter(|line| line.len() > 1) {
            line.swap_first(below(line.len(), rng));
        }
        self.head_since = Some(now);
    }

    /// One random order for all.
    pub(super) fn shuffle<R: Rng + ?Sized>(&mut self, now: Instant, rng: &mut R) {
        if let Some(line) = &mut self.line {
            line.shuffle(rng);
        }
        self.head_since = Some(now);
    }

    /// Notes until when an asker was told to wait.
    pub(super) fn told(&mut self, member: Member, until: Instant) {
        if let Some(told) = self.line.as_mut().and_then(|line| line.get_mut(member.id)) {
            *told = Some(until);
        }
    }

    /// Wakes the head, and those who stand by in case it does not come, as far as they do not know yet that their turn
    /// is that soon.
    pub(super) fn wake(&mut self, opening: Instant, turn: Duration, wakes: &mut Vec<u64>) {
        let Some(line) = &mut self.line else { return };
        for (rank, (id, told)) in line.iter_mut().take(1 + STAND_BY).enumerate() {
            if told.is_some_and(|told| told <= opening) {
                continue;
            }
            let due = due(opening, rank, turn);
            if told.is_none_or(|told| told > due) {
                *told = Some(due);
                wakes.push(*id);
            }
        }
    }
}

/// When the waiter of that rank asks: the first at the opening itself, those who stand by two turns later, the others a
/// turn longer each, so that whoever does not come is passed over. All who stand by come at one time: told of a sooner
/// one for each place that it moves up, every waiter would wake four times for its one dial.
pub(super) fn due(opening: Instant, rank: usize, turn: Duration) -> Instant {
    let turns = match rank {
        0 => return opening,
        1..=STAND_BY => 2,
        _ => u32::try_from(rank + 1).unwrap_or(u32::MAX),
    };
    add(opening, turn.saturating_mul(turns))
}

/// How many are told to come soon in case the head does not. A queue where every fourth future is not polled any more
/// then loses a turn for each of them; with none standing by, nobody would notice before some older timer fires.
const STAND_BY: usize = 3;

#[cfg(test)]
mod tests {
    #![expect(clippy::disallowed_methods, reason = "a test may read the clock")]

    use super::*;

    #[test]
    fn a_waiter_is_woken_to_stand_by_and_for_its_turn_and_not_between() {
        let (mut now, turn) = (Instant::now(), Duration::from_millis(500));
        let (mut queue, mut woken) = (Queue::default(), Vec::new());
        let member = |id| Member { id, credential: 0 };
        for id in 0..20 {
            let rank = queue.join(member(id), now);
            queue.told(member(id), due(add(now, 60 * turn), rank, turn));
        }
        for id in 0..20 {
            queue.wake(now, turn, &mut woken);
            assert_eq!(woken.iter().filter(|woken| **woken == id).count(), if id == 0 { 1 } else { 2 }, "{id}");
            queue.remove(member(id), now);
            now = add(now, turn / 50);
        }
        assert_eq!(woken.len(), 39);
    }
}
