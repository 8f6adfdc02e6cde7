//! Servers that speak the APIs of the clouds: installed once, one process of each for all tests of this binary.

#![expect(
    clippy::disallowed_methods,
    clippy::print_stderr,
    reason = "where the cache is and whether this is CI is in the environment, polling needs a pause, and a test that is \
              skipped says so"
)]

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use stageline::store::{StateUrl, Surroundings};

/// An S3 server. Older ones do not know `If-None-Match` on a put.
const MOTO: &str = "moto[server]>=5.0.20";
/// Microsoft's own emulator.
const AZURITE: &str = "azurite@3";
/// A server that takes no notice of the precondition.
const GCS_EMULATOR: &str = "gcp-storage-emulator>=2024.8.3";

/// How long a server may take to start on a computer that does much else.
const PATIENCE: Duration = Duration::from_secs(90);

/// A running server.
#[derive(Clone, Debug)]
pub(super) struct Server {
    pub(super) port: u16,
}

/// Which cloud's URLs lead there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    S3,
    Azure,
    /// moto behind a proxy that translates the precondition: the rest of Google's XML API is that of S3.
    Gcs,
}

impl Kind {
    pub(super) const ALL: [Self; 3] = [Self::S3, Self::Azure, Self::Gcs];

    /// The server, unless it cannot be had here.
    pub(super) fn server(self) -> Option<Server> {
        match self {
            Self::S3 | Self::Gcs => s3(),
            Self::Azure => azure(),
        }
    }

    /// A place that no other test has.
    pub(super) fn url(self) -> String {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let n = NEXT.fetch_add(1, Ordering::Relaxed);
        let scheme = match self {
            Self::S3 => "s3",
            Self::Azure => "az",
            Self::Gcs => "gs",
        };
        format!("{scheme}://state/team/{n}")
    }

    /// What a user of that server has in the environment, when it is reached through this port.
    pub(super) fn variables(self, port: u16) -> BTreeMap<String, String> {
        let pairs: &[(&str, String)] = match self {
            Self::S3 => &[
                ("AWS_ENDPOINT_URL", format!("http://127.0.0.1:{port}")),
                ("AWS_ACCESS_KEY_ID", "AKIDCANARY".to_owned()),
                ("AWS_SECRET_ACCESS_KEY", "secret-canary-1".to_owned()),
                ("AWS_REGION", "us-east-1".to_owned()),
            ],
            Self::Azure => &[
                // Azurite's well-known account.
                ("AZURE_STORAGE_ACCOUNT_NAME", "devstoreaccount1".to_owned()),
                (
                    "AZURE_STORAGE_ACCOUNT_KEY",
                    "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw==".to_owned(),
                ),
                (
                    "AZURE_STORAGE_ENDPOINT",
                    format!("http://127.0.0.1:{port}/devstoreaccount1"),
                ),
            ],
            Self::Gcs => &[
                ("GOOGLE_BASE_URL", format!("http://127.0.0.1:{port}")),
                ("GOOGLE_SKIP_SIGNATURE", "true".to_owned()),
            ],
        };
        pairs
            .iter()
            .map(|(name, value)| ((*name).to_owned(), value.clone()))
            .collect()
    }

    pub(super) fn place(self) -> StateUrl {
        self.url().parse().expect("a place")
    }

    pub(super) fn around(self, port: u16) -> Surroundings {
        Surroundings::new(self.variables(port), None)
    }
}

/// An S3 server with the bucket `state`.
pub(super) fn s3() -> Option<Server> {
    static SERVER: OnceLock<Option<(Server, Child)>> = OnceLock::new();
    of(&SERVER, || {
        let bin = python("moto", MOTO)?;
        let (server, child) = start(|port| {
            let mut command = Command::new(bin.join("moto_server"));
            command.args(["-H", "127.0.0.1", "-p", &port.to_string()]);
            command
        });
        let made = asks(server.port, "PUT /state HTTP/1.1", &[]);
        assert!(made.contains(" 200 "), "{made}");
        Some((server, child))
    })
}

/// Azurite with the container `state`.
pub(super) fn azure() -> Option<Server> {
    static SERVER: OnceLock<Option<(Server, Child)>> = OnceLock::new();
    of(&SERVER, || {
        let bin = node("azurite", AZURITE)?;
        let (server, child) = start(|port| {
            let mut command = Command::new(bin.join("azurite-blob"));
            command
                .args(["--blobHost", "127.0.0.1", "--blobPort", &port.to_string()])
                .args([
                    "--inMemoryPersistence",
                    "--skipApiVersionCheck",
                    "--disableTelemetry",
                    "--silent",
                ]);
            command
        });
        super::stores::make_container(&server);
        Some((server, child))
    })
}

/// A server for gs:// that creates over what is there.
pub(super) fn careless() -> Option<Server> {
    static SERVER: OnceLock<Option<(Server, Child)>> = OnceLock::new();
    of(&SERVER, || {
        let bin = python("gcp-storage-emulator", GCS_EMULATOR)?;
        Some(start(|port| {
            let mut command = Command::new(bin.join("gcp-storage-emulator"));
            command
                .args(["start", "--host", "127.0.0.1", "--port", &port.to_string()])
                .args(["--in-memory", "--default-bucket", "state"]);
            command
        }))
    })
}

fn of(
    cell: &'static OnceLock<Option<(Server, Child)>>,
    begin: impl FnOnce() -> Option<(Server, Child)>,
) -> Option<Server> {
    let begun = cell.get_or_init(begin);
    begun.as_ref().map(|(server, _)| server.clone())
}

/// Starts it on a free port; it ends when this process does, however that ends: its shell reads from a pipe of ours.
fn start(command: impl Fn(u16) -> Command) -> (Server, Child) {
    const WITH_US: &str = r#""$@" & server=$!; cat >/dev/null; kill $server; wait"#;
    for _ in 0..3 {
        let free = TcpListener::bind("127.0.0.1:0").expect("a port");
        let port = free.local_addr().expect("bound").port();
        drop(free);
        let wanted = command(port);
        let mut child = Command::new("sh")
            .args(["-c", WITH_US, "sh"])
            .arg(wanted.get_program())
            .args(wanted.get_args())
            .current_dir(std::env::temp_dir())
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("there is a shell");
        let deadline = Instant::now() + PATIENCE;
        while Instant::now() < deadline {
            if TcpStream::connect(("127.0.0.1", port)).is_ok() {
                return (Server { port }, child);
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        // Somebody else got the port, or it is slow beyond reason.
        drop(child.stdin.take());
        let _ = child.wait();
    }
    panic!("{:?} does not start", command(0))
}

/// One request by hand.
pub(super) fn asks(port: u16, line: &str, headers: &[&str]) -> String {
    use std::io::{Read as _, Write as _};
    let mut stream = TcpStream::connect(("127.0.0.1", port)).expect("it listens");
    let headers = headers
        .iter()
        .map(|header| format!("{header}\r\n"))
        .collect::<String>();
    let request = format!(
        "{line}\r\nHost: 127.0.0.1:{port}\r\nContent-Length: 0\r\nConnection: close\r\n{headers}\r\n"
    );
    stream.write_all(request.as_bytes()).expect("sent");
    let mut answer = String::new();
    // It may cut the line after its answer.
    let _ = stream.read_to_string(&mut answer);
    answer
}

/// A folder of programs of a Python package.
fn python(name: &str, package: &str) -> Option<PathBuf> {
    if !has("python3") {
        return missing(
            name,
            "python3 with venv and pip (`apt-get install python3-venv python3-pip`)",
        );
    }
    let home = installed(name, package, |home| {
        run(Command::new("python3")
            .args(["-m", "venv", "--clear"])
            .arg(home));
        let pip = home.join("bin/python");
        run(Command::new(pip).args(["-m", "pip", "install", "--quiet", package]));
    });
    Some(home.join("bin"))
}

/// A folder of programs of a Node package.
fn node(name: &str, package: &str) -> Option<PathBuf> {
    if !has("npm") {
        return missing(name, "npm (`apt-get install nodejs npm`)");
    }
    let home = installed(name, package, |home| {
        fs::create_dir_all(home).expect("made");
        run(Command::new("npm")
            .args(["install", "--silent", "--no-audit", "--no-fund", "--prefix"])
            .arg(home)
            .arg(package));
    });
    Some(home.join("node_modules/.bin"))
}

/// Skipping is for laptops.
fn missing<T>(name: &str, what: &str) -> Option<T> {
    let ci = std::env::var_os("CI").is_some_and(|ci| ci != "false");
    assert!(!ci, "{name} cannot be installed: this needs {what}");
    eprintln!("\n!!! SKIPPED: tests on {name} need {what}\n");
    None
}

fn has(program: &str) -> bool {
    let asked = Command::new(program)
        .arg("--version")
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status();
    asked.is_ok_and(|status| status.success())
}

/// Installed once per computer, outside of the sources and of the build folder; runs at the same time take turns.
fn installed(name: &str, package: &str, install: impl FnOnce(&Path)) -> PathBuf {
    let cache = std::env::var_os("XDG_CACHE_HOME")
        .map(PathBuf::from)
        .or_else(|| std::env::var_os("HOME").map(|home| Path::new(&home).join(".cache")));
    let cache = cache
        .unwrap_or_else(std::env::temp_dir)
        .join("stageline-tests");
    fs::create_dir_all(&cache).expect("the cache folder can be made");
    let home = cache.join(name);
    let lock = File::create(home.with_extension("lock")).expect("the cache folder can be written");
    lock.lock().expect("the lock can be had");
    let mark = home.join("installed");
    if !fs::read_to_string(&mark).is_ok_and(|installed| installed == package) {
        install(&home);
        fs::write(&mark, package).expect("the cache folder can be written");
    }
    home
}

fn run(command: &mut Command) {
    let what = format!("{command:?}");
    let output = command
        .output()
        .unwrap_or_else(|error| panic!("{what}: {error}"));
    assert!(
        output.status.success(),
        "{what}: {}\n{}{}",
        output.status,
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr),
    );
}
