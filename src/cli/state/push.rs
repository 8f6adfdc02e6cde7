//! `state push` and the renaming of a topology: the state goes on in another place, or under another name.
//!
//! The old place is closed first, for good: whoever comes there is told where it goes on. Then the whole state is put into
//! the new place, as of its number. Cut off in between, nobody can work on either, and saying it again finishes it.

use stageline_core::id::Name;
use stageline_core::journal::Record;
use stageline_core::state::State;

use super::super::console::Console;
use super::super::project::Place;
use super::super::surgery::Operation;
use super::super::{Exit, Failure, session};
use crate::ambient::{self, SharedClock};
use crate::store::{Begin, Journal, Loaded, Mode, Store, Writer};

/// Move the state to another store; nobody goes on at the old one.
#[derive(Debug, clap::Args)]
pub(crate) struct Push {
    /// Where to: a folder or URL
    #[arg(value_name = "URL")]
    to: String,
    /// Do not ask
    #[arg(long)]
    auto_approve: bool,
}

impl Push {
    pub async fn run(&self, place: &Place, console: &Console) -> Result<Exit, Failure> {
        let to = Place {
            url: self.to.parse()?,
            ..place.clone()
        };
        relocate(place, &to, "state push", self.auto_approve, console).await
    }
}

/// The same state under another topology name.
pub(crate) async fn rename(
    place: &Place,
    from: Name,
    to: Name,
    auto_approve: bool,
    console: &Console,
) -> Result<Exit, Failure> {
    let (old, new) = (
        Place {
            name: from,
            ..place.clone()
        },
        Place {
            name: to,
            ..place.clone()
        },
    );
    relocate(&old, &new, "state mv", auto_approve, console).await
}

async fn relocate(
    from: &Place,
    to: &Place,
    command: &str,
    auto_approve: bool,
    console: &Console,
) -> Result<Exit, Failure> {
    let operation = Operation {
        place: from,
        command,
        question: "Move it there?",
        auto_approve,
    };
    let there = label(to);
    if label(from) == there {
        return Err(Failure::user("it is there already").hint("name another place"));
    }
    let clock = ambient::steady(session::clock());
    let reader = from.open(Mode::Read).await?;
    let loaded = reader.read_closed().await?;
    if loaded.state.genesis.is_none() {
        return Err(
            Failure::user(format!("`{}` has no state to move", from.name))
                .hint("nothing was applied yet: just use the new place"),
        );
    }
    let begun = loaded.state.closed.clone();
    if let Some(elsewhere) = begun.as_ref().filter(|elsewhere| **elsewhere != there) {
        return Err(
            Failure::user(format!("it was moved to {elsewhere} already"))
                .hint("go on there; or move it on from there"),
        );
    }
    let machines = Machines::of(&loaded.state, from, to)?;
    let target = to.open(Mode::Write).await?;
    free(&target, &loaded).await?;
    console.line(&format!(
        "{} goes on at {there}; nobody can work on {} any more, and a plan that was begun there is not resumed",
        from.name,
        label(from)
    ));
    if !auto_approve && !console.confirm(operation.question)? {
        console.say("nothing was changed");
        return Ok(Exit::User);
    }
    let store = from.open(Mode::Write).await?;
    let (lock, writer) = operation.lock(&store, &clock).await?;
    let moving = Moving {
        operation: &operation,
        from,
        to,
        machines,
        clock: &clock,
    };
    let moved = moving.carry(&store, &target, &loaded, writer).await;
    lock.release().await;
    moved.map_err(|failure| {
        failure.hint(format!(
            "the old place may be closed already: say the same command again to finish the move to {there}"
        ))
    })?;
    console.say(&format!("moved; from now on: {}", options(from, to)));
    Ok(Exit::Done)
}

/// A move that was agreed to.
struct Moving<'a> {
    operation: &'a Operation<'a>,
    from: &'a Place,
    to: &'a Place,
    machines: Machines,
    clock: &'a SharedClock,
}

impl Moving<'_> {
    /// Closes the old place, then fills the new one.
    async fn carry(
        &self,
        store: &Store,
        target: &Store,
        loaded: &Loaded,
        writer: Writer,
    ) -> Result<(), Failure> {
        if loaded.state.closed.is_none() {
            let fresh = store.read_closed().await?;
            let begin = self.operation.begin(&loaded.state);
            let closed = Record::Closed {
                to: label(self.to),
                at: self.clock.now(),
            };
            one_record(store, fresh, begin, writer.clone(), closed).await?;
        }
        let last = store.read_closed().await?;
        target.receive(&last, &self.to.name).await?;
        self.machines.link()?;
        identity(self.from, self.to)?;
        let opened = target.read_closed().await?;
        if opened.head == last.head {
            let begin = self.operation.begin(&opened.state);
            let record = Record::Opened {
                topology: self.to.name.clone(),
                from: label(self.from),
                at: self.clock.now(),
            };
            one_record(target, opened, begin, writer, record).await?;
        }
        Ok(())
    }
}

async fn one_record(
    store: &Store,
    loaded: Loaded,
    begin: Begin,
    writer: Writer,
    record: Record,
) -> Result<(), Failure> {
    let journal = Journal::begin(store, loaded, begin, writer).await?;
    journal.append(vec![record]).await?;
    journal.finish(true).await?;
    Ok(())
}

/// Nothing of anybody else may be in the way, before the old place is closed.
async fn free(target: &Store, loaded: &Loaded) -> Result<(), Failure> {
    let there = target.read_closed().await?;
    let lineage = |state: &State| state.genesis.as_ref().map(|genesis| genesis.lineage);
    let same = lineage(&there.state) == lineage(&loaded.state);
    // It was moved away from there once; or the old place is closed already, and this is the same move again.
    let earlier = there.state.closed.is_some() && there.head < loaded.head;
    let again = loaded.state.closed.is_some();
    if there.state.genesis.is_none() || (same && (earlier || again)) {
        return Ok(());
    }
    Err(
        Failure::user(format!("{} holds a state already", target.place()))
            .hint("name an empty place; states are not merged"),
    )
}

fn label(place: &Place) -> String {
    match &place.workspace {
        Some(workspace) => format!("{} of {}.{workspace}", place.url, place.name),
        None => format!("{} of {}", place.url, place.name),
    }
}

/// What is to be typed from now on.
fn options(from: &Place, to: &Place) -> String {
    if from.url == to.url {
        format!(
            "name = \"{}\" in the topology file, or --name {} without one",
            to.name, to.name
        )
    } else {
        format!(
            "--state {}, or url = \"{}\" in [state] of the topology",
            to.url, to.url
        )
    }
}

/// Machines that live in the folder of the old place.
struct Machines {
    link: Option<(std::path::PathBuf, std::path::PathBuf)>,
}

impl Machines {
    /// Those of `local` stay where they are; the new place points there.
    fn of(state: &State, from: &Place, to: &Place) -> Result<Self, Failure> {
        let mut leases = state.existing().filter_map(|(address, _)| address.lease());
        let lives_here = leases.any(|lease| {
            let held = state.lease(lease);
            held.is_some_and(|held| held.provider_kind == "local")
        });
        if !lives_here {
            return Ok(Self { link: None });
        }
        let old = std::path::absolute(from.folder().join("machines"))?;
        Ok(Self {
            link: Some((old, to.folder().join("machines"))),
        })
    }

    fn link(&self) -> Result<(), Failure> {
        let Some((old, new)) = &self.link else {
            return Ok(());
        };
        if new.symlink_metadata().is_ok() {
            return Ok(());
        }
        if let Some(folder) = new.parent() {
            std::fs::create_dir_all(folder)?;
        }
        std::os::unix::fs::symlink(old, new)?;
        Ok(())
    }
}

/// The identity goes along from folder to folder; it never goes into a shared store.
fn identity(from: &Place, to: &Place) -> Result<(), Failure> {
    let (old, new) = (
        from.folder().join("identity.key"),
        to.folder().join("identity.key"),
    );
    if !old.exists() || new.exists() {
        return Ok(());
    }
    // Copies the mode, too: owner-only.
    std::fs::copy(&old, &new)?;
    std::fs::File::open(&new)?.sync_all()?;
    Ok(())
}
