//! What one connection has decided and another has not heard of yet: outcomes of an older epoch, and what is read
//! without the lock.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use super::stand_ins;
use super::world::{check, control, gate, policy, spawn};
use crate::machine::{Action, Event, Failure, Mode};
use crate::runtime::Gate;
use crate::runtime::control::Control;

/// Asks until it may dial.
fn dial(control: &Control) {
    let mut event = Event::Start;
    while !matches!(control.decide(event).action, Action::Dial { .. }) {
        stand_ins::pass();
        event = Event::TimedOut;
    }
}

/// A gate that is paced, because the first dial has succeeded, and that a single failure narrows; and who dials now.
fn two_dials() -> (Gate, [Arc<Control>; 3]) {
    let gate = gate(policy().failures_to_narrow(NonZeroU32::MIN));
    let controls = [(); 3].map(|()| control(&gate, policy()));
    dial(&controls[0]);
    controls[0].decide(Event::Opened);
    dial(&controls[1]);
    dial(&controls[2]);
    assert_eq!((gate.status().mode, gate.status().in_flight), (Mode::Paced, 2));
    (gate, controls)
}

#[test]
fn a_dial_of_an_older_epoch_does_not_end_the_narrow_window() {
    check(3, || {
        let (gate, [_first, second, third]) = two_dials();
        let failing = spawn(move || second.decide(Event::Failed(Failure::Transient)).action);
        third.decide(Event::Opened);
        failing.join().unwrap();
        assert_eq!(gate.status().mode, Mode::HalfOpen, "whichever came first");
    });
}

#[test]
fn sessions_that_die_together_are_one_charge() {
    check(3, || {
        let (gate, [_first, second, third]) = two_dials();
        second.decide(Event::Opened);
        third.decide(Event::Opened);
        let dying = spawn(move || second.decide(Event::Lost(Failure::Transient)).action);
        third.decide(Event::Lost(Failure::Transient));
        dying.join().unwrap();
        let status = gate.status();
        assert_eq!((status.mode, status.trips), (Mode::HalfOpen, 0), "two charges would have opened it");
    });
}

#[test]
fn what_is_read_without_the_lock_is_what_was_decided_last() {
    check(3, || {
        let policy = policy().stable_after(Duration::from_secs(1));
        let gate = gate(policy.clone());
        let control = control(&gate, policy);
        dial(&control);
        control.decide(Event::Opened);
        stand_ins::pass();
        control.decide(Event::TimedOut);
        assert!(gate.is_closed());
        let operator = {
            let gate = gate.clone();
            spawn(move || gate.status().mode)
        };
        control.decide(Event::Lost(Failure::Transient));
        operator.join().unwrap();
        let closed = gate.is_closed();
        assert_eq!((closed, gate.status().mode), (false, Mode::HalfOpen));
    });
}
