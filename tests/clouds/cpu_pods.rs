//! Pods of RunPod without a GPU: who asks for no GPU is offered them, whoever asks for one never.

use serde_json::{Value, json};
use stageline::sim::Kind;

use super::desk::Desk;
use super::mounts::{ask, offers};

fn has_gpu(offer: &Value) -> bool {
    !offer["facts"]["gpus"].as_array().is_none_or(Vec::is_empty)
}

#[test]
fn pods_without_a_gpu_are_had_by_who_asks_for_none_and_are_billed_as_planned() {
    let desk = Desk::new(Kind::Runpod, vec![]);
    for wanted in ["gpu=any", "gpus>=1", "vram>=8"] {
        let all = offers(&desk, wanted);
        assert!(!all.is_empty() && all.iter().all(has_gpu), "{wanted}");
    }
    let all = offers(&desk, "memory>=8");
    let bare = all.iter().filter(|offer| !has_gpu(offer)).count();
    assert!(bare > 0 && bare < all.len(), "both, together");
    let prices = all
        .iter()
        .filter(|offer| offer["supply"] != json!({ "many": 0 }))
        .map(|offer| offer["price_per_hour"].as_u64().expect("a price"));
    assert!(prices.is_sorted(), "cheapest first");
    desk.edit(
        "gpu=rtx_4090|rtx_3090, vram>=24",
        "cpus>=4, memory>=8, region=EU|US|CA",
    );
    desk.run("plan")
        .exits(0)
        .says("4 vcpus of cpu3c/")
        .says("linux x86_64, 4 cpus, 8 GiB");
    desk.run("apply --auto-approve").exits(0);
    desk.agrees(2);
    desk.run("plan --detailed-exitcode")
        .exits(0)
        .says("Nothing to do");
    let (_, pods) = ask(&desk, "GET", "/v2/pods", &json!({}));
    for pod in pods["pods"].as_array().expect("a list") {
        assert_eq!(
            pod["cpu"],
            json!({ "id": "cpu3c", "vcpuCount": 4, "memory": 8 })
        );
        assert!(pod.get("gpu").is_none(), "{pod}");
        // 4 x $0.03.
        assert!((pod["cost"].as_f64().expect("a number") - 0.12).abs() < 1e-9);
    }
    desk.edit("[offer.gpu]", "[offer.gpu]\ninstance_type = \"cpu5c\"");
    desk.run("plan --detailed-exitcode")
        .exits(2)
        .says("provider.instance_type=cpu5c (it has cpu3c)")
        .says("4 vcpus of cpu5c/");
    desk.edit("\ninstance_type = \"cpu5c\"", "");
    desk.edit("cpus>=4, memory>=8", "gpu=any");
    desk.run("plan --detailed-exitcode")
        .exits(2)
        .says("its machine no longer fits: gpu=any (it has no GPU)");
    desk.run("destroy --auto-approve")
        .exits(0)
        .says("0 left at providers");
    desk.agrees(0);
}

#[test]
fn a_pod_without_a_gpu_is_refused_as_the_provider_refuses_it() {
    let desk = Desk::of(Kind::Runpod, vec![], 600, 1);
    let create = |cpu: Value, more: Value| {
        let mut body = json!({ "name": "x", "image": "a/b:1", "cpu": cpu });
        body.as_object_mut()
            .expect("one")
            .extend(more.as_object().expect("one").clone());
        ask(&desk, "POST", "/v2/pods", &body).0
    };
    let four = || json!({ "id": "cpu3c", "vcpuCount": 4 });
    assert_eq!(
        create(json!({ "id": "cpu3c", "vcpuCount": 6 }), json!({})),
        400
    );
    assert_eq!(
        create(json!({ "id": "cpu3c", "vcpuCount": 64 }), json!({})),
        400
    );
    assert_eq!(
        create(json!({ "id": "none", "vcpuCount": 4 }), json!({})),
        404
    );
    assert_eq!(create(four(), json!({ "cloud": "COMMUNITY" })), 400);
    let persistent = json!({ "mounts": { "persistent": { "size": 20, "path": "/x" } } });
    assert_eq!(create(four(), persistent), 400);
    let gpu = json!({ "gpu": { "id": "NVIDIA L4" } });
    assert_eq!(create(four(), gpu), 400);
    desk.agrees(0);
}
