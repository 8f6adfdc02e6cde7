//! The volumes that leases name, as providers have them: a machine is rented where its volumes are.
//!
//! What a volume asks of a machine becomes part of the requirement, so that whatever chooses or keeps a machine keeps to it. No
//! machine is rented under terms that have not all volumes of their lease. Of a provider whose volumes cannot be seen nothing is
//! concluded.

use std::collections::BTreeMap;

use super::expand::Desired;
use crate::diagnostic::{Diagnostic, nearest, shown};
use crate::id::{Address, Name};
use crate::offer::{Facts, Volume};
use crate::resource::{Cause, FailureClass, Mounted, Spec, Terms};
use crate::topology::Mount;

/// Volumes that a message lists.
const SHOWN_MAX: usize = 8;

/// The volumes of each provider that was asked; a cause where they cannot be seen.
pub type Volumes = BTreeMap<Name, Result<Vec<Volume>, Cause>>;

/// An offer of a table that no machine is rented under, since the volumes of its lease are not to be had with it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unmounted {
    /// The `[offer.NAME]`.
    pub(super) offer: Name,
    /// Its `[provider.NAME]`.
    pub(super) provider: Name,
    why: Why,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Why {
    /// Nobody could look.
    Unseen(Cause),
    /// They are not there, or not where the offer allows machines.
    Missing(Vec<Fault>),
}

impl Unmounted {
    /// Why nobody could look; none where somebody did.
    pub(super) fn unseen(&self) -> Option<Cause> {
        let Why::Unseen(cause) = &self.why else {
            return None;
        };
        Some(Cause {
            message: format!("its volumes could not be read: {}", cause.message),
            ..cause.clone()
        })
    }

    /// What a plan says of it; none where nobody could look.
    pub(super) fn told(&self) -> Option<String> {
        let Why::Missing(faults) = &self.why else {
            return None;
        };
        let why: Vec<&str> = faults.iter().map(|(_, why, _)| why.as_str()).collect();
        let why = why.join("; ");
        Some(format!("offer `{}` is left out: {why}", self.offer))
    }
}

impl Desired {
    /// Finds the volumes that leases name. An offer without them stays among the terms, since a machine that is held is never
    /// given up for it; none is rented under it.
    ///
    /// # Errors
    /// Each volume that is not there, that is there twice, or that is where its offer allows no machine, of tables that no
    /// offer is left for.
    pub fn mount(&mut self, volumes: &Volumes) -> Result<(), Vec<Diagnostic>> {
        let mut faults: Vec<Diagnostic> = Vec::new();
        for (address, spec) in &mut self.specs {
            let (Address::Lease(lease), Spec::Lease(spec)) = (address, spec) else {
                continue;
            };
            if spec.mounts.is_empty() {
                continue;
            }
            let spec = spec.to_mut();
            let mut without: Vec<Unmounted> = Vec::new();
            for terms in &mut spec.terms {
                match mounted(&spec.mounts, terms, volumes) {
                    Ok(all) => take(terms, all),
                    Err(why) => without.push(Unmounted {
                        offer: terms.offer.clone(),
                        provider: terms.provider.clone(),
                        why,
                    }),
                }
            }
            let none = without.len() == spec.terms.len();
            if none && without.iter().all(|one| one.unseen().is_none()) {
                let of = without.iter().flat_map(|one| one.faults(&lease.name));
                // Once for all machines of a table.
                for fault in of {
                    if !faults.contains(&fault) {
                        faults.push(fault);
                    }
                }
            }
            if !without.is_empty() {
                self.unmounted.insert(lease.name.clone(), without);
            }
        }
        if faults.is_empty() {
            Ok(())
        } else {
            Err(faults)
        }
    }
}

impl Unmounted {
    fn faults(&self, table: &Name) -> Vec<Diagnostic> {
        let Why::Missing(faults) = &self.why else {
            return Vec::new();
        };
        let faults = faults.iter().map(|(code, message, hint)| {
            Diagnostic::error(code, format!("lease.{table}: {message}")).hint(hint)
        });
        faults.collect()
    }
}

/// What these volumes ask of a machine, and how they get there.
fn take(terms: &mut Terms, all: Vec<(&Volume, &Mount)>) {
    for (volume, mount) in all {
        terms.requirement = terms.requirement.and(&volume.requirement);
        terms.mounts.push(Mounted {
            id: volume.id.clone(),
            name: volume.name.clone(),
            at: mount.at.clone(),
        });
    }
}

/// All volumes of a lease under these terms.
fn mounted<'v, 'm>(
    mounts: &'m [Mount],
    terms: &Terms,
    volumes: &'v Volumes,
) -> Result<Vec<(&'v Volume, &'m Mount)>, Why> {
    let volumes = match volumes.get(&terms.provider) {
        Some(Ok(volumes)) => volumes,
        Some(Err(cause)) => return Err(Why::Unseen(cause.clone())),
        None => {
            let cause = Cause::new(FailureClass::Unknown, "nobody asked for them");
            return Err(Why::Unseen(cause));
        }
    };
    let (mut all, mut faults) = (Vec::new(), Vec::new());
    for mount in mounts {
        match found(mount, terms, volumes) {
            Ok(volume) => all.push((volume, mount)),
            Err(fault) => faults.push(fault),
        }
    }
    match faults.is_empty() {
        true => Ok(all),
        false => Err(Why::Missing(faults)),
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
