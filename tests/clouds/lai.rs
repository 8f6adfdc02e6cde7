//! A client that others generated from Lambda's own description, against the simulator: what it takes apart strictly there,
//! it takes apart here.

use std::path::PathBuf;
use std::process::Command;

use serde_json::Value;
use stageline::sim::{Kind, Running};

use super::desk::cloud;
use super::official::client;

const PACKAGE: &str = "lambda-ai-cloud-api-client==2.4.1";

struct Lai<'a> {
    program: PathBuf,
    home: tempfile::TempDir,
    cloud: &'a Running,
}

impl Lai<'_> {
    fn run(&self, args: &[&str]) -> String {
        let output = Command::new(&self.program)
            .args(args)
            .env_clear()
            .env("HOME", self.home.path())
            .env("PATH", "/usr/bin:/bin")
            .env("COLUMNS", "400")
            .env(
                "LAMBDA_CLOUD_BASE_URL",
                format!("http://{}", self.cloud.address),
            )
            .env("LAMBDA_CLOUD_TOKEN", "somebody")
            .output()
            .expect("it starts");
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let (out, err) = (text(&output.stdout), text(&output.stderr));
        assert!(output.status.success(), "{args:?}: {out}\n{err}");
        out
    }

    /// What a verb prints that has no other way.
    fn told(&self, args: &[&str]) -> Value {
        let text = self.run(args);
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("{args:?}: {error}: {text}"))
    }

    fn json(&self, args: &[&str]) -> Value {
        self.told(&[args, &["--json"]].concat())
    }

    fn status(&self, id: &str) -> Value {
        self.told(&["get", id])["status"].clone()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_generated_client_lists_launches_shows_and_terminates() {
    let program = tokio::task::spawn_blocking(|| client(PACKAGE, "lai"));
    let program = program.await.expect("no panic");
    let cloud = cloud(Kind::Lambda, vec![], 600, false).await;
    tokio::task::block_in_place(|| {
        let home = tempfile::tempdir().expect("a folder");
        let lai = Lai {
            program,
            home,
            cloud: &cloud,
        };
        let kind = "gpu_1x_a10";
        let types = lai.json(&["types", "--instance-type", kind, "--available"]);
        assert_eq!(types[0]["instance_type"]["price_cents_per_hour"], 75);
        let region = &types[0]["regions_with_capacity_available"][0]["name"];
        let region = region.as_str().expect("a name");
        assert_eq!(lai.json(&["keys"])[0]["name"], "rehearsal");
        assert_eq!(lai.json(&["images"])[0]["family"], "lambda-stack-24-04");
        let start = ["start", "--instance-type", kind, "--region", region];
        let options = [
            "--ssh-key",
            "rehearsal",
            "--name",
            "one",
            "--tag",
            "team=blue",
        ];
        let made = lai.json(&[&start[..], &options].concat());
        assert_eq!(made["status"], "booting");
        let id = made["id"].as_str().expect("an id").to_owned();
        let listed = lai.json(&["ls"]);
        assert_eq!(listed[0]["id"], id.as_str());
        assert_eq!(listed[0]["name"], "one");
        assert_eq!(listed[0]["tags"][0]["value"], "blue");
        assert_eq!(lai.told(&["rename", &id, "two"])["name"], "two");
        cloud.world.clock.advance(120_000);
        assert_eq!(lai.status("two"), "active");
        assert!(lai.told(&["get", &id])["ip"].is_string());
        assert_eq!(lai.told(&["restart", "two"])[0]["id"], id.as_str());
        assert_eq!(lai.told(&["stop", "two"])[0]["status"], "terminating");
        cloud.world.clock.advance(60_000);
        assert_eq!(lai.json(&["ls"]), serde_json::json!([]));
        assert!(cloud.world.bill().0 > 0);
    });
    cloud.stop().await;
}
