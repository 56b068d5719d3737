//! Every number of a supervised connection, with its reason, validated once.

use std::error::Error;
use std::fmt;
use std::num::NonZeroU32;
use std::time::Duration;

use rand::Rng;

use super::backoff::{Backoff, Growth, Jitter};
use super::time::{Nanos, uniform};

/// What to do with a server's wait beyond [`Policy::hint_limit`]. Decided on the raw value, before jitter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum HintLimit {
    /// Wait for the limit instead.
    Clamp,
    /// Stop, with the cause.
    GiveUp,
    /// Wait as long as the server said.
    Obey,
}

/// The numbers of one supervised connection, and the curves of the gate that is built from it.
///
/// | setting | default | why |
/// |---|---|---|
/// | `base` | 500 ms | the first delay, and the least distance between two probes of a gate |
/// | `quick` | cap 5 s | nobody answers: asking is free for the server, and recovery is noticed soon |
/// | `growing` | 15 s · 1.25ᵏ, up to max(120 s, a fifth of the outage) | it answered and failed: asking costs it work |
/// | `slow` | 1 to 10 min | a refused credential, a missing database: people heal it, and repeated refusals look like an attack |
/// | `recovery_spread` | 1 s | the first attempt after a loss is drawn too: a fleet makes it in the same millisecond otherwise |
/// | `startup_spread` | 0 | the first attempt ever; a fleet that is deployed at once wants one |
/// | `stable_after` | 10 s | up this long, everything is forgiven |
/// | `attempt_deadline` | 10 s | over name, TCP, TLS, upgrade and login together |
/// | `handshake_limit` | 60 s | a timed-out handshake triples the next one's deadline up to here |
/// | `drain` / `close` | 5 s / 2 s | the bounds of ending politely |
/// | `hint_limit` | 10 min, clamped | longer waits than that are mistakes |
/// | `advice_limit` | 60 s | what a server may ask for as recovery spread |
/// | `give_up_after`, `max_attempts` | off | a service that comes back by itself does not give up |
/// | `stop_on_permanent` | off | what the other side said can be healed there |
/// | `failures_to_narrow` | 5 | charged failures in a row that end the pace of a gate |
/// | `max_age` | off | a bound on a connection's life, drawn from the last tenth of it |
#[derive(Clone, Debug, PartialEq)]
pub struct Policy {
    pub(crate) quick: Backoff,
    pub(crate) growing: Growth,
    pub(crate) slow: Backoff,
    pub(crate) recovery_spread: Duration,
    pub(crate) startup_spread: Duration,
    pub(crate) stable_after: Duration,
    pub(crate) attempt_deadline: Duration,
    pub(crate) handshake_limit: Duration,
    pub(super) drain: Duration,
    pub(crate) close: Duration,
    pub(crate) hint_limit: Duration,
    pub(crate) over_limit: HintLimit,
    pub(crate) advice_limit: Duration,
    pub(super) give_up_after: Option<Duration>,
    pub(super) max_attempts: Option<NonZeroU32>,
    pub(super) stop_on_permanent: bool,
    pub(super) failures_to_narrow: NonZeroU32,
    pub(super) max_age: Option<Duration>,
    /// What the fleet's window was computed from, to be checked with the rest.
    fleet_capacity: Option<f64>,
}

impl Default for Policy {
    fn default() -> Self {
        Self {
            quick: Backoff::new(Duration::from_millis(500), Duration::from_secs(5)),
            growing: Growth::new(Duration::from_secs(15), 1.25, Duration::from_secs(120)),
            slow: Backoff::new(Duration::from_secs(60), Duration::from_secs(600)),
            recovery_spread: Duration::from_secs(1),
            startup_spread: Duration::ZERO,
            stable_after: Duration::from_secs(10),
            attempt_deadline: Duration::from_secs(10),
            handshake_limit: Duration::from_secs(60),
            drain: Duration::from_secs(5),
            close: Duration::from_secs(2),
            hint_limit: Duration::from_secs(600),
            over_limit: HintLimit::Clamp,
            advice_limit: Duration::from_secs(60),
            give_up_after: None,
            max_attempts: None,
            stop_on_permanent: false,
            failures_to_narrow: NonZeroU32::MIN.saturating_add(4),
            max_age: None,
            fleet_capacity: None,
        }
    }
}

impl Policy {
    /// For a client whose server has few others: half a second of spread, eight quick attempts of 250 ms ± 50 % while
    /// nobody answers, then up to 5 s; refusals from 1 s up to 30 s.
    ///
    /// A fleet that uses it is a herd.
    #[must_use]
    pub fn lone() -> Self {
        Self {
            quick: Backoff::new(Duration::from_millis(250), Duration::from_secs(5)).fast(8, Duration::from_millis(250)),
            growing: Growth::new(Duration::from_secs(30), 1.0, Duration::from_secs(30))
                .from(Duration::from_secs(1))
                .age_share(0.0),
            recovery_spread: Duration::from_millis(500),
            ..Self::default()
        }
    }

    /// For a fleet of `clients` whose server accepts `capacity_per_second` of them: one window
    /// W = 1.15 · clients ÷ capacity.
    ///
    /// The first attempt comes at uniform(0, W), then one every W ± 5 % for as long as nobody answers, so that the
    /// arrivals are clients ÷ W at every moment and the length of the outage does not matter. Refused, the window is
    /// drawn from [x/3, x] with x doubling from W/3 up to 8 W, because the capacity may be wrong. After
    /// outages of 5, 60 and 600 s 99 % of 10,000 clients are back within 1.16 of the shortest possible time, none refused
    /// (`docs/RECOVERY.md`).
    ///
    /// The price: a client that lost only its own connection waits W/2 on average. W is 20 ms at least, because timers
    /// tell no less apart. A capacity that is not a positive number is refused when the policy is used, as
    /// `capacity_per_second`.
    #[must_use]
    pub fn for_fleet(clients: u32, capacity_per_second: f64) -> Self {
        let seconds = 1.15 * f64::from(clients.max(1)) / capacity_per_second;
        let window = Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX).max(LEAST_WINDOW);
        Self {
            quick: Backoff::new(window / 20, window.saturating_mul(21) / 20).jitter(Jitter::Band(0.05)),
            growing: Growth::new(window / 6, 2.0, window.saturating_mul(8))
                .jitter(Jitter::Band(0.5))
                .age_share(0.0)
                .timeout_weight(1),
            recovery_spread: window,
            startup_spread: window,
            advice_limit: window.max(Duration::from_secs(60)),
            fleet_capacity: Some(capacity_per_second),
            ..Self::default()
        }
    }

    /// Sets the first delay of the quick curve, which is also the least distance between two probes of a gate.
    #[must_use]
    pub const fn base(mut self, base: Duration) -> Self {
        self.quick.base = base;
        self
    }

    /// Sets the curve for when nobody answers.
    #[must_use]
    pub const fn quick(mut self, curve: Backoff) -> Self {
        self.quick = curve;
        self
    }

    /// Sets the curve for when it answered and failed.
    #[must_use]
    pub const fn growing(mut self, curve: Growth) -> Self {
        self.growing = curve;
        self
    }

    /// Sets the curve of refused credentials and of what only people heal.
    #[must_use]
    pub const fn slow(mut self, curve: Backoff) -> Self {
        self.slow = curve;
        self
    }

    /// Sets one jitter for all three curves.
    #[must_use]
    pub const fn jitter(mut self, jitter: Jitter) -> Self {
        self.quick.jitter = jitter;
        self.growing.jitter = jitter;
        self.slow.jitter = jitter;
        self
    }

    /// Sets the window of the first attempt after a loss. Zero puts a fleet in step.
    #[must_use]
    pub const fn recovery_spread(mut self, spread: Duration) -> Self {
        self.recovery_spread = spread;
        self
    }

    /// Sets the window of the first attempt ever. Zero, the default, starts at once: right for one process, a herd for
    /// a fleet that is deployed together.
    #[must_use]
    pub const fn startup_spread(mut self, spread: Duration) -> Self {
        self.startup_spread = spread;
        self
    }

    /// Sets how long a session has to live until everything is forgiven.
    #[must_use]
    pub const fn stable_after(mut self, uptime: Duration) -> Self {
        self.stable_after = uptime;
        self
    }

    /// Sets the one deadline over a whole attempt.
    #[must_use]
    pub const fn attempt_deadline(mut self, deadline: Duration) -> Self {
        self.attempt_deadline = deadline;
        self
    }

    /// Sets the longest deadline that timed-out handshakes may stretch to.
    #[must_use]
    pub const fn handshake_limit(mut self, limit: Duration) -> Self {
        self.handshake_limit = limit;
        self
    }

    /// Sets how long a session may take to end after [`Event::Drain`](super::Event::Drain).
    #[must_use]
    pub const fn drain(mut self, bound: Duration) -> Self {
        self.drain = bound;
        self
    }

    /// Sets how long closing may take.
    #[must_use]
    pub const fn close(mut self, bound: Duration) -> Self {
        self.close = bound;
        self
    }

    /// Sets how long a server's wait is obeyed, and what happens beyond.
    #[must_use]
    pub const fn hint_limit(mut self, limit: Duration, beyond: HintLimit) -> Self {
        self.hint_limit = limit;
        self.over_limit = beyond;
        self
    }

    /// Sets the longest recovery spread that a server's advice can set.
    #[must_use]
    pub const fn advice_limit(mut self, limit: Duration) -> Self {
        self.advice_limit = limit;
        self
    }

    /// Stops when an outage has lasted this long; it ends a wait when it is due, never an attempt or a live session.
    #[must_use]
    pub const fn give_up_after(mut self, outage: Duration) -> Self {
        self.give_up_after = Some(outage);
        self
    }

    /// Stops after this many attempts in a row without a stable session.
    #[must_use]
    pub const fn max_attempts(mut self, attempts: NonZeroU32) -> Self {
        self.max_attempts = Some(attempts);
        self
    }

    /// Stops also when the other side says that another try cannot succeed.
    #[must_use]
    pub const fn stop_on_permanent(mut self, stop: bool) -> Self {
        self.stop_on_permanent = stop;
        self
    }

    /// Sets how many charged failures in a row end the pace of a gate.
    #[must_use]
    pub const fn failures_to_narrow(mut self, failures: NonZeroU32) -> Self {
        self.failures_to_narrow = failures;
        self
    }

    /// Ends each connection before this age, drawn from the last tenth of it: before the server or a proxy does.
    #[must_use]
    pub const fn max_age(mut self, age: Duration) -> Self {
        self.max_age = Some(age);
        self
    }

    /// What is obeyed of a server's wait: nothing of one that is shorter than `base` (so zero and the past are ignored),
    /// and no more than the limit.
    pub(super) fn obeyed(&self, hint: Duration) -> Option<Duration> {
        let limited = if self.over_limit == HintLimit::Obey { hint } else { hint.min(self.hint_limit) };
        (hint >= self.quick.base).then_some(limited)
    }

    /// What is added to a server's wait, so that those who obey do not come back together: up to a fifth of it, at most
    /// 2 s, never zero.
    pub(super) fn polite_jitter<R: Rng + ?Sized>(&self, hint: Duration, rng: &mut R) -> Duration {
        uniform(Duration::ZERO, (hint / 5).min(MOST_POLITE), rng)
    }

    /// Whether a server's wait ends it all.
    pub(super) fn gives_up_on(&self, hint: Option<Duration>) -> bool {
        self.over_limit == HintLimit::GiveUp && hint.is_some_and(|hint| hint > self.hint_limit)
    }

    /// Checks every number.
    ///
    /// # Errors
    ///
    /// [`InvalidPolicy`] names the first field that cannot work, its value and what is allowed.
    pub fn validate(&self) -> Result<(), InvalidPolicy> {
        if let Some(capacity) = self.fleet_capacity
            && !(capacity > 0.0 && capacity.is_finite())
        {
            return refuse(
                "capacity_per_second",
                capacity,
                "a finite number above zero: what the server accepts in a second",
            );
        }
        check_curve("quick", &self.quick)?;
        check_curve("slow", &self.slow)?;
        check_growth(&self.growing, self.quick.base)?;
        bounded("stable_after", self.stable_after)?;
        bounded("attempt_deadline", self.attempt_deadline)?;
        bounded("handshake_limit", self.handshake_limit)?;
        bounded("drain", self.drain)?;
        bounded("close", self.close)?;
        nonzero("hint_limit", self.hint_limit)?;
        nonzero("advice_limit", self.advice_limit)?;
        if self.handshake_limit < self.attempt_deadline {
            return refuse(
                "handshake_limit",
                self.handshake_limit,
                format!("at least the attempt_deadline ({:?})", self.attempt_deadline),
            );
        }
        for (field, spread) in [("recovery_spread", self.recovery_spread), ("startup_spread", self.startup_spread)] {
            if spread == Duration::MAX {
                return refuse(field, spread, "a window that ends");
            }
        }
        if let Some(limit) = self.give_up_after {
            nonzero("give_up_after", limit)?;
        }
        match self.max_age {
            Some(age) if youngest(age) <= self.stable_after => {
                let stable = self.stable_after;
                let allowed =
                    format!("an age whose last tenth begins after stable_after ({stable:?}): nothing else is forgiven");
                refuse("max_age", age, allowed)
            }
            _ => Ok(()),
        }
    }
}

/// The age from which a connection may be ended for its age.
pub(super) fn youngest(max_age: Duration) -> Duration {
    Nanos::new(max_age).share(0.9).duration()
}

/// Timers tell a millisecond apart; a band of 5 % of less than this is no band.
const LEAST_WINDOW: Duration = Duration::from_millis(20);

/// Whatever hangs for longer than this is no longer waited for.
const LONGEST: Duration = Duration::from_secs(86_400);

/// More than this on top of a server's wait would be disobedience of another kind.
const MOST_POLITE: Duration = Duration::from_secs(2);

fn check_curve(name: &'static str, curve: &Backoff) -> Result<(), InvalidPolicy> {
    let field = |part: &str| format!("{name}.{part}");
    if curve.base.is_zero() {
        return refuse(field("base"), curve.base, "above zero: zero doubled stays zero");
    }
    if curve.cap < curve.base {
        return refuse(field("cap"), curve.cap, format!("at least base ({:?})", curve.base));
    }
    let least = curve.base.saturating_mul(3);
    if curve.jitter == Jitter::Decorrelated && curve.cap < least {
        return refuse(field("cap"), curve.cap, format!("at least 3 · base ({least:?}) for decorrelated jitter"));
    }
    if curve.floor >= curve.base {
        return refuse(
            field("floor"),
            curve.floor,
            format!("under base ({:?}), or else raise base: early delays would all be the floor", curve.base),
        );
    }
    if curve.fast > 0 && (curve.fast_delay.is_zero() || curve.fast_delay > curve.cap) {
        return refuse(
            field("fast"),
            curve.fast_delay,
            format!("a delay above zero and at most cap ({:?})", curve.cap),
        );
    }
    if curve.fast > 0 && curve.fast_delay <= curve.floor {
        return refuse(field("fast"), curve.fast_delay, format!("a delay above floor ({:?})", curve.floor));
    }
    check_band(field("jitter"), curve.jitter)
}

fn check_growth(growth: &Growth, base: Duration) -> Result<(), InvalidPolicy> {
    if growth.window < base {
        return refuse("growing.window", growth.window, format!("at least base ({base:?})"));
    }
    let least = base.max(growth.from).saturating_mul(3);
    if growth.jitter == Jitter::Decorrelated && growth.window < least {
        let allowed = format!("at least 3 · base and 3 · from ({least:?}) for decorrelated jitter");
        return refuse("growing.window", growth.window, allowed);
    }
    if growth.ceiling < growth.window {
        return refuse("growing.ceiling", growth.ceiling, format!("at least window ({:?})", growth.window));
    }
    if !(growth.factor >= 1.0 && growth.factor.is_finite()) {
        return refuse("growing.factor", growth.factor, "a number from 1");
    }
    if !(0.0..=1.0).contains(&growth.age_share) {
        return refuse("growing.age_share", growth.age_share, "a share from 0 to 1");
    }
    if growth.timeout_weight == 0 {
        return refuse("growing.timeout_weight", growth.timeout_weight, "at least 1");
    }
    check_band("growing.jitter", growth.jitter)
}

fn check_band(field: impl Into<String>, jitter: Jitter) -> Result<(), InvalidPolicy> {
    match jitter {
        Jitter::Band(p) if !(0.0..1.0).contains(&p) => refuse(field, p, "a band from 0 to under 1"),
        _ => Ok(()),
    }
}

/// For what ends something that hangs, and for what forgives.
fn bounded(field: &'static str, value: Duration) -> Result<(), InvalidPolicy> {
    nonzero(field, value)?;
    if value > LONGEST { refuse(field, value, "at most a day") } else { Ok(()) }
}

fn nonzero(field: &'static str, value: Duration) -> Result<(), InvalidPolicy> {
    if value.is_zero() { refuse(field, value, "above zero") } else { Ok(()) }
}

fn refuse<T>(field: impl Into<String>, value: impl fmt::Debug, allowed: impl Into<String>) -> Result<T, InvalidPolicy> {
    Err(InvalidPolicy { field: field.into(), value: format!("{value:?}"), allowed: allowed.into() })
}

/// A policy that cannot work.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InvalidPolicy {
    field: String,
    value: String,
    allowed: String,
}

impl InvalidPolicy {
    /// The setting, as the setters name it.
    #[must_use]
    pub fn field(&self) -> &str {
        &self.field
    }
}

impl fmt::Display for InvalidPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "policy: {} is {}, allowed is {}", self.field, self.value, self.allowed)
    }
}

impl Error for InvalidPolicy {}
