//! What an operator has open on a machine: connections to its ports, and shells.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::Path;

use secrecy::SecretString;
use stageline::core::resource::SetupSpec;
use stageline::core::unit::Millis;
use stageline::machine::client::Shell;
use stageline::machine::control::{ALPN, Reply, parse_request, read_frame_bytes, write_frame};
use stageline::machine::shell::{FromShell, ShellOrder, Terminal, ToShell, WindowSize};
use stageline::machine::{Machines as _, SetupState, Target};
use stageline::pipeline::endpoint::{self, EndpointOptions};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpSocket, TcpStream};

use super::{World, refusal, until};

/// Two ends of a connection.
async fn pair() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let near = TcpStream::connect(listener.local_addr().expect("bound"));
    let (near, far) = tokio::join!(near, listener.accept());
    (near.expect("connected"), far.expect("connected").0)
}

/// A port that is ours, and that nobody listens on.
fn silent_port() -> (TcpSocket, u16) {
    let socket = TcpSocket::new_v4().expect("a socket");
    socket
        .bind(SocketAddr::from(([127, 0, 0, 1], 0)))
        .expect("a port");
    let port = socket.local_addr().expect("bound").port();
    (socket, port)
}

/// A connection from here to a port of a machine.
async fn connect(world: &World, target: &Target, port: u16) -> TcpStream {
    let tunnel = world.client.connect(target, port).await.expect("connected");
    let (near, far) = pair().await;
    tokio::spawn(tunnel.carry(far));
    near
}

#[tokio::test(flavor = "multi_thread")]
async fn each_half_of_a_connection_to_a_port_ends_by_itself() {
    let world = World::new();
    let (_agent, target) = world.agent(0).await;
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let port = listener.local_addr().expect("bound").port();
    let mut near = connect(&world, &target, port).await;
    let (mut far, _) = listener.accept().await.expect("somebody");
    let question: Vec<u8> = (0..2_000_000_u32).map(|n| n.to_le_bytes()[0]).collect();
    let asked = question.clone();
    let ask = async {
        near.write_all(&asked).await.expect("taken");
        near.shutdown().await.expect("said all");
        let mut answer = Vec::new();
        near.read_to_end(&mut answer).await.expect("heard");
        answer
    };
    let answer = async {
        let mut heard = Vec::new();
        far.read_to_end(&mut heard).await.expect("heard");
        // The other half is still there.
        far.write_all(b"all of it").await.expect("taken");
        far.shutdown().await.expect("said all");
        heard
    };
    let (answer, heard) = tokio::join!(ask, answer);
    assert_eq!(heard, question);
    assert_eq!(answer, b"all of it");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_connection_that_is_cut_off_there_does_not_seem_to_end_here() {
    let world = World::new();
    let (_agent, target) = world.agent(0).await;
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let port = listener.local_addr().expect("bound").port();
    let mut near = connect(&world, &target, port).await;
    let (mut far, _) = listener.accept().await.expect("somebody");
    far.write_all(b"half").await.expect("taken");
    let mut half = [0; 4];
    near.read_exact(&mut half).await.expect("heard");
    let zero = Some(std::time::Duration::ZERO);
    rustix::net::sockopt::set_socket_linger(&far, zero).expect("set");
    drop(far);
    let more = near.read(&mut half).await;
    assert!(more.is_err(), "{more:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_port_that_nothing_listens_on_is_told() {
    let world = World::new();
    let (_agent, target) = world.agent(0).await;
    let (_socket, port) = silent_port();
    let refused = world.client.connect(&target, port).await;
    let (code, message) = refusal(refused.err().expect("nobody is there"));
    assert_eq!(code, "port-closed");
    assert_eq!(
        message,
        format!("nothing listens on port {port} of the machine (connection refused)")
    );
    world.client.knows_ports(&target).await.expect("it does");
    // What listens on the other loopback only is found.
    if let Ok(listener) = TcpListener::bind(("::1", port)).await {
        let mut near = connect(&world, &target, port).await;
        let (mut far, _) = listener.accept().await.expect("somebody");
        far.write_all(b"six").await.expect("taken");
        let mut heard = [0; 3];
        near.read_exact(&mut heard).await.expect("heard");
        assert_eq!(&heard, b"six");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn open_connections_leave_room_for_requests() {
    let world = World::new();
    let (_agent, target) = world.agent(0).await;
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let port = listener.local_addr().expect("bound").port();
    let mut open = Vec::new();
    for _ in 0..80 {
        open.push(connect(&world, &target, port).await);
        open.push(listener.accept().await.expect("somebody").0);
    }
    world.status(&target).await;
}

fn line(command: &str) -> ShellOrder {
    ShellOrder {
        command: Some(command.to_owned()),
        env: [("OF_THE_LEASE".to_owned(), "seen".to_owned())].into(),
        terminal: None,
    }
}

async fn open(world: &World, target: &Target, order: ShellOrder) -> Shell {
    world.client.shell(target, order).await.expect("opened")
}

/// What a shell printed on both of its outputs until it ended, and its status.
async fn rest(shell: &mut Shell) -> (String, String, u8) {
    let (mut out, mut err) = (Vec::new(), Vec::new());
    loop {
        match shell.from.next().await.expect("it was not cut off") {
            FromShell::Output(bytes) => out.extend(bytes),
            FromShell::Error(bytes) => err.extend(bytes),
            FromShell::Ended(status) => {
                let text = |bytes| String::from_utf8(bytes).expect("text");
                return (text(out), text(err), status);
            }
        }
    }
}

/// Reads until a shell has printed this.
async fn hears(shell: &mut Shell, words: &str) -> String {
    let mut all = Vec::new();
    loop {
        let text = String::from_utf8_lossy(&all).into_owned();
        if text.contains(words) {
            return text;
        }
        let next = tokio::time::timeout(super::PATIENCE, shell.from.next()).await;
        match next.unwrap_or_else(|_| panic!("no `{words}` in {text}")) {
            Ok(FromShell::Output(bytes) | FromShell::Error(bytes)) => all.extend(bytes),
            Ok(FromShell::Ended(status)) => panic!("it ended with {status}: {text}"),
            Err(why) => panic!("{why}: {text}"),
        }
    }
}

async fn types(shell: &mut Shell, text: &str) {
    let piece = ToShell::Input(text.as_bytes().to_vec());
    shell.to.tell(&piece).await.expect("taken");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_command_has_its_status_its_streams_and_its_input() {
    let world = World::new();
    let (_agent, target) = world.agent(0).await;
    let mut shell = open(&world, &target, line("echo out; echo err >&2; exit 3")).await;
    let all = rest(&mut shell).await;
    assert_eq!(all, ("out\n".to_owned(), "err\n".to_owned(), 3));
    let mut shell = open(&world, &target, line("kill -TERM $$")).await;
    assert_eq!(rest(&mut shell).await.2, 128 + 15);
    let mut shell = open(&world, &target, line("tr a-z A-Z")).await;
    types(&mut shell, "typed").await;
    types(&mut shell, "").await;
    assert_eq!(rest(&mut shell).await.0, "TYPED");
    // All of it comes, though the program ended long before it is read.
    let mut shell = open(
        &world,
        &target,
        line("head -c 300000 /dev/zero | tr '\\0' x"),
    )
    .await;
    assert_eq!(rest(&mut shell).await.0.len(), 300_000);
    // What is left running in the background is not waited for.
    let mut shell = open(&world, &target, line("sleep 600 & echo $!")).await;
    let (pid, ..) = rest(&mut shell).await;
    let pid = rustix::process::Pid::from_raw(pid.trim().parse().expect("a number"));
    let pid = pid.expect("a number");
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).expect("it goes on");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_shell_has_the_leases_environment_and_nothing_that_is_secret() {
    let world = World::new();
    let (_agent, target) = world.agent(0).await;
    let setup = SetupSpec {
        script: "true".to_owned(),
        env: BTreeMap::new(),
        secrets: BTreeMap::new(),
    };
    let secrets = [("KEY".to_owned(), SecretString::from("canary-shell-77e1"))].into();
    let minute = Millis::minutes(1);
    let begun = world.client.set_up(&target, &setup, secrets, minute).await;
    begun.expect("begun");
    until("the end of the setup", || async {
        let setup = world.status(&target).await.setup.expect("begun");
        (setup.state == SetupState::Done).then_some(())
    })
    .await;
    let mut shell = open(&world, &target, line("env")).await;
    let (env, ..) = rest(&mut shell).await;
    let folder = world.folder(0);
    let dir = format!("STAGELINE_MACHINE_DIR={}", folder.display());
    for words in ["OF_THE_LEASE=seen", "HOME=", &dir] {
        assert!(env.contains(words), "no `{words}` in {env}");
    }
    // The agent runs in this process, whose environment has plenty of these.
    for words in ["canary", "KEY=", "CARGO", "STAGELINE_BOOT"] {
        assert!(!env.contains(words), "`{words}` in {env}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_shell_in_front_of_a_terminal_is_told_its_size_and_its_keys() {
    let world = World::new();
    let (_agent, target) = world.agent(0).await;
    let size = |columns, rows| WindowSize { columns, rows };
    let terminal = Terminal {
        term: "xterm-of-a-test".to_owned(),
        size: size(101, 31),
    };
    // The shell of whoever runs this test may be any.
    let order = ShellOrder {
        terminal: Some(terminal),
        ..line("exec sh -i")
    };
    let mut shell = open(&world, &target, order).await;
    types(&mut shell, "echo $TERM; stty size; tty\n").await;
    let said = hears(&mut shell, "/dev/").await;
    assert!(said.contains("xterm-of-a-test\r\n31 101\r\n"), "{said}");
    let piece = ToShell::Size(size(55, 22));
    shell.to.tell(&piece).await.expect("taken");
    types(&mut shell, "stty size\n").await;
    hears(&mut shell, "22 55").await;
    // Ctrl-C ends what is in front, and not the shell. What says that it has begun is in front.
    let front = "sh -c \"echo be''gun; exec sleep 600\"\n";
    types(&mut shell, front).await;
    hears(&mut shell, "begun").await;
    types(&mut shell, "\u{3}").await;
    types(&mut shell, "echo sta''tus $?\n").await;
    hears(&mut shell, "status 130").await;
    types(&mut shell, "exit 7\n").await;
    assert_eq!(rest(&mut shell).await.2, 7);
}

/// Whether a process is there, and no corpse.
async fn ends(pid: &str) {
    let stat = format!("/proc/{pid}/stat");
    until("the end of a process", || async {
        let stat = std::fs::read_to_string(&stat).unwrap_or_default();
        (stat.is_empty() || stat.contains(") Z ")).then_some(())
    })
    .await;
}

/// The text that a command wrote.
async fn written(path: &Path) -> String {
    let text = until("what it writes", || async {
        let text = std::fs::read_to_string(path).ok()?;
        text.ends_with('\n').then_some(text)
    });
    text.await.trim().to_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_in_front_of_a_shell_ends_with_whoever_opened_it() {
    let world = World::new();
    let (agent, target) = world.agent(0).await;
    let size = WindowSize {
        columns: 80,
        rows: 24,
    };
    let terminal = Terminal {
        term: "dumb".to_owned(),
        size,
    };
    for (name, terminal) in [("piped", None), ("shown", Some(terminal))] {
        let file = world.dir.path().join(name);
        let said = world.dir.path().join(format!("{name}-said"));
        // One that asks for a moment, and one that ignores it.
        let script = format!(
            "trap 'echo bye > {said}; exit' HUP; sh -c 'trap \"\" HUP; echo $$ > {file}; sleep 600' & wait; wait",
            said = said.display(),
            file = file.display()
        );
        let order = ShellOrder {
            terminal,
            ..line(&format!("exec sh -c '{}'", script.replace('\'', "'\\''")))
        };
        let shell = open(&world, &target, order).await;
        let pid = written(&file).await;
        drop(shell);
        ends(&pid).await;
        assert_eq!(written(&said).await, "bye");
    }
    // The agent's own end is one, too.
    let file = world.dir.path().join("last");
    let order = line(&format!("echo $$ > {}; exec sleep 600", file.display()));
    let _shell = open(&world, &target, order).await;
    let pid = written(&file).await;
    agent.shutdown().await;
    ends(&pid).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_machine_with_an_open_shell_is_not_idle() {
    let world = World::new();
    let (_agent, target) = world.agent(0).await;
    let idle = || async { world.status(&target).await.idle.expect("it tells") };
    let idles = || async { (idle().await > Millis(50)).then_some(()) };
    until("it is idle", idles).await;
    let shell = open(&world, &target, line("cat")).await;
    for _ in 0..3 {
        assert_eq!(idle().await, Millis(0));
    }
    drop(shell);
    until("it is idle again", idles).await;
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let port = listener.local_addr().expect("bound").port();
    let near = connect(&world, &target, port).await;
    let far = listener.accept().await.expect("somebody");
    for _ in 0..3 {
        assert_eq!(idle().await, Millis(0));
    }
    drop((near, far));
    until("it is idle again", idles).await;
}

/// An agent that knows neither, as one of an earlier version.
#[tokio::test(flavor = "multi_thread")]
async fn an_agent_of_an_earlier_version_is_told_as_one() {
    let world = World::new();
    let options = EndpointOptions {
        alpns: vec![ALPN.to_vec()],
        ..EndpointOptions::default()
    };
    let endpoint = endpoint::bind(&world.key(0), options).await.expect("bound");
    let target = world.target(0, endpoint::contact(&endpoint));
    let answers = tokio::spawn(async move {
        let incoming = endpoint.accept().await.expect("somebody");
        let connection = incoming.await.expect("connected");
        while let Ok((mut send, mut recv)) = connection.accept_bi().await {
            read_frame_bytes(&mut recv).await.expect("a request");
            let unknown = parse_request(br#"{"version":1,"op":"dance"}"#);
            let reply = Reply::Refused(unknown.expect_err("it is none"));
            write_frame(&mut send, &reply).await.expect("taken");
            send.finish().expect("open");
        }
    });
    let shell = world.client.shell(&target, line("true")).await;
    let port = world.client.connect(&target, 80).await;
    let ports = world.client.knows_ports(&target).await;
    let errors = [shell.err(), port.err(), ports.err()];
    for (error, what) in errors.into_iter().zip(["shells", "ports", "ports"]) {
        let (code, message) = refusal(error.expect("it is not known"));
        assert_eq!(code, "unknown-request");
        assert!(message.contains(what), "{message}");
        let older = "it was started by an older stageline";
        assert!(message.ends_with(older), "{message}");
    }
    answers.abort();
}
