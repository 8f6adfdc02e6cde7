//! What a lease says of its machines beside which they are: the environment of everything that is started there.

use super::drift::{command_topology, example_worker};
use super::world::World;

/// Two machines whose workers write into their logs what they were started with.
fn telling(lease: &str) -> String {
    let names = "WHERE NEARER TOKEN";
    let script = format!(
        "for n in {names}; do eval echo $n is \\$$n >&2; done; exec python3 {}",
        example_worker()
    );
    command_topology(&format!("[\"sh\", \"-c\", '''{script}''']"))
        .replace("count = 2", &format!("count = 2\n{lease}"))
        .replace("check =", "env = { NEARER = \"pipeline\" }\ncheck =")
}

#[test]
fn the_environment_of_a_lease_reaches_its_workers_and_a_change_replaces_no_machine() {
    let mut world = World::new(&telling("env = { WHERE = \"first\", NEARER = \"lease\" }"));
    world.apply();
    let machines = world.machines();
    let log = world.run("logs stage.chat[1]");
    log.says("WHERE is first").says("NEARER is pipeline");

    world.set("TOKEN_OF_IT", "canary-lease-77d1");
    world.edit(
        "env = { WHERE = \"first\", NEARER = \"lease\" }",
        "env = { WHERE = \"second\" }\nsecrets = { TOKEN = { env = \"TOKEN_OF_IT\" } }",
    );
    let plan = world.run("plan --detailed-exitcode");
    plan.exits(2)
        .says("stage.chat[0..2] update")
        .says("env.WHERE first -> second")
        .says_not("lease.node")
        .says_not("delivery.node");
    world.apply();
    assert_eq!(world.machines(), machines, "no machine was replaced");
    let log = world.run("logs stage.chat[1]");
    log.says("WHERE is second").says("TOKEN is ***");
    log.says_not("canary-lease-77d1");
    world
        .run("plan --detailed-exitcode")
        .exits(0)
        .says("Nothing to do");
    world.destroy();
}
