//! The moment at which a create is sent: its turn came before, and it may have to wait a little more.
//!
//! What always holds: the wait is compared with the clock of the boot, which goes on while this computer is suspended. What was written
//! down too long ago is not sent: whoever looks for its machine may have stopped looking. Nor is what was waited for so long that its
//! price may be another one by now, unless the provider still says the same right before.

use std::time::Duration;

use stageline_core::offer::Quote;
use stageline_core::resource::{Cause, FailureClass};
use tokio::time::Instant;

use crate::ambient::Clock;
use crate::provider::Blind;

/// A create may go out by so much later than it was to. The same is granted between its intention and its call.
pub const LATE_MAX: Duration = Duration::from_secs(5);

/// So much before its moment the price of one that waited is read again: the moment is kept, and the price is of then.
const PRICE_BEFORE: Duration = Duration::from_secs(2);

/// Sleeps for the rest of the wait. `began` is when, by the clock of the boot, what may take `most` began. One that goes out later than
/// it may after that is looked at once more, by `price`, which may have it go out so much later than its moment as `late` says: where moments
/// keep a distance from each other, not at all.
///
/// # Errors
/// [`Cause`] of a refusal, when more time than that has passed, or that of `price`. Nothing was sent.
pub async fn in_time(
    clock: &dyn Clock,
    wait: Duration,
    (began, most): (Duration, Duration),
    late: Duration,
    price: impl Future<Output = Result<(), Cause>>,
) -> Result<(), Cause> {
    let moment = Instant::now() + wait;
    let ahead = wait.min(PRICE_BEFORE);
    tokio::time::sleep(wait - ahead).await;
    let passed = clock.boottime().saturating_sub(began);
    if passed + ahead > LATE_MAX && passed <= most + LATE_MAX {
        match tokio::time::timeout(ahead + late, price).await {
            Ok(priced) => priced?,
            Err(_) => return Err(unread()),
        }
    }
    tokio::time::sleep_until(moment).await;
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

/// The price of an offer once more, as it is `now`, right before it is taken. What costs more by now, is gone, or cannot be read at once is tried
/// anew by whoever wants it, from its price on.
///
/// # Errors
/// [`Cause`] of a refusal. Nothing was sent.
pub async fn as_priced(
    quote: &Quote,
    now: impl Future<Output = Result<Option<Quote>, Blind>>,
) -> Result<(), Cause> {
    let why = match now.await {
        Ok(Some(now)) if now.price_per_hour <= quote.price_per_hour => return Ok(()),
        Ok(Some(now)) => format!(
            "it costs {}/h now, and {}/h when its create was written down",
            now.price_per_hour, quote.price_per_hour
        ),
        Ok(None) => "it is gone".to_owned(),
        Err(blind) => format!("it could not be read again: {}", blind.cause.message),
    };
    let message = format!(
        "offer `{}` had to wait, and {why}; nothing was sent",
        quote.id
    );
    Err(Cause::new(FailureClass::Rate, message))
}

/// Said of one whose price is not told before its moment.
fn unread() -> Cause {
    let message =
        "the create had to wait, and its price could not be read again in time; nothing was sent";
    Cause::new(FailureClass::Rate, message)
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
            let price = async { Ok(()) };
            let sent_or_not = in_time(&clock, wait, (began, wait), LATE_MAX, price);
            let (outcome, ()) = tokio::join!(sent_or_not, asleep);
            assert_eq!(outcome.is_ok(), sent, "{slept}");
            let refused = outcome.err().map(|cause| cause.class);
            assert!(refused.is_none_or(|class| class == FailureClass::Rate));
        }
    }

    /// Its moment is kept, whatever the look at the price takes of the time before it.
    #[tokio::test(start_paused = true)]
    async fn a_create_that_waited_for_longer_than_its_price_holds_is_priced_again_before_its_moment()
     {
        for (seconds, looked, takes, says) in [
            (4, 0, 500, true),
            (20, 1, 500, true),
            (20, 1, 500, false),
            (20, 1, 2_500, true),
        ] {
            let clock = FakeClock::manual(Timestamp::UNIX_EPOCH);
            let (wait, start) = (Duration::from_secs(seconds), Instant::now());
            let looks = std::cell::Cell::new(0);
            let price = async {
                looks.set(looks.get() + 1);
                assert_eq!(start.elapsed(), wait - PRICE_BEFORE);
                tokio::time::sleep(Duration::from_millis(takes)).await;
                let moved = Cause::new(FailureClass::Rate, "it costs more");
                if says { Ok(()) } else { Err(moved) }
            };
            let passes = async {
                tokio::time::sleep(wait - PRICE_BEFORE - Duration::from_millis(1)).await;
                clock.advance(wait - PRICE_BEFORE);
            };
            let began = clock.boottime();
            let waited = async {
                let outcome = in_time(&clock, wait, (began, wait), Duration::ZERO, price).await;
                (outcome.is_ok(), start.elapsed())
            };
            let ((sent, at), ()) = tokio::join!(waited, passes);
            let told = says && takes < 2_000;
            assert_eq!((sent, looks.get()), (told, looked), "{seconds} s");
            assert!(!sent || at == wait, "{at:?}");
        }
    }
}
