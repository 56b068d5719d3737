//! Refused credentials: a second window of one for each.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::{Duration, Instant};

use rand::Rng;

use super::super::backoff::uniform;
use super::super::time::add;
use super::super::{Backoff, Step, WaitCause};
use super::verdict::Origin;
use super::{Member, Wait};

/// What a gate knows of credentials that were refused; bounded to [`MOST`].
///
/// The first refusal is followed by one more try, after a draw, with whatever the source of the credential gives by
/// then; a second one by the slow curve. One connection tries for all that present the same credential; the others are
/// parked here, outside the gate's queue, where they are in nobody's way.
#[derive(Debug, Default)]
pub(super) struct Refused {
    entries: BTreeMap<u64, Entry>,
    /// Those that were accepted since the gate last became narrow: everyone who presents them may ask.
    worked: BTreeSet<u64>,
}

#[derive(Debug)]
struct Entry {
    refused_at: Instant,
    until: Instant,
    step: Step,
    claim: Option<(u64, Instant)>,
    parked: VecDeque<u64>,
    /// It was refused in a session, so that a dial proves nothing.
    in_session: bool,
    hastened: bool,
}

impl Entry {
    fn new(refused_at: Instant) -> Self {
        Self {
            refused_at,
            until: refused_at,
            step: Step::default(),
            claim: None,
            parked: VecDeque::new(),
            in_session: false,
            hastened: false,
        }
    }
}

impl Refused {
    /// `None` if the member may ask the gate; otherwise when to come back, and why. Whoever may ask holds the
    /// credential's one claim for `lease`. Where several dials may be `side_by_side`, a credential that nobody has tried
    /// yet is tried by one first: the others would be refused before they could know.
    pub(super) fn ask(
        &mut self,
        now: Instant,
        member: Member,
        side_by_side: bool,
        lease: Duration,
        base: Duration,
    ) -> Option<Wait> {
        if self.worked.contains(&member.credential) {
            return None;
        }
        if side_by_side && self.entries.len() < MOST && self.worked.len() < MOST {
            self.entries.entry(member.credential).or_insert_with(|| Entry::new(now));
        }
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
        let untried = entry.step.failures() == 0;
        let cause = if untried { WaitCause::Paced } else { WaitCause::Refused };
        let until = add(from, base.saturating_mul(turns));
        // The first try may end at any moment; a refusal binds until its time is over.
        Some(Wait { until, earliest: if untried { now } else { until }, cause })
    }

    /// The credential was refused: when the next try may come. What began before the last refusal tells nothing new.
    /// The member is parked with the others: somebody else's success concerns it too.
    pub(super) fn refuse<R: Rng + ?Sized>(
        &mut self,
        now: Instant,
        origin: Origin,
        base: Duration,
        slow: &Backoff,
        rng: &mut R,
    ) -> Instant {
        let credential = origin.member.credential;
        self.make_room(credential);
        let entry = self.entries.entry(credential).or_insert_with(|| Entry::new(origin.started));
        entry.in_session |= !origin.dial;
        if !entry.parked.contains(&origin.member.id) {
            entry.parked.push_back(origin.member.id);
        }
        if origin.started < entry.refused_at {
            return entry.until.max(add(now, base));
        }
        let first = entry.step.failures() == 0;
        entry.step.fail(now, 0);
        let wait = if first { uniform(base, base.saturating_mul(2), rng) } else { entry.step.slow(slow, rng) };
        (entry.refused_at, entry.until, entry.claim) = (now, add(now, wait), None);
        entry.hastened = false;
        self.worked.remove(&credential);
        entry.until
    }

    /// A dial that presented it succeeded: whoever was parked asks again. Only if a session was refused before, the
    /// others wait for one that lasts until `proven`.
    pub(super) fn accepted(&mut self, member: Member, proven: Instant, wakes: &mut Vec<u64>) {
        let Some(entry) = self.entries.get_mut(&member.credential) else {
            self.trust(member.credential);
            return;
        };
        if entry.in_session {
            entry.claim = Some((member.id, proven));
            return;
        }
        entry.claim = None;
        wakes.extend(entry.parked.drain(..));
        if entry.step.failures() == 0 {
            self.entries.remove(&member.credential);
        }
        self.trust(member.credential);
    }

    /// The gate has become narrow: what worked before it has to be seen to work again.
    pub(super) fn distrust(&mut self) {
        self.worked.clear();
    }

    /// A session that presented it has lasted: the refusals are forgotten.
    pub(super) fn forget(&mut self, credential: u64, wakes: &mut Vec<u64>) {
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

    /// Somebody knows better: the next try may come by `drawn`, and the member makes it; once.
    pub(super) fn hasten(&mut self, member: Member, drawn: Instant) {
        if let Some(entry) = self.entries.get_mut(&member.credential).filter(|entry| !entry.hastened) {
            (entry.until, entry.hastened) = (entry.until.min(drawn), true);
            if let Some(rank) = entry.parked.iter().position(|id| *id == member.id) {
                entry.parked.swap(0, rank);
            }
        }
    }

    /// Of those who wait here, how many present a credential that was refused, and not one that is tried for the first
    /// time.
    pub(super) fn refused(&self) -> usize {
        self.entries.values().filter(|entry| entry.step.failures() > 0).map(|entry| entry.parked.len()).sum()
    }

    /// When the first refusal that binds is over.
    pub(super) fn next_try(&self, now: Instant) -> Option<Instant> {
        self.entries.values().map(|entry| entry.until).filter(|until| *until > now).min()
    }

    pub(super) fn waiting(&self) -> usize {
        self.entries.values().map(|entry| entry.parked.len()).sum()
    }

    fn trust(&mut self, credential: u64) {
        if self.worked.len() < MOST {
            self.worked.insert(credential);
        }
    }

    /// Forgets one that works again, or else the refusal that ends first, rather than grow beyond the bound; its parked
    /// members come back by their own timers.
    fn make_room(&mut self, credential: u64) {
        if self.entries.len() < MOST || self.entries.contains_key(&credential) {
            return;
        }
        let first = self
            .entries
            .iter()
            .min_by_key(|(key, entry)| (!self.worked.contains(key), entry.until))
            .map(|(key, _)| *key);
        if let Some(first) = first {
            self.entries.remove(&first);
        }
    }
}

/// More credentials than this behind one endpoint are not told apart for long.
const MOST: usize = 1024;
