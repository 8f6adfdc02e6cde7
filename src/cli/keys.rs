//! What only the holder of the identity can derive, and secrets that are read when they are needed.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use secrecy::{SecretBox, SecretString};
use stageline_core::id::{
    Address, Attempt, EndpointKey, Fingerprint, Generation, LeaseId, Lineage,
};
use stageline_core::journal::Verb;
use stageline_core::plan::{Plan, Verdict};
use stageline_core::resource::{Cause, FailureClass, Spec, ViaSpec};
use stageline_core::topology::SecretRef;

use super::Failure;
use crate::ambient::{
    self,
    secret_file::{self, SecretFileError},
};
use crate::apply::{Keys, Secrets};
use crate::pipeline::endpoint::RelayAccess;
use crate::pipeline::keys::{self, Secret};
use crate::provider::Boot;
use crate::store::Identity;

/// The keys of one identity in one lineage.
pub(crate) struct IdentityKeys {
    pub identity: Identity,
    pub lineage: Lineage,
    /// The relay that agents keep a connection to.
    pub relay: Option<RelayAccess>,
}

impl IdentityKeys {
    /// The key by which the operator speaks to agents.
    pub fn operator(&self) -> Secret {
        keys::operator(self.identity.secret(), &self.lineage)
    }

    fn agent(&self, lease: &LeaseId, generation: Generation, attempt: Attempt) -> Secret {
        let address = Address::Lease(lease.clone());
        keys::agent(
            self.identity.secret(),
            &self.lineage,
            &address,
            generation,
            attempt,
        )
    }
}

impl Keys for IdentityKeys {
    fn endpoint(&self, lease: &LeaseId, generation: Generation, attempt: Attempt) -> EndpointKey {
        self.agent(lease, generation, attempt).endpoint()
    }

    fn boot(&self, lease: &LeaseId, generation: Generation, attempt: Attempt) -> Boot {
        Boot {
            agent_key: SecretBox::new(Box::new(*self.agent(lease, generation, attempt).expose())),
            operator: self.identity.operator(&self.lineage),
            lineage: self.lineage,
            lease: lease.clone(),
            generation,
            attempt,
            relay: self.relay.clone(),
            limits: None,
        }
    }

    fn relay_token_digest(&self) -> Option<Fingerprint> {
        super::relay::token_digest(self.relay.as_ref()?.token.as_ref()?, &self.lineage)
    }
}

/// Reads secrets from environment, files and programs.
pub(crate) struct References {
    /// Relative paths start here.
    pub folder: PathBuf,
}

impl Secrets for References {
    fn read(&self, secret: &SecretRef) -> Result<SecretString, Cause> {
        let text = match secret {
            SecretRef::Env(name) => ambient::variable(name)
                .ok_or_else(|| auth(format!("the environment variable {name} is not set"))),
            SecretRef::File(path) => self.file(path),
            SecretRef::Command(argv) => command(argv),
        }?;
        let line = text.strip_suffix('\n').unwrap_or(&text);
        let line = line.strip_suffix('\r').unwrap_or(line);
        if line.is_empty() {
            return Err(auth(format!("{} is empty", shown(secret))));
        }
        Ok(SecretString::from(line.to_owned()))
    }
}

impl References {
    fn file(&self, path: &std::path::Path) -> Result<String, Cause> {
        let path = self.folder.join(path);
        let shown = path.display();
        let text = secret_file::read(&path).map_err(|error| match error {
            SecretFileError::Exposed { .. } => auth(format!("{shown} can be read by others"))
                .hint(format!("type `chmod 600 {shown}`")),
            SecretFileError::NotAFile => auth(format!("{shown} is not a regular file")),
            SecretFileError::NotText | SecretFileError::TooLong | SecretFileError::Io(_) => {
                auth(format!("cannot read {shown}: {error}"))
            }
        })?;
        Ok(text.as_str().to_owned())
    }
}

/// Whether every secret that this plan needs can be read: better known before a machine is rented. Programs are run when
/// their secret is needed and not before: they may ask somebody.
///
/// # Errors
/// [`Failure`] that names each secret that is missing, and who needs it.
pub(crate) fn at_hand(plan: &Plan, folder: &Path) -> Result<(), Failure> {
    let references = References {
        folder: folder.to_owned(),
    };
    let mut missing: BTreeMap<String, (Option<String>, Vec<String>)> = BTreeMap::new();
    // A machine that is ready has its setup behind it.
    let waits = plan.steps.iter().filter(|step| step.verb == Verb::Await);
    let waited_for: BTreeSet<&Address> = waits.map(|step| &step.address).collect();
    for change in &plan.changes {
        let made = match change.verdict {
            Verdict::Create | Verdict::Update | Verdict::Replace => change.spec.as_ref(),
            Verdict::Delete | Verdict::Keep => None,
        };
        let made = made.filter(|spec| match spec {
            Spec::Lease(_) => waited_for.contains(&change.address),
            Spec::Delivery(_) | Spec::Stage(_) | Spec::Pipeline(_) | Spec::Exposure(_) => true,
        });
        for secret in made.into_iter().flat_map(secrets) {
            let by_program = matches!(secret, SecretRef::Command(_));
            if let (false, Err(cause)) = (by_program, references.read(secret)) {
                let (_, needed) = missing
                    .entry(cause.message)
                    .or_insert((cause.hint, Vec::new()));
                needed.push(change.address.to_string());
            }
        }
    }
    let Some((_, (hint, _))) = missing.first_key_value() else {
        return Ok(());
    };
    let hint = hint
        .clone()
        .unwrap_or_else(|| "nothing was begun; bring the secret and run this again".to_owned());
    let lines: Vec<String> = missing
        .iter()
        .map(|(message, (_, needed))| format!("{}: {message}", needed.join(", ")))
        .collect();
    Err(Failure::user(lines.join("; ")).hint(hint))
}

/// The secrets that making a resource needs.
fn secrets(spec: &Spec) -> Vec<&SecretRef> {
    match spec {
        Spec::Stage(stage) => stage.secrets.values().collect(),
        Spec::Exposure(exposure) => {
            let ViaSpec::Loopback { api_key, .. } = &exposure.via;
            api_key.iter().collect()
        }
        Spec::Delivery(delivery) => {
            let shares = delivery.pipelines.values();
            let models = shares.filter_map(|share| share.shard.as_ref()?.model.token.as_ref());
            let relay = delivery.relay.as_ref();
            let relay = relay.and_then(|relay| relay.token.as_ref());
            models.chain(relay).collect()
        }
        Spec::Lease(lease) => {
            let setup = lease.setup.iter();
            let setup = setup.flat_map(|setup| setup.secrets.values());
            let logins = lease
                .terms
                .iter()
                .filter_map(|terms| terms.registry.as_ref());
            setup.chain(logins.map(|login| &login.password)).collect()
        }
        Spec::Pipeline(_) => Vec::new(),
    }
}

fn command(argv: &[String]) -> Result<String, Cause> {
    let Some((program, arguments)) = argv.split_first() else {
        return Err(auth("a secret's command is empty".to_owned()));
    };
    let output = Command::new(program)
        .args(arguments)
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .output()
        .map_err(|error| auth(format!("cannot run `{program}` for a secret: {error}")))?;
    if !output.status.success() {
        return Err(auth(format!(
            "`{program}`, run for a secret, failed: {}",
            output.status
        )));
    }
    let not_text = || auth(format!("`{program}`, run for a secret, printed no text"));
    let text = String::from_utf8(output.stdout).map_err(|_| not_text())?;
    Ok(text.lines().next().unwrap_or_default().to_owned())
}

fn shown(secret: &SecretRef) -> String {
    match secret {
        SecretRef::Env(name) => format!("the environment variable {name}"),
        SecretRef::File(path) => path.display().to_string(),
        SecretRef::Command(argv) => {
            format!(
                "what `{}` printed",
                argv.first().map(String::as_str).unwrap_or_default()
            )
        }
    }
}

fn auth(message: String) -> Cause {
    Cause::new(FailureClass::Auth, message)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::machine::control;
    use crate::pipeline::endpoint::RelaySettings;
    use crate::provider::http::fingerprint;
    use crate::store::Surroundings;

    const CANARY: &str = "canary-debug-7f3a";

    /// Everything that holds a secret and can be printed for us. What cannot be printed at all is not here.
    #[test]
    fn nothing_that_holds_a_secret_prints_it() {
        let bytes = *b"canary-debug-7f3a-canary-debug-7";
        let secret = Secret::new(bytes);
        let lineage = Lineage([7; 16]);
        let derived = keys::operator(&secret, &lineage);
        let token = || SecretString::from(CANARY.to_owned());
        let access = RelayAccess {
            settings: RelaySettings {
                url: "https://relay.example".to_owned(),
                ca_pem: None,
            },
            token: Some(token()),
        };
        let variables = [
            ("AWS_SECRET_ACCESS_KEY".to_owned(), CANARY.to_owned()),
            ("AZURE_STORAGE_ACCOUNT_KEY".to_owned(), CANARY.to_owned()),
        ];
        let around = Surroundings::new(BTreeMap::from(variables), None);
        let printed = [
            format!("{secret:?} {secret:#?} {derived:?}"),
            format!("{access:?} {access:#?}"),
            format!("{around:?} {around:#?}"),
            format!("{:?}", control::Secret(token())),
            format!("{:?}", SecretBox::new(Box::new(bytes))),
            fingerprint(CANARY),
        ];
        let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        let listed = format!("{bytes:?}");
        let of_derived = format!("{:?}", derived.expose());
        for text in printed {
            for form in [CANARY, &hex[..12], &listed[1..20], &of_derived[1..20]] {
                assert!(!text.contains(form), "{text}");
            }
        }
    }
}
