//! What is on offer at all clouds at once.

use std::collections::BTreeMap;
use std::process::Command;

use serde_json::{Value, json};
use stageline::core::unit::{Bytes, MicroDollars};
use stageline::sim::{Kind, Running};

use super::desk::{Desk, cloud};

/// A topology that knows of three clouds, and what the binary says in its folder.
struct Market {
    dir: tempfile::TempDir,
    clouds: Vec<Running>,
}

async fn market() -> Market {
    let dir = tempfile::tempdir().expect("a folder");
    let mut text = "version = 1\nname = \"market\"\n".to_owned();
    let mut clouds = Vec::new();
    for kind in Kind::ALL {
        let running = cloud(kind, Vec::new(), 600, false).await;
        text += &format!(
            "[provider.{0}]\nkind = \"{0}\"\napi_key = {{ env = \"ANY_KEY\" }}\nurl = \"{1}\"\n",
            kind.as_str(),
            running.url()
        );
        clouds.push(running);
    }
    std::fs::write(dir.path().join("topology.toml"), text).expect("written");
    Market { dir, clouds }
}

impl Market {
    async fn said(&self, args: &[&str]) -> String {
        let mut command = Command::new(env!("CARGO_BIN_EXE_stageline"));
        command
            .current_dir(self.dir.path())
            .env("ANY_KEY", "k")
            .arg("offers")
            .args(args);
        let output = tokio::task::spawn_blocking(move || command.output());
        let output = output.await.expect("no panic").expect("it starts");
        assert!(
            output.status.success(),
            "{}",
            String::from_utf8_lossy(&output.stderr)
        );
        String::from_utf8(output.stdout).expect("text")
    }

    async fn end(self) {
        for cloud in self.clouds {
            cloud.stop().await;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_cheapest_comes_first_whoever_sells_it_with_all_that_is_told_of_it() {
    let market = market().await;
    let where_ = "gpus=1, vram>=24";
    let told = market
        .said(&["--json", "--limit", "1000", "--where", where_])
        .await;
    let told: Value = serde_json::from_str(&told).expect("JSON");
    let offers = told["offers"].as_array().expect("a list");
    let price = |offer: &Value| offer["price_per_hour"].as_u64().expect("micro-dollars");
    let sold_out = |offer: &Value| offer["supply"]["many"] == 0;
    assert!(offers.is_sorted_by_key(|offer| (sold_out(offer), price(offer))));
    for kind in Kind::ALL {
        let sold = offers
            .iter()
            .any(|offer| offer["provider"] == kind.as_str());
        assert!(sold, "{kind:?}");
    }
    // Its disk is in the price: a larger one costs more where disks do.
    let cheapest = |told: &str, provider: &str| {
        let told: Value = serde_json::from_str(told).expect("JSON");
        let offers = told["offers"].as_array().expect("a list").clone();
        offers
            .iter()
            .filter(|offer| offer["provider"] == provider)
            .map(price)
            .min()
    };
    let args = |disk: &'static str| {
        [
            "--json", "--limit", "1000", "--where", where_, "--disk", disk,
        ]
    };
    let (small, large) = (
        market.said(&args("20")).await,
        market.said(&args("200")).await,
    );
    for provider in ["vastai", "runpod"] {
        assert!(
            cheapest(&small, provider) < cheapest(&large, provider),
            "{provider}"
        );
    }
    assert_eq!(cheapest(&small, "lambda"), cheapest(&large, "lambda"));
    let text = market
        .said(&["--where", "gpu=rtx_4090", "--limit", "3"])
        .await;
    for column in [
        "reliability 0.9",
        "host let for",
        "down ",
        "/GB",
        "cpus",
        "disk",
    ] {
        assert!(text.contains(column), "no {column} in {text}");
    }
    market.end().await;
}

/// What is asked for in another region is nearer than another GPU, or none.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_nearest_that_does_not_fit_has_the_gpu_that_was_asked_for() {
    let market = market().await;
    let asked = [
        "--explain",
        "--json",
        "--where",
        "gpu=h100, region=nowhere-1",
    ];
    let told: Value = serde_json::from_str(&market.said(&asked).await).expect("JSON");
    let misses = told["near_misses"].as_array().expect("a list");
    let model = |miss: &Value| {
        miss["facts"]["gpus"][0]["model"]
            .as_str()
            .unwrap_or("")
            .to_owned()
    };
    let models: Vec<String> = misses.iter().map(model).collect();
    assert!(models[0].contains("H100"), "{models:?}");
    // Each says all that it misses, with what it has instead, and nothing that it has.
    for miss in misses {
        let why = miss["why"].as_array().expect("a list");
        let found = |term: &str| {
            let one = why.iter().find(|one| one["term"] == term);
            one.map(|one| one["found"].as_str().expect("a text").to_owned())
        };
        let region = miss["facts"]["region"].as_str().unwrap_or("unknown");
        assert_eq!(found("region=nowhere-1").as_deref(), Some(region), "{miss}");
        let other = (!model(miss).contains("H100")).then(|| model(miss));
        assert_eq!(found("gpu=h100"), other, "{miss}");
        assert!(!why.is_empty() && why.len() <= 2, "{miss}");
    }
    market.end().await;
}

/// The same of sizes and numbers, at every provider, and in words.
#[test]
fn what_does_not_fit_says_which_term_and_what_it_has_at_every_provider() {
    for kind in Kind::ALL {
        let desk = Desk::of(kind, vec![], 600, 1);
        let line = "offers --explain --where gpus=1,vram>=4000,region=nowhere-1";
        let told = document(&desk, &format!("{line} --json"));
        let misses = told["near_misses"].as_array().expect("a list");
        assert_eq!(misses.len(), 10, "{kind:?}");
        for miss in misses {
            let facts = &miss["facts"];
            let vram = facts["gpus"][0]["vram"].as_u64().expect("bytes");
            let has = [
                ("vram>=4000", Bytes(vram).to_string()),
                (
                    "region=nowhere-1",
                    facts["region"].as_str().unwrap_or("unknown").to_owned(),
                ),
            ];
            let why = miss["why"].as_array().expect("a list");
            assert_eq!(why.len(), has.len(), "{kind:?}: {miss}");
            for (term, found) in has {
                let said = json!({ "term": term, "found": found });
                assert!(why.contains(&said), "{kind:?}: {said} of {miss}");
            }
        }
        let vram = misses[0]["facts"]["gpus"][0]["vram"].as_u64();
        let vram = Bytes(vram.expect("bytes"));
        let region = misses[0]["facts"]["region"].as_str();
        let region = region.unwrap_or("unknown");
        let ran = desk.run(line);
        ran.exits(0)
            .says("Nearest that do not fit:")
            .says(&format!("vram>=4000 (it has {vram})"))
            .says(&format!("region=nowhere-1 (it has {region})"));
    }
}

/// What the binary says as JSON; what it says to people comes after it.
fn document(desk: &Desk, line: &str) -> Value {
    let ran = desk.run(line);
    let mut said = serde_json::Deserializer::from_str(&ran.exits(0).text).into_iter();
    said.next().expect("it says something").expect("JSON")
}

/// What a lease takes first, and its price.
fn chosen(plan: &Value, lease: &str) -> (String, u64) {
    let plan = plan.get("plan").unwrap_or(plan);
    let quote = &plan["leases"][lease]["shortlist"][0]["quote"];
    let id = quote["id"].as_str().expect("it takes something");
    let price = quote["price_per_hour"].as_u64().expect("micro-dollars");
    (id.to_owned(), price)
}

/// Of each offer its price.
fn prices(desk: &Desk, line: &str) -> BTreeMap<String, u64> {
    let told = document(desk, line);
    let offers = told["offers"].as_array().expect("a list");
    let offers = offers.iter().map(|offer| {
        let price = offer["price_per_hour"].as_u64().expect("micro-dollars");
        (offer["id"].as_str().expect("an id").to_owned(), price)
    });
    offers.collect()
}

/// Where disks cost, and some offers have no more than a small one.
#[test]
fn each_lease_is_offered_what_it_costs_with_its_own_disk() {
    for kind in [Kind::Vastai, Kind::Runpod] {
        let desk = Desk::of(kind, vec![], 600, 1);
        let big = "[lease.big]\noffers = [\"gpu\"]\ndisk = 400\nunguarded = true\n[lease.node]";
        desk.edit("[lease.node]", big);
        let plan = document(&desk, "plan --json");
        let small = prices(&desk, "offers --json --limit 1000 --disk 40");
        let large = prices(&desk, "offers --json --limit 1000 --disk 400");
        let (node, big) = (
            chosen(&plan, "lease.node[0]"),
            chosen(&plan, "lease.big[0]"),
        );
        assert_eq!(small.get(&node.0), Some(&node.1), "{kind:?}");
        assert_eq!(large.get(&big.0), Some(&big.1), "{kind:?}");
        assert!(
            large.get(&node.0).is_none_or(|large| *large > node.1),
            "{kind:?}"
        );
        desk.run("apply --auto-approve").exits(0);
        desk.agrees(2);
        desk.run("destroy --auto-approve").exits(0);
        desk.agrees(0);
    }
}

/// Offers that are cheaper and not where one is asked for, and dearer ones that are.
fn shelves(desk: &Desk, price: impl Fn(u64) -> u64) {
    let mut inner = desk.cloud.world.lock();
    let mut offers = inner.offers.values();
    let like =
        offers.find(|offer| offer.facts.gpus.len() == 1 && offer.facts.gpus[0].model == "RTX 4090");
    let like = like.expect("there is one").clone();
    let at = |id: u64, region: &str, price: u64| {
        let mut offer = like.clone();
        offer.id = id;
        offer.facts.region = Some(region.to_owned());
        offer.price = MicroDollars(price);
        (id, offer)
    };
    inner.offers = (0..2500)
        .map(|index| at(9_000_000 + index, "Japan, JP", price(index)))
        .chain([at(9_900_000, "Germany, DE", 300_000)])
        .collect();
}

#[test]
fn the_cheapest_that_fits_is_found_behind_more_offers_than_a_search_returns() {
    let desk = Desk::of(Kind::Vastai, vec![], 600, 1);
    desk.edit("vram>=24,", "vram>=24, region=EU,");
    shelves(&desk, |index| 100_000 + index);
    let offers = desk.run("offers --where gpu=rtx_4090,region=EU");
    offers.exits(0).says("Germany, DE");
    desk.run("plan").exits(0).says("9900000 from provider vast");
    // Where every search is full of one price, nobody can look behind it: that is said, and nothing is rented blindly.
    shelves(&desk, |_| 100_000);
    desk.run("plan").says("there may be more");
}
