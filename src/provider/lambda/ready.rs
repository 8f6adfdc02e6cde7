//! What an account must have before a machine is made there: an SSH key, and an open port for the agents.
//!
//! Nothing is added to an account here: what is missing is said, before anything is rented. What was found is not asked for again
//! for a while. A machine whose agent is pushed is made with a key of its own, and lets in the owner of `ssh_key` beside it.

use std::time::Duration;

use serde_json::Value;
use stageline_core::resource::{Cause, FailureClass};

use super::boot::PORT;
use super::keys::is_pushed;
use super::wire::{data, text, whole};
use super::{ANY, Lambda};
use crate::provider::CreateRequest;
use crate::provider::http::{Call, Fault};

/// How old the account's keys may be: one that was there stays there.
const READ_AGE: Duration = Duration::from_secs(600);

/// By which keys one is let in to a new machine.
pub(super) struct LetIn {
    /// The account's key that it is made with.
    pub(super) name: String,
    /// The public half of another one.
    pub(super) more: Option<String>,
}

/// Names of keys that a message lists.
const NAMES_MAX: usize = 5;

impl Lambda {
    /// The SSH key that the machine is made with, and the public half of one more that is let in.
    pub(super) async fn ssh_key(&self, request: &CreateRequest) -> Result<LetIn, Fault> {
        let asked = self.settings.ssh_key.as_deref();
        let pushed = is_pushed(request);
        let own = || request.request_key.as_str().to_owned();
        if pushed && asked.is_none() {
            return Ok(LetIn {
                name: own(),
                more: None,
            });
        }
        let keys = self.account_keys(READ_AGE).await?;
        let names: Vec<String> = keys.iter().map(|key| key.name.clone()).collect();
        let name = choose(&names, asked, &self.settings.name).map_err(Fault::before)?;
        if !pushed {
            return Ok(LetIn { name, more: None });
        }
        let more = keys.iter().find(|key| key.name == name);
        Ok(LetIn {
            name: own(),
            more: more.map(|key| key.public.clone()),
        })
    }

    /// Without a relay, agents are reached at a port of the machine that the account's rules must let in.
    pub(super) async fn port_is_open(&self) -> Result<(), Fault> {
        if self.settings.relay.is_some() {
            return Ok(());
        }
        let ask = || async {
            let answer = self.read(Call::get("/api/v1/firewall-rules", ANY)).await?;
            let rules = data(&answer.body)?.as_array();
            let rules = rules.ok_or_else(|| Fault::shape("its `data` is no list of rules"))?;
            match rules.iter().any(lets_in) {
                true => Ok(()),
                false => Err(Fault::before(closed())),
            }
        };
        self.open.get_or_try_init(ask).await.copied()
    }
}

fn closed() -> Cause {
    let message = format!(
        "the account's inbound rules do not let UDP port {PORT} in, at which agents are reached"
    );
    Cause::new(FailureClass::Config, message).hint(format!(
        "add the rule `UDP {PORT}` at Lambda's console (Firewall), or give agents a [relay]; nothing was rented"
    ))
}

/// The one that was asked for, or the only one.
pub(super) fn choose(
    keys: &[String],
    asked: Option<&str>,
    provider: &stageline_core::id::Name,
) -> Result<String, Cause> {
    let config = |message: String| Cause::new(FailureClass::Config, message);
    let shown = || {
        let mut names: Vec<String> = keys.to_vec();
        names.sort();
        let more = names.len().saturating_sub(NAMES_MAX);
        names.truncate(NAMES_MAX);
        match more {
            0 => names.join(", "),
            more => format!("{} and {more} more", names.join(", ")),
        }
    };
    match (asked, keys) {
        (Some(asked), keys) if keys.iter().any(|key| key == asked) => Ok(asked.to_owned()),
        (_, []) => {
            let message = "the account has no SSH key, and the provider makes no machine without";
            let hint = "add one at Lambda's console (SSH keys); nothing was rented";
            Err(config(message.to_owned()).hint(hint))
        }
        (Some(asked), _) => Err(
            config(format!("the account has no SSH key `{asked}`")).hint(format!(
                "`ssh_key` of [provider.{provider}] may be one of: {}",
                shown()
            )),
        ),
        (None, [only]) => Ok(only.clone()),
        (None, _) => {
            let message = format!("the account has {} SSH keys", keys.len());
            Err(config(message).hint(format!(
                "say which one machines are made with: `ssh_key` of [provider.{provider}], one of: {}",
                shown()
            )))
        }
    }
}

/// Whether a rule lets datagrams in at the agents' port.
pub(super) fn lets_in(rule: &Value) -> bool {
    let protocol = text(rule, "protocol").unwrap_or_default();
    let ports = rule.get("port_range").and_then(Value::as_array);
    let covers = ports.is_none_or(|ports| {
        let at = |index: usize| {
            let port = serde_json::json!({ "port": ports.get(index) });
            whole(&port, "port")
        };
        match (at(0), at(1)) {
            (Some(first), Some(last)) => (first..=last).contains(&u64::from(PORT)),
            (Some(only), None) => only == u64::from(PORT),
            (None, _) => ports.is_empty(),
        }
    });
    matches!(protocol.as_str(), "udp" | "all") && covers
}
