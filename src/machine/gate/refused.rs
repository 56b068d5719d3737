//! Refused credentials: a second window of one for each.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use rand::Rng;

use super::super::time::{add, uniform};
use super::super::{Backoff, Step, WaitCause};
use super::line::Line;
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
    /// Those that were accepted since the gate last became narrow, in order: everyone who presents them may ask.
    worked: Vec<u64>,
}

#[derive(Debug)]
struct Entry {
    refused_at: Instant,
    /// No try before this.
    until: Instant,
    step: Step,
    /// Who tries for all, and until when at most.
    claim: Option<(u64, Instant)>,
    parked: Line<()>,
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
            parked: Line::default(),
            in_session: false,
            hastened: false,
        }
    }

    /// Nobody knows yet whether it works.
    fn is_untried(&self) -> bool {
        self.step.failures() == 0
    }

    fn park(&mut self, member: Member) -> usize {
        self.parked.rank(member.id).unwrap_or_else(|| self.parked.push(member.id, ()))
    }

    /// Parks a member that comes back at `from`, one `turn` later for each that was there before it.
    fn wait(&mut self, now: Instant, member: Member, from: Instant, turn: Duration) -> Wait {
        let turns = u32::try_from(self.park(member)).unwrap_or(u32::MAX);
        let until = add(from, turn.saturating_mul(turns));
        if self.is_untried() {
            // The first try may end at any moment; a refusal binds until its time is over.
            return Wait { until, earliest: now, cause: WaitCause::Paced };
        }
        Wait::own(until, WaitCause::Refused)
    }
}

impl Refused {
    /// No credential is known to be refused, or tried.
    pub(super) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

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
        if (self.is_empty() && !side_by_side) || self.has_worked(member.credential) {
            return None;
        }
        if side_by_side && self.entries.len() < MOST && self.worked.len() < MOST {
            self.entries.entry(member.credential).or_insert_with(|| Entry::new(now));
        }
        let entry = self.entries.get_mut(&member.credential)?;
        match entry.claim.filter(|(_, until)| *until > now) {
            Some((holder, _)) if holder == member.id => None,
            Some((_, until)) => Some(entry.wait(now, member, until, base)),
            None if entry.until > now => Some(entry.wait(now, member, entry.until, base)),
            None => {
                entry.claim = Some((member.id, add(now, lease.saturating_add(base))));
                entry.parked.remove(member.id);
                None
            }
        }
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
        entry.park(origin.member);
        if origin.started < entry.refused_at {
            return entry.until.max(add(now, base));
        }
        let first = entry.is_untried();
        entry.step.fail(now, 0);
        let wait = if first { uniform(base, base.saturating_mul(2), rng) } else { entry.step.slow(slow, rng) };
        (entry.refused_at, entry.until, entry.claim) = (now, add(now, wait), None);
        entry.hastened = false;
        if let Ok(place) = self.worked.binary_search(&credential) {
            self.worked.remove(place);
        }
        entry.until
    }

    /// A dial that presented it succeeded: whoever was parked asks again. Only if a session was refused before, the
    /// others wait for one that has lasted for `stable_after`.
    pub(super) fn accepted(&mut self, now: Instant, member: Member, stable_after: Duration, wakes: &mut Vec<u64>) {
        if let Some(entry) = self.entries.get_mut(&member.credential) {
            if entry.in_session {
                entry.claim = Some((member.id, add(now, stable_after)));
                return;
            }
            entry.claim = None;
            wakes.extend(entry.parked.drain());
            if entry.is_untried() {
                self.entries.remove(&member.credential);
            }
        }
        if let Err(place) = self.worked.binary_search(&member.credential)
            && self.worked.len() < MOST
        {
            self.worked.insert(place, member.credential);
        }
    }

    /// The gate has become narrow: what worked before it has to be seen to work again.
    pub(super) fn distrust(&mut self) {
        self.worked.clear();
    }

    /// A session that presented it has lasted: the refusals are forgotten.
    pub(super) fn forget(&mut self, credential: u64, wakes: &mut Vec<u64>) {
        if let Some(mut entry) = self.entries.remove(&credential) {
            wakes.extend(entry.parked.drain());
        }
    }

    /// The member is gone, or its attempt told nothing about the credential: the claim passes on.
    pub(super) fn release(&mut self, member: Member, wakes: &mut Vec<u64>) {
        let Some(entry) = self.entries.get_mut(&member.credential) else { return };
        entry.parked.remove(member.id);
        if entry.claim.is_some_and(|(id, _)| id == member.id) {
            entry.claim = None;
            wakes.extend(entry.parked.first());
        }
    }

    /// Somebody knows better: the next try may come by `drawn`, and the member makes it; once.
    pub(super) fn hasten(&mut self, member: Member, drawn: Instant) {
        if let Some(entry) = self.entries.get_mut(&member.credential).filter(|entry| !entry.hastened) {
            (entry.until, entry.hastened) = (entry.until.min(drawn), true);
            if let Some(rank) = entry.parked.rank(member.id) {
                entry.parked.swap_first(rank);
            }
        }
    }

    /// Of those who wait here, how many present a credential that was refused, and not one that is tried for the first
    /// time.
    pub(super) fn refused(&self) -> usize {
        self.entries.values().filter(|entry| !entry.is_untried()).map(|entry| entry.parked.len()).sum()
    }

    /// When the first refusal that binds is over.
    pub(super) fn next_try(&self, now: Instant) -> Option<Instant> {
        self.entries.values().map(|entry| entry.until).filter(|until| *until > now).min()
    }

    pub(super) fn waiting(&self) -> usize {
        self.entries.values().map(|entry| entry.parked.len()).sum()
    }

    fn has_worked(&self, credential: u64) -> bool {
        self.worked.binary_search(&credential).is_ok()
    }

    /// Forgets one that works again, or else the refusal that ends first, rather than grow beyond the bound; its parked
    /// members come back by their own timers.
    fn make_room(&mut self, credential: u64) {
        if self.entries.len() < MOST || self.entries.contains_key(&credential) {
            return;
        }
        let first =
            self.entries.iter().min_by_key(|(key, entry)| (!self.has_worked(**key), entry.until)).map(|(key, _)| *key);
        if let Some(first) = first {
            self.entries.remove(&first);
        }
    }
}

/// More credentials than this behind one endpoint are not told apart for long.
const MOST: usize = 1024;
