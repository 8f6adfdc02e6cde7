//! A host of one's own for tests: a real SSH server on the loopback, with a home of its own, that can go away and come back.
//!
//! The test itself listens and hands each connection to `sshd -i`, so that it can refuse some, cut all, and show another key.

#![expect(
    clippy::disallowed_methods,
    reason = "the server's environment is made here, and polling needs a pause"
)]

use std::net::{TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal};
use sha2::{Digest as _, Sha256};

/// The program of the server, where there is one.
fn sshd() -> Option<PathBuf> {
    let places = ["/usr/sbin/sshd", "/usr/local/sbin/sshd", "/sbin/sshd"];
    let found = places.iter().map(PathBuf::from).find(|path| path.exists());
    assert!(
        found.is_some() || std::env::var_os("CI").is_none(),
        "there is no sshd; install openssh-server"
    );
    found
}

/// What runs a program on the host: what is asked for, and then nothing while `hang` is there and it took the host.
const FORCE: &str = r#"#!/bin/sh
printf "%s\n" "$SSH_ORIGINAL_COMMAND" >>"$HOME/../commands"
sh -c "$SSH_ORIGINAL_COMMAND"
R=$?
case "$SSH_ORIGINAL_COMMAND" in
*'mark.$1'*) while [ -e "$HOME/hang" ]; do sleep 0.05; done ;;
esac
exit $R
"#;

pub(crate) struct Host {
    dir: tempfile::TempDir,
    pub(crate) port: u16,
    door: Arc<Door>,
}

#[derive(Default)]
struct Door {
    closed: AtomicBool,
    /// So many connections more are cut at once.
    refuse: AtomicUsize,
    refused: AtomicUsize,
    over: AtomicBool,
    servers: Mutex<Vec<Pid>>,
}

impl Host {
    /// A host that has this program already, so that it need not be sent; none where there is no SSH server.
    pub(crate) fn new() -> Option<Self> {
        let host = Self::bare()?;
        let digest = digest();
        let folder = host.path("home/.stageline/bin").join(digest);
        std::fs::create_dir_all(&folder).expect("made");
        std::os::unix::fs::symlink(program(), folder.join("stageline")).expect("linked");
        Some(host)
    }

    /// A host with nothing on it.
    pub(crate) fn bare() -> Option<Self> {
        let server = sshd()?;
        let dir = tempfile::Builder::new()
            .prefix("stageline-host-")
            .tempdir()
            .expect("a folder");
        std::fs::create_dir(dir.path().join("home")).expect("made");
        let force = dir.path().join("force");
        std::fs::write(&force, FORCE).expect("written");
        std::fs::set_permissions(&force, std::fs::Permissions::from_mode(0o755)).expect("set");
        // Where the server wants it when it is root.
        std::fs::create_dir_all("/run/sshd").ok();
        let door = Arc::new(Door::default());
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let port = listener.local_addr().expect("bound").port();
        let host = Self { dir, port, door };
        host.new_key();
        keygen(&host.path("user"));
        std::fs::copy(host.path("user.pub"), host.path("authorized")).expect("copied");
        let at = |name: &str| host.path(name).display().to_string();
        let config = format!(
            "HostKey {}\nAuthorizedKeysFile {}\nForceCommand {}\nSetEnv HOME={}\nPasswordAuthentication no\nKbdInteractiveAuthentication no\nStrictModes no\nUsePAM no\nPidFile none\n",
            at("hostkey"),
            at("authorized"),
            at("force"),
            at("home"),
        );
        std::fs::write(host.path("config"), config).expect("written");
        let (door, config, log) = (
            Arc::clone(&host.door),
            host.path("config"),
            host.path("log"),
        );
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                if door.over.load(Ordering::SeqCst) {
                    break;
                }
                let refuse = door.refuse.load(Ordering::SeqCst);
                if door.closed.load(Ordering::SeqCst) || refuse > 0 {
                    door.refuse
                        .store(refuse.saturating_sub(1), Ordering::SeqCst);
                    door.refused.fetch_add(1, Ordering::SeqCst);
                    continue;
                }
                serve(&door, stream, &server, &config, &log);
            }
        });
        Some(host)
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Another host key from now on.
    pub(crate) fn new_key(&self) {
        for name in ["hostkey", "hostkey.pub"] {
            std::fs::remove_file(self.path(name)).ok();
        }
        keygen(&self.path("hostkey"));
    }

    /// The public half, as it is written into a topology.
    pub(crate) fn host_key(&self) -> String {
        let text = std::fs::read_to_string(self.path("hostkey.pub")).expect("readable");
        let words: Vec<&str> = text.split_ascii_whitespace().take(2).collect();
        words.join(" ")
    }

    /// The fingerprint, as `ssh-keygen` shows it.
    pub(crate) fn fingerprint(&self) -> String {
        let output = Command::new("ssh-keygen")
            .arg("-lf")
            .arg(self.path("hostkey.pub"))
            .output();
        let text = String::from_utf8(output.expect("it runs").stdout).expect("text");
        text.split_ascii_whitespace()
            .nth(1)
            .expect("a fingerprint")
            .to_owned()
    }

    /// Its entry in `hosts`.
    pub(crate) fn entry(&self, more: &str) -> String {
        format!(
            "{{ address = \"127.0.0.1\", port = {}, user = \"{}\", key = \"{}\"{more} }}",
            self.port,
            user(),
            self.path("user").display()
        )
    }

    /// Nobody gets in any more, and who is in is thrown out.
    pub(crate) fn close(&self) {
        self.door.closed.store(true, Ordering::SeqCst);
        self.cut();
    }

    pub(crate) fn open(&self) {
        self.door.closed.store(false, Ordering::SeqCst);
    }

    /// Who is in is thrown out, and the next so many are not let in.
    pub(crate) fn refuse(&self, count: usize) {
        self.door.refuse.store(count, Ordering::SeqCst);
        self.cut();
    }

    /// How many were not let in.
    pub(crate) fn refused(&self) -> usize {
        self.door.refused.load(Ordering::SeqCst)
    }

    fn cut(&self) {
        for server in self.door.servers.lock().expect("no panic").drain(..) {
            rustix::process::kill_process_group(server, Signal::KILL).ok();
        }
    }

    /// The folder of this host below `~/.stageline`, where there is one.
    pub(crate) fn own_folder(&self) -> Option<PathBuf> {
        let entries = std::fs::read_dir(self.path("home/.stageline")).ok()?;
        let mut folders = entries.flatten().map(|entry| entry.path());
        folders.find(|path| path.is_dir() && path.file_name().is_some_and(|name| name != "bin"))
    }

    /// The request key of whoever has it.
    pub(crate) fn taken_by(&self) -> Option<String> {
        let mark = std::fs::read_to_string(self.own_folder()?.join("mark")).ok()?;
        mark.lines().next().map(str::to_owned)
    }

    /// What was run on it, as anybody there can see it.
    pub(crate) fn commands(&self) -> String {
        std::fs::read_to_string(self.path("commands")).expect("something was run")
    }

    /// A variable of the environment of a process on it.
    pub(crate) fn variable(&self, name: &str) -> Option<String> {
        let own = format!("{name}=");
        self.processes().into_iter().find_map(|pid| {
            let environment = std::fs::read(format!("/proc/{pid}/environ")).ok()?;
            let text = String::from_utf8(environment).ok()?;
            let mut variables = text.split('\0').map(str::to_owned);
            variables.find_map(|variable| variable.strip_prefix(&own).map(str::to_owned))
        })
    }

    /// Processes of machines on it.
    pub(crate) fn processes(&self) -> Vec<i32> {
        let below = format!("STAGELINE_MACHINE_DIR={}/", self.path("home").display());
        let carries = |environment: Vec<u8>| {
            environment
                .split(|byte| *byte == 0)
                .any(|variable| variable.starts_with(below.as_bytes()))
        };
        let all = std::fs::read_dir("/proc").into_iter().flatten().flatten();
        let pids = all.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
        let ours =
            pids.filter(|pid| std::fs::read(format!("/proc/{pid}/environ")).is_ok_and(carries));
        ours.collect()
    }

    pub(crate) fn kill_processes(&self) {
        for pid in self.processes() {
            if let Some(pid) = Pid::from_raw(pid) {
                rustix::process::kill_process(pid, Signal::KILL).ok();
            }
        }
        until("its processes end", || self.processes().is_empty());
    }

    /// Neither a mark, nor a folder, nor a process of a machine.
    #[track_caller]
    pub(crate) fn is_clean(&self) {
        assert_eq!(self.processes(), [] as [i32; 0], "processes are left");
        assert_eq!(self.own_folder(), None, "something is left in its home");
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        self.door.over.store(true, Ordering::SeqCst);
        TcpStream::connect(("127.0.0.1", self.port)).ok();
        self.cut();
        for pid in self.processes() {
            if let Some(pid) = Pid::from_raw(pid) {
                rustix::process::kill_process(pid, Signal::KILL).ok();
            }
        }
    }
}

fn serve(door: &Door, stream: TcpStream, server: &Path, config: &Path, log: &Path) {
    let input: OwnedFd = stream.into();
    let output = input.try_clone().expect("a copy");
    let log = std::fs::OpenOptions::new()
        .create(true)
        .append(true)
        .open(log);
    let child = Command::new(server)
        .args(["-i", "-e", "-f"])
        .arg(config)
        .stdin(Stdio::from(input))
        .stdout(Stdio::from(output))
        .stderr(log.map_or_else(|_| Stdio::null(), Stdio::from))
        .process_group(0)
        .spawn();
    let mut child = child.expect("the server starts");
    if let Some(pid) = i32::try_from(child.id()).ok().and_then(Pid::from_raw) {
        door.servers.lock().expect("no panic").push(pid);
    }
    std::thread::spawn(move || child.wait());
}

/// A pair of keys without a passphrase.
pub(crate) fn keygen(path: &Path) {
    let made = Command::new("ssh-keygen")
        .args(["-q", "-t", "ed25519", "-N", "", "-f"])
        .arg(path)
        .status();
    assert!(
        made.is_ok_and(|made| made.success()),
        "no key at {}",
        path.display()
    );
}

pub(crate) fn user() -> String {
    let output = Command::new("id")
        .arg("-un")
        .output()
        .expect("there is `id`");
    String::from_utf8(output.stdout)
        .expect("text")
        .trim()
        .to_owned()
}

fn program() -> &'static Path {
    Path::new(env!("CARGO_BIN_EXE_stageline"))
}

/// The digest of this program.
fn digest() -> &'static str {
    static DIGEST: OnceLock<String> = OnceLock::new();
    DIGEST.get_or_init(|| {
        let digest = Sha256::digest(std::fs::read(program()).expect("readable"));
        digest.iter().map(|byte| format!("{byte:02x}")).collect()
    })
}

pub(crate) fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let start = Instant::now();
    while !holds() {
        assert!(start.elapsed() < Duration::from_secs(90), "never: {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}
