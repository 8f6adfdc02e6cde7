//! What the API says and what is made of it; the command that starts the agent, taken apart by a shell.

use std::process::Command;
use std::sync::Arc;

use serde_json::{Value, json};
use stageline_core::offer::{Quote, Requirement, Supply};
use stageline_core::resource::{Cause, FailureClass, Outcome};
use stageline_core::retry::Effect;
use stageline_core::topology::{AgentSource, SecretRef};
use stageline_core::unit::{Bytes, MicroDollars};

use super::offer::{Asks, Choice, Cloud};
use super::{Runpod, boot, offer, wire};
use crate::provider::http::tests::settings;
use crate::provider::http::{Answer, CloudSettings, Fault, start_script};
use crate::provider::{Boot, CreateRequest, Machine, MachineStatus, Phase, Provider as _};

const ID: &str = "NVIDIA GeForce RTX 4090";

/// The document's own example, with stock in two places.
fn row() -> Value {
    json!({
        "id": ID, "name": "RTX 4090", "pool": "ADA_24", "manufacturer": "NVIDIA", "memory": 24,
        "secure": true, "community": true, "price": { "secure": 0.44, "community": 0.31, "serverless": 1.1 },
        "maxCount": { "secure": 8, "community": 4 }, "availability": "HIGH",
        "dataCenters": [{ "id": "US-KS-2", "name": "US Kansas 2", "availability": "HIGH" },
                        { "id": "EU-RO-1", "name": "Romania 1", "availability": "NONE" }],
        "cudaVersions": [{ "version": "12.10", "available": true }, { "version": "12.4", "available": false },
                         { "version": "12.8", "available": true }],
        "a_new_field": { "x": [1] }
    })
}

fn with(field: &str, value: Value) -> Value {
    let mut row = row();
    row[field] = value;
    row
}

fn asks(text: &str, cloud: Cloud) -> Asks {
    let wanted: Requirement = text.parse().expect("a requirement");
    Asks::of(&wanted, &row(), cloud, wanted.hints().gpus.max(1))
}

fn quotes(row: &Value, text: &str, cloud: Cloud) -> Vec<Quote> {
    offer::quotes(
        &"pods".parse().expect("a name"),
        row,
        &asks(text, cloud),
        40,
    )
}

fn fits(text: &str, quote: &Quote) -> bool {
    let wanted: Requirement = text.parse().expect("a requirement");
    wanted.misfits(&quote.facts).is_empty()
}

#[test]
fn a_row_is_a_quote_for_each_place_priced_all_in() {
    let seen = quotes(&row(), "gpus>=2", Cloud::Secure);
    let names: Vec<&str> = seen.iter().map(|quote| quote.id.0.as_str()).collect();
    assert_eq!(
        names,
        [
            "2x NVIDIA GeForce RTX 4090/SECURE/US-KS-2",
            "2x NVIDIA GeForce RTX 4090/SECURE/EU-RO-1"
        ]
    );
    // Twice 0.44, and 40 GB at 0.10 a month of 720 hours.
    let price = MicroDollars(880_000 + 5_556);
    assert!(seen.iter().all(|quote| quote.price_per_hour == price));
    assert_eq!(seen[0].supply, Supply::Many(16));
    assert_eq!(seen[1].supply, Supply::Many(0), "sold out, and there");
    let wanted = "gpu=rtx_4090, gpus=2, vram>=24, memory>=48, region=US, provider.cloud=secure";
    assert!(fits(wanted, &seen[0]) && !fits(wanted, &seen[1]));
    assert!(fits("region=EU, cuda>=12.4", &seen[1]) && !fits("spot", &seen[1]));
    let cheap = quotes(&row(), "gpus=1", Cloud::Community);
    assert_eq!(cheap[0].price_per_hour, MicroDollars(310_000 + 5_556));
    assert_eq!(cheap[0].facts.extra["cloud"], "community");
}

#[test]
fn what_the_catalogue_does_not_tell_is_asked_of_the_provider() {
    let more = "gpus=2, memory>=256, cpus>=16, cuda>=12.8";
    let seen = quotes(&row(), more, Cloud::Secure);
    let name = &seen[0].id.0;
    assert_eq!(
        name,
        "2x NVIDIA GeForce RTX 4090/SECURE/US-KS-2/cuda=12.8+12.10/memory=128/cpus=8"
    );
    assert!(fits(more, &seen[0]), "{:?}", seen[0].facts);
    assert!(
        !fits("cuda>=12.10", &seen[0]),
        "the lowest that it may get is claimed"
    );
    let choice = Choice::parse(name).expect("our own");
    assert_eq!(choice.asks, asks(more, Cloud::Secure));
    // A version that nobody has free is asked of nobody; the quote does not fit.
    let old = quotes(&row(), "cuda=12.4", Cloud::Secure);
    assert!(!old[0].id.0.contains("cuda"), "{}", old[0].id);
    let strange = quotes(&row(), "cuda>=13", Cloud::Secure);
    assert!(!fits("cuda>=13", &strange[0]));
}

#[test]
fn a_row_is_read_with_tolerance_and_not_with_fantasy() {
    let number = |row: &Value| quotes(row, "gpus>=1", Cloud::Community).len();
    let odd = [
        ("memory", json!("24")),
        ("maxCount", Value::Null),
        ("cudaVersions", Value::Null),
        ("availability", json!("PLENTY")),
    ];
    for (field, value) in odd {
        assert_eq!(number(&with(field, value)), 2, "{field}");
    }
    // No place is told: anywhere, or nowhere.
    let anywhere = quotes(
        &with("dataCenters", Value::Null),
        "gpus>=1",
        Cloud::Community,
    );
    assert_eq!(
        anywhere[0].id.0,
        "1x NVIDIA GeForce RTX 4090/COMMUNITY/anywhere"
    );
    assert!(!fits("region=US", &anywhere[0]));
    let none = [
        ("community", json!(false)),
        ("maxCount", json!({ "secure": 8, "community": 0 })),
        ("id", Value::Null),
        ("id", json!("A/B")),
        ("price", json!({ "secure": 0.4 })),
        ("price", json!({ "community": 0 })),
        ("price", json!({ "community": -1 })),
        ("price", json!({ "community": "NaN" })),
    ];
    for (field, value) in none {
        assert_eq!(number(&with(field, value.clone())), 0, "{field} {value}");
    }
    for bad in [
        "",
        "7000425",
        "0x A/SECURE/anywhere",
        "1x A/SPOT/anywhere",
        "1x A/SECURE",
        "1x A/SECURE/x/y",
    ] {
        assert_eq!(Choice::parse(bad), None, "{bad}");
    }
}

fn request(quote: &str, agent: Option<AgentSource>) -> CreateRequest {
    let mut quote_of = quotes(&row(), "gpus=1", Cloud::Secure).remove(0);
    quote_of.id.0 = quote.to_owned();
    CreateRequest {
        told: None,
        request_key: "sl-00112233445566aa-0011aabb-g1a1".parse().expect("a key"),
        requirement: stageline_core::offer::Requirement::default(),
        quote: quote_of,
        disk: Bytes::gib(40),
        image: None,
        registry: None,
        mounts: Vec::new(),
        agent,
        boot: Boot {
            agent_key: secrecy::SecretBox::new(Box::new([1; 32])),
            operator: stageline_core::id::OperatorId([2; 32]),
            lineage: stageline_core::id::Lineage([3; 16]),
            lease: "lease.node[0]".parse().expect("an id"),
            generation: stageline_core::id::Generation(1),
            attempt: stageline_core::id::Attempt(1),
            relay: None,
            limits: None,
        },
    }
}

/// The account and the address of a create.
const ON: (&str, &str) = ("key-1", "http://127.0.0.1:9/#speed=60");

#[test]
fn a_pod_is_told_its_limits_and_how_it_ends_itself() {
    let mut request = request(&format!("1x {ID}/SECURE/EU-RO-1"), None);
    request.boot.limits = Some(stageline_core::resource::LeaseLimits {
        idle_timeout: stageline_core::unit::Millis::minutes(20),
        max_lifetime: stageline_core::unit::Millis::NEVER,
    });
    let body = boot::body(&request, 40, ON).expect("a body");
    let variable = |name: &str| Some(body["env"][name].as_str()?.to_owned());
    let package = crate::agent::boot::Package::from_environment(variable);
    let package = package.expect("whole").expect("there");
    let own = package.config.own_end.expect("it can end itself");
    assert_eq!(Some(own.limits), request.boot.limits);
    assert_eq!(own.url, "http://127.0.0.1:9/v2/pods/{id}");
    assert_eq!((&*own.id, &*own.key), ("RUNPOD_POD_ID", "RUNPOD_API_KEY"));
    // The key is RunPod's to hand out: it is not in what we send.
    assert!(body["env"].get("RUNPOD_API_KEY").is_none());
}

#[test]
fn a_create_says_what_was_chosen_and_nothing_that_was_not_asked_for() {
    let plain =
        boot::body(&request(&format!("1x {ID}/SECURE/EU-RO-1"), None), 40, ON).expect("a body");
    assert_eq!(plain["gpu"], json!({ "id": ID, "count": 1 }));
    assert_eq!(plain["dataCenterIds"], json!(["EU-RO-1"]));
    assert_eq!(
        (&plain["cloud"], &plain["disk"]),
        (&json!("SECURE"), &json!(40))
    );
    let key = json!("sl-00112233445566aa-0011aabb-g1a1");
    assert_eq!(
        (&plain["name"], &plain["env"]["STAGELINE_REQUEST_KEY"]),
        (&key, &key)
    );
    assert!(plain["env"]["STAGELINE_BOOT_0"].is_string() && plain.get("ports").is_none());
    let more = format!("2x {ID}/COMMUNITY/anywhere/cuda=12.4+12.8/memory=64/cpus=8");
    let more = boot::body(&request(&more, None), 40, ON).expect("a body");
    assert_eq!(
        more["gpu"],
        json!({ "id": ID, "count": 2, "allowedCudaVersions": ["12.4", "12.8"],
                "minRamPerGpu": 64, "minVcpuCountPerGpu": 8 })
    );
    assert_eq!(more["dataCenterIds"], json!([]));
    let foreign = boot::body(&request("7000425", None), 40, ON).expect_err("no offer of ours");
    assert_eq!(foreign.class, FailureClass::OfferGone);
}

#[test]
fn the_command_is_one_word_of_a_shell_and_holds_the_script() {
    let agent = AgentSource::Fetch {
        url: "https://x.example/it's$(touch PWNED)".to_owned(),
        sha256: "ab".repeat(32).parse().expect("a digest"),
    };
    let args = boot::args(&agent, None);
    let odd = ['$', '"', '\\', '\n', '`'];
    assert!(!args.contains(odd), "{args}");
    // What a shell makes of it, but for running the script.
    let shown = args.replace("&& exec sh /tmp/stageline-start", "");
    let shown = shown.replace(">/tmp/stageline-start", "");
    let output = Command::new("sh")
        .args(["-c", &shown])
        .output()
        .expect("a shell");
    let script = String::from_utf8_lossy(&output.stdout).into_owned();
    assert_eq!(script, format!("{}wait\n", start_script(&agent, None)));
    assert!(boot::args(&AgentSource::Image, None).len() < 2000);
}

fn answer(status: u16, body: Value) -> Answer {
    Answer {
        status,
        body,
        retry_after: None,
        resets_at: None,
    }
}

fn problem(title: &str, status: u16, detail: &str) -> Value {
    json!({ "title": title, "status": status, "detail": detail })
}

const NONE_LEFT: &str = "There are no longer any instances available with the requested specifications. Please refresh and try again.";

const TRY_LATER: &str = "There are no instances currently available that match the request specifications. Please try again later.";

/// Status, words, and the class for a read and for a create.
fn refusals() -> Vec<(u16, &'static str, FailureClass, FailureClass)> {
    use FailureClass::{Auth, Capacity, Config, Money, OfferGone, Quota, Rate, Unknown};
    let minute = "rate limit exceeded for the minute window";
    let day = "rate limit exceeded for the day window";
    let many = "You have reached the maximum number of pods";
    vec![
        (400, NONE_LEFT, Capacity, Capacity),
        (400, TRY_LATER, Capacity, Capacity),
        (400, "gpu and cpu are exclusive", Config, Capacity),
        (400, many, Quota, Quota),
        (401, "missing bearer token", Auth, Auth),
        (402, "balance too low", Money, Money),
        (403, "access denied", Auth, OfferGone),
        (404, "gpu type not found", Unknown, Config),
        (409, "not in this status", Unknown, Unknown),
        (422, "Request validation failed.", Config, Config),
        (429, minute, Rate, Rate),
        (429, day, Quota, Quota),
        (500, "capacity", Unknown, Unknown),
    ]
}

#[test]
fn every_refusal_has_its_class() {
    for (status, words, read, create) in refusals() {
        let body = problem("Title", status, words);
        let told = wire::told(&answer(status, body.clone())).expect("a refusal");
        assert_eq!(told.class, read, "{status} {words}");
        let fault = Fault {
            cause: Cause::new(told.class, told.message),
            effect: Effect::None,
            retry_after: None,
            status: Some(status),
            body: Some(body),
        };
        assert_eq!(wire::refused(fault).class, create, "{status} {words}");
    }
    let plain = wire::told(&answer(429, json!({ "msg": "slow down" }))).expect("a refusal");
    assert_eq!(plain.class, FailureClass::Rate);
    let inside = problem("Gone", 410, "this listing is over");
    let inside = wire::told(&answer(200, inside)).expect("a refusal, whatever the status");
    assert_eq!(inside.class, FailureClass::Unknown);
    for fine in [
        json!({}),
        json!({ "pods": [] }),
        json!({ "status": "RUNNING" }),
    ] {
        assert_eq!(wire::told(&answer(200, fine)), None);
    }
    let mut listed = problem("Unprocessable Entity", 422, "no");
    listed["errors"] = json!(["$: additional properties 'bogus' not allowed"]);
    let words = wire::told(&answer(422, listed)).expect("a refusal").message;
    assert!(words.contains("bogus"), "{words}");
}

/// The document's own example of a pod.
fn pod(change: Value) -> Value {
    let mut pod = json!({
        "id": "7h9k2m4n6p", "name": "sl-00112233445566aa-0011aabb-g1a1", "image": "img:1", "args": "", "disk": 40,
        "ports": ["22/tcp"], "env": { "A": "b" }, "registry": null, "status": "RUNNING",
        "actions": ["stop", "restart", "terminate"], "mounts": {}, "gpu": { "id": ID, "count": 1 }, "cloud": "SECURE",
        "dataCenterId": "US-KS-2", "cudaVersion": "12.8", "ssh": { "proxy": null, "direct": null }, "template": null,
        "cost": 0.44, "locked": false, "globalNetworking": { "enabled": false },
        "runtime": { "uptime": 3600, "ports": [{ "private": 22, "public": 34446, "type": "tcp", "ip": "203.0.113.3" }] },
        "createdAt": "2026-06-01T12:00:00Z", "startedAt": "2026-06-01T12:02:00Z"
    });
    for (field, value) in change.as_object().expect("an object") {
        pod[field] = value.clone();
    }
    pod
}

const RELAY: Option<&str> = Some("https://relay.example");

fn seen(change: Value) -> Machine {
    wire::machine(&pod(change), RELAY).expect("it has an id")
}

#[test]
fn a_pod_is_reached_by_its_relay_and_costs_its_disk_too() {
    let machine = seen(json!({}));
    assert_eq!(machine.status, MachineStatus::Running);
    assert_eq!(machine.contact.relay.as_deref(), RELAY);
    assert_eq!(machine.price_per_hour, MicroDollars(440_000 + 5_556));
    assert!(machine.request_key.is_some() && machine.created_at.is_some());
    assert_eq!(machine.facts.region.as_deref(), Some("US-KS-2"));
    assert_eq!(machine.facts.extra["cloud"], "secure");
    // Stopped, it bills its disk.
    let stopped = seen(json!({ "status": "EXITED", "cost": 0.0, "runtime": null }));
    assert_eq!(stopped.price_per_hour, MicroDollars(5_556));
    // One that runs and whose cost is not told does not cost its disk alone.
    let untold = seen(json!({ "cost": null }));
    assert_eq!(untold.price_per_hour, MicroDollars(0));
    let foreign = seen(json!({ "name": "SL-00112233445566aa-0011aabb-g1a1x" }));
    assert_eq!(foreign.request_key, None);
    assert_eq!(wire::machine(&json!({ "name": "x" }), None), None);
    // Without a relay there is no way to it, but for a simulator's.
    let alone = wire::machine(&pod(json!({})), None).expect("one");
    assert!(matches!(alone.status, MachineStatus::Pending(_)));
    let mapped = json!({ "runtime": { "ports": [{ "private": 41641, "public": 40123, "type": "udp", "ip": "127.0.0.1" }] } });
    let here = wire::machine(&pod(mapped), None).expect("one");
    assert_eq!(here.status, MachineStatus::Running);
    assert_eq!(
        here.contact.direct,
        ["127.0.0.1:40123".parse().expect("an address")]
    );
}

#[test]
fn only_what_is_known_to_be_over_is_dead_and_running_without_a_runtime_is_not_ready() {
    for status in ["EXITED", "ERROR"] {
        let status = seen(json!({ "status": status })).status;
        assert!(matches!(status, MachineStatus::Dead(_)), "{status:?}");
    }
    assert_eq!(
        seen(json!({ "status": "TERMINATED" })).status,
        MachineStatus::Ending
    );
    let pending = [
        (
            json!({ "status": "PROVISIONING", "runtime": {} }),
            Some(wire::PROVISIONING),
        ),
        (
            json!({ "status": "STARTING", "runtime": null }),
            Some(wire::STARTING),
        ),
        (json!({ "runtime": null }), Some(wire::NOT_UP)),
        (json!({ "status": "LEVITATING" }), None),
        (json!({ "status": null }), None),
    ];
    let limits = Runpod::new(settings(None)).boot_limits(None);
    for (change, phase) in pending {
        let status = seen(change.clone()).status;
        if let MachineStatus::Pending(phase) = &status {
            let within = limits.within(&phase.name);
            assert!(within < limits.acquire_timeout, "{change}: {within:?}");
        }
        match phase {
            Some(phase) => assert_eq!(
                status,
                MachineStatus::Pending(Phase::new(phase)),
                "{change}"
            ),
            None => assert!(matches!(status, MachineStatus::Pending(_)), "{change}"),
        }
    }
}

#[test]
fn a_listing_is_whole_or_is_none() {
    let listed = |body: &Value| {
        let pods = wire::rows(body, "pods")?;
        wire::machines(pods, RELAY)
    };
    let all = json!({ "pods": [pod(json!({})), pod(json!({})), pod(json!({ "id": "b" }))] });
    assert_eq!(listed(&all).expect("a listing").len(), 2);
    for odd in [
        json!({}),
        json!([]),
        json!({ "pods": null }),
        json!({ "pods": {} }),
        json!({ "pods": [{ "name": "x" }] }),
        json!({ "pods": [pod(json!({ "id": 5 }))] }),
    ] {
        assert!(listed(&odd).is_err(), "{odd}");
    }
}

#[test]
fn a_log_is_the_lines_of_its_events() {
    let stream = "id: 2026-06-01T12:02:03Z/1\ndata: {\"ts\":\"2026-06-01T12:02:03Z\",\"source\":\"system\",\"line\":\"pull img\"}\n\n\
                  : ping\n\ndata: {\"line\":\"hello \\u00fc\\n\"}\n\ndata: {\"line\":\"cu";
    let log = String::from_utf8(wire::log(stream.as_bytes())).expect("text");
    assert_eq!(log, "pull img\nhello ü\n");
    assert_eq!(
        wire::path("/v2/catalog/gpus", "NVIDIA A/B?"),
        "/v2/catalog/gpus/NVIDIA%20A%2FB%3F"
    );
}

#[tokio::test]
async fn a_pod_that_nobody_could_talk_to_is_not_rented() {
    let runpod = Runpod::new(CloudSettings {
        name: "pods".parse().expect("a name"),
        url: Some("https://nowhere.invalid".to_owned()),
        key_ref: SecretRef::Env("K".to_owned()),
        key: Ok(Arc::new("k".to_owned().into())),
        account: None,
        relay: None,
        means: crate::ssh::Means::default(),
        clock: Arc::new(crate::ambient::SystemClock),
    });
    match runpod
        .create(request(&format!("1x {ID}/SECURE/EU-RO-1"), None))
        .await
    {
        Outcome::Refused(cause) => {
            assert_eq!(cause.class, FailureClass::Config);
            assert!(cause.message.contains("relay"), "{cause:?}");
        }
        other @ (Outcome::Done(_) | Outcome::InDoubt(_)) => panic!("{other:?}"),
    }
}
