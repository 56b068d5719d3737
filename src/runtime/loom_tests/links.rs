//! What links give: never an ended connection, always a live one, and one loss for two reports.

use std::sync::Arc;

use super::world::{Answer, Conn, Dialler, Server, block_on, check, control, failing, gate, policy, spawn};
use crate::machine::{Failure, StopReason};
use crate::runtime::Link;
use crate::runtime::control::Control;
use crate::runtime::link::Slot;
use crate::runtime::mailbox::Post;

/// A slot, as the task behind the links fills it, and a link to it.
struct Place {
    slot: Arc<Slot<Dialler>>,
    link: Link<Dialler>,
    control: Arc<Control>,
    server: Arc<Server>,
}

impl Place {
    fn new() -> Self {
        let (server, control) = (Server::accepting(), control(&gate(policy()), policy()));
        let slot = Arc::new(Slot::new(Arc::clone(&control), Arc::new(server.dialler())));
        let (owner, _) = control.begin_keep().unwrap();
        Self { link: Link::new(Arc::clone(&slot), owner), slot, control, server }
    }

    fn conn(&self) -> Conn {
        self.server.conn()
    }
}

#[test]
fn a_report_of_one_generation_ends_no_other() {
    check(3, || {
        let place = Place::new();
        let first = place.slot.fill(place.conn(), 1);
        let live = place.link.current().unwrap();
        let reporter = spawn(move || live.report(failing(Failure::Transient)));
        // The task ends it for a reason of its own, and the next one is there.
        place.slot.retire(&first);
        let _second = place.slot.fill(place.conn(), 2);
        reporter.join().unwrap();
        assert_eq!(place.link.current().map(|live| live.generation()), Some(2));
    });
}

#[test]
fn two_reports_are_one_loss() {
    check(3, || {
        let place = Place::new();
        let _first = place.slot.fill(place.conn(), 1);
        let reporters = [(); 2]
            .map(|()| place.link.current().unwrap())
            .map(|live| spawn(move || live.report(failing(Failure::Transient))));
        reporters.into_iter().for_each(|reporter| reporter.join().unwrap());
        assert!(place.control.mailbox.take(Post::Report));
        assert_eq!(place.control.take_report().map(|(generation, _)| generation), Some(1));
        assert_eq!(place.control.board.status().ignored_reports, 1);
    });
}

#[test]
fn whoever_knows_that_a_connection_ended_is_not_lent_it() {
    check(3, || {
        let place = Place::new();
        let first = place.slot.fill(place.conn(), 1);
        let (link, live) = (place.link.clone(), place.link.current().unwrap());
        let user = spawn(move || {
            let mut cached = link.cached();
            let _ = cached.current();
            let ended = !live.is_live();
            let lent = [link.current().map(|live| live.generation()), cached.current().map(|live| live.generation())];
            (ended, lent)
        });
        place.slot.retire(&first);
        let _second = place.slot.fill(place.conn(), 2);
        let (ended, lent) = user.join().unwrap();
        assert!(!ended || lent.iter().all(|generation| *generation != Some(1)), "{lent:?}");
    });
}

#[test]
fn whoever_hears_of_a_generation_finds_it() {
    check(3, || {
        let place = Place::new();
        let first = place.slot.fill(place.conn(), 1);
        let mut cached = place.link.cached();
        let _ = cached.current();
        let link = place.link.clone();
        let user = spawn(move || {
            let heard = format!("{link:?}").contains("generation: 2");
            let found = [link.current().map(|live| live.generation()), cached.current().map(|live| live.generation())];
            (heard, found)
        });
        place.slot.retire(&first);
        let _second = place.slot.fill(place.conn(), 2);
        let (heard, found) = user.join().unwrap();
        assert!(!heard || found == [Some(2); 2], "{found:?}");
    });
}

#[test]
fn ready_misses_no_arrival() {
    check(2, || {
        let (server, gate) = (Server::accepting(), gate(policy()));
        let supervisor = server.builder(&gate, 1).build().unwrap();
        let (link, task) = supervisor.start_keep().unwrap();
        let task = spawn(move || block_on(task.unwrap()));
        assert_eq!(block_on(link.ready()).unwrap().generation(), 1);
        drop(link);
        task.join().unwrap();
    });
}

#[test]
fn each_of_two_who_wait_is_served() {
    check(2, || {
        let (server, gate) = (Server::accepting(), gate(policy()));
        let supervisor = server.builder(&gate, 1).build().unwrap();
        let (link, task) = supervisor.start_keep().unwrap();
        let task = spawn(move || block_on(task.unwrap()));
        let other = {
            let link = link.clone();
            spawn(move || assert_eq!(block_on(link.ready()).unwrap().generation(), 1))
        };
        assert_eq!(block_on(link.ready()).unwrap().generation(), 1);
        drop(link);
        other.join().unwrap();
        task.join().unwrap();
    });
}

#[test]
fn ready_misses_no_stop() {
    check(2, || {
        let (server, gate) = (Server::new(|_| (Answer::Fail(Failure::Permanent), None)), gate(policy()));
        let supervisor = server.builder(&gate, 1).build().unwrap();
        let (link, task) = supervisor.start_keep().unwrap();
        let task = spawn(move || block_on(task.unwrap()));
        assert_eq!(block_on(link.ready()).map(|live| live.generation()).unwrap_err().reason, StopReason::Permanent);
        task.join().unwrap();
    });
}
