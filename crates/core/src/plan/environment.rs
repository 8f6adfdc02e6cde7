//! The environment of a stage's worker: what its lease says, what its pipeline says, what it says itself.
//!
//! The nearer one wins, name by name, whether the value is secret or not: a name has one value.

use std::collections::BTreeMap;

use crate::diagnostic::Diagnostic;
use crate::id::Name;
use crate::resource::SetupSpec;
use crate::topology::{Lease, Pipeline, SecretRef, Setup};

/// What a worker is started with, and where it came from no longer matters.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Environment {
    pub(super) env: BTreeMap<String, String>,
    pub(super) secrets: BTreeMap<String, SecretRef>,
}

impl Environment {
    /// Of a stage with this `env` of its own.
    pub(super) fn of(
        lease: Option<&Lease>,
        pipeline: &Pipeline,
        stage: &BTreeMap<String, String>,
    ) -> Self {
        let mut all = Self::default();
        if let Some(lease) = lease {
            all.over(&lease.env, &lease.secrets);
        }
        all.over(&pipeline.env, &pipeline.secrets);
        all.over(stage, &BTreeMap::new());
        all
    }

    fn over(&mut self, env: &BTreeMap<String, String>, secrets: &BTreeMap<String, SecretRef>) {
        for (name, value) in env {
            self.secrets.remove(name);
            self.env.insert(name.clone(), value.clone());
        }
        for (name, secret) in secrets {
            self.env.remove(name);
            self.secrets.insert(name.clone(), secret.clone());
        }
    }
}

/// What the machines of a lease run once, with what it is run with.
///
/// # Errors
/// A file of one that nobody read.
pub(super) fn setup(name: &Name, lease: &Lease) -> Result<Option<Box<SetupSpec>>, Diagnostic> {
    match &lease.setup {
        None => Ok(None),
        Some(Setup::Script(script)) => Ok(Some(Box::new(SetupSpec {
            script: script.clone(),
            env: lease.env.clone(),
            secrets: lease.secrets.clone(),
        }))),
        Some(Setup::File(path)) => {
            let message = format!("lease.{name}: its setup {} was not read", path.display());
            let fault = Diagnostic::error("plan/setup-unseen", message);
            Err(fault.hint("what is in it must be known before a machine is rented"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::topology::{SourceFile, VarSources, read};

    fn of(lease: &str, pipeline: &str, stage: &str) -> Environment {
        let text = format!(
            "version = 1\nname = \"case\"\n[provider.here]\nkind = \"local\"\n[offer.small]\nprovider = \"here\"\n\
             [lease.node]\noffers = [\"small\"]\n{lease}\n[pipeline.chat]\nengine = \"stub\"\n{pipeline}\n\
             stages = [{{ on = \"lease.node[0]\", {stage} }}]\n"
        );
        let name = "topology.toml".to_owned();
        let read = read(&[SourceFile { name, text }], &VarSources::default());
        let (topology, _) = read.expect("no errors");
        let pipeline = topology.pipelines.values().next().expect("one");
        let crate::topology::Stages::Listed(stages) = &pipeline.stages else {
            panic!("they are listed")
        };
        Environment::of(topology.leases.values().next(), pipeline, &stages[0].env)
    }

    fn said(environment: &Environment) -> Vec<String> {
        let env = environment.env.iter();
        let env = env.map(|(name, value)| format!("{name}={value}"));
        let secrets = environment.secrets.iter();
        let secrets = secrets.map(|(name, secret)| format!("{name}: {secret:?}"));
        env.chain(secrets).collect()
    }

    #[test]
    fn the_nearer_wins_secret_or_not() {
        let lease = "env = { A = \"lease\", B = \"lease\", C = \"lease\", D = \"lease\" }\n\
                     secrets = { S = { env = \"LEASE\" }, T = { env = \"LEASE\" }, U = { env = \"LEASE\" } }";
        let pipeline = "env = { B = \"pipeline\", C = \"pipeline\", T = \"pipeline\" }\n\
                        secrets = { D = { env = \"PIPELINE\" }, U = { env = \"PIPELINE\" } }";
        assert_eq!(
            said(&of(lease, pipeline, "env = { C = \"stage\" }")),
            [
                "A=lease",
                "B=pipeline",
                "C=stage",
                "T=pipeline",
                "D: Env(\"PIPELINE\")",
                "S: Env(\"LEASE\")",
                "U: Env(\"PIPELINE\")"
            ]
        );
    }

    #[test]
    fn without_any_there_is_none() {
        assert_eq!(of("", "", "env = {}"), Environment::default());
    }
}
