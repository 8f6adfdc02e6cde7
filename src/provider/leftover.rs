//! What some providers keep beside a machine and outlives it: an SSH key, a login. It is listed as a machine that is over and costs
//! nothing, so that whatever sees to machines sees to it too; its id says that it is none.
//!
//! What always holds: one is named by the request key of the try that it was made for; it is listed as long as the machine of that try
//! is not. A machine that is not listed yet may need it, so that it proves nothing about that machine.

use std::collections::BTreeSet;

use stageline_core::id::{MachineId, RequestKey};
use stageline_core::label::Label;
use stageline_core::offer::Facts;
use stageline_core::resource::{Cause, Contact, Outcome};
use stageline_core::unit::MicroDollars;

use super::{Machine, MachineStatus};

/// One that is in an account.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Kept {
    /// What the account calls it.
    pub id: String,
    /// The try that it was made for.
    pub of: RequestKey,
}

/// A kind of them.
pub(super) struct Leftover {
    /// What its ids begin with among machines.
    head: &'static str,
    /// What it is.
    what: &'static str,
    /// The same, where it was made for a machine.
    made: &'static str,
}

/// SSH keys.
pub(super) const SSH_KEY: Leftover = Leftover {
    head: "ssh-key:",
    what: "an SSH key of the account",
    made: "the SSH key that was registered for",
};

/// Logins at registries of images.
pub(super) const CREDENTIAL: Leftover = Leftover {
    head: "credential:",
    what: "a login for an image, kept in the account",
    made: "the login that was kept in the account for the image of",
};

impl Machine {
    /// What it is in truth, for people, where it only outlived one; none is a machine.
    pub fn leftover(&self) -> Option<&'static str> {
        let id = self.id.as_str();
        let all = [SSH_KEY, CREDENTIAL];
        let found = all.into_iter().find(|kind| id.starts_with(kind.head));
        found.map(|kind| kind.what)
    }
}

impl Leftover {
    /// What the account calls the one with this id among machines; none is none of these.
    pub fn id_of<'a>(&self, machine: &'a MachineId) -> Option<&'a str> {
        machine.as_str().strip_prefix(self.head)
    }

    /// Those whose machines are not there.
    pub fn alone<'a>(
        &self,
        all: &[Kept],
        there: impl Iterator<Item = &'a RequestKey>,
    ) -> Vec<Machine> {
        let there: BTreeSet<&RequestKey> = there.collect();
        let alone = all.iter().filter(|one| !there.contains(&one.of));
        alone.filter_map(|one| self.shown(one)).collect()
    }

    /// The one with this id among machines; none when it is gone.
    pub fn find(&self, all: &[Kept], machine: &MachineId) -> Option<Machine> {
        let id = self.id_of(machine)?;
        self.shown(all.iter().find(|one| one.id == id)?)
    }

    /// How a create ended of which nothing came, after what was made for it was removed or could not be. While it is there it is
    /// not over, and its name says what to look for in the account.
    pub fn withdrawn(
        &self,
        name: &str,
        cause: Cause,
        removed: Result<(), Cause>,
    ) -> Outcome<Machine> {
        match removed {
            Ok(()) => Outcome::Refused(cause),
            Err(left) => Outcome::InDoubt(Cause {
                message: format!(
                    "{}; and {} it, `{name}`, could not be removed: {}",
                    cause.message, self.made, left.message
                ),
                ..cause
            }),
        }
    }

    /// One as a machine that is over.
    fn shown(&self, one: &Kept) -> Option<Machine> {
        let why = format!("it is no machine, but {} one that is not there", self.made);
        Some(Machine {
            id: format!("{}{}", self.head, one.id).parse().ok()?,
            name: Label::new(one.of.as_str()),
            request_key: Some(one.of.clone()),
            status: MachineStatus::Dead(why),
            price_per_hour: MicroDollars::ZERO,
            facts: Facts::default(),
            contact: Contact::default(),
            created_at: None,
            ended_at: None,
            told_at: None,
            away_price: None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use stageline_core::resource::FailureClass;

    fn kept(id: &str, attempt: u32) -> Kept {
        let of = format!("sl-0102030405060708-aabbccdd-g1a{attempt}");
        Kept {
            id: id.to_owned(),
            of: of.parse().expect("a request key"),
        }
    }

    #[test]
    fn one_that_cannot_be_removed_is_named() {
        let why = |text: &str| Cause::new(FailureClass::Unknown, text);
        let name = kept("a", 1).of;
        let name = name.as_str();
        let gone = SSH_KEY.withdrawn(name, why("no launch"), Ok(()));
        assert_eq!(gone, Outcome::Refused(why("no launch")));
        let left = SSH_KEY.withdrawn(name, why("no launch"), Err(why("no answer")));
        let told = "no launch; and the SSH key that was registered for it, `sl-0102030405060708-aabbccdd-g1a1`, could not be removed: no answer";
        assert_eq!(left, Outcome::InDoubt(why(told)));
    }

    #[test]
    fn one_whose_machine_is_there_is_not_left_over() {
        let all = [kept("a", 1), kept("b", 2)];
        let there = [all[0].of.clone()];
        let left = CREDENTIAL.alone(&all, there.iter());
        assert_eq!(left.len(), 1);
        assert_eq!(left[0].id.as_str(), "credential:b");
        assert_eq!(left[0].leftover(), Some(CREDENTIAL.what));
        assert_eq!(CREDENTIAL.find(&all, &left[0].id), Some(left[0].clone()));
        assert_eq!(SSH_KEY.find(&all, &left[0].id), None);
        assert_eq!(CREDENTIAL.find(&all[..1], &left[0].id), None, "it is gone");
    }
}
