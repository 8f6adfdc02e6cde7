//! What a lease says of its machines beside which they are: the environment of everything that is started there, and what is
//! run there first.

use rustix::process::Signal;

use super::drift::{command_topology, example_worker};
use super::world::{STUB, World, kill, until};

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

/// One machine with a setup.
fn with_setup(setup: &str) -> String {
    STUB.replace("count = 2", &format!("count = 1\n{setup}"))
}

#[test]
fn a_setup_runs_before_its_machine_is_ready_and_another_one_replaces_it() {
    let setup = "env = { WHERE = \"the lease\" }\nsecrets = { KEY = { env = \"SETUP_KEY\" } }\nsetup = \"setup.sh\"";
    let mut world = World::new(&with_setup(setup));
    world
        .run("plan")
        .exits(1)
        .says("lease.node: cannot read its setup")
        .says("setup.sh")
        .says("hint:");
    world.write(
        "setup.sh",
        "echo it runs for $WHERE with $KEY\nset > set-up\n",
    );
    world
        .run("plan")
        .exits(0)
        .says("runs its setup once before it is ready: 2 lines");
    let unset = world.run("apply --auto-approve");
    unset
        .exits(1)
        .says("lease.node[0], stage.chat[0]: the environment variable SETUP_KEY is not set");
    assert!(world.machines().is_empty(), "known before one is rented");
    world.set("SETUP_KEY", "canary-cli-setup-aa17");
    world.apply().says_not("canary-cli-setup-aa17");
    let first = world.machines();
    assert!(first[0].join("set-up").exists(), "it ran there");
    let log = world.run("logs lease.node[0]");
    log.says("setup: it runs for the lease with ***");
    log.says_not("canary-cli-setup-aa17");
    // What it is run with is the stages' by now; the script is the machine's.
    world.edit("the lease", "elsewhere");
    world
        .run("plan --detailed-exitcode")
        .exits(2)
        .says_not("lease.node[0]");
    world.apply();
    world.write("setup.sh", "echo another one\n");
    world
        .run("plan --detailed-exitcode")
        .exits(2)
        .says("lease.node[0] replace: its setup is another one now");
    world.apply();
    assert_ne!(world.machines(), first);
    world.run("logs lease.node[0]").says("setup: another one");
    world
        .run("plan --detailed-exitcode")
        .exits(0)
        .says("Nothing to do");
    world.destroy();
}

#[test]
fn a_setup_that_fails_releases_its_machine_and_pays_for_no_other() {
    let setup = "setup = \"\"\"\necho the library is not there >&2\nexit 7\n\"\"\"";
    let world = World::new(&with_setup(setup));
    let ran = world.run("apply --auto-approve");
    ran.exits(1)
        .says("lease.node[0]: the setup of machine")
        .says("failed: it exited with status 7")
        .says("the library is not there")
        .says("mend `setup` of [lease.node]");
    let failures = ran.err.matches("failed: it exited with status 7").count();
    assert!(failures <= 2, "no other machine was tried:\n{ran}");
    until("its machine to be gone", || {
        world.machines().is_empty().then_some(())
    });
    world.edit("exit 7", "exit 0");
    world.apply();
    world.destroy();
}

#[test]
fn a_setup_that_takes_too_long_fails_the_boot() {
    let setup = "acquire_timeout = \"3s\"\nsetup = \"echo it waits; sleep 600\"";
    let world = World::new(&with_setup(setup));
    let ran = world.run("apply --auto-approve");
    ran.exits(4)
        .says("lease.node[0]")
        .says("acquire_timeout")
        .says("it waits");
    world.destroy();
}

#[test]
fn a_run_that_was_killed_during_a_setup_is_gone_on_with_and_the_setup_runs_once() {
    let setup = "setup = \"echo once >> ran; while [ ! -e go ]; do sleep 0.1; done\"";
    let world = World::new(&with_setup(setup));
    let mut apply = world.start("apply --auto-approve");
    let machine = until("the setup to begin", || {
        let machine = world.machines().first()?.clone();
        machine.join("ran").exists().then_some(machine)
    });
    let number = i32::try_from(apply.id()).expect("a number");
    kill(number, Signal::KILL);
    apply.wait().expect("reaped");
    std::fs::write(machine.join("go"), "").expect("written");
    world.apply();
    assert_eq!(
        world.machines(),
        std::slice::from_ref(&machine),
        "it is the same"
    );
    let ran = std::fs::read_to_string(machine.join("ran")).expect("there");
    assert_eq!(ran, "once\n");
    world.destroy();
}
