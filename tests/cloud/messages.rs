//! Whoever cannot get in hears so within seconds: which place, what was asked, what came of it, and what to look at. No
//! credential is ever part of it.

use std::net::TcpListener;
use std::time::{Duration, Instant};

use stageline::store::{Mode, Store, StoreError};

use super::proxy::{Fault, Proxy};
use super::servers::{Kind, Server};
use crate::apply::world::name;
use crate::cli::world::{STUB, World};

/// A command may take this long to say that it cannot reach its state; plus what a loaded computer adds.
const SOON: Duration = Duration::from_secs(15);

/// What a command that only looks hears first, and how long that took.
fn heard(kind: Kind, port: u16) -> (StoreError, Duration) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    let (url, around) = (kind.place(), kind.around(port));
    let began = Instant::now();
    let error = runtime.expect("a runtime").block_on(async {
        let store = Store::open_in(&url, &name("demo"), None, Mode::Read, around).await;
        match store {
            Ok(store) => store.read().await.expect_err("it cannot be read"),
            Err(error) => error,
        }
    });
    let shown = format!("{error} {error:?} {}", error.hint());
    for secret in kind
        .variables(port)
        .iter()
        .filter(|(name, _)| name.contains("KEY"))
    {
        assert!(!shown.contains(secret.1), "{shown}");
    }
    assert!(
        error.to_string().contains(&format!("{url}/demo")),
        "{error}"
    );
    (error, began.elapsed())
}

/// A server that is never asked.
fn nobody() -> Server {
    Server { port: 9 }
}

#[test]
fn who_cannot_get_in_is_told_what_to_look_at() {
    let cases = [
        (
            403,
            "AccessDenied",
            "does not let us in",
            "AWS_ACCESS_KEY_ID",
        ),
        (
            403,
            "SignatureDoesNotMatch",
            "does not let us in",
            "AWS_SECRET_ACCESS_KEY",
        ),
        (
            400,
            "ExpiredToken",
            "does not let us in",
            "aws configure export-credentials",
        ),
        (404, "NoSuchBucket", "there is no bucket", "`[state] url`"),
        (
            301,
            "PermanentRedirect",
            "refused the request",
            "AWS_REGION",
        ),
        (503, "SlowDown", "cannot be reached", "nothing is lost"),
    ];
    std::thread::scope(|scope| {
        for (status, code, says, hints) in cases {
            scope.spawn(move || {
                let proxy = Proxy::new(Kind::S3, &nobody());
                proxy.script(move |_, _| Fault::Refuse(status, code));
                let (error, took) = heard(Kind::S3, proxy.port);
                let text = error.to_string();
                assert!(text.contains(says), "{code}: {text}");
                assert!(status == 301 || text.contains(code), "{code}: {text}");
                assert!(
                    text.contains(&format!("127.0.0.1:{}", proxy.port)),
                    "{code}: {text}"
                );
                assert!(error.hint().contains(hints), "{code}: {}", error.hint());
                assert!(took < SOON, "{code}: {took:?}");
            });
        }
    });
}

#[test]
fn each_cloud_names_its_own_variables() {
    for (kind, hints) in [
        (Kind::Azure, "AZURE_STORAGE_ACCOUNT_KEY"),
        (Kind::Gcs, "gcloud auth application-default login"),
    ] {
        let proxy = Proxy::new(kind, &nobody());
        proxy.script(|_, _| Fault::Refuse(403, "AuthenticationFailed"));
        let (error, _) = heard(kind, proxy.port);
        assert!(matches!(error, StoreError::Credentials { .. }), "{error}");
        assert!(error.hint().contains(hints), "{}", error.hint());
    }
}

#[test]
fn a_line_that_is_dead_is_given_up_in_seconds() {
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let proxy = Proxy::new(Kind::S3, &nobody());
            proxy.script(|_, _| Fault::Silence);
            let (error, took) = heard(Kind::S3, proxy.port);
            assert!(
                error.to_string().contains("no answer within 8 s"),
                "{error}"
            );
            assert!(took < SOON, "{took:?}");
        });
        scope.spawn(|| {
            let free = TcpListener::bind("127.0.0.1:0").expect("a port");
            let port = free.local_addr().expect("bound").port();
            drop(free);
            let (error, took) = heard(Kind::S3, port);
            assert!(error.to_string().contains("Connection refused"), "{error}");
            assert!(took < SOON, "{took:?}");
        });
    });
}

/// The whole program, from a topology that names a bucket nobody can reach.
#[test]
fn the_program_says_so_and_does_not_take_it_for_an_empty_state() {
    let mut world = World::new(&format!(
        "{STUB}\n[state]\nurl = \"s3://state/team/none\"\n"
    ));
    for (name, value) in Kind::S3.variables(9) {
        world.set(&name, &value);
    }
    world.run("validate").exits(0);
    for line in [
        "plan",
        "apply --auto-approve",
        "destroy --auto-approve",
        "state list",
        "status",
    ] {
        let began = Instant::now();
        let ran = world.run(line);
        assert!(began.elapsed() < SOON, "{line}: {:?}", began.elapsed());
        ran.exits(1)
            .says("s3://state/team/none/demo cannot be reached")
            .says("http://127.0.0.1:9")
            .says("AWS_ENDPOINT_URL")
            .says_not("secret-canary-1")
            .says_not("Nothing to do");
    }
    world
        .run("plan --state ftp://x/y")
        .exits(1)
        .says("no `ftp` state stores");
    let ran = world.run("plan --state s3://user:secret-canary-2@bucket/x");
    ran.exits(1).says("credentials").says_not("secret-canary-2");
    let mut plain = world;
    plain.set("AWS_ENDPOINT_URL", "http://storage.example.org");
    plain.run("plan").exits(1).says("plain http");
}
