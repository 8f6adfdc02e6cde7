//! The moment at which a create is sent: its turn came before, and it may have to wait a little more.
//!
//! What always holds: the wait is compared with the clock of the boot, which goes on while this computer is suspended. What was written
//! down too long ago is not sent: whoever looks for its machine may have stopped looking.

use std::time::Duration;

use stageline_core::resource::{Cause, FailureClass};

use crate::ambient::Clock;

/// A create may go out by so much later than it was to. The same is granted between its intention and its call.
const LATE_MAX: Duration = Duration::from_secs(5);

/// Sleeps for the rest of the wait. `began` is when, by the clock of the boot, what may take `most` began.
///
/// # Errors
/// [`Cause`] of a refusal, when more time than that has passed. Nothing was sent.
pub async fn in_time(
    clock: &dyn Clock,
    wait: Duration,
    (began, most): (Duration, Duration),
) -> Result<(), Cause> {
    tokio::time::sleep(wait).await;
    let passed = clock.boottime().saturating_sub(began);
    if passed <= most + LATE_MAX {
        return Ok(());
    }
    let message = format!(
        "{} s passed before the create could be sent, as if this computer had slept; nothing was sent",
        passed.as_secs()
    );
    Err(Cause::new(FailureClass::Rate, message))
}

/// Said of one that would have to wait for longer than it may.
pub fn too_many() -> Cause {
    let message = "too much was asked of this account meanwhile; nothing was sent";
    Cause::new(FailureClass::Rate, message).hint("run the same command again in a minute")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ambient::FakeClock;
    use stageline_core::unit::Timestamp;

    #[tokio::test(start_paused = true)]
    async fn a_create_that_slept_with_its_computer_is_not_sent() {
        let wait = Duration::from_secs(20);
        for (slept, sent) in [(0, true), (5, true), (6, false), (3600, false)] {
            let clock = FakeClock::manual(Timestamp::UNIX_EPOCH);
            let began = clock.boottime();
            let asleep = async {
                tokio::time::sleep(wait / 2).await;
                clock.advance(wait + Duration::from_secs(slept));
            };
            let (outcome, ()) = tokio::join!(in_time(&clock, wait, (began, wait)), asleep);
            assert_eq!(outcome.is_ok(), sent, "{slept}");
            let refused = outcome.err().map(|cause| cause.class);
            assert!(refused.is_none_or(|class| class == FailureClass::Rate));
        }
    }
}
