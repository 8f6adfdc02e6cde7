//! Agents that machines are to fetch: looked at before any machine is rented.

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::TcpListener;

use sha2::{Digest as _, Sha256};
use stageline::sim::Kind;

use super::desk::Desk;

/// The head of a program for Linux that needs nothing: 64 bits, little-endian, this processor, no segments.
fn program(machine: u8) -> Vec<u8> {
    let mut head = vec![0; 64];
    head[..6].copy_from_slice(b"\x7fELF\x02\x01");
    head[18] = machine;
    head
}

/// A server that answers every request with these bytes; its address.
fn serve(body: Vec<u8>) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = listener.local_addr().expect("bound");
    std::thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            let mut lines = BufReader::new(&stream).lines().map_while(Result::ok);
            if lines.any(|line| line.is_empty()) {
                let head = format!(
                    "HTTP/1.1 200 OK\r\ncontent-length: {}\r\nconnection: close\r\n\r\n",
                    body.len()
                );
                let _ = (&stream).write_all(&[head.as_bytes(), &body].concat());
            }
        }
    });
    format!("http://{address}/stageline?token=canary")
}

/// A desk whose machines fetch their agent there.
fn desk(url: &str, sha256: &str) -> Desk {
    let desk = Desk::of(Kind::Vastai, Vec::new(), 600, 1);
    let agent = format!(r#"agent = {{ url = "{url}", sha256 = "{sha256}" }}"#);
    desk.edit(r#"image = "stageline/agent:1""#, &agent);
    desk
}

fn hex(bytes: &[u8]) -> String {
    stageline_core::id::Sha256(Sha256::digest(bytes).into()).to_string()
}

#[test]
fn an_agent_that_is_not_the_declared_one_is_seen_before_anything_is_rented() {
    let url = serve(program(0x3e));
    let desk = desk(&url, &hex(b"another one"));
    let ran = desk.run("apply --auto-approve");
    ran.exits(1)
        .says("is another file")
        .says("nothing was rented");
    assert!(!ran.text.contains("canary"), "{}", ran.text);
    assert!(desk.there().is_empty());
}

#[test]
fn an_agent_for_another_processor_is_seen_before_anything_is_rented() {
    let body = program(0xb7);
    let url = serve(body.clone());
    let desk = desk(&url, &hex(&body));
    desk.run("apply --auto-approve")
        .exits(1)
        .says("has a processor of x86_64, and the agent at http://")
        .says("is for aarch64")
        .says("`arch=aarch64`");
    assert!(desk.there().is_empty());
    let text = b"<html>a front</html>".to_vec();
    let desk = self::desk(&serve(text.clone()), &hex(&text));
    desk.run("apply --auto-approve")
        .exits(1)
        .says("is no program for Linux");
    assert!(desk.there().is_empty());
}

#[test]
fn the_right_agent_and_one_that_only_machines_reach_are_taken() {
    let body = program(0x3e);
    let right = desk(&serve(body.clone()), &hex(&body));
    let ran = right.run("apply --auto-approve");
    ran.exits(0);
    assert!(!ran.text.contains("not looked at"), "{}", ran.text);
    // Nobody listens there.
    let far = desk("http://127.0.0.1:9/stageline", &hex(&body));
    far.run("apply --auto-approve")
        .exits(0)
        .says("the agent at http://127.0.0.1:9/stageline was not looked at")
        .says("machines fetch it themselves");
    for desk in [right, far] {
        assert_eq!(desk.there().len(), 1);
        desk.run("destroy --auto-approve").exits(0);
    }
}

/// Any program of this computer, but that it needs a C library that nobody has.
#[cfg(all(target_arch = "x86_64", target_env = "gnu"))]
fn of_the_future() -> Vec<u8> {
    let mut body = std::fs::read("/bin/sh").expect("there is a shell");
    let (now, later) = (b"GLIBC_2.", b"GLIBC_9.");
    let found: Vec<usize> = (0..body.len() - now.len())
        .filter(|at| body[*at..].starts_with(now))
        .collect();
    assert!(!found.is_empty(), "it needs no C library");
    for at in found {
        body[at..at + later.len()].copy_from_slice(later);
    }
    body
}

#[test]
#[cfg(all(target_arch = "x86_64", target_env = "gnu"))]
fn an_agent_for_a_newer_c_library_is_seen_before_anything_is_rented() {
    let body = of_the_future();
    let desk = desk(&serve(body.clone()), &hex(&body));
    desk.run("apply --auto-approve")
        .exits(1)
        .says("lease.node[0]: the image at ")
        .says("has glibc 2.35, and the agent at http://")
        .says("is for x86_64, glibc 9.")
        .says("nothing was rented");
    assert!(desk.there().is_empty());
    // What is in somebody's own image is not known.
    desk.edit("agent = {", "image = \"somebody/own:1\"\nagent = {");
    desk.run("apply --auto-approve").exits(0);
    assert_eq!(desk.there().len(), 1);
    desk.run("destroy --auto-approve").exits(0);
}

/// An archive of programs, in this order.
fn archive(names: &[&str]) -> Vec<u8> {
    let mut archive = tar::Builder::new(Vec::new());
    for name in names {
        let program = program(0x3e);
        let mut header = tar::Header::new_gnu();
        header.set_size(u64::try_from(program.len()).expect("short"));
        header.set_mode(0o755);
        header.set_cksum();
        let added = archive.append_data(&mut header, name, &*program);
        added.expect("written to memory");
    }
    archive.into_inner().expect("whole")
}

/// What a machine is sent to fetch runs there: by the start command of each cloud, as it is.
#[test]
#[cfg(target_arch = "x86_64")]
fn a_machine_fetches_its_agent_and_answers_at_each_cloud() {
    let whole = std::path::Path::new(env!("CARGO_BIN_EXE_stageline"));
    let folder = tempfile::tempdir().expect("a folder");
    let small = folder.path().join("stageline");
    let strip = std::process::Command::new("strip");
    let status = { strip }.arg("-o").arg(&small).arg(whole).status();
    assert!(
        status.is_ok_and(|status| status.success()),
        "strip (binutils) is missing"
    );
    let program = std::fs::read(&small).expect("it is there");
    let mut packed = tar::Builder::new(Vec::new());
    let added = packed.append_path_with_name(&small, "stageline");
    added.expect("written to memory");
    let packed = packed.into_inner().expect("whole");
    for (kind, body) in [
        (Kind::Vastai, &program),
        (Kind::Runpod, &packed),
        (Kind::Lambda, &program),
    ] {
        let desk = Desk::fetching(kind);
        let before = match kind {
            Kind::Vastai | Kind::Runpod => r#"image = "stageline/agent:1""#.to_owned(),
            Kind::Lambda => {
                let text = std::fs::read_to_string(desk.path("topology.toml")).expect("readable");
                let line = text.lines().find(|line| line.starts_with("agent = "));
                line.expect("it has one").to_owned()
            }
        };
        let (url, sha256) = (serve(body.clone()), hex(body));
        let agent = format!(r#"agent = {{ url = "{url}", sha256 = "{sha256}" }}"#);
        desk.edit(&before, &agent);
        desk.run("apply --auto-approve").exits(0);
        desk.run("ask Hello").exits(0);
        let folders = std::fs::read_dir("/proc").expect("Linux").flatten();
        let programs =
            folders.filter_map(|entry| std::fs::read_link(entry.path().join("exe")).ok());
        let digest = |path: &std::path::Path| std::fs::read(path).ok().map(|body| hex(&body));
        let name = |path: &std::path::Path| path.to_string_lossy().contains("stageline-sim-");
        let fetched = programs.filter(|path| name(path) && path.ends_with("stageline"));
        let fetched: Vec<_> = fetched.filter_map(|path| digest(&path)).collect();
        assert!(fetched.contains(&hex(&program)), "{kind:?}: {fetched:?}");
        desk.run("destroy --auto-approve").exits(0);
        desk.agrees(0);
    }
}

/// Nobody can bring an agent there, and whoever rented it is gone: it ends itself all the same, by the limits that the plan told.
#[test]
fn a_machine_on_which_no_agent_ever_ran_ends_itself() {
    for kind in [Kind::Vastai, Kind::Runpod] {
        let desk = Desk::fetching(kind);
        let nowhere = hex(b"nothing");
        let agent = format!(
            "agent = {{ url = \"http://127.0.0.1:9/stageline\", sha256 = \"{nowhere}\" }}\nmax_lifetime = \"8s\""
        );
        desk.edit(r#"image = "stageline/agent:1""#, &agent);
        desk.run("plan").exits(0).says("or when it is 8s old");
        let apply = desk.command("apply --auto-approve");
        let mut apply = { apply }.spawn().expect("the binary is there");
        super::host::until("it is rented", || desk.there().len() == 1);
        apply.kill().expect("ours");
        apply.wait().expect("ours");
        super::host::until("it ended itself", || desk.there().is_empty());
        desk.run("destroy --auto-approve").exits(0);
        desk.agrees(0);
    }
}

#[test]
fn a_native_stage_is_not_rented_for_where_no_worker_comes_with_the_agent() {
    let without = archive(&["stageline"]);
    let desk = desk(&serve(without.clone()), &hex(&without));
    crate::cli::native::tiny_model(&desk.path("tiny.gguf"));
    desk.edit(
        "engine = \"stub\"",
        "engine = \"native\"\nmodel = { path = \"tiny.gguf\" }",
    );
    desk.run("apply --auto-approve")
        .exits(1)
        .says("stage.chat[0] needs a native worker on lease.node[0]")
        .says("brings none");
    assert!(desk.there().is_empty());
    // With one, this is no reason any more: it is rented.
    let with = archive(&["stageline-worker-x86-64-v3", "stageline"]);
    let (before, after) = (hex(&without), hex(&with));
    let topology = std::fs::read_to_string(desk.path("topology.toml")).expect("readable");
    let url = topology
        .split('"')
        .find(|part| part.contains("/stageline?"));
    let url = url.expect("it has one").to_owned();
    desk.edit(&url, &serve(with));
    desk.edit(&before, &after);
    let ran = desk.run("apply --auto-approve");
    assert!(!ran.text.contains("brings none"), "{}", ran.text);
    assert_eq!(desk.there().len(), 1, "{}", ran.text);
    desk.run("destroy --auto-approve").exits(0);
}
