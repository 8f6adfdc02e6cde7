//! What the API says and what is made of it.

mod launch;

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use stageline_core::offer::{Facts, Gpu, Quote, Requirement, Supply, broken_claims};
use stageline_core::resource::{DISK, FailureClass, Outcome};
use stageline_core::topology::SecretRef;
use stageline_core::unit::{Bytes, MicroDollars};

use super::{Lambda, advised, offer, ready, wire};
use crate::provider::http::tests::settings;
use crate::provider::http::{Answer, CloudSettings, Fault};
use crate::provider::{AGENT_PHASE, MachineStatus, Phase, Provider as _};

fn kind(change: Value) -> Value {
    let mut kind = json!({
        "name": "gpu_1x_a10", "description": "1x A10 (24 GB PCIe)", "gpu_description": "A10 (24 GB PCIe)",
        "price_cents_per_hour": 75, "architecture": "x86_64",
        "specs": { "vcpus": 30, "memory_gib": 200, "storage_gib": 1400, "gpus": 1 }, "a_new_field": [1]
    });
    for (field, value) in change.as_object().expect("an object") {
        kind[field] = value.clone();
    }
    kind
}

fn types(kinds: &[(Value, &[&str])]) -> Value {
    let rows = kinds.iter().map(|(kind, regions)| {
        let regions: Vec<Value> = regions
            .iter()
            .map(|region| json!({ "name": region, "description": "Somewhere" }))
            .collect();
        let name = kind["name"].as_str().unwrap_or("none").to_owned();
        let row = json!({ "instance_type": kind, "regions_with_capacity_available": regions });
        (name, row)
    });
    json!({ "data": rows.collect::<serde_json::Map<String, Value>>() })
}

fn quotes(body: &Value) -> Vec<Quote> {
    let name = "cloud".parse().expect("a name");
    offer::quotes(&name, body, DISK, &["us-south-1"]).expect("types")
}

#[test]
fn a_type_is_a_quote_in_each_region_and_sold_out_where_it_is_not_to_be_had() {
    let h100 = kind(json!({
        "name": "gpu_8x_h100_sxm5", "gpu_description": "H100 (80 GB SXM5)", "price_cents_per_hour": 2392,
        "specs": { "vcpus": 208, "memory_gib": 1800, "storage_gib": 22528, "gpus": 8 }
    }));
    let body = types(&[
        (kind(json!({})), &["us-west-1", "us-south-1", "moon-base-7"]),
        (h100, &[]),
    ]);
    let all = quotes(&body);
    let shown: Vec<(&str, bool)> = all
        .iter()
        .map(|quote| (quote.id.0.as_str(), quote.supply == Supply::Many(0)))
        .collect();
    // Nothing is told of a region whose firewall stays closed.
    assert_eq!(
        shown,
        [
            ("moon-base-7/gpu_1x_a10", false),
            ("us-west-1/gpu_1x_a10", false),
            ("moon-base-7/gpu_8x_h100_sxm5", true),
            ("us-west-1/gpu_8x_h100_sxm5", true),
        ]
    );
    assert_eq!(all[1].price_per_hour, MicroDollars(750_000));
    let fits = |text: &str, quote: &Quote| {
        let wanted: Requirement = text.parse().expect("a requirement");
        wanted.misfits(&quote.facts)
    };
    let wanted =
        "gpu=a10, gpus=1, vram>=24, cpus>=30, memory>=200, disk>=1400, arch=x86_64, region=US";
    assert_eq!(fits(wanted, &all[1]), []);
    assert_eq!(
        fits(
            "provider.instance_type=gpu_1x_a10, provider.gpu_variant=PCIe",
            &all[1]
        ),
        []
    );
    assert_eq!(fits("gpu=h100, gpus=8, vram>=80", &all[3]), []);
    assert_eq!(fits("region=EU", &all[1]).len(), 1);
    // What a driver says of these is no other machine.
    for (quote, driver, vram) in [
        (&all[1], "NVIDIA A10", 22_731),
        (&all[3], "NVIDIA H100 80GB HBM3", 81_559),
    ] {
        let mut measured = quote.facts.clone();
        for gpu in &mut measured.gpus {
            gpu.model = driver.to_owned();
            gpu.vram = Bytes(vram << 20);
        }
        assert_eq!(broken_claims(&quote.facts, &measured), Vec::<String>::new());
    }
}

#[test]
fn a_type_is_read_with_tolerance_and_not_with_fantasy() {
    let one = |change: Value| quotes(&types(&[(kind(change), &["us-west-1"])]));
    let odd = [
        json!({ "price_cents_per_hour": "75" }),
        json!({ "price_cents_per_hour": 75.0 }),
        json!({ "architecture": null, "description": null }),
    ];
    for change in odd {
        let quotes = one(change.clone());
        assert_eq!(quotes[0].price_per_hour, MicroDollars(750_000), "{change}");
        assert_eq!(quotes[0].facts.arch, "x86_64", "{change}");
    }
    let none = [
        json!({ "name": null }),
        json!({ "price_cents_per_hour": null }),
        json!({ "price_cents_per_hour": 0 }),
        json!({ "price_cents_per_hour": -5 }),
        json!({ "price_cents_per_hour": 7.5 }),
        json!({ "price_cents_per_hour": 1e30 }),
        json!({ "specs": null }),
        json!({ "specs": { "vcpus": 4, "memory_gib": 16, "storage_gib": 10, "gpus": 0 } }),
    ];
    for change in none {
        assert_eq!(one(change.clone()), [], "{change}");
    }
    let arm = one(
        json!({ "name": "gpu_1x_gh200", "architecture": null, "gpu_description": "GH200 (96 GB)" }),
    );
    assert_eq!(arm[0].facts.arch, "aarch64");
    assert_eq!(
        (
            arm[0].facts.gpus[0].model.as_str(),
            arm[0].facts.gpus[0].vram
        ),
        ("GH200", Bytes::gib(96))
    );
    let many = one(json!({ "specs": { "storage_gib": 100, "gpus": 1_000_000 } }));
    assert!(many[0].facts.gpus.len() <= 64);
    for body in [json!({}), json!({ "data": null }), json!({ "data": [] })] {
        let name = "cloud".parse().expect("a name");
        assert!(offer::quotes(&name, &body, DISK, &[]).is_err(), "{body}");
    }
}

fn answer(status: u16, body: Value) -> Answer {
    Answer {
        status,
        body,
        retry_after: None,
        resets_at: None,
    }
}

#[test]
fn every_code_has_its_class() {
    use FailureClass::{Auth, Capacity, Config, Money, Quota, Rate, Unknown};
    let codes = [
        (401, "global/invalid-api-key", Auth),
        (403, "global/account-inactive", Auth),
        (403, "global/invalid-address", Money),
        (400, "global/quota-exceeded", Quota),
        (429, "global/quota-exceeded", Rate),
        (400, "global/invalid-parameters", Config),
        (404, "global/object-does-not-exist", Config),
        (400, "global/object-does-not-exist", Config),
        (400, "global/duplicate", Config),
        (
            400,
            "instance-operations/launch/insufficient-capacity",
            Capacity,
        ),
        (
            400,
            "instance-operations/launch/file-system-in-wrong-region",
            Config,
        ),
        (500, "global/internal-error", Unknown),
        (400, "global/unknown", Unknown),
        (200, "global/unknown", Unknown),
        (400, "something/new", Config),
        (403, "something/new", Auth),
        (429, "something/new", Rate),
        (503, "something/new", Unknown),
    ];
    for (status, code, class) in codes {
        let body = json!({ "error": { "code": code, "message": "No.", "suggestion": "Do." } });
        let told = wire::told(&answer(status, body)).expect("a refusal");
        assert_eq!(told.class, class, "{status} {code}");
        assert!(told.message.contains(code) && told.message.contains("Do."));
    }
    for (status, body) in [(402, json!({})), (429, json!({ "msg": "slow down" }))] {
        assert!(wire::told(&answer(status, body)).is_some());
    }
    for fine in [json!({ "data": [] }), json!({ "data": {}, "error": null })] {
        assert_eq!(wire::told(&answer(200, fine)), None);
    }
    let noisy =
        json!({ "error": { "code": "x", "message": "\u{1b}[31mred\u{7}\nlong ".repeat(100) } });
    let words = wire::told(&answer(500, noisy)).expect("a refusal").message;
    assert!(
        words.len() < 400 && !words.contains(['\u{1b}', '\n']),
        "{words}"
    );
}

fn refusal(status: u16, code: &str, message: &str) -> Fault {
    let body = json!({ "error": { "code": code, "message": message } });
    let told = wire::told(&answer(status, body.clone())).expect("a refusal");
    Fault {
        effect: match status {
            400..=499 => stageline_core::retry::Effect::None,
            _ => stageline_core::retry::Effect::Possible,
        },
        status: Some(status),
        body: Some(body),
        ..Fault::before(stageline_core::resource::Cause::new(
            told.class,
            told.message,
        ))
    }
}

#[test]
fn a_refused_launch_made_nothing_unless_its_code_leaves_that_open() {
    let open = [
        (500, "global/internal-error"),
        (500, "global/unknown"),
        (400, "global/unknown"),
    ];
    for (status, code) in open {
        let outcome = Lambda::unmade(refusal(status, code, "?"));
        assert!(matches!(outcome, Outcome::InDoubt(_)), "{status} {code}");
    }
    let class = |fault: Fault| match Lambda::unmade(fault) {
        Outcome::Refused(cause) => cause.class,
        other @ (Outcome::Done(_) | Outcome::InDoubt(_)) => panic!("{other:?}"),
    };
    let missing = |what: &str| refusal(400, "global/object-does-not-exist", what);
    assert_eq!(
        class(missing("The instance type is gone.")),
        FailureClass::OfferGone
    );
    assert_eq!(class(missing("The SSH key is gone.")), FailureClass::Config);
}

#[test]
fn who_must_act_is_said_by_the_code() {
    let hint = |status: u16, code: &str| advised(refusal(status, code, "No.")).cause.hint;
    assert!(hint(403, "global/account-inactive").is_some_and(|hint| hint.contains("payment")));
    assert!(
        hint(403, "global/invalid-address").is_some_and(|hint| hint.contains("billing address"))
    );
    assert!(hint(400, "global/quota-exceeded").is_some_and(|hint| hint.contains("quota")));
    assert_eq!(hint(429, "global/quota-exceeded"), None);
}

fn instance(change: Value) -> Value {
    let mut instance = json!({
        "id": "0123456789abcdef0123456789abcdef", "name": "sl-00112233445566aa-0011aabb-g1a1", "status": "active",
        "ip": "203.0.113.5", "region": { "name": "us-west-1", "description": "California, USA" },
        "instance_type": kind(json!({})), "ssh_key_names": ["k"], "file_system_names": [],
        "jupyter_token": "SECRET", "jupyter_url": "https://x.example/?token=SECRET",
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
fn an_active_instance_is_reached_at_its_address() {
    let machine = wire::machine(&instance(json!({})), Some("https://relay.example")).expect("one");
    assert_eq!(machine.status, MachineStatus::Running);
    assert_eq!(
        machine.contact.direct,
        ["203.0.113.5:41641".parse().expect("an address")]
    );
    assert_eq!(
        machine.contact.relay.as_deref(),
        Some("https://relay.example")
    );
    assert_eq!(machine.price_per_hour, MicroDollars(750_000));
    assert_eq!(machine.facts.region.as_deref(), Some("us-west-1"));
    assert!(!format!("{machine:?}").contains("SECRET"));
    // A tag stays when the name is changed, and only a whole key is ours.
    let tags = json!([{ "key": "stageline", "value": "sl-00112233445566aa-0011aabb-g1a2" }]);
    let key = |change: Value| {
        let machine = wire::machine(&instance(change), None).expect("one");
        machine.request_key.map(|key| key.to_string())
    };
    let ours = Some("sl-00112233445566aa-0011aabb-g1a2".to_owned());
    assert_eq!(key(json!({ "tags": tags, "name": "mine now" })), ours);
    assert_eq!(key(json!({ "tags": tags, "name": null })), ours);
    assert!(key(json!({})).is_some());
    assert_eq!(
        key(json!({ "name": "SL-00112233445566aa-0011aabb-g1a1" })),
        None
    );
    assert_eq!(
        key(json!({ "name": "sl-00112233445566aa-0011aabb-g1a1x" })),
        None
    );
    assert_eq!(wire::machine(&json!({ "status": "active" }), None), None);
}

#[test]
fn only_what_is_known_to_be_over_is_dead() {
    for over in ["unhealthy", "preempted", "terminated"] {
        let status = status(json!({ "status": over }));
        assert!(matches!(status, MachineStatus::Dead(_)), "{over}");
    }
    let costs = |status: &str| {
        let machine = wire::machine(&instance(json!({ "status": status })), None);
        machine.expect("one").price_per_hour > MicroDollars::ZERO
    };
    assert!(costs("unhealthy") && !costs("preempted") && !costs("terminated"));
    assert_eq!(
        status(json!({ "status": "terminating" })),
        MachineStatus::Ending
    );
    let pending = [
        json!({ "status": "booting" }),
        json!({ "status": "booting", "ip": null }),
        json!({ "status": "levitating" }),
        json!({ "status": null }),
        json!({ "ip": null }),
        json!({ "ip": "soon" }),
    ];
    let limits = Lambda::new(settings(None), None).boot_limits(None);
    for change in pending {
        let MachineStatus::Pending(phase) = status(change.clone()) else {
            panic!("{change}");
        };
        let within = limits.within(&phase.name);
        assert!(within < limits.acquire_timeout, "{change}: {within:?}");
    }
    assert_eq!(
        status(json!({ "status": "booting" })),
        MachineStatus::Pending(Phase::new("booting"))
    );
    let relayed = wire::machine(
        &instance(json!({ "ip": null })),
        Some("https://relay.example"),
    );
    assert_eq!(relayed.expect("one").status, MachineStatus::Running);
}

#[test]
fn a_page_is_whole_or_is_none() {
    let one = wire::page(&json!({ "data": [{ "id": "a" }], "page_token": "t" })).expect("a page");
    assert_eq!((one.rows.len(), one.next.as_deref()), (1, Some("t")));
    for last in [
        json!({ "data": [] }),
        json!({ "data": [], "page_token": "" }),
    ] {
        assert!(wire::page(&last).expect("a page").next.is_none(), "{last}");
    }
    for odd in [
        json!({}),
        json!({ "data": null }),
        json!({ "data": {} }),
        json!({ "data": [{ "name": "x" }] }),
        json!({ "data": [], "page_token": 5 }),
    ] {
        assert!(wire::page(&odd).is_err(), "{odd}");
    }
}

#[test]
fn ids_in_answers_are_counted_and_compared() {
    let ids = |body: Value| wire::launched(&body).len();
    assert_eq!(ids(json!({ "data": { "instance_ids": ["a"] } })), 1);
    assert_eq!(ids(json!({ "data": { "instance_ids": ["a", "b"] } })), 2);
    assert_eq!(ids(json!({ "data": { "instance_ids": [] } })), 0);
    assert_eq!(ids(json!({ "data": null })), 0);
    let id = "a".parse().expect("an id");
    let taken = |ids: &[&str]| {
        let rows: Vec<Value> = ids.iter().map(|id| json!({ "id": id })).collect();
        wire::terminates(&json!({ "data": { "terminated_instances": rows } }), &id)
    };
    assert!(taken(&["b", "a"]) && !taken(&["b"]) && !taken(&[]));
    assert!(!wire::terminates(&json!({}), &id));
}

#[test]
fn an_account_needs_a_key_that_is_named_or_the_only_one() {
    let name = "cloud".parse().expect("a name");
    let keys =
        |names: &[&str]| -> Vec<String> { names.iter().map(|name| (*name).to_owned()).collect() };
    let choose = |names: &[&str], asked: Option<&str>| ready::choose(&keys(names), asked, &name);
    assert_eq!(choose(&["a"], None), Ok("a".to_owned()));
    assert_eq!(choose(&["a", "b"], Some("b")), Ok("b".to_owned()));
    for (names, asked, hint) in [
        (&[][..], None, "add one"),
        (&["a", "b"][..], None, "ssh_key"),
        (&["a", "b"][..], Some("c"), "one of: a, b"),
    ] {
        let cause = choose(names, asked).expect_err("none");
        assert_eq!(cause.class, FailureClass::Config);
        assert!(cause.hint.is_some_and(|it| it.contains(hint)), "{names:?}");
    }
}

#[test]
fn the_agents_port_is_let_in_by_a_rule_that_covers_it() {
    let rule = |protocol: &str, ports: Value| {
        ready::lets_in(
            &json!({ "protocol": protocol, "source_network": "0.0.0.0/0", "port_range": ports }),
        )
    };
    assert!(
        rule("udp", json!([41641, 41641]))
            && rule("all", Value::Null)
            && rule("udp", json!([1, 65535]))
    );
    assert!(rule("udp", json!(["41641"])) && rule("udp", json!([])));
    assert!(
        !rule("tcp", json!([41641, 41641]))
            && !rule("udp", json!([22, 22]))
            && !rule("icmp", Value::Null)
    );
}

fn lambda(key: &str, account: Option<&str>) -> Lambda {
    let settings = CloudSettings {
        name: "cloud".parse().expect("a name"),
        url: None,
        key_ref: SecretRef::Env("LAMBDA_API_KEY".to_owned()),
        key: Ok(Arc::new(key.to_owned().into())),
        account: account.map(str::to_owned),
        relay: None,
        means: crate::ssh::Means::default(),
        clock: Arc::new(crate::ambient::SystemClock),
    };
    Lambda::new(settings, None)
}

#[test]
fn another_key_is_believed_when_it_shows_a_machine_of_the_account() {
    let first = lambda("one", None).whose(&[]).expect("by the key");
    assert!(!first.contains("one"));
    assert_eq!(lambda("one", Some(&first)).whose(&[]), Ok(first.clone()));
    let second = lambda("two", Some(&first));
    let fault = second
        .whose(&[instance(json!({}))])
        .expect_err("another key");
    assert_eq!(fault.cause.class, FailureClass::Auth);
    let tagged = |account: &str| {
        instance(json!({ "tags": [{ "key": "stageline-account", "value": account }] }))
    };
    assert!(second.whose(&[tagged("key-of-somebody")]).is_err());
    assert_eq!(second.whose(&[tagged(&first)]), Ok(first));
}

/// Eight H100 were seen to take 25 minutes; nobody waits that long for one.
#[test]
fn a_machine_boots_as_long_as_its_number_of_gpus_takes() {
    const MINUTE: Duration = Duration::from_secs(60);
    let lambda = Lambda::new(settings(None), None);
    let card = Gpu {
        model: "H100".to_owned(),
        vram: Bytes::gib(80),
    };
    let limits = |count: usize| {
        lambda.boot_limits(Some(&Facts {
            gpus: vec![card.clone(); count],
            ..Facts::default()
        }))
    };
    for (count, boot, whole) in [(8, 35, 45), (4, 35, 45), (2, 20, 30), (1, 20, 30)] {
        let limits = limits(count);
        assert_eq!(limits.within(wire::BOOTING), boot * MINUTE, "{count}");
        assert_eq!(limits.acquire_timeout, whole * MINUTE, "{count}");
        assert_eq!(limits.within(AGENT_PHASE), 10 * MINUTE);
    }
    assert_eq!(lambda.boot_limits(None), limits(8), "nothing is known");
}
