//! A damaged store: what is wrong with it, what is left, and how it is made sound again.
//!
//! Nothing is removed: damaged objects are copied to `damaged/` first, and a new snapshot with a higher number takes the
//! place of all that came before. So numbers never go back, and a run that is still under way is fenced by it.

use bytes::Bytes;
use object_store::PutMode;
use object_store::path::Path;
use stageline_core::id::{Fingerprint, JournalNumber};
use stageline_core::journal::Entry;
use stageline_core::state::State;

use super::{JOURNAL, Loaded, READABLE, SNAPSHOT, SNAPSHOT_MAX, Store, StoreError, numbered};

/// Where damaged objects are copied to.
const DAMAGED: &str = "damaged";

/// What is left of a damaged store.
#[derive(Clone, Debug)]
pub struct Damage {
    /// What reading it says.
    pub error: StoreError,
    /// The state that can be read whole, and as of when.
    pub base: State,
    /// The last entry in it; 0 when there is none.
    pub sound: JournalNumber,
    /// Entries after it that can still be read by themselves.
    pub later: Vec<Entry>,
    /// Numbers of entries and snapshots that are missing or cannot be read, each with what is wrong.
    pub lost: Vec<String>,
    /// The readable copy of the state, when it is there: only a copy, and of the last run that ended in order.
    pub readable: Option<Bytes>,
    /// The highest number that was ever used, as far as it can be seen.
    top: JournalNumber,
    /// What is copied away.
    damaged: Vec<Path>,
}

impl Store {
    /// What is wrong; none when the store is sound.
    ///
    /// # Errors
    /// [`StoreError`] when it is not damaged but cannot be used: no access, a newer format.
    pub async fn damage(&self) -> Result<Option<Damage>, StoreError> {
        let error = match self.read_closed().await {
            Ok(_) => return Ok(None),
            Err(error @ StoreError::Corrupt { .. }) => error,
            Err(error) => return Err(error),
        };
        let (mut lost, mut damaged) = (Vec::new(), Vec::new());
        let snapshots = self.snapshots().await?;
        let mut base = self
            .newest_sound(&snapshots, &mut lost, &mut damaged)
            .await?;
        let mut top = snapshots.last().copied().unwrap_or_default();
        let mut later = Vec::new();
        let mut sound = true;
        for (n, read) in self.entries_one_by_one().await? {
            top = top.max(n);
            if n <= base.head {
                continue;
            }
            let expected = base.head.next();
            if sound && n > expected {
                lost.push(format!("entries {expected} to {} are missing", n.0 - 1));
                sound = false;
            }
            let wrong = match read {
                Err(newer @ StoreError::Newer { .. }) => return Err(newer),
                Err(unreadable) => Some(unreadable),
                Ok((entry, bytes)) => {
                    let followed = if sound {
                        let followed = base.follow(n, &bytes);
                        followed.map_err(|wrong| self.not_next(n, wrong))
                    } else {
                        Ok(())
                    };
                    if followed.is_err() || !sound {
                        later.push(entry);
                    }
                    followed.err()
                }
            };
            if let Some(wrong) = wrong {
                sound = false;
                lost.push(briefly(&wrong));
            }
            if !sound {
                damaged.push(numbered(JOURNAL, n));
            }
        }
        let readable = self.get(&Path::from(READABLE), SNAPSHOT_MAX).await;
        Ok(Some(Damage {
            error,
            sound: base.head,
            base: base.state,
            later,
            lost,
            readable: readable.ok().flatten(),
            top,
            damaged,
        }))
    }

    /// The newest snapshot that can be read; nothing when there is none.
    async fn newest_sound(
        &self,
        snapshots: &[JournalNumber],
        lost: &mut Vec<String>,
        damaged: &mut Vec<Path>,
    ) -> Result<Loaded, StoreError> {
        for n in snapshots.iter().rev() {
            match self.read_snapshot(Some(*n)).await {
                Ok(loaded) => return Ok(loaded),
                Err(newer @ StoreError::Newer { .. }) => return Err(newer),
                Err(unreadable) => {
                    lost.push(briefly(&unreadable));
                    damaged.push(numbered(SNAPSHOT, *n));
                }
            }
        }
        Ok(Loaded::nothing())
    }

    /// Makes the store sound with this state, under a number that was never used.
    ///
    /// # Errors
    /// [`StoreError`] when something cannot be copied away or written; what was there is still there then.
    pub async fn mend(&self, damage: &Damage, state: &State) -> Result<JournalNumber, StoreError> {
        self.must_write()?;
        for path in &damage.damaged {
            if let Some(bytes) = self.get(path, SNAPSHOT_MAX).await? {
                let copy = Path::from(format!("{DAMAGED}/{path}"));
                self.put(&copy, bytes, PutMode::Overwrite).await?;
            }
        }
        let n = damage.top.next();
        let digest = Fingerprint::of_json(&(n, state));
        let bytes = super::snapshot::encode(n, digest, state);
        self.put_snapshot(n, bytes).await?;
        Ok(n)
    }
}

/// Which object, and what is wrong with it: of which state is said already.
fn briefly(error: &StoreError) -> String {
    if let StoreError::Corrupt { object, what, .. } = error {
        return format!("{object}: {what}");
    }
    error.to_string()
}
