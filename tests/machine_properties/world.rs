//! Several connections on one gate, told anything at any time, and the books that the checks are made against.

use std::sync::Arc;
use std::time::{Duration, Instant};

use proptest::prelude::*;
use rand::SeedableRng;
use rand::rngs::SmallRng;
use steadfast::machine::{Action, Admission, Event, Gate, Lifecycle, Member, Mode, State, Transition, add};
use steadfast::{Failure, Policy, WaitCause};

use crate::{
    ADVICE_LIMIT, BASE, HANDSHAKE_LIMIT, HINT_LIMIT, MEMBERS, QUICK_CAP, SLOW_CAP, STABLE_AFTER, failures, growing,
    policy, waits,
};

/// One thing that happens to one of the connections, or to all.
#[derive(Clone, Debug)]
pub(crate) enum Happening {
    /// The shell hands in an event, whether it fits or not.
    Told(usize, Event),
    /// The shell does what it was told to, and it ends like that.
    Done(usize, Result<(), Failure>),
    /// Time goes on to the connection's deadline, which is then handed in.
    Due(usize),
    /// Time goes on.
    Later(Duration),
    /// The shell is dropped; another one takes its place.
    Dropped(usize),
}

fn events() -> impl Strategy<Value = Event> {
    prop_oneof![
        waits().prop_map(Event::Advised),
        Just(Event::Closed),
        Just(Event::Drain),
        failures().prop_map(Event::Failed),
        Just(Event::Finished),
        Just(Event::GateTurned),
        failures().prop_map(Event::Lost),
        Just(Event::Opened),
        Just(Event::Reached),
        Just(Event::Reconnect),
        Just(Event::Start),
        Just(Event::TimedOut),
    ]
}

pub(crate) fn happenings() -> impl Strategy<Value = Vec<Happening>> {
    let who = || 0..MEMBERS;
    let end = prop_oneof![Just(Ok(())), failures().prop_map(Err)];
    let one = prop_oneof![
        2 => (who(), events()).prop_map(|(who, event)| Happening::Told(who, event)),
        6 => (who(), end).prop_map(|(who, end)| Happening::Done(who, end)),
        6 => who().prop_map(Happening::Due),
        2 => (0_u64..20_000).prop_map(|millis| Happening::Later(Duration::from_millis(millis))),
        1 => who().prop_map(Happening::Dropped),
    ];
    prop::collection::vec(one, 1..150)
}

/// Several connections on one gate, and the books that the checks are made against.
pub(crate) struct World {
    policy: Arc<Policy>,
    start: Instant,
    now: Instant,
    gate: Gate,
    rng: SmallRng,
    epoch: u64,
    last_start: Option<Instant>,
    /// Until when a hint that was given on a dial binds the whole gate.
    not_before: Instant,
    lives: Vec<Life>,
}

struct Life {
    life: Lifecycle,
    member: Member,
    generation: u64,
    attempts: u32,
    up_since: Option<Instant>,
    dialling: bool,
}

impl World {
    pub(crate) fn new(seed: u64, stop_on_permanent: bool) -> Self {
        let policy = Arc::new(policy(stop_on_permanent));
        policy.validate().expect("the policy is sound");
        let now = Instant::now();
        let mut gate = Gate::new(Arc::clone(&policy));
        let lives = (0..MEMBERS).map(|id| Life::new(&policy, &mut gate, id)).collect();
        let rng = SmallRng::seed_from_u64(seed);
        let mut world = Self { policy, start: now, now, gate, rng, epoch: 0, last_start: None, not_before: now, lives };
        for who in 0..MEMBERS {
            world.tell(who, Event::Start);
        }
        world
    }

    pub(crate) fn play(&mut self, happening: &Happening) {
        match happening {
            Happening::Told(who, event) => self.tell(*who, *event),
            Happening::Done(who, end) => self.done(*who, *end),
            Happening::Due(who) => self.due(*who),
            Happening::Later(time) => self.now = add(self.now, *time),
            Happening::Dropped(who) => self.replace(*who),
        }
    }

    fn done(&mut self, who: usize, end: Result<(), Failure>) {
        match (self.lives[who].life.state(), end) {
            (State::Connecting, Ok(())) => self.tell(who, Event::Opened),
            (State::Connecting, Err(failure)) => self.tell(who, Event::Failed(failure)),
            (State::Connected | State::Draining, Ok(())) => self.tell(who, Event::Finished),
            (State::Connected | State::Draining, Err(failure)) => self.tell(who, Event::Lost(failure)),
            _ => self.tell(who, Event::Start),
        }
    }

    fn due(&mut self, who: usize) {
        if let Some(deadline) = self.lives[who].life.deadline() {
            self.now = self.now.max(deadline);
            self.tell(who, Event::TimedOut);
        }
    }

    fn replace(&mut self, who: usize) {
        self.lives[who].life.abandon(self.now, &mut self.gate);
        self.lives[who] = Life::new(&self.policy, &mut self.gate, who);
        self.wake();
        self.tell(who, Event::Start);
    }

    fn tell(&mut self, who: usize, event: Event) {
        self.step(who, event);
        self.wake();
    }

    fn wake(&mut self) {
        for _ in 0..100 {
            let woken: Vec<u64> = self.gate.wakes().collect();
            if woken.is_empty() {
                return;
            }
            for id in woken {
                let who = self.lives.iter().position(|life| life.member.id == id);
                self.step(who.expect("only members are woken"), Event::GateTurned);
            }
        }
        panic!("the gate wakes for ever");
    }

    fn step(&mut self, who: usize, event: Event) {
        let now = self.now;
        let from = self.lives[who].life.state();
        let late = self.lives[who].life.deadline().is_some_and(|deadline| deadline <= now);
        let transition = self.lives[who].life.decide(now, event, &mut self.gate, &mut self.rng);
        let action = transition.map_or(Action::Continue, |transition| transition.action);
        let context = format!("connection {who}: {event:?} in {from:?} gave {action:?}");

        self.note_hint(who, event);
        match transition {
            None => self.check_silence(who, from, late, &context),
            Some(transition) => {
                assert_ne!(action, Action::Continue, "{context}: recorded as {transition:?}");
                self.check_record(who, from, &transition, &context);
            }
        }
        self.check_numbers(who, event, action, &context);
        self.check_start(who, action, &context);
        self.keep_books(who, action);

        let epoch = self.gate.status(now).epoch;
        assert!(epoch >= self.epoch, "{context}: epoch {epoch} after {}", self.epoch);
        self.epoch = epoch;
    }

    fn keep_books(&mut self, who: usize, action: Action) {
        let life = &mut self.lives[who];
        life.generation = life.life.generation();
        life.attempts = life.life.attempt();
        if action == Action::Continue {
            return;
        }
        life.dialling = matches!(action, Action::Dial { .. });
        match action {
            Action::Serve { .. } => life.up_since = Some(self.now),
            Action::WindDown => {}
            _ => life.up_since = None,
        }
    }

    fn note_hint(&mut self, who: usize, event: Event) {
        if let (true, Event::Failed(Failure::Throttled { retry_after: Some(hint) })) = (self.lives[who].dialling, event)
            && hint >= BASE
        {
            self.not_before = self.not_before.max(add(self.now, hint.min(HINT_LIMIT)));
        }
    }

    fn check_silence(&self, who: usize, from: State, late: bool, context: &str) {
        let life = &self.lives[who].life;
        assert_eq!(life.state(), from, "{context}: moved in silence");
        let past = life.deadline().is_some_and(|deadline| deadline <= self.now);
        assert!(!past || late, "{context}: a deadline in the past");
    }

    fn check_record(&self, who: usize, from: State, transition: &Transition, context: &str) {
        let life = &self.lives[who].life;
        let (state, deadline) = (life.state(), life.deadline());
        assert_eq!((transition.from, transition.to, transition.at), (from, state, self.now), "{context}");
        assert_eq!((transition.until, transition.wait), (deadline, life.wait_cause()), "{context}");
        assert_eq!(life.wait_cause().is_some(), state == State::Backoff, "{context}: {state:?}");
        assert_eq!(life.earliest_attempt().is_some(), state == State::Backoff, "{context}: {state:?}");
        if !matches!(state, State::Backoff | State::Connecting | State::Draining) {
            return;
        }
        let until = deadline.unwrap_or_else(|| panic!("{context}: {state:?} has no deadline"));
        assert!(until > self.now, "{context}: a deadline in the past");
        if let (Some(cause), Some(earliest)) = (transition.wait, life.earliest_attempt()) {
            assert!(earliest <= until, "{context}: an attempt after the end of the wait");
            let (wait, longest) = (until - self.now, self.longest(cause));
            assert!(wait <= longest, "{context}: waits {wait:?} for {cause:?}, at most {longest:?}");
        }
    }

    fn longest(&self, cause: WaitCause) -> Duration {
        let grown = growing().cap(u32::MAX, self.now - self.start, 1);
        let hinted = HINT_LIMIT + grown.max(Duration::from_secs(2));
        match cause {
            WaitCause::Backoff => QUICK_CAP.max(grown),
            WaitCause::Refused => SLOW_CAP,
            WaitCause::Spread => ADVICE_LIMIT,
            WaitCause::Throttled => hinted,
            _ => hinted + HANDSHAKE_LIMIT + BASE * 8,
        }
    }

    fn check_numbers(&self, who: usize, event: Event, action: Action, context: &str) {
        let known = &self.lives[who];
        let generation = known.life.generation();
        // A connection that nobody wants any more has used its number up as well.
        let opened = event == Event::Opened && action != Action::Continue;
        assert_eq!(generation, known.generation + u64::from(opened), "{context}: generation");
        if known.life.attempt() < known.attempts {
            let stable = known.up_since.is_some_and(|since| self.now >= since + STABLE_AFTER);
            assert!(stable || event == Event::Start, "{context}: {} attempts forgiven early", known.attempts);
        }
    }

    fn check_start(&mut self, who: usize, action: Action, context: &str) {
        let Action::Dial { attempt, generation } = action else { return };
        let known = &self.lives[who];
        assert_eq!(attempt, known.life.attempt(), "{context}");
        assert_eq!(generation, known.generation + 1, "{context}");
        assert!(self.now >= self.not_before, "{context}: before the hint");
        let status = self.gate.status(self.now);
        if matches!(status.mode, Mode::Open | Mode::HalfOpen) {
            let others =
                self.lives.iter().enumerate().filter(|(id, life)| *id != who && self.holds_a_slot(life)).count();
            assert_eq!(others, 0, "{context}: beside {others}, {status:?}");
            let gap = self.last_start.map(|last| self.now - last);
            assert!(gap.is_none_or(|gap| gap >= BASE), "{context}: {gap:?} after the last, {status:?}");
        }
        self.last_start = Some(self.now);
    }

    /// Whether it dials, and is not so late that the gate has taken its slot back.
    fn holds_a_slot(&self, life: &Life) -> bool {
        life.dialling && life.life.deadline().is_some_and(|deadline| add(deadline, BASE) > self.now)
    }

    /// A healthy server from now on: everybody comes back.
    pub(crate) fn heal(&mut self) {
        let given = add(self.now, Duration::from_secs(4 * 3600));
        while let Some(who) = self.next_away() {
            match self.lives[who].life.state() {
                State::Connecting => self.tell(who, Event::Opened),
                State::Stopped | State::Idle => self.tell(who, Event::Start),
                _ => self.due(who),
            }
            assert!(self.now <= given, "not back: {:?}", self.lives[who].life);
        }
    }

    /// Of those who are not connected, the one who has something to do first.
    fn next_away(&self) -> Option<usize> {
        let away = self.lives.iter().enumerate().filter(|(_, life)| life.life.state() != State::Connected);
        let next = away.min_by_key(|(_, life)| match life.life.state() {
            State::Backoff | State::Draining => life.life.deadline(),
            _ => None,
        });
        next.map(|(who, _)| who)
    }

    /// Everybody is gone: a newcomer gets its permit.
    pub(crate) fn leave(&mut self) {
        for life in &mut self.lives {
            life.life.abandon(self.now, &mut self.gate);
        }
        let status = self.gate.status(self.now);
        assert_eq!((status.in_flight, status.waiting, status.members), (0, 0, 0), "{status:?}");
        let newcomer = self.gate.join(0);
        for _ in 0..20 {
            match self.gate.admit(self.now, newcomer, Duration::from_secs(10), &mut self.rng) {
                Admission::Go(permit) => return self.gate.abandon(self.now, permit),
                Admission::Wait(wait) => {
                    assert!(wait.until > self.now && wait.earliest <= wait.until, "{wait:?}");
                    self.now = wait.until;
                }
                other => panic!("{other:?}"),
            }
        }
        panic!("asked 20 times: {:?}", self.gate.status(self.now));
    }
}

impl Life {
    fn new(policy: &Arc<Policy>, gate: &mut Gate, id: usize) -> Self {
        let member = gate.join(id as u64 % 2);
        let life = Lifecycle::new(Arc::clone(policy), member);
        Self { life, member, generation: 0, attempts: 0, up_since: None, dialling: false }
    }
}
