use std::time::{Duration, Instant};

/// TOWLINE_DEFAULT_TIMEOUT of the C API, as a timeout of calls that start something.
pub(crate) const DEFAULT_NS: u64 = u64::MAX - 1;

/// How long a call may wait: a [`Duration`], a point in time ([`Instant`]), or [`Timeout::FOREVER`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timeout(Limit);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Limit {
    Forever,
    For(Duration),
    Until(Instant),
}

impl Timeout {
    /// Waits without limit.
    pub const FOREVER: Timeout = Timeout(Limit::Forever);
    /// Only looks.
    pub const NOW: Timeout = Timeout(Limit::For(Duration::ZERO));

    /// Nanoseconds for calls where 0 means "only look".
    pub(crate) fn nanoseconds(self) -> u64 {
        let left = match self.0 {
            Limit::Forever => return u64::MAX,
            Limit::For(time) => time,
            Limit::Until(when) => when.saturating_duration_since(Instant::now()),
        };
        u64::try_from(left.as_nanos()).unwrap_or(u64::MAX)
    }

    /// The time that is left; `None` without limit.
    pub(crate) fn left(self) -> Option<Duration> {
        match self.0 {
            Limit::Forever => None,
            _ => Some(Duration::from_nanos(self.nanoseconds())),
        }
    }

    /// The same limit as a point in time, for waits in several steps.
    pub(crate) fn fixed(self) -> Timeout {
        match self.0 {
            Limit::For(time) => Instant::now().checked_add(time).map_or(Timeout::FOREVER, Timeout::from),
            _ => self,
        }
    }

    /// A point in time of CLOCK_MONOTONIC, never 0, which would mean "the default".
    pub(crate) fn monotonic_ns(self) -> u64 {
        let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
        let now_ns = now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64;
        now_ns.saturating_add(self.nanoseconds()).max(1)
    }

    /// Nanoseconds for calls where 0 means "the agent's default": a time that has passed is 1.
    pub(crate) fn nanoseconds_not_default(self) -> u64 {
        self.nanoseconds().max(1)
    }
}

impl From<Duration> for Timeout {
    fn from(time: Duration) -> Self {
        Timeout(Limit::For(time))
    }
}

impl From<Instant> for Timeout {
    fn from(when: Instant) -> Self {
        Timeout(Limit::Until(when))
    }
}
