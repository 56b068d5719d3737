//! Many clients with one policy.

use std::collections::BTreeMap;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Instant;

use super::report::Report;
use super::run::Run;
use super::scenario::Scenario;
use crate::machine::{InvalidPolicy, Policy};

/// A number of clients with one policy, so many behind each gate.
///
/// | setting | default | |
/// |---|---|---|
/// | [`gates_of`](Self::gates_of) | everybody behind one | how many share a gate: the connections of one process |
/// | [`credentials`](Self::credentials) | 1 | client i presents the credential i modulo that number |
/// | [`seed`](Self::seed) | 0 | the same seed gives the same run |
/// | [`log`](Self::log) | nobody | whose transitions are kept |
#[derive(Clone, Debug)]
pub struct Fleet {
    pub(super) policy: Arc<Policy>,
    pub(super) clients: usize,
    pub(super) gate_size: NonZeroUsize,
    pub(super) credentials: u64,
    pub(super) seed: u64,
    pub(super) logged: Vec<usize>,
}

impl Fleet {
    /// `clients` connections that behave by `policy`.
    ///
    /// # Errors
    ///
    /// [`InvalidPolicy`] names the first number that cannot work.
    pub fn new(policy: Policy, clients: usize) -> Result<Self, InvalidPolicy> {
        policy.validate()?;
        let policy = Arc::new(policy);
        Ok(Self { policy, clients, gate_size: NonZeroUsize::MAX, credentials: 1, seed: 0, logged: Vec::new() })
    }

    /// Sets how many clients share a gate. One: each has its own.
    #[must_use]
    pub const fn gates_of(mut self, size: NonZeroUsize) -> Self {
        self.gate_size = size;
        self
    }

    /// Sets how many credentials there are. Zero is taken as one.
    #[must_use]
    pub const fn credentials(mut self, count: u64) -> Self {
        self.credentials = if count == 0 { 1 } else { count };
        self
    }

    /// Sets the seed of every draw.
    #[must_use]
    pub const fn seed(mut self, seed: u64) -> Self {
        self.seed = seed;
        self
    }

    /// Keeps the transitions of these clients.
    #[must_use]
    pub fn log(mut self, clients: impl IntoIterator<Item = usize>) -> Self {
        self.logged = clients.into_iter().collect();
        self
    }

    /// Plays the scenario from its start until nothing is left to happen, or its end.
    ///
    /// `origin` is any instant: the report holds durations since it.
    #[must_use]
    pub fn run(&self, origin: Instant, scenario: &Scenario) -> Report {
        Run::new(self, origin, scenario).play()
    }

    pub(super) fn logs(&self) -> BTreeMap<usize, Vec<String>> {
        self.logged.iter().map(|client| (*client, Vec::new())).collect()
    }
}
