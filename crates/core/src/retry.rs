//! Again after a delay, give up, or in doubt: decided by values only.
//!
//! A call that is unsafe to repeat is never repeated here: when it may have gone out, the answer is doubt. There is no policy
//! for creates: one goes out once, and the next has a key of its own and waits until `find` has shown that the last made
//! nothing. Delays grow, are bounded, and honour what the other side asked for. The caller draws the jitter and waits.

use crate::resource::FailureClass;
use crate::unit::Millis;

/// Whether sending a call twice does harm.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Safety {
    /// Reads and releases, and all that an agent compares with what it has.
    Repeatable,
    /// A create: it spends money each time.
    Once,
}

/// How a call failed, as far as repeating it matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Effect {
    /// It was answered with a refusal, or never left: nothing happened, for certain.
    None,
    /// It may have happened: a time-out, a cut connection, a server error after sending.
    Possible,
}

/// One failed try.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Failure {
    /// Which kind.
    pub class: FailureClass,
    /// Whether anything may have happened.
    pub effect: Effect,
    /// Tries so far, this one included.
    pub attempt: u32,
    /// Since the first try began.
    pub elapsed: Millis,
    /// What the other side asked for.
    pub retry_after: Option<Millis>,
    /// Drawn by the caller, 0 to 999: spreads the delay, so that many do not come back at once.
    pub jitter: u16,
}

/// How long one keeps trying.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Policy {
    /// Tries, the first included.
    pub attempts_max: u32,
    /// All of them together.
    pub elapsed_max: Millis,
    /// Pauses that the other side asks for come on top of that, up to this.
    pub asked_max: Millis,
    /// After the first failure.
    pub delay_first: Millis,
    /// No delay is longer, but for what the other side asks.
    pub delay_max: Millis,
}

/// What follows from a failed try.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    /// Another try after this long.
    AfterDelay(Millis),
    /// No try can help, or there were enough.
    GiveUp,
    /// Nobody knows whether it happened: find out before anything else touches the resource.
    InDoubt,
}

impl Policy {
    /// For reads of a provider: an answer is worth half a minute, not more; a person waits.
    pub const READ: Self = Self {
        attempts_max: 5,
        elapsed_max: Millis::seconds(30),
        asked_max: Millis::minutes(1),
        delay_first: Millis(500),
        delay_max: Millis::seconds(8),
    };

    /// What follows from a failed try.
    pub fn decide(&self, safety: Safety, failure: Failure) -> Decision {
        if (safety, failure.effect) == (Safety::Once, Effect::Possible) {
            return Decision::InDoubt;
        }
        let helps = match failure.class {
            FailureClass::Rate => true,
            FailureClass::Unknown => safety == Safety::Repeatable,
            FailureClass::Capacity
            | FailureClass::OfferGone
            | FailureClass::Quota
            | FailureClass::Money
            | FailureClass::Auth
            | FailureClass::Config => false,
        };
        let delay = self.delay(&failure);
        let until = self.granting(failure.retry_after).elapsed_max;
        let in_time = failure.elapsed.0.saturating_add(delay.0) <= until.0;
        if helps && failure.attempt < self.attempts_max && in_time {
            Decision::AfterDelay(delay)
        } else {
            Decision::GiveUp
        }
    }

    /// What is left of it once that pause was granted.
    #[must_use]
    pub fn granting(self, asked: Option<Millis>) -> Self {
        let granted = asked.unwrap_or(Millis(0)).0.min(self.asked_max.0);
        Self {
            elapsed_max: Millis(self.elapsed_max.0.saturating_add(granted)),
            asked_max: Millis(self.asked_max.0 - granted),
            ..self
        }
    }

    /// Doubles with each try; between half and the whole of it by jitter; never less than was asked for.
    fn delay(&self, failure: &Failure) -> Millis {
        let doublings = failure.attempt.saturating_sub(1).min(20);
        let whole = self
            .delay_first
            .0
            .saturating_mul(1 << doublings)
            .min(self.delay_max.0);
        let jitter = u64::from(failure.jitter.min(999));
        let spread = whole / 2 + whole / 2 * jitter / 999;
        Millis(spread.max(failure.retry_after.map_or(0, |asked| asked.0)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// For what is worth ten minutes.
    const LONG: Policy = Policy {
        attempts_max: 40,
        elapsed_max: Millis::minutes(10),
        asked_max: Millis(0),
        delay_first: Millis::seconds(1),
        delay_max: Millis::seconds(30),
    };

    fn failure(class: FailureClass, attempt: u32) -> Failure {
        Failure {
            class,
            effect: Effect::None,
            attempt,
            elapsed: Millis(0),
            retry_after: None,
            jitter: 999,
        }
    }

    #[test]
    fn a_create_that_may_have_happened_is_in_doubt_whatever_else_is_true() {
        for class in [
            FailureClass::Rate,
            FailureClass::Unknown,
            FailureClass::Capacity,
        ] {
            let failure = Failure {
                effect: Effect::Possible,
                ..failure(class, 1)
            };
            assert_eq!(
                Policy::READ.decide(Safety::Once, failure),
                Decision::InDoubt
            );
            assert_ne!(
                Policy::READ.decide(Safety::Repeatable, failure),
                Decision::InDoubt
            );
        }
    }

    #[test]
    fn delays_double_up_to_a_bound_and_honour_what_was_asked() {
        let at = |attempt| LONG.decide(Safety::Repeatable, failure(FailureClass::Unknown, attempt));
        assert_eq!(at(1), Decision::AfterDelay(Millis(1000)));
        assert_eq!(at(3), Decision::AfterDelay(Millis(4000)));
        assert_eq!(at(39), Decision::AfterDelay(Millis(30_000)));
        assert_eq!(at(40), Decision::GiveUp);
        let asked = Failure {
            retry_after: Some(Millis::seconds(77)),
            ..failure(FailureClass::Rate, 1)
        };
        assert_eq!(
            LONG.decide(Safety::Repeatable, asked),
            Decision::AfterDelay(Millis::seconds(77))
        );
    }

    #[test]
    fn pauses_that_are_asked_for_are_granted_beyond_the_time_for_all_tries() {
        let after = |elapsed, asked| {
            let failure = Failure {
                elapsed: Millis::seconds(elapsed),
                retry_after: Some(Millis::seconds(asked)),
                ..failure(FailureClass::Rate, 1)
            };
            Policy::READ.decide(Safety::Repeatable, failure)
        };
        for (elapsed, asked) in [(0, 45), (0, 60), (29, 60)] {
            let pause = Decision::AfterDelay(Millis::seconds(asked));
            assert_eq!(after(elapsed, asked), pause);
        }
        for (elapsed, asked) in [(31, 60), (60, 60), (0, 91), (35, 7)] {
            assert_eq!(after(elapsed, asked), Decision::GiveUp);
        }
        let left = Policy::READ.granting(Some(Millis::seconds(45)));
        let left = left.granting(Some(Millis::seconds(45)));
        assert_eq!(left.elapsed_max, Millis::seconds(90));
        assert_eq!(left.asked_max, Millis(0));
    }

    #[test]
    fn trying_ends_by_time_and_by_class() {
        let late = Failure {
            elapsed: Millis::minutes(10),
            ..failure(FailureClass::Unknown, 2)
        };
        assert_eq!(LONG.decide(Safety::Repeatable, late), Decision::GiveUp);
        for class in [
            FailureClass::Auth,
            FailureClass::Quota,
            FailureClass::Config,
        ] {
            assert_eq!(
                Policy::READ.decide(Safety::Repeatable, failure(class, 1)),
                Decision::GiveUp
            );
        }
        assert_eq!(
            Policy::READ.decide(Safety::Once, failure(FailureClass::Unknown, 1)),
            Decision::GiveUp
        );
    }
}
