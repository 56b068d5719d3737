//! Refused credentials: a second window of one for each.

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

use rand::Rng;

use super::super::backoff::uniform;
use super::super::time::add;
use super::super::{Backoff, Step};
use super::Member;

/// What a gate knows of credentials that were refused; bounded to [`MOST`].
///
/// The first refusal is followed by one more try, after a draw, with whatever the source of the credential gives by
/// then; a second one by the slow curve. One connection tries for all that present the same credential; the others are
/// parked here, outside the gate's queue, where they are in nobody's way.
#[derive(Debug, Default)]
pub(super) struct Refused {
    entries: BTreeMap<u64, Entry>,
}

#[derive(Debug)]
struct Entry {
    refused_at: Instant,
    until: Instant,
    step: Step,
    claim: Option<(u64, Instant)>,
    parked: VecDeque<u64>,
}

impl Refused {
    /// `None` if the member may ask the gate; otherwise when to come back. Whoever may ask holds the credential's one
    /// claim for `lease`.
    pub(super) fn ask(&mut self, now: Instant, member: Member, lease: Duration, base: Duration) -> Option<Instant> {
        let entry = self.entries.get_mut(&member.credential)?;
        let claimed = entry.claim.filter(|(_, until)| *until > now);
        if claimed.is_some_and(|(id, _)| id == member.id) {
            return None;
        }
        if claimed.is_none() && entry.until <= now {
            entry.claim = Some((member.id, add(now, lease.saturating_add(base))));
            entry.parked.retain(|id| *id != member.id);
            return None;
        }
        let rank = entry.parked.iter().position(|id| *id == member.id).unwrap_or_else(|| {
            entry.parked.push_back(member.id);
            entry.parked.len() - 1
        });
        let from = claimed.map_or(entry.until, |(_, until)| until);
        let turns = u32::try_from(rank).unwrap_or(u32::MAX);
        Some(add(from, base.saturating_mul(turns)))
    }

    /// The credential was refused by an attempt that began at `started`: when the next try may come. Attempts that
    /// began before the last refusal tell nothing new.
    pub(super) fn refuse<R: Rng + ?Sized>(
        &mut self,
        now: Instant,
        credential: u64,
        started: Instant,
        base: Duration,
        slow: &Backoff,
        rng: &mut R,
    ) -> Instant {
        self.make_room(credential);
        let entry = self.entries.entry(credential).or_insert_with(|| Entry {
            refused_at: now,
            until: now,
            step: Step::default(),
            claim: None,
            parked: VecDeque::new(),
        });
        if started < entry.refused_at {
            return entry.until.max(add(now, base));
        }
        let first = entry.step.failures() == 0;
        entry.step.fail(now, 0);
        let wait = if first { uniform(base, base.saturating_mul(2), rng) } else { entry.step.slow(slow, rng) };
        (entry.refused_at, entry.until, entry.claim) = (now, add(now, wait), None);
        entry.until
    }

    /// The credential works: forgotten; whoever was parked asks again.
    pub(super) fn accepted(&mut self, credential: u64, wakes: &mut Vec<u64>) {
        if let Some(entry) = self.entries.remove(&credential) {
            wakes.extend(entry.parked);
        }
    }

    /// The member is gone, or its attempt told nothing about the credential: the claim passes on.
    pub(super) fn release(&mut self, member: Member, wakes: &mut Vec<u64>) {
        let Some(entry) = self.entries.get_mut(&member.credential) else { return };
        entry.parked.retain(|id| *id != member.id);
        if entry.claim.is_some_and(|(id, _)| id == member.id) {
            entry.claim = None;
            wakes.extend(entry.parked.front());
        }
    }

    /// Somebody knows better: the next try may come now.
    pub(super) fn hasten(&mut self, now: Instant, credential: u64) {
        if let Some(entry) = self.entries.get_mut(&credential) {
            entry.until = entry.until.min(now);
        }
    }

    pub(super) fn waiting(&self) -> usize {
        self.entries.values().map(|entry| entry.parked.len()).sum()
    }

    /// Forgets the refusal that ends first rather than grow beyond the bound; its parked members come back by their
    /// own timers.
    fn make_room(&mut self, credential: u64) {
        if self.entries.len() < MOST || self.entries.contains_key(&credential) {
            return;
        }
        let first = self.entries.iter().min_by_key(|(_, entry)| entry.until).map(|(key, _)| *key);
        if let Some(first) = first {
            self.entries.remove(&first);
        }
    }
}

/// More credentials than this behind one endpoint are not told apart for long.
const MOST: usize = 1024;
