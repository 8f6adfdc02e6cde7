//! What the API says and what is made of it; the command that starts the agent, run by a real shell.

use std::os::unix::fs::PermissionsExt as _;
use std::process::Command;

use serde_json::{Value, json};
use stageline_core::offer::{Bid, Quote, Requirement};
use stageline_core::resource::FailureClass;
use stageline_core::topology::AgentSource;
use stageline_core::unit::{Bytes, MicroDollars};

use super::{Vastai, offer, wire};
use crate::provider::http::tests::settings;
use crate::provider::http::{Answer, start_script};
use crate::provider::{MachineStatus, Phase, Provider as _};

fn raw() -> Value {
    json!({
        "id": 7001, "ask_contract_id": 7001, "machine_id": 412, "host_id": 33,
        "gpu_name": "RTX 4090", "num_gpus": 2, "gpu_ram": 24564, "cpu_arch": "amd64",
        "cpu_cores": 32, "cpu_cores_effective": 16.0, "cpu_ram": 128_000, "disk_space": 900.0,
        "dph_base": 0.40, "dph_total": 0.4083, "storage_cost": 0.15, "min_bid": 0.21, "is_bid": false,
        "reliability2": 0.995, "verification": "verified", "rentable": true, "rented": false,
        "geolocation": "Quebec, CA", "static_ip": true, "direct_port_count": 50, "driver_version": "570.10",
        "cuda_max_good": 12.8, "duration": 1_209_600.0, "hosting_type": 0, "a_new_field": {"x": [1]}
    })
}

fn quote(offer: &Value, disk: u64) -> Option<Quote> {
    offer::quote(&"vast".parse().expect("a name"), offer, disk, None)
}

fn with(field: &str, value: Value) -> Value {
    let mut offer = raw();
    offer[field] = value;
    offer
}

#[test]
fn an_offer_is_all_in_and_its_memory_is_its_share() {
    let quote = quote(&raw(), 40).expect("an offer");
    // 0.40 and 40 GB at 0.15 a month of 720 hours.
    assert_eq!(quote.price_per_hour, MicroDollars(408_334));
    let facts = &quote.facts;
    assert_eq!(
        (facts.gpus.len(), facts.cpus, facts.arch.as_str()),
        (2, 16, "x86_64")
    );
    assert_eq!(facts.memory, Bytes(64_000 << 20));
    assert_eq!(facts.extra["reliability"], "0.995");
    let fits = |text: &str| {
        let wanted: Requirement = text.parse().expect("a requirement");
        wanted.misfits(facts)
    };
    assert_eq!(
        fits(
            "gpu=rtx_4090, gpus=2, vram>=24, reliability>=0.98, region=CA, memory>=64, cuda>=12.4"
        ),
        []
    );
    assert_eq!(
        fits("provider.hours_left>=300, provider.datacenter=false, driver>=560"),
        []
    );
    assert_eq!(fits("gpu=h100, region=EU").len(), 2);
}

#[test]
fn more_disk_costs_more_and_the_offers_own_sum_is_no_excuse() {
    let small = quote(&raw(), 40).expect("an offer").price_per_hour;
    let large = quote(&raw(), 800).expect("an offer").price_per_hour;
    assert!(large > small);
    assert_eq!(quote(&raw(), 901), None);
    let dear = quote(&with("dph_total", json!(9.5)), 40).expect("an offer");
    assert_eq!(dear.price_per_hour, MicroDollars(9_500_000));
}

#[test]
fn an_offer_is_read_with_tolerance_and_not_with_fantasy() {
    let odd = [
        ("id", json!("7001")),
        ("dph_base", json!("0.40")),
        ("cpu_cores", Value::Null),
        ("geolocation", Value::Null),
        ("driver_version", Value::Null),
        ("verification", json!("some new word")),
        ("cpu_arch", Value::Null),
    ];
    for (field, value) in odd {
        assert!(quote(&with(field, value), 40).is_some(), "{field}");
    }
    let none = [
        ("rentable", json!(false)),
        ("rented", json!(true)),
        ("direct_port_count", json!(0)),
        ("disk_space", json!(10)),
    ];
    for (field, value) in none {
        assert_eq!(quote(&with(field, value), 40), None, "{field}");
    }
    let mut priceless = raw();
    for price in [Value::Null, json!(-1), json!("NaN"), json!(0), json!("inf")] {
        priceless["dph_total"] = price.clone();
        priceless["dph_base"] = price;
        assert_eq!(quote(&priceless, 40), None);
    }
    let nameless = quote(&with("num_gpus", json!(1e12)), 40).expect("an offer");
    assert!(nameless.facts.gpus.len() <= 64);
}

#[test]
fn a_bid_is_a_quote_of_its_own_at_what_is_bid_and_the_disk() {
    let vast = "vast".parse().expect("a name");
    let bid = |offer: &Value, amount| offer::quote(&vast, offer, 40, Some(amount));
    let disk = MicroDollars(8_334);
    for (amount, id, per_hour) in [
        (None, "7001#bid", MicroDollars(210_000)),
        (
            Some(MicroDollars(300_000)),
            "7001#bid=0.30",
            MicroDollars(300_000),
        ),
        // Too low: it is told, and does not fit.
        (
            Some(MicroDollars(200_000)),
            "7001#bid=0.20",
            MicroDollars(200_000),
        ),
    ] {
        let quote = bid(&raw(), amount).expect("an ask");
        assert_eq!(quote.id.0, id);
        let least = MicroDollars(210_000);
        assert_eq!(quote.bid, Some(Bid { per_hour, least }));
        assert_eq!(quote.price_per_hour, per_hour.saturating_add(disk));
        assert!(quote.facts.spot);
    }
    assert!(!quote(&raw(), 40).expect("an offer").facts.spot);
    for none in [Value::Null, json!(0), json!(-1), json!("NaN")] {
        assert_eq!(bid(&with("min_bid", none), None), None);
    }
    let any = Requirement::default();
    assert_eq!(offer::filter(&any, &[], 40, None)["type"], "ondemand");
    assert_eq!(offer::filter(&any, &[], 40, Some(None))["type"], "bid");
    assert_eq!(offer::one(5, 60, Some(None))["type"], "bid");
}

#[test]
fn a_search_asks_for_less_than_the_requirement_and_for_the_disk() {
    let wanted: Requirement = "gpu=rtx_4090, vram>=24, reliability>=0.98"
        .parse()
        .expect("one");
    let body = offer::filter(&wanted, &["RTX 4090".to_owned()], 60, None);
    assert_eq!(body["gpu_name"], json!({ "in": ["RTX 4090"] }));
    assert_eq!(body["disk_space"], json!({ "gte": 60 }));
    assert_eq!(body["allocated_storage"], json!(60));
    assert_eq!(body["num_gpus"], json!({ "gte": 1 }));
    assert_eq!(body["reliability"], json!({ "gte": 0.98 }));
    assert!(body["gpu_ram"]["gte"].as_u64().expect("a number") < 24_000);
    assert_eq!(offer::one(5, 60, None)["id"], json!({ "eq": 5 }));
    // A volume is on one machine: no other one is asked for.
    let volume = json!({ "volumes": [{ "id": 9, "machine_id": 412 }] });
    let volumes = offer::volumes(&volume).expect("a list");
    let body = offer::filter(&volumes[0].requirement, &[], 60, None);
    assert_eq!(body["machine_id"], json!({ "eq": 412 }));
}

fn answer(status: u16, body: Value) -> Answer {
    Answer {
        status,
        body,
        retry_after: None,
        resets_at: None,
    }
}

fn refusals() -> Vec<(u16, Value, FailureClass)> {
    use FailureClass::{Auth, Capacity, Config, Money, OfferGone, Quota, Rate, Unknown};
    vec![
        (
            200,
            json!({ "success": false, "error": "deprecated_endpoint" }),
            Unknown,
        ),
        (
            200,
            json!({ "success": false, "msg": "Insufficient credit" }),
            Money,
        ),
        (200, json!({ "error": "odd" }), Unknown),
        (
            400,
            json!({ "success": false, "error": "invalid_args" }),
            Config,
        ),
        (400, json!({ "error": "invalid_price" }), Config),
        (400, json!({ "error": "missing_billing" }), Money),
        (
            400,
            json!({ "error": "insufficient-capacity", "msg": "no capacity" }),
            Capacity,
        ),
        (400, json!({ "error": "no_capacity" }), Capacity),
        (400, json!({ "error": "quota-exceeded" }), Quota),
        (
            401,
            json!({ "success": false, "error": "auth_error", "msg": "Invalid user key" }),
            Auth,
        ),
        (402, json!({}), Money),
        (
            403,
            json!({ "error": "invalid_args", "msg": "Offer is not your own" }),
            Config,
        ),
        (
            404,
            json!({ "success": false, "msg": "Invalid user key" }),
            Auth,
        ),
        (
            404,
            json!({ "msg": "Session expired. Please log in again." }),
            Auth,
        ),
        (
            404,
            json!({ "error": "invalid_args", "msg": "error 404/3603: no_such_ask 7" }),
            OfferGone,
        ),
        (404, json!({ "error": "no_such_instance" }), Unknown),
        (410, json!({ "error": "no_such_ask" }), OfferGone),
        (429, json!({ "detail": "too frequent" }), Rate),
        (429, json!({ "error": "search_quota_exceeded" }), Quota),
        (500, json!({}), Unknown),
        (503, json!({ "message": "service unavailable" }), Unknown),
    ]
}

#[test]
fn every_refusal_has_its_class() {
    for (status, body, class) in refusals() {
        let told = wire::told(&answer(status, body.clone())).expect("a refusal");
        assert_eq!(told.class, class, "{status} {body}");
    }
    for fine in [
        json!({}),
        json!({ "success": true }),
        json!({ "offers": [] }),
    ] {
        assert_eq!(wire::told(&answer(200, fine)), None);
    }
    let noisy = answer(
        500,
        json!({ "msg": "\u{1b}[31mred\u{7}\nand long ".repeat(100) }),
    );
    let words = wire::told(&noisy).expect("a refusal").message;
    assert!(
        words.len() < 300 && !words.contains(['\u{1b}', '\n']),
        "{words}"
    );
}

fn instance(change: Value) -> Value {
    let mut instance = json!({
        "id": 8_123_456, "label": "sl-00112233445566aa-0011aabb-g1a1", "actual_status": "running",
        "intended_status": "running", "cur_state": "running", "next_state": "running", "dph_total": 0.408334,
        "gpu_name": "RTX 4090", "num_gpus": 1, "gpu_ram": 24564, "public_ipaddr": "203.0.113.5\n",
        "ports": { "22/tcp": [{ "HostIp": "0.0.0.0", "HostPort": "41022" }],
                   "41641/udp": [{ "HostIp": "0.0.0.0", "HostPort": "41643" }] },
        "start_date": 1_790_000_000.5
    });
    for (field, value) in change.as_object().expect("an object") {
        instance[field] = value.clone();
    }
    instance
}

fn status(change: Value) -> MachineStatus {
    wire::machine(&instance(change), None)
        .expect("it has an id")
        .status
}

#[test]
fn a_running_instance_is_reached_by_its_mapped_port() {
    let machine = wire::machine(&instance(json!({})), Some("https://relay.example")).expect("one");
    assert_eq!(
        machine.contact.direct,
        ["203.0.113.5:41643".parse().expect("an address")]
    );
    assert_eq!(
        machine.contact.relay.as_deref(),
        Some("https://relay.example")
    );
    assert_eq!(machine.price_per_hour, MicroDollars(408_334));
    assert!(machine.request_key.is_some() && machine.created_at.is_some());
    let foreign = instance(json!({ "label": "SL-00112233445566aa-0011aabb-g1a1x" }));
    assert_eq!(
        wire::machine(&foreign, None).expect("one").request_key,
        None
    );
    assert_eq!(wire::machine(&json!({ "label": "x" }), None), None);
}

#[test]
fn only_what_is_known_to_be_over_is_dead() {
    let dead = [
        json!({ "actual_status": "exited" }),
        json!({ "actual_status": "offline" }),
        json!({ "actual_status": "unknown" }),
        json!({ "intended_status": "stopped" }),
        json!({ "cur_state": "stopped", "next_state": "stopped" }),
        json!({ "actual_status": "created", "status_msg": "Error: OCI runtime create failed: no such file" }),
        json!({ "actual_status": "loading", "status_msg": "OCI runtime create failed" }),
    ];
    for change in dead {
        assert!(
            matches!(status(change.clone()), MachineStatus::Dead(_)),
            "{change}"
        );
    }
    let pending = [
        json!({ "actual_status": null }),
        json!({ "actual_status": "loading", "status_msg": "pulling 40 %" }),
        json!({ "actual_status": "created" }),
        json!({ "actual_status": "rebooting" }),
        json!({ "actual_status": "levitating" }),
        json!({ "ports": null }),
        json!({ "public_ipaddr": null }),
        json!({ "ports": { "41641/udp": null } }),
    ];
    let limits = Vastai::new(settings(None)).boot_limits(None);
    for change in pending {
        let MachineStatus::Pending(phase) = status(change.clone()) else {
            panic!("{change}");
        };
        let within = limits.within(&phase.name);
        assert!(within < limits.acquire_timeout, "{change}: {within:?}");
    }
    let said = status(json!({ "actual_status": "loading", "status_msg": "pulling 40 %" }));
    assert_eq!(
        said,
        MachineStatus::Pending(Phase::new(wire::LOADING).at(40))
    );
    assert_eq!(
        status(json!({ "next_state": "unloaded" })),
        MachineStatus::Ending
    );
    let without_ports = instance(json!({ "ports": null }));
    let relayed = wire::machine(&without_ports, Some("https://relay.example")).expect("one");
    assert_eq!(relayed.status, MachineStatus::Running);
}

/// Of what was bid for it is known who stopped it, and that its disk alone is billed since.
#[test]
fn what_was_bid_for_and_stands_still_was_taken_away() {
    for change in [
        json!({ "is_bid": true, "intended_status": "stopped" }),
        json!({ "is_bid": true, "cur_state": "stopped", "next_state": "stopped" }),
        json!({ "is_bid": true, "actual_status": "stopped" }),
    ] {
        let mut stopped = instance(change.clone());
        stopped["disk_space"] = json!(40);
        stopped["storage_cost"] = json!(0.15);
        let machine = wire::machine(&stopped, None).expect("one");
        assert!(
            matches!(machine.status, MachineStatus::Interrupted(_)),
            "{change}"
        );
        assert_eq!(machine.price_per_hour, MicroDollars(8_334), "{change}");
        assert!(machine.facts.spot);
    }
    for (change, dead) in [
        (json!({ "is_bid": true }), false),
        (json!({ "is_bid": true, "actual_status": "exited" }), true),
        (
            json!({ "is_bid": false, "intended_status": "stopped" }),
            true,
        ),
    ] {
        let status = status(change.clone());
        assert_eq!(matches!(status, MachineStatus::Dead(_)), dead, "{change}");
        assert!(!matches!(status, MachineStatus::Interrupted(_)), "{change}");
    }
}

/// What an instance costs now is not what its record says that it costs, unless it runs.
#[test]
fn what_stands_still_costs_its_disk_and_what_is_on_a_host_that_is_away_costs_nothing() {
    let costs = |change: Value| {
        let mut seen = instance(change);
        seen["disk_space"] = json!(40);
        seen["storage_cost"] = json!(0.15);
        wire::machine(&seen, None).expect("one").price_per_hour
    };
    let (all, disk) = (MicroDollars(408_334), MicroDollars(8_334));
    for (change, price) in [
        (json!({}), all),
        (json!({ "actual_status": "loading" }), all),
        (json!({ "actual_status": "exited" }), all),
        (json!({ "actual_status": "stopped" }), disk),
        (json!({ "intended_status": "stopped" }), disk),
        (
            json!({ "cur_state": "stopped", "next_state": "stopped" }),
            disk,
        ),
        (json!({ "actual_status": "offline" }), MicroDollars::ZERO),
    ] {
        assert_eq!(costs(change.clone()), price, "{change}");
    }
}

#[test]
fn a_page_is_whole_or_is_none() {
    let page = |body: Value| wire::page(&body);
    let one = page(json!({ "instances": [{ "id": 1 }], "next_token": null, "total_instances": 1 }));
    assert_eq!(one.expect("a page").total, Some(1));
    for odd in [
        json!({}),
        json!({ "instances": null }),
        json!({ "instances": {} }),
        json!({ "instances": [{ "label": "x" }] }),
        json!({ "instances": [], "next_token": 5 }),
    ] {
        assert!(page(odd.clone()).is_err(), "{odd}");
    }
}

#[test]
fn ids_of_a_create_are_counted() {
    let ids = |body: Value| wire::contracts(&body).len();
    assert_eq!(ids(json!({ "new_contract": 5 })), 1);
    assert_eq!(ids(json!({ "new_contract": "5" })), 1);
    assert_eq!(ids(json!({ "new_contract": [5, 6] })), 2);
    assert_eq!(ids(json!({ "new_contract": null })), 0);
    assert_eq!(ids(json!({})), 0);
}

/// Runs the start command as a container would, with a `curl` and an agent of our own. Returns its output.
fn start(sha256: &str, served: &[u8]) -> (String, bool) {
    let dir = tempfile::tempdir().expect("a folder");
    let bin = dir.path().join("bin");
    std::fs::create_dir_all(&bin).expect("made");
    let program = |name: &str, text: &str| {
        let path = bin.join(name);
        std::fs::write(&path, text).expect("written");
        let mode = std::fs::Permissions::from_mode(0o755);
        std::fs::set_permissions(path, mode).expect("its mode");
    };
    std::fs::write(dir.path().join("served"), served).expect("written");
    program(
        "curl",
        "#!/bin/sh\nwhile [ $# -gt 1 ]; do [ \"$1\" = -o ] && out=$2; shift; done\necho \"$1\" >>\"$SEEN\"\ncp \"$SERVED\" \"$out\"\n",
    );
    // Not what ends the loop, but the test must end.
    program("sleep", "#!/bin/sh\n[ \"$1\" = 0 ] || kill -9 $PPID\n");
    let url = "https://x.example/it's$(touch PWNED)";
    let script = start_script(
        &AgentSource::Fetch {
            url: url.to_owned(),
            sha256: sha256.parse().expect("a digest"),
        },
        None,
    );
    assert!(script.len() < 4000);
    let output = Command::new("sh")
        .args(["-c", &format!("{script}\nwait")])
        .current_dir(dir.path())
        .env_clear()
        .env("PATH", format!("{}:/usr/bin:/bin", bin.display()))
        .env("STAGELINE_HOME", dir.path().join("home"))
        .env("STAGELINE_FETCH_PAUSE", "0")
        .env("SEEN", dir.path().join("seen"))
        .env("SERVED", dir.path().join("served"))
        .env("OUT", dir.path().join("out"))
        .output()
        .expect("a shell");
    assert!(!dir.path().join("PWNED").exists(), "the URL is no command");
    let seen = std::fs::read_to_string(dir.path().join("seen")).expect("fetched");
    assert!(seen.lines().all(|line| line == url), "{seen}");
    let ran = std::fs::read_to_string(dir.path().join("out")).unwrap_or_default();
    (ran, output.status.success())
}

#[test]
fn a_fetched_agent_runs_when_its_digest_fits_and_not_otherwise() {
    let agent = "#!/bin/sh\necho \"$@\" >>\"$OUT\"\n";
    let digest = {
        use sha2::Digest as _;
        stageline_core::id::Sha256(sha2::Sha256::digest(agent.as_bytes()).into()).to_string()
    };
    let (ran, _) = start(&digest, agent.as_bytes());
    assert!(ran.starts_with("agent --boot-env --dir "), "{ran}");
    let (ran, well) = start(&digest, b"#!/bin/sh\necho evil >>\"$OUT\"\n");
    assert_eq!((ran.as_str(), well), ("", false));
}

#[test]
fn a_fetched_archive_brings_workers_that_lie_beside_the_agent() {
    use sha2::Digest as _;
    let mut archive = tar::Builder::new(Vec::new());
    let mut add = |name: &str, text: &str| {
        let mut header = tar::Header::new_gnu();
        header.set_size(u64::try_from(text.len()).expect("short"));
        header.set_mode(0o755);
        header.set_cksum();
        let added = archive.append_data(&mut header, name, text.as_bytes());
        added.expect("written to memory");
    };
    add("stageline-worker", "#!/bin/sh\necho worker >>\"$OUT\"\n");
    add(
        "stageline",
        "#!/bin/sh\necho \"$@\" >>\"$OUT\"\n\"${0%/*}/stageline-worker\"\n",
    );
    let archive = archive.into_inner().expect("whole");
    let digest = stageline_core::id::Sha256(sha2::Sha256::digest(&archive).into()).to_string();
    let (ran, _) = start(&digest, &archive);
    let lines: Vec<&str> = ran.lines().collect();
    assert!(lines[0].starts_with("agent --boot-env --dir "), "{ran}");
    assert_eq!(lines[1], "worker");
}
