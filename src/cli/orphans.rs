//! `orphans`: machines that carry our mark and that no state records, also when the state is gone.
//!
//! Every configured provider is asked, and the states afterwards. Nothing is ended or adopted unless it is said; what may
//! be another topology's is ended only when its id is given. A provider that cannot be seen is never taken for empty.

mod end;
mod show;

use std::collections::BTreeSet;

use stageline_core::id::{Address, LeaseId};
use stageline_core::state::State;
use stageline_core::topology::Topology;

use super::console::Console;
use super::import::Import;
use super::project::{self, Place, Project};
use super::sellers::Sellers;
use super::{Exit, Failure, Global, session};
use crate::ambient::SharedClock;
use crate::observe::orphans::{self, Found, Known, Listing, Orphan, Whose};
use crate::store::Mode;

/// Machines with our mark that no state records.
#[derive(Debug, clap::Args)]
pub(crate) struct Orphans {
    /// Only these: an address such as lease.gpu[0], or what the provider calls a machine
    #[arg(value_name = "ADDR-or-ID")]
    names: Vec<String>,
    /// Take them back into the state
    #[arg(long, conflicts_with = "release")]
    adopt: bool,
    /// End them, and let the provider prove it
    #[arg(long)]
    release: bool,
    /// Do not ask
    #[arg(long)]
    auto_approve: bool,
}

/// Where it is looked, and with what.
struct Scene {
    topology: Option<Topology>,
    place: Place,
    folder: std::path::PathBuf,
    clock: SharedClock,
}

/// One look at everything.
struct Survey {
    listings: Vec<Listing>,
    own: State,
    found: Found,
    /// States that could not be read, with why.
    unread: Vec<String>,
}

impl Survey {
    fn is_blind(&self) -> bool {
        self.listings.iter().any(|one| !one.is_whole())
    }
}

impl Orphans {
    pub fn run(self, global: &Global, console: &Console) -> Result<Exit, Failure> {
        let scene = Scene::of(global, console)?;
        let runtime = session::runtime()?;
        let survey = runtime.block_on(scene.look())?;
        for note in &survey.unread {
            console.line(note);
        }
        let chosen = self.choose(&survey)?;
        let chosen = if self.adopt {
            self.adoptable(chosen)?
        } else {
            chosen
        };
        let shown: Vec<&Orphan> = match (self.names.is_empty(), self.adopt || self.release) {
            (true, false) => survey.found.orphans.iter().collect(),
            (_, _) => chosen.clone(),
        };
        show::tell(&survey, &shown, &scene, console)?;
        let blind = if survey.is_blind() {
            Exit::Doubt
        } else {
            Exit::Done
        };
        if !self.adopt && !self.release {
            return Ok(blind);
        }
        if chosen.is_empty() {
            show::left_alone(&survey, self.release, console);
            return Ok(blind);
        }
        let question = if self.adopt {
            "Take them into the state?"
        } else {
            "End them?"
        };
        if !self.auto_approve && !console.confirm(question)? {
            console.say("nothing was changed");
            return Ok(Exit::User);
        }
        let exit = if self.adopt {
            adopt(&chosen, &survey.own, global, console)?
        } else {
            let ids: BTreeSet<_> = chosen.iter().map(|one| end::Id::of(one)).collect();
            runtime.block_on(end::all(&scene, &survey.own, &ids, console))?
        };
        Ok(exit.max_of(blind))
    }

    /// What may be adopted: only machines are held by leases. What else was named is refused before anything is done.
    fn adoptable<'a>(&self, mut chosen: Vec<&'a Orphan>) -> Result<Vec<&'a Orphan>, Failure> {
        for orphan in &chosen {
            let id = orphan.id();
            if let Some(what) = orphan.machine.leftover().filter(|_| !self.names.is_empty()) {
                return Err(Failure::user(format!(
                    "{id} is {what} and no machine: a lease cannot hold it, so it cannot be adopted"
                ))
                .hint(format!(
                    "nothing needs it without its machine; `stageline orphans --release {id}` removes it"
                )));
            }
        }
        chosen.retain(|orphan| orphan.machine.leftover().is_none());
        Ok(chosen)
    }

    /// What is meant. Without a name it is what is surely this state's own.
    fn choose<'a>(&self, survey: &'a Survey) -> Result<Vec<&'a Orphan>, Failure> {
        let orphans = &survey.found.orphans;
        if self.names.is_empty() {
            return Ok(orphans
                .iter()
                .filter(|one| one.whose == Whose::Own)
                .collect());
        }
        let mut chosen: Vec<&Orphan> = Vec::new();
        for name in &self.names {
            let of_name = named(name, survey)?;
            for orphan in of_name {
                if !chosen
                    .iter()
                    .any(|one| end::Id::of(one) == end::Id::of(orphan))
                {
                    chosen.push(orphan);
                }
            }
        }
        Ok(chosen)
    }
}

/// The orphans of one name that was typed. An address names only machines of this state: of other lineages it may be a
/// living topology's.
fn named<'a>(name: &str, survey: &'a Survey) -> Result<Vec<&'a Orphan>, Failure> {
    let orphans = &survey.found.orphans;
    let Ok(Address::Lease(lease)) = name.parse::<Address>() else {
        let by_id = orphans.iter().filter(|one| one.id().as_str() == name);
        return several(name, by_id.collect(), survey);
    };
    let fits = orphans
        .iter()
        .filter(|one| one.lease.as_ref() == Some(&lease));
    let (own, other): (Vec<&Orphan>, Vec<&Orphan>) =
        fits.partition(|one| matches!(one.whose, Whose::Own | Whose::GivenUp));
    if let (true, Some(one)) = (own.is_empty(), other.first()) {
        return Err(Failure::user(format!(
            "a machine that was made for {lease} may be another topology's: its lineage is not this state's"
        ))
        .hint(format!("if it is surely yours, name it by its id: {}", one.id())));
    }
    if own.is_empty() && survey.own.lease(&lease).is_some() {
        return Err(
            Failure::user(format!("{lease} is recorded, so it is no orphan"))
                .hint(format!("`stageline release {lease}` ends its machine")),
        );
    }
    if own.is_empty() {
        return Err(missing(name, survey));
    }
    Ok(own)
}

fn several<'a>(
    name: &str,
    found: Vec<&'a Orphan>,
    survey: &Survey,
) -> Result<Vec<&'a Orphan>, Failure> {
    let recorded = survey.own.existing().find_map(|(address, _)| {
        let lease = address.lease()?;
        let held = survey.own.lease(lease)?;
        (held.machine.as_str() == name).then_some(lease)
    });
    match (found.len(), recorded) {
        (0, Some(lease)) => Err(Failure::user(format!(
            "machine {name} is recorded as {lease}, so it is no orphan"
        ))
        .hint(format!("`stageline release {lease}` ends it"))),
        (0, None) => Err(missing(name, survey)),
        (1, _) => Ok(found),
        (_, _) => {
            let sellers: Vec<&str> = found.iter().map(|one| one.provider.as_str()).collect();
            Err(Failure::user(format!(
                "several providers have a machine {name}: {}",
                sellers.join(", ")
            ))
            .hint("use a topology that declares only the provider that is meant"))
        }
    }
}

fn missing(name: &str, survey: &Survey) -> Failure {
    let mut alike = survey.found.look_alikes.iter();
    if let Some(one) = alike.find(|one| one.machine.as_str() == name) {
        return Failure::user(format!(
            "machine {name} is named \"{}\", which only looks like a name of ours: it is not ours and is never touched",
            one.name
        ))
        .hint(format!("if nobody needs it, end it at provider `{}`", one.provider));
    }
    let message = format!("no orphan {name} was found");
    if survey.is_blind() {
        return Failure::new(
            Exit::Doubt,
            format!("{message}, and a provider could not be seen"),
        )
        .hint("mend access to that account, then look again");
    }
    Failure::user(message).hint("`stageline orphans` lists what there is")
}

impl Scene {
    fn of(global: &Global, console: &Console) -> Result<Self, Failure> {
        // A state may be meant by its name, with the topology only for its providers.
        let plain = Global {
            name: None,
            ..global.clone()
        };
        let clock = session::clock();
        match (Project::load(&plain), &global.name) {
            (Ok(project), None) => Ok(Self {
                topology: Some(project.topology),
                place: project.place,
                folder: project.folder,
                clock,
            }),
            (Ok(project), Some(_)) => Ok(Self {
                topology: Some(project.topology),
                place: project::place(global)?,
                folder: project.folder,
                clock,
            }),
            (Err(failure), None) => Err(failure.hint(
                "providers are declared in the topology; with --name NAME only those are asked that recorded machines are on",
            )),
            (Err(_), Some(_)) => {
                console.line(
                    "no topology can be read here: only this computer is asked, and providers that recorded machines are on",
                );
                Ok(Self {
                    topology: None,
                    place: project::place(global)?,
                    folder: ".".into(),
                    clock,
                })
            }
        }
    }

    /// Leases that the topology of this state declares.
    fn declared(&self) -> Vec<LeaseId> {
        let leases = self.topology.iter().flat_map(|topology| &topology.leases);
        let all = leases.flat_map(|(name, lease)| {
            (0..lease.count).map(|index| LeaseId {
                name: name.clone(),
                index,
            })
        });
        all.collect()
    }

    /// Providers first, states afterwards: see [`orphans`].
    async fn look(&self) -> Result<Survey, Failure> {
        let before = self.place.open(Mode::Read).await?.read().await?.state;
        let sellers = Sellers {
            topology: self.topology.as_ref(),
            state: &before,
            place: &self.place,
            folder: &self.folder,
            clock: &self.clock,
        };
        let listings = orphans::list(&sellers.providers()?, self.clock.as_ref()).await;
        let own = self.place.open(Mode::Read).await?.read().await?.state;
        let (beside, unread) = self.beside().await;
        let known = Known {
            own: &own,
            beside: &beside,
            declared: self.declared(),
        };
        let found = orphans::tell(&listings, &known);
        Ok(Survey {
            listings,
            own,
            found,
            unread,
        })
    }

    /// The other states at the same place.
    async fn beside(&self) -> (Vec<(String, State)>, Vec<String>) {
        let (mut states, mut unread) = (Vec::new(), Vec::new());
        let places = match project::beside(&self.place).await {
            Ok(places) => places,
            Err(failure) => {
                unread.push(format!(
                    "whether there are states beside this one cannot be told, so their machines may be among those of unknown \
                     lineage: {}",
                    failure.message
                ));
                Vec::new()
            }
        };
        for place in places {
            let name = match &place.workspace {
                Some(workspace) => format!("{} --workspace {workspace}", place.name),
                None => place.name.to_string(),
            };
            let read =
                async { Ok::<_, Failure>(place.open(Mode::Read).await?.read().await?.state) };
            match read.await {
                Ok(state) => states.push((name, state)),
                Err(failure) => unread.push(format!(
                    "the state of `{name}` beside this one cannot be read, so its machines may be among those of unknown \
                     lineage: {}",
                    failure.message
                )),
            }
        }
        (states, unread)
    }
}

/// Takes each into the lease that it was made for.
fn adopt(
    chosen: &[&Orphan],
    own: &State,
    global: &Global,
    console: &Console,
) -> Result<Exit, Failure> {
    let mut worst = Exit::Done;
    for orphan in chosen {
        let id = orphan.id();
        let failure = match (&orphan.whose, &orphan.lease) {
            (Whose::Beside(name), _) => Failure::user(format!(
                "machine {id} is of the state `{name}`: its agent obeys that one alone"
            ))
            .hint(format!("`stageline orphans --adopt {id} --name {name}` takes it back there")),
            (Whose::Unknown, _) => Failure::user(format!(
                "machine {id} cannot be adopted: its agent obeys the identity and the lineage that it was made with, and \
                 neither can be had from its name"
            ))
            .hint(format!(
                "put that state and its identity.key back from a copy; or end it: `stageline orphans --release {id}`"
            )),
            (Whose::Own | Whose::GivenUp, None) => Failure::user(format!(
                "machine {id} was made for a lease that is neither declared nor remembered"
            ))
            .hint(format!("`stageline import ADDR {id}` takes it into a lease that you name")),
            (Whose::Own | Whose::GivenUp, Some(lease)) if own.lease(lease).is_some() => {
                Failure::user(format!(
                    "machine {id} was made for {lease}, which has another machine"
                ))
                .hint(format!(
                    "`stageline orphans --release {id}` ends it; `stageline import ADDR {id}` takes it into another lease"
                ))
            }
            (Whose::Own | Whose::GivenUp, Some(lease)) => {
                match Import::unasked(lease, id).run(global, console) {
                    Ok(exit) => {
                        worst = exit.max_of(worst);
                        continue;
                    }
                    Err(failure) => failure,
                }
            }
        };
        console.failure(&failure);
        worst = failure.exit.max_of(worst);
    }
    Ok(worst)
}

impl Exit {
    /// The one that asks more of somebody.
    fn max_of(self, other: Self) -> Self {
        if (self as u8) < (other as u8) {
            other
        } else {
            self
        }
    }
}
