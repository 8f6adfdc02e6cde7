//! The processes of a machine: how they are told from all others, and how they end.
//!
//! A process belongs to a machine when it carries the machine's folder in its environment, when the folder names it (by
//! number *and* start, so that a later process with the same number is safe), when it was started by such a process, or
//! when it is in the process group of one. This process and the first one are never among them. On Linux signals go
//! through a handle that is checked against the start, so they cannot hit a successor. Elsewhere `ps` has to do.

use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use rustix::process::{Pid, Signal};
use serde::{Deserialize, Serialize};

use crate::agent::folder::MACHINE_DIR;

/// One process, told from a later one with the same number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(in crate::provider) struct ProcessId {
    /// Its number.
    pub(in crate::provider) pid: i32,
    /// When it started, in the kernel's own count; none where the system does not tell.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(in crate::provider) started: Option<u64>,
}

/// What the system says of one process.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Seen {
    id: ProcessId,
    parent: i32,
    group: i32,
}

/// Every process that lives now, with the machine folder that it carries, if any.
#[derive(Debug, Default)]
pub(in crate::provider) struct Processes {
    all: BTreeMap<i32, Seen>,
    carriers: BTreeMap<PathBuf, Vec<i32>>,
}

impl Processes {
    /// Looks at all processes.
    pub(in crate::provider) fn look() -> std::io::Result<Self> {
        system::look()
    }

    /// The folders below `root` that live processes carry.
    pub(super) fn folders_below(&self, root: &Path) -> impl Iterator<Item = &Path> {
        self.carriers
            .keys()
            .map(PathBuf::as_path)
            .filter(move |folder| folder.parent() == Some(root))
    }

    /// The oldest process that carries this folder: its agent, where there is one.
    pub(super) fn agent_of(&self, folder: &Path) -> Option<ProcessId> {
        let carriers = self.carriers.get(folder)?;
        let seen = carriers.iter().filter_map(|pid| self.all.get(pid));
        seen.map(|seen| seen.id)
            .min_by_key(|id| (id.started, id.pid))
    }

    /// Whether exactly this process lives.
    pub(super) fn lives(&self, id: ProcessId) -> bool {
        self.all.get(&id.pid).is_some_and(|seen| seen.id == id)
    }

    /// Every process of a machine: those that carry its folder, those that it names, and whatever they started.
    pub(in crate::provider) fn of_machine(
        &self,
        folder: &Path,
        named: &[ProcessId],
    ) -> BTreeSet<ProcessId> {
        let spared = [1, i32::try_from(std::process::id()).unwrap_or(0)];
        let carriers = self.carriers.get(folder).into_iter().flatten().copied();
        let named = named.iter().filter(|id| self.lives(**id)).map(|id| id.pid);
        let mut own: BTreeSet<i32> = carriers.chain(named).collect();
        own.retain(|pid| !spared.contains(pid));
        loop {
            let more: Vec<i32> = self
                .all
                .values()
                .filter(|seen| own.contains(&seen.parent) || own.contains(&seen.group))
                .map(|seen| seen.id.pid)
                .filter(|pid| !own.contains(pid) && !spared.contains(pid))
                .collect();
            if more.is_empty() {
                break;
            }
            own.extend(more);
        }
        let seen = own.iter().filter_map(|pid| self.all.get(pid));
        seen.map(|seen| seen.id).collect()
    }
}

/// Sends a signal to exactly this process; gone is done.
pub(in crate::provider) fn signal(id: ProcessId, signal: Signal) -> std::io::Result<()> {
    let Some(pid) = Pid::from_raw(id.pid) else {
        return Ok(());
    };
    match system::signal(pid, id, signal) {
        Ok(()) | Err(rustix::io::Errno::SRCH) => Ok(()),
        Err(errno) => Err(errno.into()),
    }
}

/// The process with this number as it is now.
pub(in crate::provider) fn identify(pid: u32) -> Option<ProcessId> {
    let pid = i32::try_from(pid).ok()?;
    system::identify(pid)
}

/// Tells one start of the computer from the next; empty where the system does not tell.
pub(in crate::provider) fn boot_id() -> String {
    let id = std::fs::read_to_string("/proc/sys/kernel/random/boot_id");
    id.map(|id| id.trim().to_owned()).unwrap_or_default()
}

/// The marker in an environment as the system shows it.
fn marker_in(environment: &[u8], separator: u8) -> Option<PathBuf> {
    let mut variables = environment.split(|byte| *byte == separator);
    let value = variables.find_map(|variable| {
        let rest = variable.strip_prefix(MACHINE_DIR.as_bytes())?;
        rest.strip_prefix(b"=")
    })?;
    Some(PathBuf::from(std::ffi::OsStr::from_bytes(value)))
}

#[cfg(target_os = "linux")]
mod system {
    use rustix::process::{PidfdFlags, pidfd_open, pidfd_send_signal};

    use super::{Pid, ProcessId, Processes, Seen, Signal, marker_in};

    pub(super) fn look() -> std::io::Result<Processes> {
        let mut processes = Processes::default();
        for entry in std::fs::read_dir("/proc")? {
            let name = entry?.file_name();
            let Some(pid) = name.to_str().and_then(|name| name.parse::<i32>().ok()) else {
                continue;
            };
            // It may end while we look, and those of other users do not concern us.
            let Some(seen) = stat(pid) else { continue };
            if let Ok(environment) = std::fs::read(format!("/proc/{pid}/environ"))
                && let Some(folder) = marker_in(&environment, 0)
            {
                processes.carriers.entry(folder).or_default().push(pid);
            }
            processes.all.insert(pid, seen);
        }
        Ok(processes)
    }

    /// None for a process that is gone, or dead and not yet reaped.
    fn stat(pid: i32) -> Option<Seen> {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        // The name in parentheses may hold anything.
        let (_, fields) = stat.rsplit_once(')')?;
        let mut fields = fields.split_whitespace();
        let state = fields.next()?;
        let parent = fields.next()?.parse().ok()?;
        let group = fields.next()?.parse().ok()?;
        let started = fields.nth(16)?.parse().ok()?;
        let id = ProcessId {
            pid,
            started: Some(started),
        };
        (!matches!(state, "Z" | "X" | "x")).then_some(Seen { id, parent, group })
    }

    pub(super) fn identify(pid: i32) -> Option<ProcessId> {
        stat(pid).map(|seen| seen.id)
    }

    pub(super) fn signal(pid: Pid, id: ProcessId, signal: Signal) -> rustix::io::Result<()> {
        let handle = pidfd_open(pid, PidfdFlags::empty())?;
        // Checked after the handle is open: from here on it cannot become another process.
        if identify(id.pid) != Some(id) {
            return Ok(());
        }
        pidfd_send_signal(handle, signal)
    }
}

#[cfg(not(target_os = "linux"))]
mod system {
    use super::{Pid, ProcessId, Processes, Seen, Signal, marker_in};

    /// `ps` with environments, one process a line. Paths with spaces are cut; the folder's own record helps then.
    pub(super) fn look() -> std::io::Result<Processes> {
        let output = std::process::Command::new("ps")
            .args(["-axEww", "-o", "pid=,ppid=,pgid=,stat=,command="])
            .stdin(std::process::Stdio::null())
            .output()?;
        let mut processes = Processes::default();
        for line in String::from_utf8_lossy(&output.stdout).lines() {
            let mut fields = line.split_whitespace();
            let mut number = || fields.next()?.parse::<i32>().ok();
            let (Some(pid), Some(parent), Some(group)) = (number(), number(), number()) else {
                continue;
            };
            if fields.next().is_none_or(|state| state.starts_with('Z')) {
                continue;
            }
            if let Some(folder) = marker_in(line.as_bytes(), b' ') {
                processes.carriers.entry(folder).or_default().push(pid);
            }
            let id = ProcessId { pid, started: None };
            processes.all.insert(pid, Seen { id, parent, group });
        }
        Ok(processes)
    }

    pub(super) fn identify(pid: i32) -> Option<ProcessId> {
        let handle = Pid::from_raw(pid)?;
        rustix::process::test_kill_process(handle).ok()?;
        Some(ProcessId { pid, started: None })
    }

    pub(super) fn signal(pid: Pid, _: ProcessId, signal: Signal) -> rustix::io::Result<()> {
        rustix::process::kill_process(pid, signal)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_is_seen_and_never_ended() {
        let own = identify(std::process::id()).expect("alive");
        let processes = Processes::look().expect("readable");
        assert!(processes.lives(own));
        let other = ProcessId {
            started: Some(1),
            ..own
        };
        assert!(!processes.lives(other));
        let named = processes.of_machine(Path::new("/nowhere"), &[own]);
        assert!(named.is_empty());
        // A handle for another start of this number sends nothing: else this test would end here.
        signal(other, Signal::KILL).expect("nobody to tell");
    }

    #[test]
    fn the_marker_is_read_exactly() {
        let environment = b"PATH=/bin\0STAGELINE_MACHINE_DIR=/a b/c\0X=1";
        assert_eq!(marker_in(environment, 0), Some(PathBuf::from("/a b/c")));
        assert_eq!(marker_in(b"XSTAGELINE_MACHINE_DIR=/a", 0), None);
        assert_eq!(marker_in(b"STAGELINE_MACHINE_DIRS=/a", 0), None);
    }
}
