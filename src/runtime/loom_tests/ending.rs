//! Draining, dropping, reconnecting and beginning anew, each while something else happens.

use std::io;
use std::ops::ControlFlow;
use std::sync::Arc;

use super::world::{Answer, Door, Server, assert_free, block_on, check, gate, spawn};
use crate::machine::StopReason;

#[test]
fn a_drain_before_the_dial_resolves_announces_nothing() {
    check(3, || {
        let door = Arc::new(Door::default());
        let shut = Arc::clone(&door);
        let (server, gate) = (Server::new(move |_| (Answer::Accept, Some(Arc::clone(&shut)))), gate());
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
        let (server, gate) = (Server::accepting(), gate());
        let supervisor = server.builder(&gate, 1).build().unwrap();
        let handle = supervisor.handle();
        let run = spawn(move || {
            block_on(supervisor.run(|line, session| async move {
                session.draining().await;
                drop(line);
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
        let (server, gate) = (Server::accepting(), gate());
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
        let (server, gate) = (Server::accepting(), gate());
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
fn a_reconnect_that_was_accepted_gives_another_connection() {
    check(2, || {
        let (server, gate) = (Server::accepting(), gate());
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
