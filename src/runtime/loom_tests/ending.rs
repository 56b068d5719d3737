//! Draining, dropping, reconnecting and beginning anew, each while something else happens.

use std::io;
use std::ops::ControlFlow;
use std::sync::Arc;

use super::world::{Answer, Door, Server, assert_free, block_on, check, failing, gate, policy, settle, spawn};
use crate::machine::{Failure, State, StopReason};

#[test]
fn a_drain_before_the_dial_resolves_announces_nothing() {
    check(3, || {
        let door = Arc::new(Door::default());
        let shut = Arc::clone(&door);
        let (server, gate) = (Server::new(move |_| (Answer::Accept, Some(Arc::clone(&shut)))), gate(policy()));
        let supervisor = server.builder(&gate, 1).build().unwrap();
        let (link, task) = supervisor.start_keep().unwrap();
        let task = spawn(move || block_on(task.unwrap()));
        let drained = link.handle().drain();
        door.open();
        let seen = link.current().is_some();
        assert_eq!(block_on(link.ready()).unwrap_err().reason, StopReason::Drained);
        block_on(drained);
        assert!(!seen && link.current().is_none(), "the drain was asked for before there was a connection");
        task.join().unwrap();
        assert_eq!(server.open(), 0);
        assert_free(&gate);
    });
}

#[test]
fn a_drain_that_races_with_the_dial_ends_all_the_same() {
    check(2, || {
        let (server, gate) = (Server::accepting(), gate(policy()));
        let supervisor = server.builder(&gate, 1).build().unwrap();
        let handle = supervisor.handle();
        let run = spawn(move || {
            block_on(supervisor.run(|conn, session| async move {
                session.draining().await;
                drop(conn);
                Ok::<ControlFlow<()>, io::Error>(ControlFlow::Continue(()))
            }))
        });
        // Before it runs there is nothing to drain.
        while handle.status().stopped.is_none() {
            block_on(handle.drain());
            loom::thread::yield_now();
        }
        assert_eq!(run.join().unwrap().unwrap_err().reason, StopReason::Drained);
        assert_eq!(server.open(), 0);
        assert_free(&gate);
    });
}

#[test]
fn the_last_link_that_goes_ends_it_whatever_the_dial_does() {
    check(2, || {
        let (server, gate) = (Server::accepting(), gate(policy()));
        let supervisor = server.builder(&gate, 1).build().unwrap();
        let (link, task) = supervisor.start_keep().unwrap();
        let task = spawn(move || block_on(task.unwrap()));
        let (handle, other) = (link.handle(), link.clone());
        let dropper = spawn(move || drop(other));
        drop(link);
        block_on(handle.drain());
        dropper.join().unwrap();
        let stopped = task.join().unwrap();
        assert!(matches!(stopped.reason, StopReason::Dropped | StopReason::Drained), "{stopped:?}");
        assert_eq!(server.open(), 0);
        assert_free(&gate);
    });
}

#[test]
fn keep_while_the_last_link_goes_gives_a_link_that_lives() {
    check(2, || {
        let (server, gate) = (Server::accepting(), gate(policy()));
        let supervisor = server.builder(&gate, 1).build().unwrap();
        let (link, task) = supervisor.start_keep().unwrap();
        let task = spawn(move || block_on(task.unwrap()));
        let dropper = spawn(move || drop(link));
        let (link, anew) = supervisor.start_keep().unwrap();
        match anew {
            None => {
                block_on(link.ready()).unwrap();
                drop(link);
            }
            Some(anew) => {
                let anew = spawn(move || block_on(anew));
                block_on(link.ready()).unwrap();
                drop(link);
                anew.join().unwrap();
            }
        }
        task.join().unwrap();
        dropper.join().unwrap();
        assert_eq!(server.open(), 0);
        assert_free(&gate);
    });
}

#[test]
fn a_link_that_goes_takes_none_of_the_others_along() {
    check(2, || {
        let (server, gate) = (Server::accepting(), gate(policy()));
        let supervisor = Arc::new(server.builder(&gate, 1).build().unwrap());
        let (link, task) = supervisor.start_keep().unwrap();
        let task = spawn(move || block_on(task.unwrap()));
        let other = {
            let supervisor = Arc::clone(&supervisor);
            spawn(move || drop(supervisor.start_keep().unwrap().0))
        };
        block_on(link.ready()).unwrap();
        other.join().unwrap();
        block_on(link.handle().drain());
        assert_eq!(task.join().unwrap().reason, StopReason::Drained);
    });
}

#[test]
fn a_drain_of_one_run_does_not_end_the_next() {
    check(3, || {
        let (server, gate) = (Server::accepting(), gate(policy()));
        let supervisor = Arc::new(server.builder(&gate, 1).build().unwrap());
        let first = {
            let supervisor = Arc::clone(&supervisor);
            spawn(move || block_on(supervisor.run(|_, _| async { Ok::<_, io::Error>(ControlFlow::Break(())) })))
        };
        drop(supervisor.handle().drain());
        let _ended = first.join().unwrap();
        block_on(supervisor.run(|_, _| async { Ok::<_, io::Error>(ControlFlow::Break(())) })).unwrap();
    });
}

#[test]
fn a_reconnect_that_was_accepted_gives_another_connection() {
    check(2, || {
        let (server, gate) = (Server::accepting(), gate(policy()));
        let supervisor = server.builder(&gate, 1).build().unwrap();
        let (link, task) = supervisor.start_keep().unwrap();
        let task = spawn(move || block_on(task.unwrap()));
        let first = block_on(link.ready()).unwrap().generation();
        assert!(link.handle().reconnect());
        let mut handle = link.handle();
        while block_on(handle.changed()).unwrap().generation == first {}
        drop(link);
        task.join().unwrap();
        assert_eq!(server.open(), 0);
        assert_free(&gate);
    });
}

#[test]
fn a_drain_waits_for_whoever_holds_the_connection() {
    check(2, || {
        let (server, gate) = (Server::accepting(), gate(policy()));
        let supervisor = server.builder(&gate, 1).build().unwrap();
        let (link, task) = supervisor.start_keep().unwrap();
        let mut task = Box::pin(task.unwrap());
        settle(task.as_mut());
        let live = link.current().unwrap();
        let drained = link.handle().drain();
        let task = spawn(move || block_on(task));
        loom::thread::yield_now();
        assert_eq!(server.closed(), 0, "it is held");
        drop(live);
        block_on(drained);
        assert_eq!((server.closed(), server.open()), (1, 0));
        assert_eq!(task.join().unwrap().reason, StopReason::Drained);
        assert_free(&gate);
    });
}

#[test]
fn a_drain_and_a_report_end_it_once() {
    check(2, || {
        let (server, gate) = (Server::accepting(), gate(policy()));
        let supervisor = server.builder(&gate, 1).build().unwrap();
        let (link, task) = supervisor.start_keep().unwrap();
        let mut task = Box::pin(task.unwrap());
        settle(task.as_mut());
        let live = link.current().unwrap();
        let task = spawn(move || block_on(task));
        let drain = {
            let handle = link.handle();
            spawn(move || block_on(handle.drain()))
        };
        live.report(failing(Failure::Transient));
        drop(live);
        drain.join().unwrap();
        assert_eq!(task.join().unwrap().reason, StopReason::Drained);
        assert_eq!((server.closed(), server.open()), (server.dials(), 0));
        assert_free(&gate);
    });
}

#[test]
fn two_reports_cost_one_connection() {
    check(2, || {
        let (server, gate) = (Server::accepting(), gate(policy()));
        let supervisor = server.builder(&gate, 1).build().unwrap();
        let (link, task) = supervisor.start_keep().unwrap();
        let mut task = Box::pin(task.unwrap());
        settle(task.as_mut());
        let task = spawn(move || block_on(task));
        let (one, other) = (link.current().unwrap(), link.current().unwrap());
        let reporter = spawn(move || one.report(failing(Failure::Transient)));
        other.report(failing(Failure::Transient));
        reporter.join().unwrap();
        assert_eq!(block_on(link.ready()).unwrap().generation(), 2);
        assert_eq!(link.handle().status().ignored_reports, 1);
        drop((link, other));
        task.join().unwrap();
        assert_eq!((server.dials(), server.closed(), server.open()), (2, 2, 0));
    });
}

#[test]
fn whoever_watches_hears_of_the_end() {
    check(2, || {
        let (server, gate) = (Server::accepting(), gate(policy()));
        let supervisor = server.builder(&gate, 1).build().unwrap();
        let (link, task) = supervisor.start_keep().unwrap();
        let mut handle = link.handle();
        let task = spawn(move || block_on(task.unwrap()));
        while block_on(handle.changed()).is_ok_and(|status| status.state != State::Connected) {}
        drop(link);
        while block_on(handle.changed()).is_ok() {}
        assert_eq!(task.join().unwrap().reason, StopReason::Dropped);
    });
}

#[test]
fn a_reconnect_during_a_dial_gives_another_connection() {
    check(2, || {
        let door = Arc::new(Door::default());
        let shut = Arc::clone(&door);
        let script = move |dial| (Answer::Accept, (dial == 0).then(|| Arc::clone(&shut)));
        let (server, gate) = (Server::new(script), gate(policy()));
        let supervisor = server.builder(&gate, 1).build().unwrap();
        let (link, task) = supervisor.start_keep().unwrap();
        let mut task = Box::pin(task.unwrap());
        settle(task.as_mut());
        let task = spawn(move || block_on(task));
        let mut handle = link.handle();
        assert!(handle.reconnect());
        door.open();
        while block_on(handle.changed()).unwrap().generation < 2 {}
        assert_eq!(block_on(link.ready()).unwrap().generation(), 2);
        drop(link);
        task.join().unwrap();
        assert_eq!((server.dials(), server.closed(), server.open()), (2, 2, 0));
        assert_free(&gate);
    });
}

#[test]
fn the_place_in_the_gate_goes_with_the_last_who_holds_it() {
    check(3, || {
        let (server, gate) = (Server::accepting(), gate(policy()));
        let supervisor = server.builder(&gate, 1).build().unwrap();
        let (link, task) = supervisor.start_keep().unwrap();
        let mut task = Box::pin(task.unwrap());
        settle(task.as_mut());
        drop(link.handle().drain());
        // A drain leaves the place: only then do supervisor and task give it up.
        let task = spawn(move || block_on(task));
        drop(supervisor);
        assert_eq!(task.join().unwrap().reason, StopReason::Drained);
        assert_eq!(assert_free(&gate).members, 0);
    });
}
