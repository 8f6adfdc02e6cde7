//! Models that come from a server that wants to know who asks: fetched by the machine or by the operator, by a token that is seen nowhere.

use std::path::Path;
use std::sync::{Arc, Mutex};

use axum::http::{HeaderMap, StatusCode};
use sha2::Digest as _;
use tokio::runtime::Runtime;

use super::native::{TINY, tiny_model};
use super::secrets::{arguments, forms};
use super::world::World;

/// With signs that change when they are encoded.
const TOKEN: &str = "canary-model/6d2c?u+v==";

/// A server with one model, for whoever has the token.
struct Hub {
    url: String,
    /// How often each key came.
    asked: Arc<Mutex<Vec<String>>>,
    _runtime: Runtime,
}

impl Hub {
    fn of(model: Vec<u8>) -> Self {
        let asked = Arc::new(Mutex::new(Vec::new()));
        let seen = Arc::clone(&asked);
        let answer = move |headers: HeaderMap| async move {
            let key = headers.get("authorization");
            let key = key.and_then(|key| key.to_str().ok()).unwrap_or_default();
            seen.lock().expect("alive").push(key.to_owned());
            match key == format!("Bearer {TOKEN}") {
                true => Ok(model),
                false => Err(StatusCode::UNAUTHORIZED),
            }
        };
        let runtime = Runtime::new().expect("a runtime");
        let bound = runtime.block_on(tokio::net::TcpListener::bind("127.0.0.1:0"));
        let listener = bound.expect("a port");
        let address = listener.local_addr().expect("bound");
        let app = axum::Router::new().route("/resolve/main/tiny.gguf", axum::routing::get(answer));
        runtime.spawn(async move { axum::serve(listener, app).await });
        Self {
            url: format!("http://{address}/resolve/main/tiny.gguf"),
            asked,
            _runtime: runtime,
        }
    }
}

/// The token is in no output, no process's arguments, and no file but its own.
fn is_kept(world: &World, said: &[super::world::Ran]) {
    let (files, processes) = (world.files(), arguments());
    for form in forms(TOKEN) {
        for ran in said {
            let clean = !ran.out.contains(&form) && !ran.err.contains(&form);
            assert!(clean, "{form} in:\n{ran}");
        }
        assert!(!processes.iter().any(|args| args.contains(&form)), "{form}");
        for (path, bytes) in &files {
            let found = !path.ends_with("token") && String::from_utf8_lossy(bytes).contains(&form);
            assert!(!found, "{form} in {}", path.display());
        }
    }
}

/// The models that machines have, and the one that the operator keeps.
fn copies(world: &World) -> (usize, usize) {
    let paths: Vec<_> = world.files().into_keys().collect();
    let of = |name: &str| paths.iter().filter(|path| has(path, name)).count();
    (of("blobs"), of("models"))
}

fn has(path: &Path, folder: &str) -> bool {
    let model = path.extension().is_some_and(|it| it == "gguf");
    model && path.components().any(|part| part.as_os_str() == folder)
}

fn a_model_behind_a_token(fetch: &str) {
    let world = World::empty();
    tiny_model(&world.join("tiny.gguf"));
    let model = std::fs::read(world.join("tiny.gguf")).expect("written");
    std::fs::remove_file(world.join("tiny.gguf")).expect("ours");
    let digest: String = sha2::Sha256::digest(&model)
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect();
    let hub = Hub::of(model);
    let wanted = format!(
        "model = {{ url = \"{}\", sha256 = \"{digest}\", token = {{ file = \"token\" }}, fetch = \"{fetch}\" }}",
        hub.url
    );
    world.write(
        "topology.toml",
        TINY.replace("model = { path = \"tiny.gguf\" }", &wanted),
    );
    let token = |text: &str| {
        use std::os::unix::fs::PermissionsExt as _;
        world.write("token", text);
        let mode = std::fs::Permissions::from_mode(0o600);
        std::fs::set_permissions(world.join("token"), mode).expect("set");
    };
    token("another");
    world
        .run("apply --auto-approve")
        .exits(1)
        .says("the server answered 401");
    assert!(world.machines().is_empty(), "nothing is rented for it");
    token(TOKEN);
    let said = [
        world.run("plan -vv --json"),
        world.run("apply -vv --auto-approve"),
        world.run("ask hello"),
        world.run("status --json"),
        world.run("state pull"),
        world.run("show --json"),
        world.run("logs lease.node[0]"),
        world.run("logs stage.chat[0]"),
    ];
    for ran in &said {
        ran.exits(0);
    }
    is_kept(&world, &said);
    let operators = usize::from(fetch == "operator");
    assert_eq!(copies(&world), (2, operators), "who has it");
    let asked = hub.asked.lock().expect("alive").clone();
    let fetched = asked.iter().filter(|key| key.ends_with(TOKEN)).count();
    assert!(fetched >= 2, "looked at, and fetched: {asked:?}");
    let others = asked.iter().filter(|key| !key.ends_with(TOKEN));
    assert_eq!(others.count(), 1, "the first one alone: {asked:?}");
    world.destroy();
}

#[test]
fn a_model_behind_a_token_is_fetched_by_the_machines() {
    a_model_behind_a_token("machine");
}

#[test]
fn a_model_behind_a_token_is_fetched_by_the_operator() {
    a_model_behind_a_token("operator");
}
