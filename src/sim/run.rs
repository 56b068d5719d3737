//! The driver: performs actions, feeds events, decides nothing.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rand::SeedableRng;
use rand::rngs::SmallRng;

use super::checker::{Checker, Observed};
use super::fleet::Fleet;
use super::line::line;
use super::queue::{Due, Errand, Queue};
use super::report::{Dial, Report, Standing};
use super::scenario::{Scenario, Step};
use super::server::{Desk, Reception};
use crate::machine::{Action, Event, Failure, Gate, Lifecycle, State, add};

/// One run of one scenario.
pub(super) struct Run<'a> {
    scenario: &'a Scenario,
    origin: Instant,
    now: Duration,
    queue: Queue,
    desk: Desk,
    clients: Vec<Client>,
    gates: Vec<Gate>,
    /// Who a member of a gate is.
    members: Vec<BTreeMap<u64, usize>>,
    checker: Checker,
    dials: Vec<Dial>,
    log: BTreeMap<usize, Vec<String>>,
}

struct Client {
    life: Lifecycle,
    rng: SmallRng,
    gate: usize,
    credential: u64,
    /// Counts what it was told to do: news about anything earlier is stale.
    errand: u64,
    /// The instant its timer is set to.
    timer: Option<Duration>,
    /// The attempt under way.
    dial: Option<usize>,
    /// Since when it has been connected.
    up_since: Option<Duration>,
    presence: Presence,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Presence {
    Cancelled,
    Forgotten,
    Polled,
}

impl<'a> Run<'a> {
    pub(super) fn new(fleet: &Fleet, origin: Instant, scenario: &'a Scenario) -> Self {
        let mut parent = SmallRng::seed_from_u64(fleet.seed);
        let mut gates = Vec::new();
        let mut members = Vec::new();
        let mut clients = Vec::with_capacity(fleet.clients);
        for id in 0..fleet.clients {
            if id % fleet.gate_size == 0 {
                gates.push(Gate::new(Arc::clone(&fleet.policy)));
                members.push(BTreeMap::new());
            }
            let credential = id as u64 % fleet.credentials;
            let gate = gates.len() - 1;
            let member = gates[gate].join(credential);
            members[gate].insert(member.id, id);
            clients.push(Client {
                life: Lifecycle::new(Arc::clone(&fleet.policy), member),
                rng: SmallRng::from_rng(&mut parent),
                gate,
                credential,
                errand: 0,
                timer: None,
                dial: None,
                up_since: None,
                presence: Presence::Polled,
            });
        }
        Self {
            scenario,
            origin,
            now: Duration::ZERO,
            queue: Queue::default(),
            desk: Desk::new(scenario.server.clone()),
            checker: Checker::new(Arc::clone(&fleet.policy), clients.len(), gates.len()),
            clients,
            gates,
            members,
            dials: Vec::new(),
            log: fleet.logs(),
        }
    }

    pub(super) fn play(mut self) -> Report {
        for (index, (at, _)) in self.scenario.steps.iter().enumerate() {
            self.queue.push(*at, Due::Step(index));
        }
        self.each(0..usize::MAX, |run, id| run.tell(id, Event::Start));
        let mut busy = 0_usize;
        while let Some((at, due)) = self.queue.pop() {
            busy = if at == self.now { busy + 1 } else { 0 };
            if at > self.scenario.end || self.is_runaway(busy) {
                break;
            }
            self.now = at;
            self.take(due);
        }
        self.report()
    }

    /// Whether clients keep each other busy without end: the bound on what one run may cost.
    fn is_runaway(&mut self, events_of_this_instant: usize) -> bool {
        let runaway = events_of_this_instant > 64 * self.clients.len() + 10_000 || self.dials.len() > MOST_DIALS;
        if runaway {
            self.checker.violation(self.now, 0, "the run does not come to rest".to_owned());
        }
        runaway
    }

    fn take(&mut self, due: Due) {
        match due {
            Due::News(errand, event) => {
                if is_there(&self.clients, errand) {
                    self.tell(errand.client, event);
                }
            }
            Due::Served(shift) => self.served(shift),
            Due::Step(index) => self.step(index),
            Due::Timer(id) => {
                if self.clients[id].timer == Some(self.now) {
                    self.clients[id].timer = None;
                    self.tell(id, Event::TimedOut);
                }
            }
            Due::Turned(id) => self.tell(id, Event::GateTurned),
        }
    }

    fn step(&mut self, index: usize) {
        let Some((_, step)) = self.scenario.steps.get(index) else { return };
        match step.clone() {
            Step::Advise(who, spread) => self.each(who, |run, id| run.tell(id, Event::Advised(spread))),
            Step::Cancel(who) => self.each(who, Self::cancel),
            Step::Drain(who) => self.each(who, |run, id| run.tell(id, Event::Drain)),
            Step::Forget(who) => self.each(who, |run, id| run.clients[id].presence = Presence::Forgotten),
            Step::Lose(who, failure) => self.each(who, |run, id| {
                if run.clients[id].up_since.is_some() {
                    run.tell(id, Event::Lost(failure));
                }
            }),
            Step::Reconnect(who) => self.each(who, |run, id| run.tell(id, Event::Reconnect)),
            Step::Serve(server) => {
                for errand in self.desk.replace(server) {
                    self.queue.push(self.now, Due::News(errand, Event::Failed(Failure::Transient)));
                }
            }
            Step::Start(who) => self.each(who, |run, id| run.tell(id, Event::Start)),
        }
    }

    fn each(&mut self, who: Range<usize>, mut act: impl FnMut(&mut Self, usize)) {
        for id in who.start..who.end.min(self.clients.len()) {
            act(self, id);
        }
    }

    fn cancel(&mut self, id: usize) {
        let now = self.instant();
        let client = &mut self.clients[id];
        if client.presence == Presence::Cancelled {
            return;
        }
        client.presence = Presence::Cancelled;
        client.errand += 1;
        client.up_since = None;
        client.life.abandon(now, &mut self.gates[client.gate]);
        self.end_dial(id, None);
        self.checker.cancelled(id);
        self.pass_on_wakes(id);
    }

    /// Hands one event to one client and does what it says.
    fn tell(&mut self, id: usize, event: Event) {
        if self.clients[id].presence != Presence::Polled {
            return;
        }
        let now = self.instant();
        let client = &mut self.clients[id];
        let gate = &mut self.gates[client.gate];
        let from = client.life.state();
        let transition = client.life.decide(now, event, gate, &mut client.rng);
        let action = transition.map_or(Action::Continue, |transition| transition.action);
        self.checker.after(&Observed {
            now: self.now,
            instant: now,
            client: id,
            gate: client.gate,
            event,
            action,
            from,
            transition: transition.as_ref(),
            life: &client.life,
            shared: gate,
        });
        self.pass_on_wakes(id);
        if let (Some(transition), Some(log)) = (transition, self.log.get_mut(&id))
            && log.len() < MOST_LINES
        {
            log.push(line(&transition, self.origin));
        }
        self.perform(id, event, action);
        self.set_timer(id);
    }

    fn perform(&mut self, id: usize, event: Event, action: Action) {
        if action == Action::Continue {
            return;
        }
        self.end_dial(id, outcome(event));
        let client = &mut self.clients[id];
        client.errand += 1;
        let errand = Errand { client: id, number: client.errand };
        match action {
            Action::WindDown => {
                self.queue.push(self.now + WINDING_DOWN, Due::News(errand, Event::Lost(Failure::Planned)));
                return;
            }
            Action::Serve { .. } => {
                client.up_since = Some(self.now);
                if let Some(life) = self.desk.session() {
                    self.queue.push(self.now + life, Due::News(errand, Event::Lost(Failure::Transient)));
                }
                return;
            }
            Action::Dial { .. } => self.dial(errand),
            Action::Close => self.queue.push(self.now + CLOSING, Due::News(errand, Event::Closed)),
            Action::Continue | Action::Stop(_) | Action::Wait => {}
        }
        self.clients[id].up_since = None;
    }

    fn dial(&mut self, errand: Errand) {
        let client = &mut self.clients[errand.client];
        client.dial = Some(self.dials.len());
        self.dials.push(Dial { client: errand.client, at: self.now, ended: None, outcome: None });
        match self.desk.dial(self.now, errand, client.credential) {
            Reception::Answer { at, event, reached } => {
                if reached {
                    self.queue.push(self.now, Due::News(errand, Event::Reached));
                }
                self.queue.push(at, Due::News(errand, event));
            }
            Reception::Queued => {
                self.queue.push(self.now, Due::News(errand, Event::Reached));
                self.serve_next();
            }
            Reception::Nothing => {}
        }
    }

    fn serve_next(&mut self) {
        let clients = &self.clients;
        if let Some((at, shift)) = self.desk.begin(self.now, |errand| is_there(clients, errand)) {
            self.queue.push(at, Due::Served(shift));
        }
    }

    fn served(&mut self, shift: u64) {
        if let Some((errand, at)) = self.desk.served(self.now, shift) {
            self.queue.push(at, Due::News(errand, Event::Opened));
            self.serve_next();
        }
    }

    fn end_dial(&mut self, id: usize, outcome: Option<Result<(), Failure>>) {
        if let Some(dial) = self.clients[id].dial.take().and_then(|index| self.dials.get_mut(index)) {
            dial.ended = Some(self.now);
            dial.outcome = outcome;
        }
    }

    fn pass_on_wakes(&mut self, id: usize) {
        let gate = self.clients[id].gate;
        for member in self.gates[gate].wakes() {
            match self.members[gate].get(&member) {
                Some(woken) => self.queue.push(self.now, Due::Turned(*woken)),
                None => self.checker.violation(self.now, id, format!("the gate woke {member}, who is no member")),
            }
        }
    }

    /// Sets the timer to the machine's deadline, rounded up to the grid; it never fires in the past.
    fn set_timer(&mut self, id: usize) {
        let client = &mut self.clients[id];
        let deadline = client.life.deadline().map(|at| at.saturating_duration_since(self.origin));
        let wake = deadline.map(|at| on_grid(at).max(self.now));
        if wake != client.timer {
            client.timer = wake;
            if let Some(at) = wake {
                self.queue.push(at, Due::Timer(id));
            }
        }
    }

    fn instant(&self) -> Instant {
        add(self.origin, self.now)
    }

    fn report(self) -> Report {
        Report {
            lost: self.scenario.lost(),
            healed: self.scenario.healed(),
            dials: self.dials,
            standings: self.clients.iter().map(Client::standing).collect(),
            log: self.log,
            violations: self.checker.into_violations(),
        }
    }
}

impl Client {
    fn standing(&self) -> Standing {
        match (self.presence, self.life.state(), self.up_since) {
            (Presence::Cancelled | Presence::Forgotten, ..) | (_, State::Stopped | State::Draining, _) => {
                Standing::Excused
            }
            (Presence::Polled, _, Some(since)) => Standing::Up(since),
            (Presence::Polled, _, None) => Standing::Away,
        }
    }
}

fn is_there(clients: &[Client], errand: Errand) -> bool {
    clients[errand.client].errand == errand.number
}

/// What an event says about the attempt that it ends.
fn outcome(event: Event) -> Option<Result<(), Failure>> {
    match event {
        Event::Opened => Some(Ok(())),
        Event::Failed(failure) => Some(Err(failure)),
        Event::TimedOut => Some(Err(Failure::Timeout)),
        _ => None,
    }
}

/// The next whole millisecond since the start: tokio's timers fire there.
fn on_grid(at: Duration) -> Duration {
    let whole = Duration::new(at.as_secs(), at.subsec_millis() * 1_000_000);
    if whole == at { at } else { whole + Duration::from_millis(1) }
}

/// How long a session takes to end once it has been told to.
const WINDING_DOWN: Duration = Duration::from_millis(100);

/// How long closing takes.
const CLOSING: Duration = Duration::from_millis(10);

const MOST_DIALS: usize = 5_000_000;

const MOST_LINES: usize = 100_000;
