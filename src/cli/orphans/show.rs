//! What was found, for people and as JSON: each machine with its age, price, and what to type; each provider with when it
//! was asked, or why it could not be seen.

use serde::Serialize;
use stageline_core::id::{Attempt, Generation, LeaseId, MachineId, Name, RequestKey};
use stageline_core::state::LookAlike;
use stageline_core::unit::{MicroDollars, Timestamp};

use super::super::Failure;
use super::super::console::Console;
use super::{Scene, Survey};
use crate::observe::orphans::{Listing, Orphan, Whose};
use crate::provider::MachineStatus;

/// Said of a provider that cannot list its account.
const ONLY_FROM_HERE: &str = "it lists only machines that were made from here, so that others that carry our mark may be there";

/// The whole answer.
#[derive(Serialize)]
struct Document<'a> {
    asked: Vec<Asked>,
    orphans: Vec<Line>,
    /// Machines of these accounts that a state records.
    recorded: usize,
    /// Machines of these accounts without a mark of ours.
    others: usize,
    /// Those of the others whose names look like ours. Nothing here touches them.
    #[serde(skip_serializing_if = "<[LookAlike]>::is_empty")]
    look_alikes: &'a [LookAlike],
}

/// A provider that was asked.
#[derive(Serialize)]
struct Asked {
    provider: Name,
    kind: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    account: Option<String>,
    at: Timestamp,
    /// Why it could not be seen; what it has is unknown then.
    #[serde(skip_serializing_if = "Option::is_none")]
    cannot_see: Option<String>,
}

/// An orphan.
#[derive(Serialize)]
struct Line {
    machine: MachineId,
    provider: Name,
    request_key: Option<RequestKey>,
    /// `own`, `given-up`, `beside` or `unknown`.
    whose: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    state: Option<String>,
    lease: Option<LeaseId>,
    generation: Option<Generation>,
    attempt: Option<Attempt>,
    status: String,
    price_per_hour: MicroDollars,
    created_at: Option<Timestamp>,
    /// An estimate: the price of now over its whole life.
    cost_about: Option<MicroDollars>,
}

/// Shows it.
pub(super) fn tell(
    survey: &Survey,
    orphans: &[&Orphan],
    scene: &Scene,
    console: &Console,
) -> Result<(), Failure> {
    let now = scene.clock.now();
    if console.json {
        console.document(&Document {
            asked: survey.listings.iter().map(asked).collect(),
            orphans: orphans.iter().map(|one| line(one, now)).collect(),
            recorded: survey.found.recorded,
            others: survey.found.others,
            look_alikes: &survey.found.look_alikes,
        })?;
    } else {
        let text: String = orphans.iter().map(|one| paragraph(one, now)).collect();
        console.data(&text)?;
    }
    for listing in &survey.listings {
        for part in &listing.unseen {
            console.line(&format!(
                "cannot see {} of provider `{}`: {}; whether machines of ours are there cannot be told",
                part.part, listing.name, part.cause.message
            ));
        }
        if listing.machines.is_ok() && !listing.provider.traits().sees_account {
            console.line(&format!(
                "cannot see all of provider `{}`: {ONLY_FROM_HERE}",
                listing.name
            ));
        }
        if let Err(blind) = &listing.machines {
            let hint = blind.cause.hint.as_ref();
            let hint = hint.map_or_else(String::new, |hint| format!(" ({hint})"));
            console.line(&format!(
                "cannot see provider `{}`: {}{hint}; whether machines of ours are there cannot be told",
                listing.name, blind.cause.message
            ));
        }
    }
    for one in &survey.found.look_alikes {
        console.line(&format!(
            "machine {} at provider `{}`, {}/h, is named \"{}\", which looks like a name of ours and is none: it is not ours and \
             is never touched; if nobody needs it, end it at the provider",
            one.machine, one.provider, one.price_per_hour, one.name
        ));
    }
    if orphans.is_empty() && survey.found.orphans.is_empty() {
        console.say(&format!("no orphan was found: {}", who_was_asked(survey)));
    } else {
        console.say(&who_was_asked(survey));
    }
    if console.level > 0 {
        console.line(&format!(
            "{} machines there are recorded; {} carry no mark of ours and are not looked at",
            survey.found.recorded, survey.found.others
        ));
    }
    Ok(())
}

/// Says why nothing is done.
pub(super) fn left_alone(survey: &Survey, release: bool, console: &Console) {
    let verb = if release { "--release" } else { "--adopt" };
    if let Some(one) = survey.found.orphans.first() {
        console.line(&format!(
            "none of these is surely of this state, so none is touched unnamed: `stageline orphans {verb} {}`",
            one.id()
        ));
    }
}

fn who_was_asked(survey: &Survey) -> String {
    let asked = survey.listings.iter().filter(|one| one.is_whole());
    let asked: Vec<String> = asked
        .map(|listing| {
            // One without a key is this computer.
            let account = listing.account.as_ref().filter(|it| it.api_key.is_some());
            let account = account.map_or_else(String::new, |it| format!(", account {}", it.id));
            let kind = listing.provider.kind();
            format!("`{}` ({kind}{account}) at {:.0}", listing.name, listing.at)
        })
        .collect();
    if asked.is_empty() {
        return "no provider could be asked".to_owned();
    }
    format!("asked: {}", asked.join(", "))
}

fn asked(listing: &Listing) -> Asked {
    Asked {
        provider: listing.name.clone(),
        kind: listing.provider.kind().to_owned(),
        account: listing.account.as_ref().map(|account| account.id.clone()),
        at: listing.at,
        cannot_see: match &listing.machines {
            Err(blind) => Some(blind.cause.message.clone()),
            Ok(_) if !listing.unseen.is_empty() => {
                let parts = listing.unseen.iter();
                let parts: Vec<String> = parts
                    .map(|part| format!("{}: {}", part.part, part.cause.message))
                    .collect();
                Some(parts.join("; "))
            }
            Ok(_) => (!listing.is_whole()).then(|| ONLY_FROM_HERE.to_owned()),
        },
    }
}

fn line(orphan: &Orphan, now: Timestamp) -> Line {
    let machine = &orphan.machine;
    let tried = machine.request_key.as_ref().map(RequestKey::try_of);
    let (whose, state) = match &orphan.whose {
        Whose::Own => ("own", None),
        Whose::GivenUp => ("given-up", None),
        Whose::Beside(name) => ("beside", Some(name.clone())),
        Whose::Unknown => ("unknown", None),
    };
    Line {
        machine: machine.id.clone(),
        provider: orphan.provider.clone(),
        request_key: machine.request_key.clone(),
        whose,
        state,
        lease: orphan.lease.clone(),
        generation: tried.map(|(generation, _)| generation),
        attempt: tried.map(|(_, attempt)| attempt),
        status: status(&machine.status),
        price_per_hour: machine.price_per_hour,
        created_at: machine.created_at,
        cost_about: orphan.cost(now),
    }
}

fn paragraph(orphan: &Orphan, now: Timestamp) -> String {
    let (machine, id) = (&orphan.machine, orphan.id());
    let age = orphan.age(now).map_or_else(
        || "of unknown age".to_owned(),
        |age| format!("{} old", span(age)),
    );
    let cost = orphan
        .cost(now)
        .map_or_else(String::new, |cost| format!(", about {cost} so far"));
    let made = match (&machine.request_key, &orphan.lease) {
        (Some(key), Some(lease)) => {
            let (generation, attempt) = key.try_of();
            format!("made for {lease}, generation {generation}, try {attempt} (named {key})")
        }
        (Some(key), None) => format!("made for a lease that is not declared here (named {key})"),
        (None, _) => "renamed since it was made".to_owned(),
    };
    let (whose, next) = match &orphan.whose {
        Whose::Own => (
            "of this topology, and not in its state".to_owned(),
            format!(
                "`stageline orphans --release {id}` ends it, `stageline orphans --adopt {id}` takes it back"
            ),
        ),
        Whose::GivenUp => (
            "taken out of this state on purpose".to_owned(),
            format!(
                "`stageline orphans --adopt {id}` takes it back, `stageline orphans --release {id}` ends it"
            ),
        ),
        Whose::Beside(name) => (
            format!("of the topology `{name}`, and not in its state"),
            format!("`stageline orphans --name {name}` shows it as its own"),
        ),
        Whose::Unknown => (
            "another topology's, or its state is lost".to_owned(),
            format!("if it is surely yours, `stageline orphans --release {id}` ends it"),
        ),
    };
    if let Some(what) = machine.leftover() {
        return format!(
            "{id} at provider `{}`: {what}, registered for a machine that is not there; it costs nothing\n    {made}\n    {whose}; `stageline orphans \
             --release {id}` removes it\n",
            orphan.provider
        );
    }
    format!(
        "machine {id} at provider `{}`: {}/h, {age}{cost}\n    {}; {made}\n    {whose}; {next}\n",
        orphan.provider,
        machine.price_per_hour,
        status(&machine.status)
    )
}

fn status(status: &MachineStatus) -> String {
    match status {
        MachineStatus::Pending(phase) => phase.to_string(),
        MachineStatus::Running => "running".to_owned(),
        MachineStatus::Ending => "on its way out, still billed".to_owned(),
        MachineStatus::Dead(why) | MachineStatus::Interrupted(why) => format!("dead ({why})"),
    }
}

/// Seconds for people.
fn span(seconds: u64) -> String {
    let (days, hours, minutes) = (seconds / 86_400, seconds / 3600 % 24, seconds / 60 % 60);
    match (days, hours, minutes) {
        (0, 0, 0) => format!("{seconds} s"),
        (0, 0, _) => format!("{minutes} min"),
        (0, _, _) => format!("{hours} h {minutes} min"),
        (_, _, _) => format!("{days} d {hours} h"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ages_are_short() {
        let said = [5, 65, 3700, 90_000].map(span);
        assert_eq!(said, ["5 s", "1 min", "1 h 1 min", "1 d 1 h"]);
    }
}
