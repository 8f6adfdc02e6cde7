//! The provider's own command line against the simulator: what it can do there, it can do here.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;
use stageline::sim::{Fault, Kind, Running};

use super::desk::cloud;

const PACKAGE: &str = "vastai==1.9.1";

struct Client<'a> {
    program: PathBuf,
    home: tempfile::TempDir,
    cloud: &'a Running,
}

impl Client<'_> {
    fn run(&self, args: &[&str]) -> String {
        let url = format!("http://{}", self.cloud.address);
        let output = Command::new(&self.program)
            .args(["--url", &url, "--api-key", "somebody"])
            .args(args)
            .env_clear()
            .env("HOME", self.home.path())
            .env("PATH", "/usr/bin:/bin")
            .output()
            .expect("it starts");
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let (out, err) = (text(&output.stdout), text(&output.stderr));
        assert!(
            output.status.success() && err.is_empty(),
            "{args:?}: {out}\n{err}"
        );
        out
    }

    fn json(&self, args: &[&str]) -> Value {
        let mut args = args.to_vec();
        args.push("--raw");
        let text = self.run(&args);
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("{args:?}: {error}: {text}"))
    }

    fn status(&self, id: &str) -> Value {
        self.json(&["show", "instance", id])["actual_status"].clone()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_official_client_searches_creates_shows_and_destroys() {
    let program = tokio::task::spawn_blocking(|| client(PACKAGE, "vastai"))
        .await
        .expect("no panic");
    let cloud = cloud(Kind::Vastai, vec![], 600, false).await;
    tokio::task::block_in_place(|| {
        let client = Client {
            program,
            home: tempfile::tempdir().expect("a folder"),
            cloud: &cloud,
        };
        let offers = client.json(&["search", "offers", "num_gpus=1 gpu_name=RTX_4090"]);
        let offers = offers.as_array().expect("a list");
        assert!(!offers.is_empty());
        assert!(
            offers
                .iter()
                .all(|offer| offer["gpu_name"] == "RTX 4090" && offer["num_gpus"] == 1)
        );
        let offer = offers[0]["id"].to_string();
        let options = [
            "--image", "img:1", "--disk", "20", "--label", "one", "--ssh", "--direct",
        ];
        let made = client.json(&[&["create", "instance", &offer][..], &options].concat());
        assert_eq!(made["success"], true);
        let id = made["new_contract"].to_string();
        let listed = client.json(&["show", "instances"]);
        assert_eq!(listed[0]["id"].to_string(), id);
        assert_eq!(listed[0]["label"], "one");
        client.run(&["label", "instance", &id, "two"]);
        assert_eq!(client.json(&["show", "instances"])[0]["label"], "two");
        cloud.world.clock.advance(120_000);
        assert_eq!(client.status(&id), "running");
        client.run(&["logs", &id]);
        client.run(&["stop", "instance", &id]);
        assert_eq!(client.status(&id), "stopped");
        client.run(&["destroy", "instance", &id, "-y"]);
        assert_eq!(client.json(&["show", "instances"]), serde_json::json!([]));
        assert!(cloud.world.bill().0 > 0);
        bids(&client);
        increases(&client);
    });
    cloud.stop().await;
}

/// Hosts ask for more: one is told no, the other yes, and only that one costs more then.
fn increases(client: &Client<'_>) {
    let asked = vec![Fault::of("price-asked").factor(2.0).seconds(86_400)];
    client.cloud.world.faults.replace(asked).expect("knobs");
    let offers = client.json(&["search", "offers", "num_gpus=1 gpu_name=RTX_4090"]);
    let ids = [0, 1].map(|place| {
        let offer = offers[place]["id"].to_string();
        let options = ["--image", "img:1", "--disk", "20"];
        let made = client.json(&[&["create", "instance", &offer][..], &options].concat());
        made["new_contract"].to_string()
    });
    let pending = || client.json(&["show", "pending-price-increases"]);
    assert_eq!(pending()["count"], 0);
    client.cloud.world.clock.advance(2 * 86_400_000);
    let told = pending();
    assert_eq!(told["count"], 2, "{told}");
    let price = |id: &str| {
        let shown = client.json(&["show", "instance", id]);
        shown["dph_total"].as_f64().expect("a number")
    };
    let before = [price(&ids[0]), price(&ids[1])];
    client.run(&["reject", "price-increase", &ids[0], "--yes"]);
    client.run(&["accept", "price-increase", &ids[1], "--yes"]);
    assert_eq!(pending()["count"], 0);
    let after = [price(&ids[0]), price(&ids[1])];
    assert!((after[0] - before[0]).abs() < 1e-9, "{before:?} {after:?}");
    assert!(after[1] > before[1] * 1.5, "{before:?} {after:?}");
    for id in ids {
        client.run(&["destroy", "instance", &id, "-y"]);
    }
}

/// A bid that is taken, and one that is too low: the client lets that one stand there, stopped and billed.
fn bids(client: &Client<'_>) {
    let query = ["num_gpus=1 gpu_name=RTX_4090", "--type", "bid"];
    let offers = client.json(&[&["search", "offers"][..], &query].concat());
    let [offer, other, ..] = offers.as_array().expect("a list").as_slice() else {
        panic!("several offers: {offers}")
    };
    let least = offer["min_bid"].as_f64().expect("a number");
    assert!((least - offer["dph_base"].as_f64().expect("a number")).abs() < 1e-6);
    let bid = |offer: &Value, price: f64| {
        let (id, price) = (offer["id"].to_string(), price.to_string());
        let options = ["--image", "img:1", "--disk", "20", "--bid_price", &price];
        client.json(&[&["create", "instance", &id][..], &options].concat())
    };
    let made = bid(offer, least);
    assert_eq!(made["success"], true, "{made}");
    let id = made["new_contract"].to_string();
    client.cloud.world.clock.advance(120_000);
    let shown = client.json(&["show", "instance", &id]);
    assert_eq!(
        (&shown["actual_status"], &shown["is_bid"]),
        (&"running".into(), &true.into())
    );
    let low = bid(other, 0.01);
    let stopped = low["new_contract"].to_string();
    assert_eq!(
        (&low["success"], client.status(&stopped)),
        (&false.into(), "stopped".into())
    );
    for id in [id, stopped] {
        client.run(&["destroy", "instance", &id, "-y"]);
    }
    assert_eq!(client.json(&["show", "instances"]), serde_json::json!([]));
}

/// A client, installed once per build folder.
pub(super) fn client(package: &'static str, program: &str) -> PathBuf {
    let name = package.split('=').next().unwrap_or(package);
    venv(name, &[&[package]]).join("bin").join(program)
}

/// What several `pip install` make, once per build folder.
pub(super) fn venv(name: &str, steps: &[&[&str]]) -> PathBuf {
    let home = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}-venv"));
    // Test runs at the same time take turns.
    let lock = File::create(home.with_extension("lock")).expect("the build folder can be written");
    lock.lock().expect("the lock can be had");
    let (mark, wanted) = (home.join("installed"), format!("{steps:?}"));
    if fs::read_to_string(&mark).is_ok_and(|installed| installed == wanted) {
        return home;
    }
    run(Command::new("python3")
        .args(["-m", "venv", "--clear"])
        .arg(&home));
    for packages in steps {
        let pip = ["-m", "pip", "install", "--quiet"];
        run(Command::new(home.join("bin/python"))
            .args(pip)
            .args(*packages));
    }
    fs::write(&mark, wanted).expect("the build folder can be written");
    home
}

fn run(command: &mut Command) {
    let what = format!("{command:?}");
    let output = command.output().unwrap_or_else(|error| {
        panic!("{what}: {error}\nThis test needs Python 3.10 or newer with venv and pip")
    });
    assert!(
        output.status.success(),
        "{what}: {}\n{}\nThis test needs Python 3.10 or newer with venv and pip, and once a package index",
        output.status,
        String::from_utf8_lossy(&output.stderr),
    );
}
