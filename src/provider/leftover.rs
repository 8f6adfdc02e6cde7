//! What some providers keep beside a machine and outlives it: an SSH key, a login. It is listed as a machine that is over and costs
//! nothing, so that whatever sees to machines sees to it too; its id says that it is none.

use stageline_core::id::RequestKey;
use stageline_core::label::Label;
use stageline_core::offer::Facts;
use stageline_core::resource::Contact;
use stageline_core::unit::MicroDollars;

use super::{Machine, MachineStatus};

/// What the ids of SSH keys begin with.
pub(super) const SSH_KEY: &str = "ssh-key:";

/// What the ids of logins at registries of images begin with.
pub(super) const CREDENTIAL: &str = "credential:";

impl Machine {
    /// What it is in truth, for people, where it only outlived one; none is a machine.
    pub fn leftover(&self) -> Option<&'static str> {
        let all = [
            (SSH_KEY, "an SSH key of the account"),
            (CREDENTIAL, "a login for an image, kept in the account"),
        ];
        let id = self.id.as_str();
        let found = all.iter().find(|(head, _)| id.starts_with(head));
        found.map(|(_, what)| *what)
    }
}

/// It as a machine that is over.
pub(super) fn shown(head: &str, id: &str, of: RequestKey, why: &str) -> Option<Machine> {
    Some(Machine {
        id: format!("{head}{id}").parse().ok()?,
        name: Label::new(of.as_str()),
        request_key: Some(of),
        status: MachineStatus::Dead(why.to_owned()),
        price_per_hour: MicroDollars::ZERO,
        facts: Facts::default(),
        contact: Contact::default(),
        created_at: None,
        ended_at: None,
        told_at: None,
    })
}
