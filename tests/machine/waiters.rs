//! A thousand who wait behind one gate: everyone is served once, in one shuffled order, as fast as the pace allows.

use std::time::Duration;

use rand::SeedableRng;
use rand::rngs::SmallRng;
use rand::seq::SliceRandom;
use steadfast::machine::Event;
use steadfast::{Failure, Policy};

use crate::harness::{Answer, Crew, Dial, millis, secs};
use crate::statistics::assert_shuffled;

const WAITERS: usize = 1_000;
const LATECOMERS: usize = 50;

/// How long a healthy server takes for an answer.
const LATENCY: Duration = Duration::from_millis(20);

/// How often the test looks.
const TICK: Duration = Duration::from_millis(1);

/// A crowd that came one after the other while the server was down, and what was seen of its return.
struct Crowd<S> {
    crew: Crew<S>,
    /// The pace before each dial, in dials per second; none before the first success.
    paces: Vec<Option<f64>>,
    /// Dials before the server was back.
    before: usize,
}

fn waiting(seed: u64) -> Crowd<impl FnMut(Dial) -> Answer> {
    let healed = secs(30);
    let mut crew = Crew::new(Policy::default(), &[0; WAITERS + LATECOMERS], seed, move |dial: Dial| {
        if dial.at < healed {
            Answer::Refuse { after: millis(1), failure: Failure::Unreachable }
        } else {
            Answer::Accept { after: LATENCY }
        }
    });
    for who in 0..WAITERS {
        crew.tell(who, Event::Start);
    }
    crew.run_until(healed);
    // Whoever probed last waits for itself until its wait, the gate's open time, is over.
    assert_eq!(crew.status().waiting, WAITERS - 1);
    let before = crew.dials.len();
    Crowd { crew, paces: Vec::new(), before }
}

impl<S: FnMut(Dial) -> Answer> Crowd<S> {
    /// Goes on until so many have dialled since the server is back.
    fn until(&mut self, served: usize) {
        while self.served().len() < served {
            let pace = self.crew.status().pace;
            self.crew.run_until(self.crew.time() + TICK);
            self.paces.resize(self.served().len(), pace);
            assert!(self.crew.time() < secs(60), "{} of {served} have dialled", self.served().len());
        }
    }

    /// Who has dialled since the server is back, in order.
    fn served(&self) -> Vec<usize> {
        self.crew.dials[self.before..].iter().map(|dial| dial.who).collect()
    }

    /// A dial starts at a point of its slot that is drawn, and slots are 1/pace apart, so two starts are 2/pace apart
    /// at most, unless every slot is taken: then an answer frees one.
    fn assert_no_gap(&self) {
        let dials = &self.crew.dials[self.before..];
        for (number, two) in dials.windows(2).enumerate() {
            let Some(pace) = self.paces[number] else { continue };
            let most = Duration::from_secs_f64(2.0 / pace) + LATENCY + TICK * 2;
            assert!(two[1].at - two[0].at <= most, "{two:?} at {pace}/s: {most:?} at most");
        }
        let paced = self.paces.iter().filter(|pace| pace.is_some()).count();
        assert!(paced + 5 > dials.len(), "{paced} of {} dials came at a pace", dials.len());
    }
}

#[test]
fn a_thousand_waiters_are_all_served_once_in_one_shuffled_order_as_fast_as_the_pace_allows() {
    for seed in 0..2 {
        let mut crowd = waiting(seed);
        crowd.until(WAITERS);
        crowd.crew.run_until(crowd.crew.time() + secs(1));
        assert_eq!((crowd.crew.connected(), crowd.served().len()), (WAITERS, WAITERS), "one dial each");
        assert_shuffled(&crowd.served());
        crowd.assert_no_gap();
        // The probe comes within one wait of the quick curve, and a pace that doubles needs few seconds for the rest.
        let last = crowd.crew.dials.last().map(|dial| dial.at);
        assert!(last < Some(secs(30 + 5 + 5)), "the longest wait ended at {last:?}");
    }
}

#[test]
fn who_comes_later_queues_behind_all_who_wait() {
    let mut crowd = waiting(3);
    crowd.until(WAITERS / 2);
    for who in WAITERS..WAITERS + LATECOMERS {
        crowd.crew.tell(who, Event::Start);
    }
    crowd.until(WAITERS + LATECOMERS);
    let served = crowd.served();
    assert_shuffled(&served[..WAITERS]);
    assert!(served[..WAITERS].iter().all(|who| *who < WAITERS), "nobody jumps the queue: {served:?}");
    let in_order: Vec<_> = (WAITERS..WAITERS + LATECOMERS).collect();
    assert_eq!(served[WAITERS..], in_order, "those who were not there when it was shuffled, as they came");
    crowd.assert_no_gap();
}

#[test]
fn a_third_that_goes_away_leaves_no_gap() {
    for seed in 0..2 {
        let mut crowd = waiting(seed);
        crowd.until(WAITERS / 4);
        let served = crowd.served();
        let mut waiting: Vec<_> = (0..WAITERS).filter(|who| !served.contains(who)).collect();
        waiting.shuffle(&mut SmallRng::seed_from_u64(seed));
        let gone = &waiting[..waiting.len() / 3];
        for who in gone {
            crowd.crew.tell(*who, Event::Drain);
        }
        crowd.until(WAITERS - gone.len());
        crowd.crew.run_until(crowd.crew.time() + secs(1));
        assert_eq!(crowd.crew.connected(), WAITERS - gone.len(), "everybody else");
        assert!(crowd.served().iter().skip(served.len()).all(|who| !gone.contains(who)));
        crowd.assert_no_gap();
    }
}
