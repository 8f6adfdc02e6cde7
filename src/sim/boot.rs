//! A machine that boots: the real agent, as a process in a folder of its own.
//!
//! The agent holds the other end of a pipe of ours as its standard input, so that it ends when we do, however we end. A machine that
//! an agent is pushed to has an SSH server and a home instead, and one whose start command fetches its agent runs that; a guard with such a
//! pipe ends what was started there.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use super::door::Door;
use super::machine::Machine;
use super::start;
use super::volume;
use super::{Kind, Options};
use crate::agent::boot::Package;
use crate::agent::folder::{self, Folder, MACHINE_DIR};
use crate::agent::process::{end_leftovers, freeze};
use crate::ambient::{agent_environment, random};

/// What the key that a machine is handed for itself begins with; its number follows.
pub(super) const OWN_KEY: &str = "only-";

/// The agent of a machine, or what it takes to bring one there.
pub struct Agent {
    /// The machine's.
    root: PathBuf,
    /// The agent's.
    folder: PathBuf,
    /// The agent, or what ends it once we are gone.
    child: tokio::process::Child,
    door: Option<Door>,
    /// What is in the environment of whatever runs on it.
    env: BTreeMap<String, String>,
    /// Its host is away, and so is it.
    away: bool,
}

/// Ends whatever runs below a machine's folder once its standard input ends, and removes that.
const GUARD: &str = r#"cat >/dev/null
for F in /proc/[0-9]*/environ; do
  grep -qF "STAGELINE_MACHINE_DIR=$1/" "$F" 2>/dev/null || continue
  P=${F#/proc/}
  kill -KILL "${P%/environ}"
done
rm -rf "$1"
"#;

/// Where machines are, and which program their agents are.
pub(super) struct Booter {
    root: PathBuf,
    program: Option<PathBuf>,
    fetch: bool,
    kind: Kind,
}

impl Booter {
    pub(super) fn new(options: &Options) -> std::io::Result<Self> {
        let name = u64::from_be_bytes(random());
        let root = std::env::temp_dir().join(format!("stageline-sim-{name:016x}"));
        folder::make_dir(&root).map_err(std::io::Error::other)?;
        Ok(Self {
            root: root.canonicalize()?,
            program: options.program.clone(),
            fetch: options.fetch,
            kind: options.kind,
        })
    }

    /// Starts the agent, where the machine was handed a package for one.
    pub(super) fn start(&self, machine: &Machine) -> Option<Agent> {
        let (id, env) = (machine.id, &machine.env);
        let program = self.program.as_ref()?;
        let package = Package::from_environment(|name| env.get(name).cloned());
        let mut package = package.ok()??;
        // All machines share this computer: one has a free port of it, which is mapped, or a loopback address of its own.
        package.config.listen = machine.listen;
        let dir = self.root.join(id.to_string());
        let command = start::command(self.kind, &machine.onstart, &dir.join("agent"));
        if let Some(command) = command.filter(|_| self.fetch) {
            return self.start_by(&command, &dir, &package, machine);
        }
        package.unpack(&dir).ok()?;
        folder::write_json(&Folder::new(&dir).facts(), &machine.found).ok()?;
        volume::mount(&self.root, &dir, &machine.account, &machine.mounts).ok()?;
        let output = std::fs::File::create(dir.join("agent.out")).ok()?;
        let child = tokio::process::Command::new(program)
            .args(["agent", "--until-eof", "--dir"])
            .arg(&dir)
            .env_clear()
            .envs(agent_environment())
            .env(MACHINE_DIR, &dir)
            .envs(own_key(&package, self.kind, machine))
            .current_dir(&dir)
            .stdin(Stdio::piped())
            .stdout(output.try_clone().ok()?)
            .stderr(output)
            .process_group(0)
            .kill_on_drop(true)
            .spawn()
            .ok()?;
        Some(Agent {
            root: dir.clone(),
            folder: dir,
            child,
            door: None,
            env: BTreeMap::new(),
            away: false,
        })
    }

    /// Starts an agent that was halted, where its machine is by now.
    pub(super) fn resume(&self, machine: &Machine) -> Option<Agent> {
        let folder = Folder::new(self.root.join(machine.id.to_string()));
        let mut config = folder.read_config().ok()?;
        config.listen = machine.listen;
        folder::write_json(&folder.config(), &config).ok()?;
        self.start(machine)
    }

    /// Starts it by the machine's own command, which fetches it.
    fn start_by(
        &self,
        command: &str,
        root: &Path,
        package: &Package,
        machine: &Machine,
    ) -> Option<Agent> {
        let dir = root.join("agent");
        folder::make_dir(&dir).ok()?;
        folder::write_json(&Folder::new(&dir).facts(), &machine.found).ok()?;
        volume::mount(&self.root, &dir, &machine.account, &machine.mounts).ok()?;
        let output = std::fs::File::create(dir.join("agent.out")).ok()?;
        let guard = guard(root)?;
        tokio::process::Command::new("sh")
            .args(["-c", command])
            .env_clear()
            .envs(agent_environment())
            .envs(package.environment())
            .env("STAGELINE_HOME", root)
            .env("STAGELINE_FETCH_PAUSE", "0.1")
            .env(MACHINE_DIR, &dir)
            .envs(own_key(package, self.kind, machine))
            .current_dir(root)
            .stdin(Stdio::null())
            .stdout(output.try_clone().ok()?)
            .stderr(output)
            .process_group(0)
            .spawn()
            .ok()?;
        Some(Agent {
            root: root.to_owned(),
            folder: dir,
            child: guard,
            door: None,
            env: BTreeMap::new(),
            away: false,
        })
    }

    /// Opens the machine for whoever may log in; the agent is brought by them.
    pub(super) fn open(&self, machine: &Machine) -> Option<Agent> {
        self.program.as_ref()?;
        let access = machine.access.clone()?;
        // The folder of an earlier life may still be on its way out.
        let names = (0..).map(|life| format!("{}.{life}", machine.id));
        let mut roots = names.map(|name| self.root.join(name));
        let root = roots.find(|root| !root.exists())?;
        let home = root.join("home");
        // Where an agent of this name finds its folder, so that it finds the facts of this machine in it.
        let own = home.join(".stageline").join(computer()?);
        let folder = own.join("machines").join(&machine.label).join("agent");
        folder::make_dir(&folder).ok()?;
        folder::write_json(&Folder::new(&folder).facts(), &machine.found).ok()?;
        volume::mount(&self.root, &folder, &machine.account, &machine.mounts).ok()?;
        // Programs are the same on all machines, as where they are part of an image: they are sent once.
        let programs = self.root.join("programs");
        folder::make_dir(&programs).ok()?;
        std::os::unix::fs::symlink(&programs, home.join(".stageline/bin")).ok()?;
        let here = SocketAddr::from(([127, 0, 0, 1], 0));
        let mut access = access;
        let names = self.kind.own_variables().into_iter();
        let own = [self.kind.id(machine.id), format!("{OWN_KEY}{}", machine.id)];
        access.env = names.map(str::to_owned).zip(own).collect();
        let env = access.env.clone();
        let mut listen = machine.listen.unwrap_or(here);
        listen.set_port(access.port);
        let door = Door::open(listen, access, &home).ok()?;
        let child = guard(&root)?;
        Some(Agent {
            root,
            folder,
            child,
            door: Some(door),
            env,
            away: false,
        })
    }

    /// Where all machines are.
    pub(super) fn root(&self) -> &Path {
        &self.root
    }

    /// Removes what is left.
    pub(super) fn end(&self) {
        std::fs::remove_dir_all(&self.root).ok();
    }
}

/// Ends a machine once we are gone.
fn guard(root: &Path) -> Option<tokio::process::Child> {
    tokio::process::Command::new("sh")
        .args(["-c", GUARD, "guard"])
        .arg(root)
        .env_clear()
        .envs(agent_environment())
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .process_group(0)
        .spawn()
        .ok()
}

/// A machine that can end itself is handed its id and a key for that alone.
fn own_key(package: &Package, kind: Kind, machine: &Machine) -> Vec<(String, String)> {
    let own = package.config.own_end.iter().filter(|_| machine.own_key);
    let pairs = own.flat_map(|own| {
        let key = format!("{OWN_KEY}{}", machine.id);
        [
            (own.id.clone(), kind.id(machine.id)),
            (own.key.clone(), key),
        ]
    });
    pairs.collect()
}

/// What tells computers apart that share a home, as it is told on a host that an agent is pushed to.
fn computer() -> Option<String> {
    let id = std::fs::read_to_string("/etc/machine-id").unwrap_or_default();
    let id = id.trim_end_matches('\n');
    if !id.is_empty() {
        return Some(id.to_owned());
    }
    let name = rustix::system::uname();
    Some(name.nodename().to_str().ok()?.to_owned())
}

impl Agent {
    /// Where one gets in by SSH; none where nobody does.
    pub fn ssh(&self) -> Option<SocketAddr> {
        self.door.as_ref().map(|door| door.address)
    }

    /// Where it listens, once it does.
    pub fn address(&self) -> Option<SocketAddr> {
        let contact = Folder::new(&self.folder).read_contact().ok()??;
        contact.direct.first().copied()
    }

    /// Goes away with its host, and comes back as it was.
    pub(super) fn go(&mut self, away: bool) {
        if self.away != away {
            self.away = away;
            freeze(&Folder::new(&self.folder), away);
        }
    }

    /// What it printed.
    pub fn log(&self) -> String {
        let read = |path: &Path| std::fs::read_to_string(path).unwrap_or_default();
        let log = read(&Folder::new(&self.folder).log());
        format!("{log}{}", read(&self.folder.join("agent.out")))
    }

    /// Ends what was brought there, as a restart does, and then runs what the machine runs at its start. Its disk stays.
    pub(super) fn restart(&self, command: String) {
        if self.door.is_none() {
            return;
        }
        let (folder, home) = (Folder::new(&self.folder), self.root.join("home"));
        let env = self.env.clone();
        tokio::task::spawn_blocking(move || {
            end_leftovers(&folder);
            // Its user is none of this computer.
            let command = command.replace("getent passwd ubuntu | cut -d: -f6", "echo $HOME");
            let command = command.replace("su ubuntu -c ", "sh -c ");
            let run = std::process::Command::new("sh")
                .args(["-c", &command])
                .env_clear()
                .envs(agent_environment())
                .envs(&env)
                .env("HOME", &home)
                .current_dir(&home)
                .stdin(Stdio::null())
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .status();
            run.ok();
        });
    }

    /// Whether it was started by ourselves, and not by what was brought or fetched there.
    pub(super) fn can_move(&self) -> bool {
        self.folder == self.root && self.address().is_some()
    }

    /// Ends it, and leaves the machine's disk as it is. Where it was is of no use any more.
    pub(super) async fn halt(mut self) {
        self.child.kill().await.ok();
        let folder = Folder::new(&self.folder);
        let work = move || {
            end_leftovers(&folder);
            folder::remove_file(&folder.contact()).ok();
        };
        tokio::task::spawn_blocking(work).await.ok();
    }

    /// Ends it as a machine ends: at once, with all that it started.
    pub(super) async fn kill(mut self) {
        drop(self.door);
        self.child.kill().await.ok();
        let (root, folder) = (self.root, self.folder);
        let work = move || {
            end_leftovers(&Folder::new(&folder));
            std::fs::remove_dir_all(&root).ok();
        };
        tokio::task::spawn_blocking(work).await.ok();
    }
}
