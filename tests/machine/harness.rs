//! Drives lifecycles in virtual time: [`Lone`] step by step, a [`Crew`] on one gate by a script.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rand::SeedableRng;
use rand::rngs::SmallRng;
use steadfast::machine::{Action, Event, Gate, GateStatus, Lifecycle, State, StopReason, add};
use steadfast::{Backoff, Failure, Growth, Jitter, Policy};

/// Base 1 s, both curves to 30 s without growth, no jitter, no spread.
pub(crate) fn plain() -> Policy {
    let cap = Duration::from_secs(30);
    Policy::default()
        .quick(Backoff::new(Duration::from_secs(1), cap))
        .growing(Growth::fixed(cap))
        .jitter(Jitter::None)
        .recovery_spread(Duration::ZERO)
}

pub(crate) const fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

pub(crate) const fn millis(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

pub(crate) fn all_secs<const N: usize>(seconds: [u64; N]) -> Vec<Duration> {
    seconds.map(secs).to_vec()
}

pub(crate) fn all_millis<const N: usize>(list: [u64; N]) -> Vec<Duration> {
    list.map(millis).to_vec()
}

/// Which of the bins of that width a time falls into.
pub(crate) fn bin(time: Duration, width: Duration) -> usize {
    usize::try_from(time.as_nanos() / width.as_nanos()).expect("a bin of a small histogram")
}

/// Whether an action starts a dial.
pub(crate) fn dials(action: Action) -> bool {
    matches!(action, Action::Dial { .. })
}

/// One connection with a gate of its own, told everything by hand.
pub(crate) struct Lone {
    pub(crate) lifecycle: Lifecycle,
    pub(crate) gate: Gate,
    pub(crate) rng: SmallRng,
    pub(crate) now: Instant,
    start: Instant,
    told: u32,
    /// When each dial began.
    pub(crate) dials: Vec<Duration>,
}

/// More events than this in one test are a loop that does not end.
const MOST_EVENTS: u32 = 1_000_000;

impl Lone {
    pub(crate) fn new(policy: Policy) -> Self {
        Self::seeded(policy, 7)
    }

    pub(crate) fn seeded(policy: Policy, seed: u64) -> Self {
        policy.validate().expect("a valid policy");
        let policy = Arc::new(policy);
        let mut gate = Gate::new(Arc::clone(&policy));
        let member = gate.join(0);
        let now = Instant::now();
        Self {
            lifecycle: Lifecycle::new(policy, member),
            gate,
            rng: SmallRng::seed_from_u64(seed),
            now,
            start: now,
            told: 0,
            dials: Vec::new(),
        }
    }

    /// Started and dialling.
    pub(crate) fn dialling(policy: Policy) -> Self {
        let mut lone = Self::new(policy);
        lone.tell(Event::Start);
        lone
    }

    pub(crate) fn tell(&mut self, event: Event) -> Action {
        self.told += 1;
        assert!(self.told < MOST_EVENTS, "no end after {event:?}");
        let action = self.lifecycle.on_event(self.now, event, &mut self.gate, &mut self.rng);
        if dials(action) {
            self.dials.push(self.time());
        }
        action
    }

    /// Sleeps until the deadline, again and again, until it says something else than to wait.
    pub(crate) fn wait(&mut self) -> Action {
        loop {
            self.now = self.lifecycle.deadline().expect("a wait has a deadline").max(self.now);
            match self.tell(Event::TimedOut) {
                Action::Continue | Action::Wait => {}
                action => return action,
            }
        }
    }

    /// Sleeps until the deadline once.
    pub(crate) fn wait_for_deadline(&mut self) -> Action {
        self.now = self.lifecycle.deadline().expect("a deadline");
        self.tell(Event::TimedOut)
    }

    /// Fails the dial, sleeps, and gives how long it slept until the next one.
    pub(crate) fn fail(&mut self, failure: Failure) -> Duration {
        let failed = self.now;
        assert_eq!(self.tell(Event::Failed(failure)), Action::Wait, "after {failure}");
        assert!(dials(self.wait()), "a wait ends in a dial");
        self.now.duration_since(failed)
    }

    /// The dial succeeds and the session lives for `uptime`, then ends; gives what follows.
    pub(crate) fn live(&mut self, uptime: Duration, end: Event) -> Action {
        assert!(matches!(self.tell(Event::Opened), Action::Serve { .. }));
        self.pass(uptime);
        self.tell(end)
    }

    pub(crate) fn pass(&mut self, time: Duration) {
        self.now = add(self.now, time);
    }

    /// Virtual time so far.
    pub(crate) fn time(&self) -> Duration {
        self.now.duration_since(self.start)
    }

    /// Counts time and dials anew from here.
    pub(crate) fn restart_clock(&mut self) {
        self.start = self.now;
        self.dials.clear();
    }
}

/// What the server does with one dial.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Answer {
    /// Usable after `after`; then it lives as long as the test.
    Accept { after: Duration },
    /// Usable after `after`, and lost `uptime` later.
    Drop { after: Duration, uptime: Duration, failure: Failure },
    /// Fails after `after`.
    Refuse { after: Duration, failure: Failure },
    /// Says nothing.
    Silence,
}

/// A dial as the server sees it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Dial {
    /// Since the beginning.
    pub(crate) at: Duration,
    pub(crate) who: usize,
    /// Dials under way, this one included.
    pub(crate) in_flight: usize,
}

/// Several connections on one gate, and a server that follows a script.
pub(crate) struct Crew<S> {
    pub(crate) gate: Gate,
    pub(crate) dials: Vec<Dial>,
    /// Who stopped, why.
    pub(crate) stopped: Vec<(usize, StopReason)>,
    /// How often each was asked or told something.
    pub(crate) told: Vec<u32>,
    members: Vec<Lifecycle>,
    rng: SmallRng,
    start: Instant,
    now: Instant,
    agenda: BTreeMap<(Instant, u64), (usize, Event)>,
    slept: Vec<Option<Instant>>,
    /// Whose futures nobody polls.
    asleep: BTreeSet<usize>,
    next: u64,
    server: S,
}

impl<S: FnMut(Dial) -> Answer> Crew<S> {
    /// `credentials` are those of the members, in order.
    pub(crate) fn new(policy: Policy, credentials: &[u64], seed: u64, server: S) -> Self {
        policy.validate().expect("a valid policy");
        let policy = Arc::new(policy);
        let mut gate = Gate::new(Arc::clone(&policy));
        let members: Vec<_> =
            credentials.iter().map(|&key| Lifecycle::new(Arc::clone(&policy), gate.join(key))).collect();
        let now = Instant::now();
        Self {
            gate,
            dials: Vec::new(),
            stopped: Vec::new(),
            told: vec![0; members.len()],
            slept: vec![None; members.len()],
            asleep: BTreeSet::new(),
            members,
            rng: SmallRng::seed_from_u64(seed),
            start: now,
            now,
            agenda: BTreeMap::new(),
            next: 0,
            server,
        }
    }

    /// Everyone has started.
    pub(crate) fn started(policy: Policy, size: usize, seed: u64, server: S) -> Self {
        let mut crew = Self::new(policy, &vec![0; size], seed, server);
        crew.tell_all(Event::Start);
        crew
    }

    pub(crate) fn tell_all(&mut self, event: Event) {
        for who in 0..self.members.len() {
            self.tell(who, event);
        }
    }

    /// Tells one of them, performs what it says and wakes whom the gate names.
    pub(crate) fn tell(&mut self, who: usize, event: Event) {
        let mut queue = vec![(who, event)];
        while let Some((who, event)) = queue.pop() {
            if self.asleep.contains(&who) {
                continue;
            }
            self.told[who] += 1;
            assert!(self.told[who] < MOST_EVENTS, "no end after {event:?}");
            let action = self.members[who].on_event(self.now, event, &mut self.gate, &mut self.rng);
            self.perform(who, action);
            // Members are numbered from 1 in the order in which they joined.
            let woken = self.gate.wakes().filter_map(|id| usize::try_from(id - 1).ok());
            queue.extend(woken.map(|who| (who, Event::GateTurned)));
        }
    }

    /// Lets virtual time pass up to `until` since the beginning.
    pub(crate) fn run_until(&mut self, until: Duration) {
        let end = add(self.start, until);
        loop {
            let news = self.agenda.keys().next().map(|(at, _)| *at);
            let timer = (0..self.members.len())
                .filter_map(|who| Some((self.members[who].deadline()?, who)))
                .filter(|(at, who)| self.slept[*who] != Some(*at) && !self.asleep.contains(who))
                .min();
            let due = news.into_iter().chain(timer.map(|(at, _)| at)).min().filter(|at| *at <= end);
            let Some(at) = due else { break };
            self.now = at.max(self.now);
            if news == Some(at) {
                let (_, (who, event)) = self.agenda.pop_first().expect("it has a first");
                self.tell(who, event);
            } else if let Some((at, who)) = timer {
                self.slept[who] = Some(at);
                self.tell(who, Event::TimedOut);
            }
        }
        self.now = end;
    }

    /// From now on nothing reaches these.
    pub(crate) fn put_to_sleep(&mut self, who: &[usize]) {
        self.asleep.extend(who);
    }

    /// They are polled again.
    pub(crate) fn wake_up(&mut self) {
        self.asleep.clear();
    }

    pub(crate) fn time(&self) -> Duration {
        self.now.duration_since(self.start)
    }

    pub(crate) fn now(&self) -> Instant {
        self.now
    }

    pub(crate) fn status(&self) -> GateStatus {
        self.gate.status(self.now)
    }

    pub(crate) fn member(&self, who: usize) -> &Lifecycle {
        &self.members[who]
    }

    pub(crate) fn connected(&self) -> usize {
        self.members.iter().filter(|member| member.state() == State::Connected).count()
    }

    /// When dials began, by anybody.
    pub(crate) fn dialled(&self) -> Vec<Duration> {
        self.dials.iter().map(|dial| dial.at).collect()
    }

    /// How long between one dial and the next, by anybody.
    pub(crate) fn distances(&self) -> Vec<Duration> {
        self.dials.windows(2).map(|pair| pair[1].at - pair[0].at).collect()
    }

    /// Every action but `Continue` replaces what was going on: its news cannot come any more.
    fn perform(&mut self, who: usize, action: Action) {
        if action == Action::Continue {
            return;
        }
        self.slept[who] = None;
        if let Action::Serve { .. } = action {
            // The end of the session was scheduled when the dial was answered.
            return;
        }
        self.agenda.retain(|_, (whose, _)| *whose != who);
        match action {
            Action::Dial { .. } => self.dial(who),
            Action::Stop(reason) => self.stopped.push((who, reason)),
            Action::Close => self.expect(Duration::ZERO, who, Event::Closed),
            Action::WindDown => self.expect(Duration::ZERO, who, Event::Lost(Failure::Planned)),
            _ => {}
        }
    }

    fn dial(&mut self, who: usize) {
        let in_flight = self.members.iter().filter(|member| member.state() == State::Connecting).count();
        let dial = Dial { at: self.time(), who, in_flight };
        self.dials.push(dial);
        match (self.server)(dial) {
            Answer::Accept { after } => self.expect(after, who, Event::Opened),
            Answer::Drop { after, uptime, failure } => {
                self.expect(after, who, Event::Opened);
                self.expect(after + uptime, who, Event::Lost(failure));
            }
            Answer::Refuse { after, failure } => self.expect(after, who, Event::Failed(failure)),
            Answer::Silence => {}
        }
    }

    fn expect(&mut self, after: Duration, who: usize, event: Event) {
        self.next += 1;
        self.agenda.insert((add(self.now, after), self.next), (who, event));
    }
}
