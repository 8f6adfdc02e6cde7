//! `ssh` and `forward` on machines that nobody logs in to: by their agents.

use std::io::{BufRead as _, Read as _, Write as _};
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use rustix::fs::{Mode, OFlags};
use rustix::process::Signal;
use rustix::pty::OpenptFlags;
use rustix::termios::{LocalModes, Winsize};

use super::world::{Ran, STUB, World, finish, kill, stopped, until};

/// One machine whose lease has an environment.
fn world() -> World {
    let lease = "count = 1\nenv = { OF_THE_LEASE = \"seen\" }";
    let world = World::new(&STUB.replace("count = 2", lease));
    world.apply();
    world
}

/// A command of the machine, of which the last word is one line.
fn ssh(world: &World, line: &str) -> Command {
    let mut command = world.command(["ssh", "lease.node[0]", "--", line]);
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn ran(world: &World, line: &str) -> Ran {
    let child = ssh(world, line).spawn().expect("the binary is there");
    Ran::of(line.to_owned(), finish(child))
}

#[test]
fn a_command_on_a_machine_of_this_computer() {
    let world = world();
    let said = ran(&world, "echo $OF_THE_LEASE; echo aside >&2; exit 3");
    said.exits(3);
    assert_eq!(said.out, "seen\n");
    assert_eq!(said.err, "lease.node[0]: a shell by its agent\naside\n");
    // Words are one line for the shell there, as with SSH.
    let words = world.run("ssh lease.node[0] echo a   b; exit 4");
    words.exits(4);
    assert_eq!(words.out, "a b\n");
    // Bytes are what they were, both ways.
    let bytes: Vec<u8> = (0..700_000_u32).map(|n| n.to_be_bytes()[3]).collect();
    let mut child = ssh(&world, "cat; echo end >&2")
        .stdin(Stdio::piped())
        .spawn()
        .expect("the binary is there");
    let mut input = child.stdin.take().expect("piped");
    let sent = bytes.clone();
    std::thread::spawn(move || input.write_all(&sent));
    let output = finish(child);
    assert_eq!(output.stdout, bytes);
    // A program that reads nothing holds up nobody.
    let mut child = ssh(&world, "exit 5")
        .stdin(Stdio::piped())
        .spawn()
        .expect("the binary is there");
    let mut input = child.stdin.take().expect("piped");
    std::thread::spawn(move || while input.write_all(&[0; 9000]).is_ok() {});
    assert_eq!(finish(child).status.code(), Some(5));
    world.destroy();
}

#[test]
fn a_port_of_a_machine_of_this_computer() {
    let world = world();
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let there = listener.local_addr().expect("bound").port();
    let mut forward = world.start(&format!("forward lease.node[0] 0:{there}"));
    let mut out = std::io::BufReader::new(forward.stdout.take().expect("piped"));
    let mut here = String::new();
    out.read_line(&mut here).expect("readable");
    let talk = std::thread::spawn(move || {
        let (mut far, _) = listener.accept().expect("somebody");
        let mut heard = String::new();
        far.read_to_string(&mut heard).expect("heard");
        far.write_all(b"pong").expect("said");
        heard
    });
    let mut near = std::net::TcpStream::connect(here.trim()).expect("it listens");
    near.write_all(b"ping").expect("said");
    near.shutdown(std::net::Shutdown::Write).expect("said all");
    let mut heard = String::new();
    near.read_to_string(&mut heard).expect("heard");
    assert_eq!(heard, "pong");
    assert_eq!(talk.join().expect("no panic"), "ping");
    kill(i32::try_from(forward.id()).expect("a pid"), Signal::INT);
    let ran = Ran::of("forward".to_owned(), finish(forward));
    ran.exits(0).says("here, by its agent, until Ctrl-C");
    world.destroy();
}

#[test]
fn a_port_that_nothing_listens_on_is_told_when_somebody_connects() {
    let world = world();
    // It is ours, so that nobody else listens on it.
    let socket = tokio::net::TcpSocket::new_v4().expect("a socket");
    let any = "127.0.0.1:0".parse().expect("an address");
    socket.bind(any).expect("a port");
    let there = socket.local_addr().expect("bound").port();
    let mut forward = world.start(&format!("forward lease.node[0] 0:{there}"));
    let mut out = std::io::BufReader::new(forward.stdout.take().expect("piped"));
    let mut here = String::new();
    out.read_line(&mut here).expect("readable");
    let mut near = std::net::TcpStream::connect(here.trim()).expect("it listens");
    assert_eq!(near.read(&mut [0]).expect("an end"), 0);
    kill(i32::try_from(forward.id()).expect("a pid"), Signal::INT);
    let ran = Ran::of("forward".to_owned(), finish(forward));
    ran.exits(0).says(&format!(
        "lease.node[0]: nothing listens on port {there} of the machine (connection refused)"
    ));
    world.destroy();
}

/// A terminal, with somebody in front of it.
struct Seat {
    near: std::fs::File,
    far: OwnedFd,
    seen: String,
}

impl Seat {
    fn new() -> Self {
        let near = rustix::pty::openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).expect("one");
        rustix::pty::grantpt(&near).expect("ours");
        rustix::pty::unlockpt(&near).expect("ours");
        let name = rustix::pty::ptsname(&near, Vec::new()).expect("a name");
        let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC;
        let far = rustix::fs::open(name, flags, Mode::empty()).expect("there");
        let seat = Self {
            near: std::fs::File::from(near),
            far,
            seen: String::new(),
        };
        seat.resize(90, 30);
        seat
    }

    fn resize(&self, columns: u16, rows: u16) {
        let size = Winsize {
            ws_row: rows,
            ws_col: columns,
            ws_xpixel: 0,
            ws_ypixel: 0,
        };
        rustix::termios::tcsetwinsize(&self.near, size).expect("set");
    }

    fn start(&self, world: &World, line: &str) -> Child {
        let end = || Stdio::from(self.far.try_clone().expect("a copy"));
        let mut command = world.command(line.split_ascii_whitespace());
        command
            .env("TERM", "xterm-of-a-test")
            .stdin(end())
            .stdout(end())
            .stderr(end());
        command.spawn().expect("the binary is there")
    }

    fn types(&mut self, text: &str) {
        self.near.write_all(text.as_bytes()).expect("taken");
    }

    /// Reads until this is shown.
    fn sees(&mut self, words: &str) {
        let mut buffer = [0; 4096];
        while !self.seen.contains(words) {
            let mut fds = [rustix::event::PollFd::new(
                &self.near,
                rustix::event::PollFlags::IN,
            )];
            let patience = rustix::event::Timespec {
                tv_sec: 60,
                tv_nsec: 0,
            };
            let ready = rustix::event::poll(&mut fds, Some(&patience)).expect("ours");
            assert!(ready > 0, "no `{words}` in {}", self.seen);
            let read = self.near.read(&mut buffer).expect("readable");
            self.seen
                .push_str(&String::from_utf8_lossy(&buffer[..read]));
        }
        self.seen.clear();
    }

    /// As a shell at a desk needs it: lines, echo, signals.
    fn is_as_before(&self) -> bool {
        let modes = rustix::termios::tcgetattr(&self.far).expect("a terminal");
        let lines = LocalModes::ICANON | LocalModes::ECHO | LocalModes::ISIG;
        modes.local_modes.contains(lines)
    }
}

#[test]
fn a_shell_on_a_terminal_that_is_as_before_when_it_is_over() {
    let world = world();
    let mut seat = Seat::new();
    assert!(seat.is_as_before());
    let line = "ssh lease.node[0] exec sh -i";
    let shell = seat.start(&world, line);
    let pid = i32::try_from(shell.id()).expect("a pid");
    seat.sees("a shell by its agent");
    seat.types("echo $TERM $(stty size)\n");
    seat.sees("xterm-of-a-test 30 90");
    assert!(!seat.is_as_before(), "every key is passed on");
    seat.resize(70, 20);
    kill(pid, Signal::WINCH);
    seat.types("until [ \"$(stty size)\" = '20 70' ]; do sleep 0.05; done; echo si''zed\n");
    seat.sees("sized");
    seat.types("exit 7\n");
    assert_eq!(finish(shell).status.code(), Some(7));
    assert!(seat.is_as_before());
    // The same when it is told to end.
    let shell = seat.start(&world, line);
    seat.sees("a shell by its agent");
    until("it passes keys on", || (!seat.is_as_before()).then_some(()));
    kill(i32::try_from(shell.id()).expect("a pid"), Signal::TERM);
    assert_eq!(finish(shell).status.code(), Some(130));
    assert!(seat.is_as_before());
    world.destroy();
}

#[test]
fn a_command_ends_when_whoever_began_it_was_killed() {
    let world = world();
    let mark: PathBuf = world.path().join("there");
    let line = format!("trap '' HUP; echo $$ > {}; sleep 600", mark.display());
    let mut child = ssh(&world, &line).spawn().expect("the binary is there");
    let pid = until("its number", || {
        let text = std::fs::read_to_string(&mark).ok()?;
        text.ends_with('\n').then(|| text.trim().to_owned())
    });
    let running = || {
        world
            .processes()
            .contains_key(&pid.parse().expect("a number"))
    };
    assert!(running());
    child.kill().expect("ours");
    child.wait().expect("ours");
    until("its end", || (!running()).then_some(()));
    world.destroy();
}

#[test]
fn a_machine_that_has_no_shell_to_give_says_why() {
    let world = World::new(STUB);
    let run = |line: &str| world.run(line);
    for line in ["ssh lease.node[0] true", "forward lease.node[0] 0:80"] {
        run(line).exits(1);
    }
    world.apply();
    for line in ["ssh lease.node[7] true", "forward lease.node[7] 0:80"] {
        run(line).exits(1).says("lease.node[7] has no machine");
    }
    let key = world.join("state/demo/identity.key");
    let away = world.join("identity.away");
    std::fs::rename(&key, &away).expect("moved");
    for line in ["ssh lease.node[0] true", "forward lease.node[0] 0:80"] {
        run(line).exits(1).says("identity");
    }
    std::fs::rename(&away, &key).expect("moved");
    // An agent that stands still is silent, and does not hold up whoever asks.
    let machine = world.machines().remove(0);
    let agents = world.processes_of(&machine, " agent ");
    for pid in &agents {
        kill(*pid, Signal::STOP);
    }
    until("it stands still", || {
        agents.iter().all(|pid| stopped(*pid)).then_some(())
    });
    let lease = world.run("leases --json").json();
    let name = machine.file_name().expect("a name").to_string_lossy();
    let lines = lease.as_array().expect("a list").iter();
    let lease = lines.clone().find(|line| line["machine"] == *name);
    let lease = lease.expect("it is held")["lease"]
        .as_str()
        .expect("a text")
        .to_owned();
    for line in [format!("ssh {lease} true"), format!("forward {lease} 0:80")] {
        run(&line)
            .exits(4)
            .says(&format!("{lease}: the agent does not answer"))
            .says("`stageline plan` shows whether");
    }
    for pid in &agents {
        kill(*pid, Signal::CONT);
    }
    world.destroy();
}
