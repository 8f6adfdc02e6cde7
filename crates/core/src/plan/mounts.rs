//! The volumes that leases name, as providers have them: a machine is rented where its volumes are.
//!
//! What a volume asks of a machine becomes part of the requirement, so that whatever chooses or keeps a machine keeps to it. Of a
//! provider whose volumes cannot be seen nothing is concluded: then it cannot be rented from either.

use std::collections::BTreeMap;

use super::expand::Desired;
use crate::diagnostic::{Diagnostic, nearest, shown};
use crate::id::{Address, Name};
use crate::offer::{Facts, Volume};
use crate::resource::{Mounted, Spec, Terms};
use crate::topology::Mount;

/// Volumes that a message lists.
const SHOWN_MAX: usize = 8;

/// The volumes of each provider that could be asked.
pub type Volumes = BTreeMap<Name, Vec<Volume>>;

impl Desired {
    /// Finds the volumes that leases name.
    ///
    /// # Errors
    /// Each that is not there, that is there twice, or that is where its offer allows no machine.
    pub fn mount(&mut self, volumes: &Volumes) -> Result<(), Vec<Diagnostic>> {
        let mut faults: Vec<Diagnostic> = Vec::new();
        for (address, spec) in &mut self.specs {
            let Spec::Lease(spec) = spec else { continue };
            if spec.mounts.is_empty() {
                continue;
            }
            let Address::Lease(lease) = address else {
                continue;
            };
            let spec = spec.to_mut();
            for terms in &mut spec.terms {
                let Some(volumes) = volumes.get(&terms.provider) else {
                    continue;
                };
                for mount in &spec.mounts {
                    match found(mount, terms, volumes) {
                        Ok(volume) => {
                            terms.requirement = terms.requirement.and(&volume.requirement);
                            terms.mounts.push(Mounted {
                                id: volume.id.clone(),
                                name: volume.name.clone(),
                                at: mount.at.clone(),
                            });
                        }
                        Err((code, message, hint)) => {
                            let message = format!("lease.{}: {message}", lease.name);
                            let fault = Diagnostic::error(code, message).hint(hint);
                            // Once for all machines of a table.
                            if !faults.contains(&fault) {
                                faults.push(fault);
                            }
                        }
                    }
                }
            }
        }
        if faults.is_empty() {
            Ok(())
        } else {
            Err(faults)
        }
    }
}

type Fault = (&'static str, String, String);

fn found<'v>(mount: &Mount, terms: &Terms, volumes: &'v [Volume]) -> Result<&'v Volume, Fault> {
    let (wanted, provider) = (shown(&mount.volume), &terms.provider);
    let by_id = volumes.iter().find(|volume| volume.id == mount.volume);
    let named: Vec<&Volume> = volumes
        .iter()
        .filter(|volume| volume.name == mount.volume)
        .collect();
    let volume = match (by_id, named.as_slice()) {
        (Some(volume), _) => volume,
        (None, [volume]) => volume,
        (None, []) => {
            let message = format!("provider `{provider}` has no volume `{wanted}`");
            return Err(("plan/no-volume", message, there_are(&mount.volume, volumes)));
        }
        (None, several) => {
            let ids: Vec<String> = several
                .iter()
                .map(|volume| format!("`{}` ({})", shown(&volume.id), volume.place))
                .collect();
            let message = format!(
                "provider `{provider}` has {} volumes named `{wanted}`",
                several.len()
            );
            let hint = format!("say which by its id: {}", ids.join(", "));
            return Err(("plan/no-volume", message, hint));
        }
    };
    match elsewhere(volume, terms) {
        None => Ok(volume),
        Some(why) => {
            let message = format!(
                "volume `{wanted}` of provider `{provider}` is in {}, and {why} allows no machine there",
                volume.place
            );
            let hint = format!(
                "allow {} there, take a volume of another place, or leave the offer out; {}",
                volume.place,
                there_are("", volumes)
            );
            Err(("plan/volume-elsewhere", message, hint))
        }
    }
}

/// What allows no machine where a volume is.
fn elsewhere(volume: &Volume, terms: &Terms) -> Option<String> {
    let facts = Facts {
        region: Some(volume.region.clone()?),
        ..Facts::default()
    };
    let misfits = terms.requirement.misfits(&facts);
    let term = misfits
        .iter()
        .find(|misfit| misfit.term.starts_with("region"));
    if let Some(misfit) = term {
        return Some(format!("offer `{}` ({})", terms.offer, misfit.term));
    }
    let barred = terms.within.ranks().rank(&facts).is_none();
    barred.then(|| {
        format!(
            "`regions` of the provider ({})",
            terms.within.regions.join(", ")
        )
    })
}

/// What was meant, and what there is.
fn there_are(wanted: &str, volumes: &[Volume]) -> String {
    if volumes.is_empty() {
        return "the account has none; stageline makes no volumes, since they cost money for as long as they are there: make one \
                at the provider"
            .to_owned();
    }
    let names: Vec<&str> = volumes.iter().map(|volume| volume.name.as_str()).collect();
    let near = nearest(wanted, &names).map(|near| format!("did you mean `{}`? ", shown(near)));
    let all: Vec<String> = volumes.iter().take(SHOWN_MAX).map(Volume::shown).collect();
    let more = match volumes.len().saturating_sub(SHOWN_MAX) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    format!(
        "{}there are {}{more}",
        near.unwrap_or_default(),
        all.join(", ")
    )
}
