//! A machine that boots: the real agent, as a process in a folder of its own.
//!
//! The agent holds the other end of a pipe of ours as its standard input, so that it ends when we do, however we end.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use stageline_core::offer::Facts;

use super::Kind;
use crate::agent::boot::Package;
use crate::agent::folder::{self, Folder, MACHINE_DIR};
use crate::agent::process::end_leftovers;
use crate::ambient::{agent_environment, random};

/// What the key that a machine is handed for itself begins with; its number follows.
pub(super) const OWN_KEY: &str = "only-";

/// The agent of a machine.
pub struct Agent {
    folder: PathBuf,
    child: tokio::process::Child,
}

/// Where machines are, and which program their agents are.
pub(super) struct Booter {
    root: PathBuf,
    program: Option<PathBuf>,
    kind: Kind,
}

impl Booter {
    pub(super) fn new(program: Option<PathBuf>, kind: Kind) -> std::io::Result<Self> {
        let name = u64::from_be_bytes(random());
        let root = std::env::temp_dir().join(format!("stageline-sim-{name:016x}"));
        folder::make_dir(&root).map_err(std::io::Error::other)?;
        Ok(Self {
            root: root.canonicalize()?,
            program,
            kind,
        })
    }

    /// Starts the agent, where the machine was handed a package for one.
    pub(super) fn start(
        &self,
        id: u64,
        env: &BTreeMap<String, String>,
        found: &Facts,
        listen: Option<SocketAddr>,
    ) -> Option<Agent> {
        let program = self.program.as_ref()?;
        let package = Package::from_environment(|name| env.get(name).cloned());
        let mut package = package.ok()??;
        // All machines share this computer: one has a free port of it, which is mapped, or a loopback address of its own.
        package.config.listen = listen;
        let dir = self.root.join(id.to_string());
        package.unpack(&dir).ok()?;
        folder::write_json(&Folder::new(&dir).facts(), found).ok()?;
        let output = std::fs::File::create(dir.join("agent.out")).ok()?;
        let child = tokio::process::Command::new(program)
            .args(["agent", "--until-eof", "--dir"])
            .arg(&dir)
            .env_clear()
            .envs(agent_environment())
            .env(MACHINE_DIR, &dir)
            .envs(own_key(&package, self.kind, id))
            .current_dir(&dir)
            .stdin(Stdio::piped())
            .stdout(output.try_clone().ok()?)
            .stderr(output)
            .process_group(0)
            .kill_on_drop(true)
            .spawn()
            .ok()?;
        Some(Agent { folder: dir, child })
    }

    /// Removes what is left.
    pub(super) fn end(&self) {
        std::fs::remove_dir_all(&self.root).ok();
    }
}

/// A machine that can end itself is handed its id and a key for that alone.
fn own_key(package: &Package, kind: Kind, number: u64) -> Vec<(String, String)> {
    let own = package.config.own_end.iter();
    let pairs = own.flat_map(|own| {
        let key = format!("{OWN_KEY}{number}");
        [(own.id.clone(), kind.id(number)), (own.key.clone(), key)]
    });
    pairs.collect()
}

impl Agent {
    /// Where it listens, once it does.
    pub fn address(&self) -> Option<SocketAddr> {
        let contact = Folder::new(&self.folder).read_contact().ok()??;
        contact.direct.first().copied()
    }

    /// What it printed.
    pub fn log(&self) -> String {
        let read = |path: &Path| std::fs::read_to_string(path).unwrap_or_default();
        let log = read(&Folder::new(&self.folder).log());
        format!("{log}{}", read(&self.folder.join("agent.out")))
    }

    /// Ends it as a machine ends: at once, with all that it started.
    pub(super) async fn kill(mut self) {
        self.child.kill().await.ok();
        let folder = self.folder;
        let work = move || {
            end_leftovers(&Folder::new(&folder));
            std::fs::remove_dir_all(&folder).ok();
        };
        tokio::task::spawn_blocking(work).await.ok();
    }
}
