//! Volumes that are there already: machines are rented where they are, find on them what others left, and leave them behind.

use serde_json::{Value, json};
use stageline::sim::Kind;

use super::desk::{Desk, KEY};

/// An answer of the provider, as its owner sees it at the console.
pub(crate) struct Told {
    pub(crate) status: u16,
    /// The pause that is asked for, and the moment by the provider's own clock.
    pub(crate) retry_after: Option<String>,
    pub(crate) date: Option<String>,
    pub(crate) body: Value,
}

/// One request to the provider, as its owner makes it at the console.
pub(crate) fn ask(desk: &Desk, method: &str, path: &str, body: &Value) -> (u16, Value) {
    let told = ask_as(desk, KEY, (method, path), body);
    (told.status, told.body)
}

/// The same with another key.
pub(crate) fn ask_as(desk: &Desk, key: &str, (method, path): (&str, &str), body: &Value) -> Told {
    // Set before is the same.
    rustls::crypto::ring::default_provider()
        .install_default()
        .ok();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime");
    let url = format!("http://{}{path}", desk.cloud.address);
    let method = method.parse().expect("a method");
    runtime.block_on(async {
        let request = reqwest::Client::new().request(method, url);
        let request = request.bearer_auth(key).json(body);
        let answer = request.send().await.expect("an answer");
        let header = |name: &str| {
            let value = answer.headers().get(name)?;
            Some(value.to_str().expect("a text").to_owned())
        };
        let (status, retry_after, date) = (
            answer.status().as_u16(),
            header("retry-after"),
            header("date"),
        );
        let text = answer.text().await.expect("a text");
        Told {
            status,
            retry_after,
            date,
            body: serde_json::from_str(&text).unwrap_or(Value::Null),
        }
    })
}

/// The offers that fit a requirement.
pub(crate) fn offers(desk: &Desk, wanted: &str) -> Vec<Value> {
    let ran = desk.run(&format!("offers --json --limit 500 --where {wanted}"));
    ran.exits(0);
    let start = ran.text.find('{').expect("a document");
    let mut read = serde_json::Deserializer::from_str(&ran.text[start..]).into_iter();
    let report: Value = read.next().expect("JSON").expect("JSON");
    report["offers"].as_array().expect("a list").clone()
}

/// A lease with a volume, and a setup that does this there.
fn mounted(desk: &Desk, volume: &str, at: &str, does: &str) {
    desk.edit(
        "disk = 40",
        &format!(
            "disk = 40\nmounts = [{{ volume = \"{volume}\", at = \"{at}\" }}]\nsetup = \"{does}\""
        ),
    );
}

#[test]
fn a_file_system_of_lambda_outlives_its_machines_and_says_where_they_are() {
    let desk = Desk::of(Kind::Lambda, vec![], 600, 1);
    let make = |name: &str, region: &str| {
        let body = json!({ "name": name, "region": region });
        let (status, answer) = ask(&desk, "POST", "/api/v1/filesystems", &body);
        assert_eq!(status, 200, "{answer}");
        answer["data"]["id"].as_str().expect("an id").to_owned()
    };
    make("far", "australia-east-1");
    let data = make("data", "us-west-1");
    mounted(
        &desk,
        "dta",
        "/lambda/nfs/data",
        "echo one >> lambda/nfs/data/notes",
    );
    desk.run("plan")
        .exits(1)
        .says("plan/no-volume")
        .says("lease.node: provider `lambda` has no volume `dta`")
        .says("did you mean `data`? there are `far` (australia-east-1), `data` (us-west-1)");
    desk.edit("volume = \"dta\"", "volume = \"data\"");
    desk.edit("vram>=24\"", "vram>=24, region=EU\"");
    desk.run("plan")
        .exits(1)
        .says("plan/volume-elsewhere")
        .says("volume `data` of provider `lambda` is in us-west-1, and offer `gpu` (region=EU) allows no machine there");
    desk.edit(", region=EU", "");
    desk.run("plan")
        .exits(0)
        .says("has volume data at /lambda/nfs/data; the volume stays when the machine ends, and provider lambda bills it until you delete it")
        .says("us-west-1/");
    desk.run("apply --auto-approve").exits(0);
    desk.agrees(1);
    {
        let inner = desk.cloud.world.lock();
        let machine = inner.machines.values().next().expect("one");
        assert_eq!(machine.facts.region.as_deref(), Some("us-west-1"));
        assert_eq!(machine.mounts[0].at, "/lambda/nfs/data");
    }
    desk.run("plan --detailed-exitcode")
        .exits(0)
        .says("Nothing to do");
    let path = format!("/api/v1/filesystems/{data}");
    let (status, answer) = ask(&desk, "DELETE", &path, &json!({}));
    assert_eq!(
        (status, &answer["error"]["code"]),
        (400, &json!("filesystems/filesystem-in-use"))
    );
    // The next machine finds what the one before it left.
    desk.edit(
        "echo one >>",
        "grep one lambda/nfs/data/notes && echo two >>",
    );
    desk.run("apply --auto-approve").exits(0);
    desk.agrees(1);
    desk.run("destroy --auto-approve")
        .exits(0)
        .says("0 left at providers");
    desk.agrees(0);
    let (_, left) = ask(&desk, "GET", "/api/v1/file-systems", &json!({}));
    assert_eq!(left["data"].as_array().expect("a list").len(), 2, "{left}");
    assert_eq!(left["data"][1]["is_in_use"], false);
    desk.edit("grep one", "grep two");
    desk.run("apply --auto-approve").exits(0);
    desk.run("destroy --auto-approve").exits(0);
}

#[test]
fn a_launch_beside_its_file_system_is_refused_by_the_provider() {
    let desk = Desk::of(Kind::Lambda, vec![], 600, 1);
    let body = json!({ "name": "data", "region": "us-west-1" });
    let (_, made) = ask(&desk, "POST", "/api/v1/filesystems", &body);
    let id = &made["data"]["id"];
    let launch = |more: Value| {
        let mut body = json!({
            "region_name": "us-west-2", "instance_type_name": "gpu_1x_a10", "ssh_key_names": ["rehearsal"],
        });
        body.as_object_mut()
            .expect("one")
            .extend(more.as_object().expect("one").clone());
        desk.cloud.world.clock.advance(60_000);
        let (status, answer) = ask(&desk, "POST", "/api/v1/instance-operations/launch", &body);
        assert_eq!(status, 400, "{answer}");
        answer["error"]["code"].as_str().expect("a code").to_owned()
    };
    let at = |point: &str, id: &Value| json!({ "file_system_mounts": [{ "mount_point": point, "file_system_id": id }] });
    let elsewhere = "instance-operations/launch/file-system-in-wrong-region";
    assert_eq!(launch(at("/lambda/nfs/x", id)), elsewhere);
    assert_eq!(launch(json!({ "file_system_names": ["data"] })), elsewhere);
    assert_eq!(launch(at("/mnt/x", id)), "global/invalid-parameters");
    let none = json!("nobody");
    let missing = "global/object-does-not-exist";
    assert_eq!(launch(at("/lambda/nfs/x", &none)), missing);
    desk.agrees(0);
}

#[test]
fn a_network_volume_of_runpod_binds_its_pods_to_its_data_center() {
    let desk = Desk::of(Kind::Runpod, vec![], 600, 1);
    let fitting = offers(&desk, "gpu=rtx_4090|rtx_3090,vram>=24");
    // Not where it would go anyway.
    let place = fitting
        .iter()
        .filter(|offer| offer["supply"] != json!({ "many": 0 }))
        .filter_map(|offer| offer["facts"]["region"].as_str())
        .next_back()
        .expect("a place")
        .to_owned();
    let make = |name: &str, place: &str| {
        let body = json!({ "name": name, "size": 10, "dataCenter": place });
        let (status, made) = ask(&desk, "POST", "/v2/network-volumes", &body);
        assert_eq!(status, 201, "{made}");
        made["id"].as_str().expect("an id").to_owned()
    };
    let id = make("data", &place);
    mounted(&desk, "data", "/workspace", "echo one >> workspace/notes");
    desk.run("plan")
        .exits(0)
        .says("has volume data at /workspace")
        .says(&format!("/SECURE/{place}"));
    desk.run("apply --auto-approve").exits(0);
    desk.agrees(1);
    let (_, pods) = ask(&desk, "GET", "/v2/pods", &json!({}));
    assert_eq!(pods["pods"][0]["dataCenterId"], place.as_str());
    assert_eq!(
        pods["pods"][0]["mounts"],
        json!({ "network": [{ "volumeId": id, "path": "/workspace" }] })
    );
    let (status, _) = ask(
        &desk,
        "DELETE",
        &format!("/v2/network-volumes/{id}"),
        &json!({}),
    );
    assert_eq!(status, 400, "a pod has it");
    desk.edit("echo one >>", "grep one workspace/notes && echo two >>");
    desk.run("apply --auto-approve").exits(0);
    desk.agrees(1);
    // A name need not be the only one.
    let other = make("data", "EU-RO-1");
    desk.run("plan")
        .exits(1)
        .says("lease.node: provider `pods` has 2 volumes named `data`")
        .says(&format!(
            "say which by its id: `{id}` ({place}), `{other}` (EU-RO-1)"
        ));
    desk.run("destroy --auto-approve").exits(0);
    let (_, left) = ask(&desk, "GET", "/v2/network-volumes", &json!({}));
    assert_eq!(left["networkVolumes"].as_array().expect("a list").len(), 2);
    let (status, _) = ask(
        &desk,
        "DELETE",
        &format!("/v2/network-volumes/{id}"),
        &json!({}),
    );
    assert_eq!(status, 204);
}

#[test]
fn a_volume_of_vastai_binds_its_instance_to_its_machine() {
    let desk = Desk::of(Kind::Vastai, vec![], 600, 1);
    let fitting = offers(&desk, "gpu=rtx_4090|rtx_3090,vram>=24");
    let mut dearer = fitting.iter().rev().filter(|offer| {
        let price = offer["price_per_hour"].as_u64().expect("micro-dollars");
        price < 900_000
    });
    let dearest = dearer.next().expect("an offer");
    let machine = dearest["facts"]["extra"]["machine_id"].as_str();
    let machine: u64 = machine.expect("a number").parse().expect("a number");
    let body = json!({ "id": 900_000 + machine, "size": 15 });
    let (status, made) = ask(&desk, "PUT", "/api/v0/volumes/", &body);
    assert_eq!(status, 200, "{made}");
    let name = made["volume_name"].as_str().expect("a name");
    let id = name.trim_start_matches("V.").to_owned();
    mounted(&desk, "1", "/workspace", "echo one >> workspace/notes");
    desk.run("plan")
        .exits(1)
        .says(&format!("there are `{id}` (machine {machine})"));
    desk.edit("volume = \"1\"", &format!("volume = \"{id}\""));
    desk.run("apply --auto-approve").exits(0);
    desk.agrees(1);
    {
        let inner = desk.cloud.world.lock();
        let instance = inner.machines.values().next().expect("one");
        assert_eq!(instance.offer.id % 1000, machine);
        assert_eq!(instance.mounts[0].id, id);
    }
    let number: u64 = id.parse().expect("a number");
    let (status, _) = ask(
        &desk,
        "DELETE",
        "/api/v0/volumes/",
        &json!({ "id": number }),
    );
    assert_eq!(status, 400, "an instance has it");
    desk.run("destroy --auto-approve").exits(0);
    desk.edit("echo one >>", "grep one workspace/notes && echo two >>");
    desk.run("apply --auto-approve").exits(0);
    desk.run("destroy --auto-approve").exits(0);
    let (_, left) = ask(&desk, "GET", "/api/v0/volumes/", &json!({}));
    assert_eq!(left["volumes"].as_array().expect("a list").len(), 1);
    let (status, _) = ask(
        &desk,
        "DELETE",
        "/api/v0/volumes/",
        &json!({ "id": number }),
    );
    assert_eq!(status, 200);
}
