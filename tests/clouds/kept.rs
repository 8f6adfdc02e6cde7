//! The key of an account: it goes to its provider, in the header that is for it, and is seen nowhere else.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::{Arc, Mutex};

use stageline::sim::{Fault, Kind};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Runtime;

use super::desk::{Desk, Ran};
use super::pushed::desk_of;
use crate::cli::secrets::{arguments, forms};

/// With signs that change when they are encoded.
const CANARY: &str = "canary-account/2b8e?s+t==";

/// What is run while machines are there.
const LINES: &[&str] = &[
    "plan -vv --json",
    "apply -vv --json --auto-approve",
    "apply -vv --log-format json --auto-approve",
    "status --json",
    "leases --json",
    "show --json",
    "state pull",
    "state history --json",
    "state show lease.node[0]",
    "logs lease.node[0]",
    "ask Hello",
    "offers -vv --json --explain",
    "orphans -vv --json",
    "watch --once -vv --json",
];

/// The same where a push takes its time.
const PUSHED: &[&str] = &["apply -vv --auto-approve", "logs lease.node[0]"];

/// A line to a cloud, on which somebody writes down what is sent there.
struct Line {
    address: SocketAddr,
    sent: Arc<Mutex<Vec<Vec<u8>>>>,
    _runtime: Runtime,
}

impl Line {
    fn to(cloud: SocketAddr) -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .expect("a runtime");
        let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0"));
        let listener = listener.expect("a port");
        let address = listener.local_addr().expect("bound");
        let sent = Arc::new(Mutex::new(Vec::new()));
        let notes = Arc::clone(&sent);
        runtime.spawn(async move {
            while let Ok((near, _)) = listener.accept().await {
                tokio::spawn(pass(near, cloud, Arc::clone(&notes)));
            }
        });
        Self {
            address,
            sent,
            _runtime: runtime,
        }
    }

    /// Everything that was sent, a text for each connection.
    fn sent(&self) -> Vec<String> {
        let sent = self.sent.lock().expect("alive");
        let texts = sent.iter().map(|bytes| String::from_utf8_lossy(bytes));
        texts.map(std::borrow::Cow::into_owned).collect()
    }
}

async fn pass(near: TcpStream, cloud: SocketAddr, notes: Arc<Mutex<Vec<Vec<u8>>>>) {
    let Ok(far) = TcpStream::connect(cloud).await else {
        return;
    };
    let (mut asks, mut hears) = near.into_split();
    let (mut answers, mut takes) = far.into_split();
    let place = {
        let mut notes = notes.lock().expect("alive");
        notes.push(Vec::new());
        notes.len() - 1
    };
    let there = async {
        let mut piece = vec![0; 16 << 10];
        while let Ok(size @ 1..) = asks.read(&mut piece).await {
            notes.lock().expect("alive")[place].extend_from_slice(&piece[..size]);
            if takes.write_all(&piece[..size]).await.is_err() {
                break;
            }
        }
        takes.shutdown().await.ok();
    };
    let back = async {
        tokio::io::copy(&mut answers, &mut hears).await.ok();
        hears.shutdown().await.ok();
    };
    tokio::join!(there, back);
}

/// A secret is in no file below this folder, but for those of this name.
pub(super) fn is_in_no_file(folder: &Path, secret: &str, own: &str) {
    let mut open = vec![folder.to_owned()];
    while let Some(folder) = open.pop() {
        for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
            let path = entry.path();
            match entry.file_type() {
                Ok(kind) if kind.is_dir() => open.push(path),
                Ok(kind) if kind.is_file() && !path.ends_with(own) => {
                    let bytes = std::fs::read(&path).unwrap_or_default();
                    let text = String::from_utf8_lossy(&bytes);
                    for form in forms(secret) {
                        assert!(!text.contains(&form), "{form} in {}", path.display());
                    }
                }
                Ok(_) | Err(_) => {}
            }
        }
    }
}

/// A secret is in none of these outputs.
pub(super) fn is_in_no_output(said: &[Ran], secret: &str) {
    for form in forms(secret) {
        for ran in said {
            assert!(!ran.text.contains(&form), "{form} in {}", ran.text);
        }
    }
}

/// A secret is in nothing that a machine was handed, nor in the arguments and the environment of what runs there.
pub(super) fn is_on_no_machine(desk: &Desk, secret: &str) {
    let handed: Vec<String> = {
        let inner = desk.cloud.world.lock();
        let machines = inner.machines.values();
        let handed = machines.map(|it| {
            let Some(access) = &it.access else {
                return format!("{:?} {} {}", it.env, it.onstart, it.more);
            };
            format!("{:?} {} {} {access:?}", it.env, it.onstart, it.more)
        });
        handed.collect()
    };
    assert!(handed.iter().any(|text| text.len() > 40), "{handed:?}");
    let root = desk.cloud.world.root().display().to_string();
    let environments = environments(&root);
    assert!(!environments.is_empty(), "agents run");
    let arguments = arguments();
    for form in forms(secret) {
        for text in handed.iter().chain(&environments).chain(&arguments) {
            assert!(!text.contains(&form), "{form} in {text}");
        }
    }
    is_in_no_file(desk.cloud.world.root(), secret, "none");
}

/// Of what runs on machines below this folder.
fn environments(root: &str) -> Vec<String> {
    let entries = std::fs::read_dir("/proc").expect("readable").flatten();
    let texts = entries.filter_map(|entry| std::fs::read(entry.path().join("environ")).ok());
    let texts = texts.map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
    texts.filter(|text| text.contains(root)).collect()
}

/// Of all that was sent, a secret is in the header for it alone, and it is there.
fn is_in_its_header_alone(line: &Line, secret: &str) {
    let sent = line.sent();
    let own = format!("authorization: bearer {}", secret.to_ascii_lowercase());
    let lines = || sent.iter().flat_map(|text| text.lines());
    let is_own = |line: &str| line.to_ascii_lowercase() == own;
    assert!(lines().any(is_own), "the search would find it");
    for form in forms(secret) {
        for line in lines().filter(|line| !is_own(line)) {
            assert!(!line.contains(&form), "{form} in {line}");
        }
    }
}

fn the_key_is_kept(kind: Kind, desk: &Desk, lines: &[&str]) {
    let line = Line::to(desk.cloud.address);
    let (from, to) = (desk.cloud.address.to_string(), line.address.to_string());
    desk.edit(&from, &to);
    let mut said = Vec::new();
    for command in lines {
        let ran = desk.run_with(Some(CANARY), command);
        ran.exits(0);
        said.push(ran);
        if command.starts_with("apply") {
            is_on_no_machine(desk, CANARY);
        }
    }
    // What is refused is told at length.
    let faults = &desk.cloud.world.faults;
    let refused = vec![Fault::of("auth-revoked")];
    faults.replace(refused).expect("knobs");
    said.push(desk.run_with(Some(CANARY), "status -vv"));
    said.push(desk.run_with(Some(CANARY), "apply -vv --auto-approve"));
    faults.replace(vec![]).expect("knobs");
    is_in_no_file(&desk.path(""), CANARY, "none");
    let ran = desk.run_with(Some(CANARY), "destroy -vv --auto-approve");
    ran.exits(0).says("0 left at providers");
    said.push(ran);
    is_in_no_output(&said, CANARY);
    is_in_no_file(&desk.path(""), CANARY, "none");
    is_in_its_header_alone(&line, CANARY);
    assert!(desk.there().is_empty(), "{kind:?}");
}

#[test]
fn the_key_of_an_account_goes_to_its_provider_and_is_seen_nowhere_else() {
    std::thread::scope(|scope| {
        for kind in Kind::ALL {
            scope.spawn(move || the_key_is_kept(kind, &Desk::new(kind, vec![]), LINES));
        }
    });
}

/// What logs in to a machine takes the key along no more than what a machine boots from.
#[test]
fn the_key_of_an_account_is_not_on_machines_that_the_agent_is_pushed_to() {
    std::thread::scope(|scope| {
        for kind in [Kind::Vastai, Kind::Lambda] {
            scope.spawn(move || the_key_is_kept(kind, &desk_of(kind, vec![], 1), PUSHED));
        }
    });
}
