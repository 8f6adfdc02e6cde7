//! One listing for everybody who waits for one.
//!
//! A listing proves something about the time before it only, so whoever asks gets one that began after they asked; all
//! who asked meanwhile share it. A mere look may take one that is a little older.

use std::time::Duration;

use tokio::sync::Mutex;
use tokio::time::Instant;

use super::Fault;

/// How often a listing whose pages do not fit together is begun again.
const LISTINGS_MAX: usize = 3;

/// The last listing, and when it began.
pub struct Shared<T> {
    last: Mutex<Option<(Instant, T)>>,
}

impl<T: Clone> Shared<T> {
    /// None yet.
    pub fn new() -> Self {
        Self {
            last: Mutex::new(None),
        }
    }

    /// A listing that began no longer than `age` before now.
    ///
    /// # Errors
    /// What `fetch` says; it is asked again by the next who comes.
    pub async fn get<E>(
        &self,
        age: Duration,
        fetch: impl AsyncFnOnce() -> Result<T, E>,
    ) -> Result<T, E> {
        self.paced(age, async || {}, fetch).await
    }

    /// The same, where listings have to wait for their turn: who asks meanwhile shares the one that follows.
    ///
    /// # Errors
    /// What `fetch` says; it is asked again by the next who comes.
    pub async fn paced<E>(
        &self,
        age: Duration,
        turn: impl AsyncFnOnce(),
        fetch: impl AsyncFnOnce() -> Result<T, E>,
    ) -> Result<T, E> {
        let asked = Instant::now();
        let mut last = self.last.lock().await;
        if let Some((began, listing)) = last.as_ref()
            && *began + age >= asked
        {
            return Ok(listing.clone());
        }
        turn().await;
        let began = Instant::now();
        let listing = fetch().await;
        if let Ok(listing) = &listing {
            *last = Some((began, listing.clone()));
        }
        listing
    }

    /// The last one, however old; none where there is none, or somebody is reading another one just now.
    pub fn last(&self) -> Option<T> {
        let last = self.last.try_lock().ok()?;
        last.as_ref().map(|(_, listing)| listing.clone())
    }

    /// What was listed says nothing about what has been done since.
    pub async fn forget(&self) {
        *self.last.lock().await = None;
    }
}

/// A listing of several pages, begun again when they do not fit together: machines came or went meanwhile. The inner fault is of
/// such pages.
///
/// # Errors
/// [`Fault`] when it cannot be had, or never fits together.
pub async fn whole<T, F>(once: impl Fn() -> F) -> Result<T, Fault>
where
    F: Future<Output = Result<Result<T, Fault>, Fault>>,
{
    let mut odd = Fault::shape("");
    for _ in 0..LISTINGS_MAX {
        match once().await? {
            Ok(listing) => return Ok(listing),
            Err(fault) => odd = fault,
        }
    }
    Err(odd)
}

impl<T: Clone> Default for Shared<T> {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    #[tokio::test(start_paused = true)]
    async fn those_who_wait_share_one_that_began_after_they_asked() {
        let shared = Shared::new();
        let count = Cell::new(0_u32);
        let fetch = async || {
            count.set(count.get() + 1);
            let number = count.get();
            tokio::time::sleep(Duration::from_secs(1)).await;
            Ok::<_, ()>(number)
        };
        let first = shared.get(Duration::ZERO, fetch);
        let others = async {
            tokio::time::sleep(Duration::from_millis(500)).await;
            futures::join!(
                shared.get(Duration::ZERO, fetch),
                shared.get(Duration::ZERO, fetch),
                shared.get(Duration::from_secs(5), fetch)
            )
        };
        let (first, others) = futures::join!(first, others);
        assert_eq!((first, others.0, others.1), (Ok(1), Ok(2), Ok(2)));
        assert!(others.2 == Ok(1) || others.2 == Ok(2));
        assert_eq!(count.get(), 2);
        assert_eq!(shared.last(), Some(2));
        shared.forget().await;
        assert_eq!(shared.last(), None);
    }

    #[tokio::test(start_paused = true)]
    async fn those_who_ask_before_its_turn_share_it() {
        let shared = Shared::new();
        let count = Cell::new(0_u32);
        let fetch = async || {
            count.set(count.get() + 1);
            Ok::<_, ()>(count.get())
        };
        let turn = async || tokio::time::sleep(Duration::from_secs(2)).await;
        let later = async {
            tokio::time::sleep(Duration::from_secs(1)).await;
            shared.paced(Duration::ZERO, turn, fetch).await
        };
        let both = futures::join!(shared.paced(Duration::ZERO, turn, fetch), later);
        assert_eq!(both, (Ok(1), Ok(1)));
    }
}
