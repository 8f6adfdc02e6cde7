//! What a plan is about: everything, or what targets and excludes leave of it.
//!
//! A target takes with it all that it needs; an exclude takes away all that needs it. What is left out is said.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::str::FromStr;

use super::draft::Draft;
use super::expand::{Desired, needs};
use super::lapsed::{self, KeptEnded, Place};
use super::parts::named;
use crate::diagnostic::Diagnostic;
use crate::graph::Graph;
use crate::id::{Address, IdError, LeaseId, Name};
use crate::resource::Spec;
use crate::state::{Lapse, State};

/// One resource, or a whole table of them: `lease.NAME`, `delivery.NAME`, `stage.PIPELINE`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Selector {
    /// This one.
    One(Address),
    /// Every resource of this kind and name.
    Table {
        /// `lease`, `delivery` or `stage`.
        kind: &'static str,
        /// The table.
        name: Name,
    },
}

impl Selector {
    /// Whether it selects this resource.
    pub fn has(&self, address: &Address) -> bool {
        match self {
            Self::One(one) => one == address,
            Self::Table { kind, name } => {
                address.kind() == *kind
                    && match address {
                        Address::Lease(lease) | Address::Delivery(lease) => lease.name == *name,
                        Address::Stage(stage) => stage.pipeline == *name,
                        Address::Bundle(_) | Address::Pipeline(_) | Address::Exposure(_) => false,
                    }
            }
        }
    }
}

impl fmt::Display for Selector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::One(address) => address.fmt(f),
            Self::Table { kind, name } => write!(f, "{kind}.{name}"),
        }
    }
}

impl FromStr for Selector {
    type Err = IdError;

    fn from_str(text: &str) -> Result<Self, IdError> {
        let table = text.split_once('.').and_then(|(kind, name)| {
            let tables = ["lease", "delivery", "stage"];
            let kind = tables.into_iter().find(|table| *table == kind)?;
            Some(Self::Table {
                kind,
                name: name.parse().ok()?,
            })
        });
        table.map_or_else(|| text.parse().map(Self::One), Ok)
    }
}

/// The addresses that selectors mean, of what is declared and recorded.
///
/// # Errors
/// One for each selector of a table that has nothing in it. A single address is looked at by [`super::draft`].
pub fn select(
    flag: &str,
    selectors: &[Selector],
    desired: &Desired,
    recorded: &State,
) -> Result<Vec<Address>, Vec<Diagnostic>> {
    let (mut found, mut faults) = (BTreeSet::new(), Vec::new());
    for selector in selectors {
        if let Selector::One(address) = selector {
            found.insert(address.clone());
            continue;
        }
        let all = recorded.existing().map(|(address, _)| address);
        let all = all.chain(desired.specs.keys());
        let ours: BTreeSet<&Address> = all.filter(|address| selector.has(address)).collect();
        if ours.is_empty() {
            let message =
                format!("{flag} {selector}: nothing of that table is declared or recorded");
            let fault = Diagnostic::error("plan/unknown-address", message);
            faults.push(fault.hint(match near_table(selector, desired, recorded) {
                Some(near) => format!("did you mean {near}?"),
                None => "`stageline state list` names what is recorded".to_owned(),
            }));
        }
        found.extend(ours.into_iter().cloned());
    }
    if faults.is_empty() {
        Ok(found.into_iter().collect())
    } else {
        Err(faults)
    }
}

/// The table of that kind whose name is nearest.
fn near_table(selector: &Selector, desired: &Desired, recorded: &State) -> Option<String> {
    let Selector::Table { kind, name } = selector else {
        return None;
    };
    let all = recorded.existing().map(|(address, _)| address);
    let all = all.chain(desired.specs.keys());
    let names = all
        .filter(|address| address.kind() == *kind)
        .filter_map(|address| match address {
            Address::Lease(lease) | Address::Delivery(lease) => Some(&lease.name),
            Address::Stage(stage) => Some(&stage.pipeline),
            Address::Bundle(_) | Address::Pipeline(_) | Address::Exposure(_) => None,
        });
    let near = names.min_by_key(|other| {
        let distance = strsim::damerau_levenshtein(name.as_str(), other.as_str());
        (distance, *other)
    })?;
    Some(format!("{kind}.{near}"))
}

/// The addresses that a plan may change.
pub(super) struct Scope {
    /// None is everything.
    only: Option<BTreeSet<Address>>,
    /// What is left out, in words.
    pub(super) notes: Vec<String>,
    /// What is kept ended, and what waits for it.
    pub(super) ended: KeptEnded,
    /// The leases that it is kept ended for.
    pub(super) lapsed: BTreeMap<LeaseId, Lapse>,
}

impl Scope {
    /// # Errors
    /// Addresses that name nothing.
    pub(super) fn find(input: &Draft<'_>) -> Result<Self, Vec<Diagnostic>> {
        let options = input.options;
        let asked = [
            ("--target", &options.targets),
            ("--exclude", &options.excludes),
            ("--replace", &options.replace),
            ("--renew", options.renew.named()),
        ];
        let faults: Vec<Diagnostic> = asked
            .iter()
            .flat_map(|(flag, addresses)| addresses.iter().map(move |address| (*flag, address)))
            .filter(|(_, address)| !exists(input, address))
            .map(|(flag, address)| unknown(input, flag, address))
            .collect();
        if !faults.is_empty() {
            return Err(faults);
        }
        let lapsed = lapsed::kept_ended(input);
        let (ended, mut notes) = KeptEnded::find(input, &lapsed);
        if options.targets.is_empty() && options.excludes.is_empty() {
            return Ok(Self {
                only: None,
                notes,
                ended,
                lapsed,
            });
        }
        let (wanted, surplus) = graphs(input);
        let mut only: BTreeSet<Address> = if options.targets.is_empty() {
            input
                .desired
                .specs
                .keys()
                .chain(input.recorded.existing().map(|(a, _)| a))
                .cloned()
                .collect()
        } else {
            let mut only = wanted.with_dependencies(&options.targets);
            // Ending a resource ends what stands on it.
            only.extend(
                surplus.with_dependents(options.targets.iter().filter(|a| surplus.contains(a))),
            );
            only.extend(options.targets.iter().cloned());
            only
        };
        let mut without = wanted.with_dependents(&options.excludes);
        without.extend(surplus.with_dependencies(&options.excludes));
        without.extend(options.excludes.iter().cloned());
        only.retain(|address| !without.contains(address));
        let out = input
            .desired
            .specs
            .keys()
            .chain(
                input
                    .recorded
                    .existing()
                    .map(|(a, _)| a)
                    .filter(|a| !input.desired.specs.contains_key(*a)),
            )
            .filter(|address| !only.contains(address));
        notes.extend(left_out("left out", out));
        Ok(Self {
            only: Some(only),
            notes,
            ended,
            lapsed,
        })
    }

    pub(super) fn place(&self, address: &Address) -> Place {
        if self
            .only
            .as_ref()
            .is_some_and(|only| !only.contains(address))
        {
            return Place::Out;
        }
        self.ended.place(address)
    }
}

fn exists(input: &Draft<'_>, address: &Address) -> bool {
    let recorded = input.recorded.resources.get(address);
    input.desired.specs.contains_key(address) || recorded.is_some_and(|recorded| recorded.exists())
}

fn unknown(input: &Draft<'_>, flag: &str, address: &Address) -> Diagnostic {
    let wanted = address.to_string();
    let near = input
        .desired
        .specs
        .keys()
        .chain(input.recorded.resources.keys())
        .filter(|other| other.kind() == address.kind())
        .map(ToString::to_string)
        .map(|other| (strsim::damerau_levenshtein(&wanted, &other), other))
        .min();
    let message = format!("{flag} {wanted}: nothing of that address is declared or recorded");
    let fault = Diagnostic::error("plan/unknown-address", message);
    match near {
        Some((_, near)) => fault.hint(format!("did you mean {near}?")),
        None => fault.hint("`stageline state list` names what is recorded"),
    }
}

/// Who needs whom among what is declared, and among what is only recorded. A delivery also needs every machine that
/// its rosters name, since it carries their keys.
fn graphs(input: &Draft<'_>) -> (Graph, Graph) {
    let (mut wanted, mut surplus) = (Graph::new(), Graph::new());
    for (address, spec) in &input.desired.specs {
        link(&mut wanted, address, spec);
    }
    for (address, recorded) in input.recorded.existing() {
        if input.desired.specs.contains_key(address) {
            continue;
        }
        surplus.add(address);
        if let Some(spec) = &recorded.spec {
            for dependency in needs(address, spec) {
                surplus.needs(address, &dependency);
            }
        }
    }
    (wanted, surplus)
}

pub(super) fn link(graph: &mut Graph, address: &Address, spec: &Spec) {
    graph.add(address);
    for dependency in needs(address, spec) {
        graph.needs(address, &dependency);
    }
    if let Spec::Delivery(delivery) = spec {
        let machines: BTreeSet<_> = named(delivery).collect();
        for lease in machines {
            graph.needs(address, &Address::Lease(lease.clone()));
        }
    }
}

/// One sentence for each kind, with names when they are few.
pub(super) fn left_out<'a>(what: &str, out: impl Iterator<Item = &'a Address>) -> Vec<String> {
    let mut kinds: BTreeMap<&'static str, Vec<&Address>> = BTreeMap::new();
    for address in out {
        kinds.entry(address.kind()).or_default().push(address);
    }
    kinds
        .into_iter()
        .map(|(kind, all)| match all.len() {
            0..=4 => {
                let names: Vec<String> = all.iter().map(ToString::to_string).collect();
                format!("{what}: {}", names.join(", "))
            }
            n => format!("{what}: {n} of kind {kind}, {} to {}", all[0], all[n - 1]),
        })
        .collect()
}
