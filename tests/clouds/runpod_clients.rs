//! Other people's clients of RunPod against the simulator. The provider's own SDK speaks the older GraphQL only: for pods, nothing of
//! it speaks v2. So the client that dstack rents pods with over v2 is asked too.

use std::path::Path;
use std::process::Command;

use stageline::sim::Kind;

use super::desk::cloud;
use super::official::venv;

const SDK: &[&[&str]] = &[&["runpod==1.12.0"]];

/// Without all that dstack is beside its client.
const DSTACK: &[&[&str]] = &[
    &["requests==2.34.2", "typing_extensions"],
    &["--no-deps", "dstack==0.22.5", "gpuhunt==0.1.34"],
];

async fn run(name: &str, steps: &'static [&'static [&'static str]], script: &str) {
    let home = name.to_owned();
    let install = tokio::task::spawn_blocking(move || venv(&home, steps));
    let home = install.await.expect("no panic");
    let cloud = cloud(Kind::Runpod, vec![], 600, false).await;
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join(script);
    let url = format!("http://{}", cloud.address);
    let output = tokio::task::block_in_place(|| {
        Command::new(home.join("bin/python"))
            .arg(&script)
            .env_clear()
            .env("HOME", home.as_path())
            .env("PATH", "/usr/bin:/bin")
            .env("RUNPOD_API_BASE_URL", &url)
            .output()
            .expect("it starts")
    });
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "{script:?}: {out}\n{err}");
    assert!(cloud.world.bill().0 > 0);
    cloud.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_official_sdk_searches_creates_shows_stops_and_terminates() {
    run("runpod", SDK, "tests/clouds/runpod_sdk.py").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_client_of_dstack_rents_and_ends_a_pod_over_v2() {
    run("dstack", DSTACK, "tests/clouds/runpod_dstack.py").await;
}
