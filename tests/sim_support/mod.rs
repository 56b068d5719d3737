//! What the tests of the simulator share.

use std::num::{NonZeroU32, NonZeroUsize};
use std::time::{Duration, Instant};

use steadfast::Policy;
use steadfast::sim::{Fleet, Overload, Report, Scenario, Server};

/// Plays a scenario; whatever else it is about, no invariant may break.
pub(crate) fn play(fleet: &Fleet, scenario: &Scenario) -> Report {
    let report = fleet.run(Instant::now(), scenario);
    assert!(report.violations().is_empty(), "{:#?}", report.violations());
    report
}

pub(crate) fn behind_one_gate(clients: usize) -> Fleet {
    Fleet::new(Policy::default(), clients).expect("the policy is sound")
}

pub(crate) fn lone(policy: Policy, clients: usize) -> Fleet {
    Fleet::new(policy, clients).expect("the policy is sound").gates_of(size(1))
}

pub(crate) fn size(clients: usize) -> NonZeroUsize {
    NonZeroUsize::new(clients).expect("above zero")
}

pub(crate) fn capacity(per_second: u32, overload: Overload) -> Server {
    Server::healthy().capacity(NonZeroU32::new(per_second).expect("above zero"), overload)
}

pub(crate) const fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

pub(crate) const fn millis(millis: u64) -> Duration {
    Duration::from_millis(millis)
}
