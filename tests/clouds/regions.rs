//! Regions and types that a provider's table leaves, and offers by type, against simulators with the real binary.

use stageline::sim::Kind;

use super::desk::Desk;

#[test]
fn a_table_of_lambda_leaves_regions_and_types_and_prefers_in_their_order() {
    let desk = Desk::of(Kind::Lambda, vec![], 600, 1);
    desk.edit(
        "kind = \"lambda\"",
        "kind = \"lambda\"\nregions = [\"us-west-1\", \"US\"]\ninstance_types = [\"gpu_1x_a10\"]",
    );
    let offers = desk.run("offers --where gpu=any --limit 100");
    offers.exits(0).says("us-west-1/gpu_1x_a10");
    assert!(!offers.text.contains("europe"), "{}", offers.text);
    assert!(!offers.text.contains("a6000"), "{}", offers.text);
    let first = offers.text.lines().find(|line| line.contains("/h"));
    let first = first.expect("an offer");
    assert!(first.contains("us-west-1/gpu_1x_a10"), "{first}");
    desk.run("offers --explain")
        .exits(0)
        .says("misses instance_types = gpu_1x_a10 (it has cpu_4x_general)");
    desk.edit("[\"us-west-1\", \"US\"]", "[\"Antarctica\"]");
    desk.run("plan")
        .exits(1)
        .says("no machine that can be had now fits")
        .says("misses regions = Antarctica (it has ")
        .says("of provider `lambda`");
    desk.edit("[\"Antarctica\"]", "[\"us-west-1\", \"US\"]");
    desk.run("apply --auto-approve").exits(0);
    desk.agrees(1);
    // A machine that is held stays, whatever its table says later.
    desk.edit("[\"us-west-1\", \"US\"]", "[\"EU\"]");
    desk.run("plan --detailed-exitcode")
        .exits(0)
        .says("Nothing to do");
    desk.edit("[offer.gpu]", "[offer.gpu]\ninstance_type = \"gpu_1x_a10\"");
    desk.run("plan --detailed-exitcode")
        .exits(0)
        .says("Nothing to do");
    desk.edit("[\"EU\"]\ninstance_types = [\"gpu_1x_a10\"]", "[\"US\"]");
    desk.edit("\"gpu_1x_a10\"", "\"gpu_1x_a1O\"");
    for line in ["plan", "offers"] {
        desk.run(line)
            .exits(1)
            .says("plan/no-such-type")
            .says("offer.gpu: provider `lambda` has no instance type `gpu_1x_a1O`")
            .says("did you mean `gpu_1x_a10`?");
    }
    desk.edit("gpu_1x_a1O", "gpu_1x_rtx6000");
    desk.run("plan --detailed-exitcode").exits(2).says(
        "its machine no longer fits: provider.instance_type=gpu_1x_rtx6000 (it has gpu_1x_a10)",
    );
    desk.run("destroy --auto-approve").exits(0);
    desk.agrees(0);
}

/// Keys of offers in a lease: they hold for its machines alone.
#[test]
fn a_lease_says_of_which_type_its_machines_are_and_what_they_run() {
    let desk = Desk::of(Kind::Runpod, vec![], 600, 1);
    desk.edit(
        "[lease.node]",
        "[lease.node]\ninstance_type = \"AMPERE_24\"",
    );
    desk.edit(
        "[lease.node]",
        "[lease.node]\nimage = \"stageline/agent:2\"",
    );
    desk.run("plan").exits(0).says("1x NVIDIA GeForce RTX 3090");
    desk.run("apply --auto-approve").exits(0);
    desk.agrees(1);
    {
        let inner = desk.cloud.world.lock();
        let machine = inner.machines.values().next().expect("one");
        assert_eq!(machine.image, "stageline/agent:2");
    }
    desk.edit("AMPERE_24", "ADA_24");
    desk.run("plan --detailed-exitcode")
        .exits(2)
        .says("its machine no longer fits: provider.pool=ada_24 (it has AMPERE_24)");
    desk.edit("ADA_24", "ADA_25");
    desk.run("plan")
        .exits(1)
        .says("lease.node: no provider of its offers has an instance type `ADA_25`")
        .says("did you mean `ADA_24`?");
    desk.run("destroy --auto-approve").exits(0);
    desk.agrees(0);
}

#[test]
fn an_offer_of_runpod_is_by_a_type_or_by_a_pool_of_types() {
    let desk = Desk::new(Kind::Runpod, vec![]);
    desk.edit("[offer.gpu]", "[offer.gpu]\ninstance_type = \"ADA_24\"");
    desk.run("plan").exits(0).says("1x NVIDIA GeForce RTX 4090");
    desk.run("apply --auto-approve").exits(0);
    desk.agrees(2);
    desk.run("plan --detailed-exitcode")
        .exits(0)
        .says("Nothing to do");
    desk.edit("ADA_24", "nvidia geforce rtx 4090");
    desk.run("plan --detailed-exitcode")
        .exits(0)
        .says("Nothing to do");
    desk.edit("nvidia geforce rtx 4090", "AMPERE_24");
    desk.run("plan --detailed-exitcode")
        .exits(2)
        .says("its machine no longer fits: provider.pool=ampere_24 (it has ADA_24)");
    desk.edit("AMPERE_24", "ADA_25");
    desk.run("plan")
        .exits(1)
        .says("offer.gpu: provider `pods` has no instance type `ADA_25`")
        .says("did you mean `ADA_24`?");
    desk.run("destroy --auto-approve").exits(0);
    desk.agrees(0);
}
