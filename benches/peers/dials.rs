//! A dial through a shared gate: leave to make it and its outcome, each under the gate's lock as in the runtime.

use std::collections::VecDeque;
use std::hint::black_box;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use criterion::Criterion;
use rand::SeedableRng;
use rand::rngs::SmallRng;
use steadfast::Policy;
use steadfast::machine::{Admission, Gate, Member, Mode, Step};

use crate::crew::{Path, way};
use crate::table::{Aim, Report};

pub(crate) fn bench(criterion: &mut Criterion, report: &mut Report) {
    let lock = Arc::new(Mutex::new(0_u64));
    let base = way(
        "mutex lock + unlock",
        move || Arc::clone(&lock),
        |lock| {
            *lock.lock().expect("nobody panics") += 1;
        },
    );
    let ways = vec![
        way(
            "two mutex lock + unlock",
            || Mutex::new(0_u64),
            |lock| {
                *black_box(&*lock).lock().expect("nobody panics") += 1;
                *black_box(&*lock).lock().expect("nobody panics") += 1;
            },
        ),
        way("admit + settle, closed", || Dials::new(0), Dials::dial_closed),
        way("admit + settle + queue again, 200 waiting", || Dials::new(200), Dials::dial_waiting),
    ];
    let title = "A dial through a shared gate (base: one mutex lock + unlock)";
    let aims = vec![
        Aim::Times("admit + settle, closed", &["mutex lock + unlock"], 1.5),
        Aim::Times("admit + settle + queue again, 200 waiting", &["mutex lock + unlock"], 4.0),
    ];
    Path { name: "dial", title, base, ways, threads: &[1], aims }.bench(criterion, report);
}

/// A gate behind its lock, and those who dial through it, one after the other.
struct Dials {
    gate: Mutex<Gate>,
    members: Vec<Member>,
    /// Who was told to come.
    woken: VecDeque<u64>,
    /// Whose own timer fires next, and when.
    next: Option<(Instant, Member)>,
    now: Instant,
    rng: SmallRng,
}

/// What a permit is good for.
const LEASE: Duration = Duration::from_secs(10);

impl Dials {
    /// A gate where `waiting` connections queue; closed where there are none.
    fn new(waiting: usize) -> Self {
        let mut gate = Gate::new(Arc::new(Policy::default()));
        let members: Vec<Member> = (0..waiting.max(1)).map(|_| gate.join(0)).collect();
        let (gate, now, rng) = (Mutex::new(gate), Instant::now(), SmallRng::seed_from_u64(7));
        let mut dials = Self { gate, members, woken: VecDeque::new(), next: None, now, rng };
        let first = dials.members[0];
        assert!(dials.dial(first), "a new gate lets one through");
        if waiting == 0 {
            dials.now += Duration::from_secs(60);
            assert!(dials.dial(first), "nobody else waits");
            let gate = dials.gate.get_mut().expect("nobody panics");
            assert_eq!(gate.status(dials.now).mode, Mode::Closed);
        } else {
            for member in dials.members.clone() {
                dials.dial(member);
            }
            // The first few go at the distances of a young pace.
            (0..10 * waiting).for_each(|_| dials.dial_waiting());
            let gate = dials.gate.get_mut().expect("nobody panics");
            assert_eq!(gate.status(dials.now).waiting, waiting);
        }
        dials
    }

    fn dial_closed(&mut self) {
        self.now += Duration::from_micros(10);
        let member = self.members[0];
        assert!(self.dial(member), "a closed gate lets everybody through");
    }

    /// One dial, with as many waiting afterwards as before. Whoever is told to come asks, as in the runtime.
    fn dial_waiting(&mut self) {
        loop {
            let member = match self.woken.pop_front() {
                Some(id) => self.members[usize::try_from(id - 1).expect("a small number")],
                None => {
                    let (at, member) = self.next.take().expect("the head has a timer");
                    self.now = self.now.max(at);
                    member
                }
            };
            if self.dial(member) {
                let queued = !self.dial(member);
                assert!(queued, "it queues behind the others");
                return;
            }
        }
    }

    /// Asks for leave and, where it is given, settles a success; `false` if it has to wait.
    fn dial(&mut self, member: Member) -> bool {
        let permit = {
            let mut gate = self.gate.lock().expect("nobody panics");
            let admission = gate.admit(self.now, member, LEASE, &mut self.rng);
            self.woken.extend(gate.wakes());
            match admission {
                Admission::Go(permit) => permit,
                Admission::Wait(wait) => {
                    if self.next.is_none_or(|(at, _)| wait.until < at) {
                        self.next = Some((wait.until, member));
                    }
                    return false;
                }
                _ => unreachable!("it goes or waits"),
            }
        };
        self.now += Duration::from_millis(1);
        self.next = None;
        let mut gate = self.gate.lock().expect("nobody panics");
        black_box(gate.settle(self.now, permit, Ok(()), &mut Step::default(), &mut self.rng));
        self.woken.extend(gate.wakes());
        true
    }
}
