//! What was delivered here: each pipeline's share, which bytes of its model are needed, and the highest roster seen.
//!
//! What always holds: the file on disk is written before anything acts on it, so that an agent that starts again in the
//! same folder knows what it had; a roster here was signed by the operator; a lower revision never replaces a higher one.
//! It refuses shares whose model is not present.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use stageline_core::id::{Fingerprint, JournalNumber, Lineage, Name, OperatorId, Sha256, StageId};
use stageline_core::resource::StageSpec;

use super::blobs::{self, Blobs};
use super::folder::{self, Folder, FolderError};
use crate::machine::control::{DeliveredShare, Refusal};
use crate::machine::share_fingerprint;
use crate::machine::spans::Spans;
use crate::pipeline::roster::{KeepRosters, Roster, RosterError, SignedRoster};

/// Every delivered share.
#[derive(Debug)]
pub struct Deliveries {
    folder: Folder,
    operator: OperatorId,
    lineage: Lineage,
    blobs: Arc<Blobs>,
    kept: Mutex<BTreeMap<Name, DeliveredShare>>,
}

impl Deliveries {
    /// What was delivered into this folder before; nothing when there is no record of it.
    ///
    /// # Errors
    /// [`FolderError`] when there is a record and it cannot be read.
    pub fn load(
        folder: Folder,
        operator: OperatorId,
        lineage: Lineage,
        blobs: Arc<Blobs>,
    ) -> Result<Self, FolderError> {
        let kept = folder::read_json(&folder.deliveries())?.unwrap_or_default();
        Ok(Self {
            folder,
            operator,
            lineage,
            blobs,
            kept: Mutex::new(kept),
        })
    }

    /// The rosters, for a fabric that is new.
    pub fn rosters(&self) -> Vec<(Name, SignedRoster)> {
        let kept = self.kept.lock().expect("no holder panics");
        kept.iter()
            .map(|(name, share)| (name.clone(), share.roster.clone()))
            .collect()
    }

    /// Makes these shares the only ones, on disk and here. Returns the pipelines that are gone.
    ///
    /// # Errors
    /// [`Refusal`] when a roster is not the operator's or is older than ours, a model is not present, or the disk does not
    /// take the record; nothing has changed then.
    pub fn replace(
        &self,
        mut shares: BTreeMap<Name, DeliveredShare>,
    ) -> Result<Vec<Name>, Refusal> {
        for (pipeline, share) in &shares {
            self.check(pipeline, share)?;
        }
        let mut kept = self.kept.lock().expect("no holder panics");
        for (pipeline, share) in &mut shares {
            let Some(old) = kept.get(pipeline) else {
                continue;
            };
            let (ours, theirs) = (self.revision(&old.roster), self.revision(&share.roster));
            if ours > theirs {
                // A neighbour that was delivered to first has told us: the same list under its own, higher revision.
                let same = self
                    .read(&old.roster)
                    .zip(self.read(&share.roster))
                    .is_some_and(|(ours, theirs)| ours.says_the_same(&theirs));
                if same {
                    share.roster = old.roster.clone();
                    continue;
                }
                let message = format!(
                    "{pipeline}: the roster has revision {theirs}; revision {ours} is here already"
                );
                return Err(
                    Refusal::new("stale", message).hint("another apply was faster: plan again")
                );
            }
        }
        if *kept != shares {
            folder::write_json(&self.folder.deliveries(), &shares).map_err(blobs::refusal)?;
        }
        let gone = kept
            .keys()
            .filter(|name| !shares.contains_key(*name))
            .cloned()
            .collect();
        let models = shares.values().filter_map(model_of).collect();
        *kept = shares;
        drop(kept);
        self.blobs.keep_only(&models);
        Ok(gone)
    }

    fn check(&self, pipeline: &Name, share: &DeliveredShare) -> Result<(), Refusal> {
        let roster = share
            .roster
            .verify(&self.operator, &self.lineage)
            .map_err(|error| roster_refusal(pipeline, &error))?;
        if roster.pipeline != *pipeline {
            let message = format!("{pipeline}: its roster is that of {}", roster.pipeline);
            return Err(Refusal::new("roster", message));
        }
        let Some(shard) = &share.share.shard else {
            return Ok(());
        };
        let needed = Spans::from(share.spans.clone());
        let missing = needed
            .without(&self.blobs.present(&shard.model.sha256))
            .bytes();
        if missing > 0 || needed.is_empty() {
            let message = format!(
                "{pipeline}: {missing} bytes of its model {} are not present",
                shard.model.sha256
            );
            return Err(Refusal::new("blob-missing", message).hint("deliver again"));
        }
        Ok(())
    }

    fn revision(&self, roster: &SignedRoster) -> JournalNumber {
        self.read(roster)
            .map_or(JournalNumber(0), |roster| roster.revision)
    }

    fn read(&self, roster: &SignedRoster) -> Option<Roster> {
        roster.verify(&self.operator, &self.lineage).ok()
    }

    /// Digest of each share and its roster's revision.
    pub fn status(&self) -> BTreeMap<Name, (Fingerprint, JournalNumber)> {
        let kept = self.kept.lock().expect("no holder panics");
        let status = |(name, share): (&Name, &DeliveredShare)| {
            let digest = share_fingerprint(&share.share);
            (name.clone(), (digest, self.revision(&share.roster)))
        };
        kept.iter().map(status).collect()
    }

    /// The model file of a stage, present as far as it needs it.
    ///
    /// # Errors
    /// [`Refusal`] when nothing was delivered for it.
    pub fn model(&self, stage: &StageId, spec: &StageSpec) -> Result<Option<PathBuf>, Refusal> {
        let missing = |what: &str| {
            Refusal::new("not-delivered", format!("{stage}: {what}"))
                .hint("deliver to this machine first: apply does")
        };
        let kept = self.kept.lock().expect("no holder panics");
        let share = kept
            .get(&stage.pipeline)
            .ok_or_else(|| missing("nothing of its pipeline was delivered to this machine"))?;
        let Some(sha256) = spec.model else {
            return Ok(None);
        };
        if model_of(share) != Some(sha256) {
            return Err(missing(&format!(
                "its model {sha256} was not delivered to this machine"
            )));
        }
        let needed = Spans::from(share.spans.clone());
        if !self.blobs.present(&sha256).covers(&needed) {
            return Err(missing(&format!(
                "its model {sha256} is no longer whole on this machine"
            )));
        }
        Ok(Some(self.blobs.path(&sha256)))
    }
}

fn model_of(share: &DeliveredShare) -> Option<Sha256> {
    share.share.shard.as_ref().map(|shard| shard.model.sha256)
}

/// A roster that was not taken, as the operator is told.
pub fn roster_refusal(pipeline: &Name, error: &RosterError) -> Refusal {
    let code = match error {
        RosterError::Stale { .. } => "stale",
        RosterError::Keep { .. } => "disk",
        RosterError::Signature
        | RosterError::Foreign { .. }
        | RosterError::Invalid(_)
        | RosterError::Conflict { .. } => "roster",
    };
    Refusal::new(code, format!("{pipeline}: {error}"))
}

/// A roster that a neighbour had first is kept like one that was delivered.
impl KeepRosters for Deliveries {
    fn keep(&self, pipeline: &Name, roster: &SignedRoster) -> Result<(), String> {
        let mut kept = self.kept.lock().expect("no holder panics");
        let share = kept
            .get(pipeline)
            .ok_or_else(|| format!("nothing of {pipeline} was delivered here"))?;
        if share.roster == *roster {
            return Ok(());
        }
        let mut changed = kept.clone();
        if let Some(share) = changed.get_mut(pipeline) {
            share.roster = roster.clone();
        }
        folder::write_json(&self.folder.deliveries(), &changed)
            .map_err(|error| error.to_string())?;
        *kept = changed;
        Ok(())
    }
}
