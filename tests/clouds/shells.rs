//! Shells and ports of rented machines whose agent came with their image: by the agent, since nobody logs in to them.

use std::io::{BufRead as _, Read as _, Write as _};
use std::process::Stdio;

use stageline::sim::Kind;

use super::desk::{Desk, finish};
use super::host::until;

#[test]
fn a_shell_and_a_port_of_a_machine_whose_agent_is_in_its_image() {
    for kind in [Kind::Vastai, Kind::Lambda] {
        let desk = Desk::of(kind, vec![], 600, 1);
        desk.run("apply --auto-approve").exits(0);
        // Neither the provider's key nor a topology is needed.
        desk.run_with(None, "ssh lease.node[0] echo from there; exit 7")
            .exits(7)
            .says("from there")
            .says("lease.node[0]: a shell by its agent");
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
        let there = listener.local_addr().expect("bound").port();
        let mut forward = desk
            .command(&format!("forward lease.node[0] 0:{there}"))
            .spawn()
            .expect("the binary is there");
        let pipe = forward.stdout.take().expect("a pipe");
        let here = std::io::BufReader::new(pipe).lines().next();
        let here = here.expect("a line").expect("readable");
        let mut near = std::net::TcpStream::connect(here.trim()).expect("it listens");
        let (mut far, _) = listener.accept().expect("carried");
        near.write_all(b"ping").expect("said");
        let mut heard = [0; 4];
        far.read_exact(&mut heard).expect("heard");
        assert_eq!(&heard, b"ping");
        forward.kill().expect("ours");
        forward.wait().expect("it ends");
        // The agent sees that whoever carried it is gone.
        assert_ne!(far.read(&mut heard).ok(), Some(4));
        desk.run("destroy --auto-approve").exits(0);
        desk.agrees(0);
    }
}

/// Two machines that end themselves when they are idle, of which one has a shell open.
#[test]
fn a_machine_with_an_open_shell_is_not_ended_as_idle() {
    let desk = Desk::of(Kind::Vastai, vec![], 600, 2);
    let image = "image = \"stageline/agent:1\"";
    desk.edit(image, &format!("{image}\nidle_timeout = \"8s\""));
    desk.run("apply --auto-approve").exits(0);
    let mut shell = desk
        .command("ssh lease.node[0] cat")
        .stdin(Stdio::piped())
        .spawn()
        .expect("the binary is there");
    let mut input = shell.stdin.take().expect("piped");
    until("the other one ended itself", || desk.there().len() == 1);
    // Twice as long as it may be idle, by the cloud's quick clock.
    let clock = &desk.cloud.world.clock;
    let later = clock.now() + 16_000 * u64::from(clock.speed());
    until("time passes", || clock.now() >= later);
    assert_eq!(desk.there().len(), 1, "it is in use");
    input.write_all(b"still here").expect("taken");
    drop(input);
    finish(shell).exits(0).says("still here");
    until("it is idle, and ended itself", || desk.there().is_empty());
    desk.run("destroy --auto-approve").exits(0);
    desk.agrees(0);
}
