//! Volumes that an account has at a provider: made by others, and mounted on machines.

use super::Requirement;
use crate::diagnostic::shown;

/// A volume that an account has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Volume {
    /// What the provider calls it.
    pub id: String,
    /// Its name; empty where it has none. It need not be the only one of that name.
    pub name: String,
    /// Where it is, for people.
    pub place: String,
    /// The region of that, where it is told.
    pub region: Option<String>,
    /// What it asks of a machine.
    pub requirement: Requirement,
}

impl Volume {
    /// One that is somewhere in a region; none where that is no word.
    pub fn in_region(id: String, name: String, region: String) -> Option<Self> {
        Some(Self {
            id,
            name,
            requirement: format!("region={region}").parse().ok()?,
            place: region.clone(),
            region: Some(region),
        })
    }

    /// By its name, with its place, for people.
    pub fn shown(&self) -> String {
        let name = match self.name.is_empty() {
            true => shown(&self.id),
            false => shown(&self.name),
        };
        format!("`{name}` ({})", self.place)
    }

    /// Whether somebody who wrote this means it.
    pub fn is(&self, wanted: &str) -> bool {
        self.id == wanted || self.name == wanted
    }
}
