//! How far a machine is on its way from create to running.

use std::fmt;

/// What a machine is dead of whose image its provider may not pull: with another machine it would be the same.
pub const NOT_PULLED: &str = "its image may not be pulled";

/// The phase of a machine that runs and whose agent does not answer yet.
pub const AGENT_PHASE: &str = "waiting for its agent";

/// The phase of a machine that runs and does not let us in yet.
pub const SSH_PHASE: &str = "waiting for SSH";

/// A step on a machine's way from create to running.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Phase {
    /// In the provider's words, always the same for the same phase: `pulling image`.
    pub name: String,
    /// How far it is, where the provider says so.
    pub percent: Option<u8>,
    /// What is in the way, where that is known: it may change within a phase.
    pub why: Option<String>,
}

impl Phase {
    /// A phase that nobody knows the end of.
    pub fn new(name: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            percent: None,
            why: None,
        }
    }

    /// The same, and what is in the way.
    #[must_use]
    pub fn because(mut self, why: impl Into<String>) -> Self {
        self.why = Some(why.into());
        self
    }

    /// The same, so many hundredths done.
    #[must_use]
    pub fn at(mut self, percent: u8) -> Self {
        self.percent = Some(percent.min(100));
        self
    }
}

impl fmt::Display for Phase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.percent, &self.why) {
            (Some(percent), _) => write!(f, "{} {percent} %", self.name),
            (None, Some(why)) => write!(f, "{} {why}", self.name),
            (None, None) => f.pad(&self.name),
        }
    }
}
