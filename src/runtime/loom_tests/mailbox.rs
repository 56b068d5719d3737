//! The mailbox: no post is lost, many are one, and what lies beside it is there.

use std::future::poll_fn;
use std::sync::Arc;

use super::world::{block_on, check, control, gate, policy, spawn};
use crate::runtime::mailbox::{Mailbox, Post};

async fn take(mailbox: &Mailbox) -> Post {
    poll_fn(|cx| mailbox.poll_take(cx)).await
}

#[test]
fn a_post_is_taken_whenever_it_comes() {
    check(3, || {
        let mailbox = Arc::new(Mailbox::default());
        let posters = [Post::Drain, Post::Turned].map(|post| {
            let mailbox = Arc::clone(&mailbox);
            spawn(move || mailbox.post(post))
        });
        let mut taken = [0, 1].map(|_| block_on(take(&mailbox)));
        taken.sort_by_key(|post| *post as u32);
        assert_eq!(taken, [Post::Drain, Post::Turned]);
        posters.into_iter().for_each(|poster| poster.join().unwrap());
    });
}

#[test]
fn two_posts_of_a_kind_are_taken_once_or_each_on_its_own() {
    check(3, || {
        let mailbox = Arc::new(Mailbox::default());
        let posters = [(); 2].map(|()| {
            let mailbox = Arc::clone(&mailbox);
            spawn(move || mailbox.post(Post::Reconnect))
        });
        assert_eq!(block_on(take(&mailbox)), Post::Reconnect);
        posters.into_iter().for_each(|poster| poster.join().unwrap());
        mailbox.take(Post::Reconnect);
        assert!(!mailbox.holds(Post::Reconnect), "nothing is left of two posts that were both before the take");
    });
}

#[test]
fn whoever_looks_in_another_task_is_woken_there() {
    check(3, || {
        let mailbox = Arc::new(Mailbox::default());
        let poster = {
            let mailbox = Arc::clone(&mailbox);
            spawn(move || mailbox.post(Post::Turned))
        };
        // A first task looks once and goes.
        let looked = block_on(poll_fn(|cx| std::task::Poll::Ready(mailbox.poll_take(cx))));
        if looked.is_pending() {
            assert_eq!(block_on(take(&mailbox)), Post::Turned);
        }
        poster.join().unwrap();
    });
}

#[test]
fn what_lies_beside_a_post_is_there_for_whoever_takes_it() {
    check(3, || {
        let control = control(&gate(policy()), policy());
        let dial = control.next_dial();
        let teller = {
            let control = Arc::clone(&control);
            spawn(move || control.reach(dial))
        };
        assert_eq!(block_on(take(&control.mailbox)), Post::Reached);
        assert!(control.has_reached());
        teller.join().unwrap();
    });
}
