//! What the table of a provider leaves of what it sells, and what it prefers.
//!
//! It is of the choice of a new machine alone: a machine that is held is never given up for it.

use std::borrow::Cow;
use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::region::{Found, Place};
use super::{Facts, Misfit};

/// The field of a provider's own names of its types of machines.
pub const INSTANCE_TYPE: &str = "instance_type";

/// The field of a name for several types, where a provider has such names.
pub const POOL: &str = "pool";

/// What may be taken of a provider's machines. Empty lists leave everything.
#[derive(
    Clone,
    Debug,
    Default,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Serialize,
    Deserialize,
    schemars::JsonSchema,
)]
pub struct Selection {
    /// Regions, the preferred first; as a requirement names them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub regions: Vec<String>,
    /// Types of machines, by the provider's own names.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub instance_types: Vec<String>,
}

impl Selection {
    /// Nothing is left out.
    pub const fn is_everything(&self) -> bool {
        self.regions.is_empty() && self.instance_types.is_empty()
    }

    /// What speaks against a machine.
    pub fn left_out(&self, facts: &Facts) -> Vec<Misfit> {
        let mut misfits = Vec::new();
        if self.ranks().rank(facts).is_none() {
            misfits.push(misfit("regions", &self.regions, facts.region.as_deref()));
        }
        if !self.has_type(facts) {
            let found = facts.extra.get(INSTANCE_TYPE).map(String::as_str);
            misfits.push(misfit("instance_types", &self.instance_types, found));
        }
        misfits
    }

    /// Whether a machine is of a type that may be taken.
    fn has_type(&self, facts: &Facts) -> bool {
        let known = [INSTANCE_TYPE, POOL].map(|field| facts.extra.get(field));
        let is = |wanted: &String| {
            let mut known = known.iter().flatten();
            known.any(|name| name.eq_ignore_ascii_case(wanted))
        };
        self.instance_types.is_empty() || self.instance_types.iter().any(is)
    }

    /// For asking of many machines which region is preferred.
    pub fn ranks(&self) -> Ranks<'_> {
        Ranks {
            places: self.regions.iter().map(|text| Place::asked(text)).collect(),
            known: BTreeMap::new(),
            within: self,
        }
    }
}

/// The places of regions in the list of a [`Selection`]: there are many machines and few regions.
#[derive(Clone, Debug)]
pub struct Ranks<'s> {
    within: &'s Selection,
    places: Vec<Place>,
    known: BTreeMap<Option<String>, Option<usize>>,
}

impl Ranks<'_> {
    /// The place of a machine's region, where the machine may be taken; none where it is left out.
    pub fn takes(&mut self, facts: &Facts) -> Option<usize> {
        self.rank(facts).filter(|_| self.within.has_type(facts))
    }

    /// The place of a machine's region: the lower, the rather. None where the region is left out.
    pub fn rank(&mut self, facts: &Facts) -> Option<usize> {
        if self.places.is_empty() {
            return Some(0);
        }
        if let Some(rank) = self.known.get(&facts.region) {
            return *rank;
        }
        let found = facts.region.as_deref().map(Found::of);
        let is_in = |place: &Place| found.as_ref().is_some_and(|found| found.is_in(place));
        let rank = self.places.iter().position(is_in);
        self.known.insert(facts.region.clone(), rank);
        rank
    }
}

fn misfit(key: &str, wanted: &[String], found: Option<&str>) -> Misfit {
    Misfit {
        term: format!("{key} = {}", wanted.join("|")),
        found: found
            .map_or(Cow::Borrowed("none that is known"), Cow::Borrowed)
            .into_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn machine(region: Option<&str>, kind: &str, pool: Option<&str>) -> Facts {
        let mut facts = Facts {
            region: region.map(str::to_owned),
            ..Facts::default()
        };
        facts
            .extra
            .insert(INSTANCE_TYPE.to_owned(), kind.to_owned());
        let pool = pool.map(|pool| (POOL.to_owned(), pool.to_owned()));
        facts.extra.extend(pool);
        facts
    }

    fn of(regions: &[&str], types: &[&str]) -> Selection {
        let texts = |all: &[&str]| all.iter().map(|one| (*one).to_owned()).collect();
        Selection {
            regions: texts(regions),
            instance_types: texts(types),
        }
    }

    #[test]
    fn regions_are_matched_as_in_a_requirement_and_ranked_as_they_stand() {
        let wanted = of(&["us-west-1", "EU", "Japan"], &[]);
        let mut ranks = wanted.ranks();
        for (region, place) in [
            ("us-west-1", Some(0)),
            ("EU-RO-1", Some(1)),
            ("europe-central-1", Some(1)),
            ("Osaka, Japan", Some(2)),
            ("us-west-2", None),
            ("us-west-1", Some(0)),
        ] {
            let rank = ranks.rank(&machine(Some(region), "", None));
            assert_eq!(rank, place, "{region}");
        }
        let out = wanted.left_out(&machine(Some("us-west-2"), "", None));
        assert_eq!(out.len(), 1);
        assert_eq!(out[0].term, "regions = us-west-1|EU|Japan");
        assert_eq!(out[0].found, "us-west-2");
        assert_eq!(wanted.left_out(&machine(Some("EU-RO-1"), "", None)), []);
        let nowhere = wanted.left_out(&machine(None, "", None));
        assert_eq!(nowhere[0].found, "none that is known");
    }

    #[test]
    fn types_are_names_or_pools_whatever_their_case() {
        let wanted = of(&[], &["gpu_1x_A10", "ADA_24"]);
        assert_eq!(wanted.left_out(&machine(None, "gpu_1x_a10", None)), []);
        let card = "NVIDIA GeForce RTX 4090";
        assert_eq!(wanted.left_out(&machine(None, card, Some("ADA_24"))), []);
        let out = wanted.left_out(&machine(None, card, Some("AMPERE_24")));
        assert_eq!(out[0].term, "instance_types = gpu_1x_A10|ADA_24");
        assert_eq!(out[0].found, card);
        // No prefix counts.
        assert_eq!(
            wanted.left_out(&machine(None, "gpu_1x_a100", None)).len(),
            1
        );
        assert!(of(&[], &[]).is_everything());
        assert_eq!(of(&[], &[]).left_out(&machine(None, card, None)), []);
    }
}
