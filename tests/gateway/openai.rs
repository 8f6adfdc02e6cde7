//! The official Python client of OpenAI against the gateway.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use stageline::gateway::ServeLimits;
use tokio::io::{AsyncBufReadExt, BufReader};

use super::WITH_KEY;
use super::fake::{PATIENCE, Served};

const PACKAGE: &str = "openai>=1.40";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_official_python_client() {
    let python = tokio::task::spawn_blocking(python_with_client)
        .await
        .expect("no panic");
    let served = Served::with(WITH_KEY, |_| {}, ServeLimits::default()).await;
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/openai_client.py");
    let mut child = tokio::process::Command::new(python)
        .arg(script)
        .env_clear()
        .env("BASE_URL", served.url("/v1"))
        .env("API_KEY", WITH_KEY.expect("a key"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .expect("python starts");
    let mut lines = BufReader::new(child.stdout.take().expect("a pipe")).lines();
    let stdin = child.stdin.take();
    let talk = async {
        // The script says so after it has closed streams in the middle, and lives on, so that its end does not close them.
        let mut closed = false;
        while let Some(line) = lines.next_line().await.expect("readable") {
            closed = line == "closed";
            if closed {
                break;
            }
        }
        assert!(closed, "the script failed: its messages are above");
        served.fake.wait_for_live(0).await;
        drop(stdin);
        child.wait().await.expect("its status")
    };
    let status = tokio::time::timeout(PATIENCE * 6, talk)
        .await
        .expect("it ends");
    assert!(status.success(), "{status}");
}

/// A Python that can import the client, installed once per build folder.
fn python_with_client() -> PathBuf {
    let home = Path::new(env!("CARGO_TARGET_TMPDIR")).join("openai-venv");
    let python = home.join("bin/python");
    // Test runs at the same time take turns.
    let lock = File::create(home.with_extension("lock")).expect("the build folder can be written");
    lock.lock().expect("the lock can be had");
    let mark = home.join("installed");
    if fs::read_to_string(&mark).is_ok_and(|package| package == PACKAGE) {
        return python;
    }
    run(Command::new("python3")
        .args(["-m", "venv", "--clear"])
        .arg(&home));
    run(Command::new(&python).args(["-m", "pip", "install", "--quiet", PACKAGE]));
    fs::write(&mark, PACKAGE).expect("the build folder can be written");
    python
}

fn run(command: &mut Command) {
    let what = format!("{command:?}");
    let output = command.output().unwrap_or_else(|error| {
        panic!("{what}: {error}\nThis test needs Python 3.10 or newer with venv and pip: `apt-get install python3 python3-venv python3-pip`")
    });
    assert!(
        output.status.success(),
        "{what}: {}\n{}{}\nThis test needs Python 3.10 or newer with venv and pip (`apt-get install python3 python3-venv \
         python3-pip`), and once a package index that has `openai`",
        output.status,
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr),
    );
}
