//! How long a machine may take to get ready: as a whole, and in each phase of its way there.

use std::time::Duration;

use super::{AGENT_PHASE, Traits};
use crate::ssh::{UPLOAD_MAX, UPLOADS};

/// How long a machine may stay in one phase of its boot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PhaseLimit {
    /// [`super::Phase::name`], or [`super::AGENT_PHASE`].
    pub phase: String,
    /// From when it was first seen in it.
    pub within: Duration,
    /// Its length is not the provider's alone (an image may be large): where the topology gives the whole boot longer than is
    /// usual, this phase gets as much more.
    pub stretches: bool,
}

impl PhaseLimit {
    /// A phase whose length is the provider's.
    pub fn new(phase: &str, within: Duration) -> Self {
        Self {
            phase: phase.to_owned(),
            within,
            stretches: false,
        }
    }

    /// The same for one that takes as long as what the user chose.
    #[must_use]
    pub fn stretching(self) -> Self {
        Self {
            stretches: true,
            ..self
        }
    }
}

/// How long a machine of some shape may take to get ready.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BootLimits {
    /// From create to ready.
    pub acquire_timeout: Duration,
    /// In these phases.
    pub phases: Vec<PhaseLimit>,
    /// In each other one.
    pub phase_timeout: Duration,
}

impl BootLimits {
    /// The same for any shape. What goes there from here takes as long as this computer's line makes it.
    pub fn of(traits: &Traits) -> Self {
        let uploads = UPLOADS.map(|phase| PhaseLimit::new(phase, UPLOAD_MAX).stretching());
        let declared = traits.phases.iter().cloned();
        Self {
            acquire_timeout: traits.acquire_timeout,
            phases: declared.chain(uploads).collect(),
            phase_timeout: traits.phase_timeout,
        }
    }

    /// The same where a machine fetches its agent, from where the user says.
    #[must_use]
    pub fn fetching(mut self) -> Self {
        for limit in &mut self.phases {
            limit.stretches |= limit.phase == AGENT_PHASE;
        }
        self
    }

    /// The same where the topology says how long the whole boot may take.
    #[must_use]
    pub fn allowing(mut self, whole: Duration) -> Self {
        let more = whole.saturating_sub(self.acquire_timeout);
        for limit in self.phases.iter_mut().filter(|limit| limit.stretches) {
            limit.within += more;
        }
        self.acquire_timeout = whole;
        self
    }

    /// The same with this much more for something beside the boot.
    #[must_use]
    pub fn and(mut self, more: Duration) -> Self {
        self.acquire_timeout += more;
        self
    }

    /// How long a machine may stay in this phase; never longer than its whole boot may take.
    pub fn within(&self, phase: &str) -> Duration {
        let mut limits = self.phases.iter();
        let own = limits.find(|limit| limit.phase == phase);
        let within = own.map_or(self.phase_timeout, |limit| limit.within);
        within.min(self.acquire_timeout)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINUTE: Duration = Duration::from_secs(60);

    #[test]
    fn a_boot_that_is_given_longer_has_longer_for_what_the_user_chose_and_nothing_else() {
        let limits = BootLimits {
            acquire_timeout: 30 * MINUTE,
            phases: vec![
                PhaseLimit::new("searching", 10 * MINUTE),
                PhaseLimit::new("pulling", 20 * MINUTE).stretching(),
            ],
            phase_timeout: 5 * MINUTE,
        };
        let all = |whole: Option<u32>| {
            let limits = match whole {
                Some(whole) => limits.clone().allowing(whole * MINUTE),
                None => limits.clone(),
            };
            ["searching", "pulling", "odd"].map(|phase| limits.within(phase).as_secs() / 60)
        };
        assert_eq!(all(None), [10, 20, 5]);
        assert_eq!(all(Some(60)), [10, 50, 5]);
        assert_eq!(all(Some(15)), [10, 15, 5]);
        assert_eq!(all(Some(2)), [2, 2, 2]);
    }

    #[test]
    fn what_goes_over_a_line_of_the_users_has_longer_where_the_boot_is_given_longer() {
        let local = crate::provider::sim::AccountSpec::new(Vec::new());
        let traits = Traits {
            acquire_timeout: 40 * MINUTE,
            phases: vec![PhaseLimit::new(AGENT_PHASE, 5 * MINUTE)],
            phase_timeout: 12 * MINUTE,
            ..local.traits
        };
        let usual = || BootLimits::of(&traits);
        let all = |limits: BootLimits| {
            let phases = [UPLOADS[0], UPLOADS[1], AGENT_PHASE, "odd"];
            phases.map(|phase| limits.within(phase).as_secs() / 60)
        };
        assert_eq!(all(usual()), [30, 30, 5, 12]);
        assert_eq!(all(usual().allowing(60 * MINUTE)), [50, 50, 5, 12]);
        let fetching = usual().fetching();
        assert_eq!(all(fetching.clone()), [30, 30, 5, 12]);
        assert_eq!(all(fetching.allowing(60 * MINUTE)), [50, 50, 25, 12]);
    }
}
