//! One test for each rule of the contract.

use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::sync::Arc;

use secrecy::{ExposeSecret as _, SecretBox};
use stageline_core::id::{Address, Attempt, Generation, LeaseId, Lineage, OperatorId, RequestKey};

use super::answer::{acquired, facts, is_pending, listed, priced};
use super::record::lease_id;
use super::*;
use crate::ambient::SystemClock;
use crate::provider::Boot;

/// A folder with two programs, and the provider that they are.
struct Stand {
    dir: tempfile::TempDir,
    provider: CommandProvider,
}

impl Stand {
    /// What `acquire` and `release` do.
    fn new(acquire: &str, release: &str) -> Self {
        Self::with(acquire, release, None, Duration::from_secs(20))
    }

    fn with(acquire: &str, release: &str, list: Option<&str>, timeout: Duration) -> Self {
        let dir = tempfile::tempdir().expect("a folder");
        let programs = [
            ("acquire", Some(acquire)),
            ("release", Some(release)),
            ("list", list),
        ];
        for (name, text) in programs {
            let Some(text) = text else { continue };
            let path = dir.path().join(name);
            std::fs::write(&path, format!("#!/bin/sh\n{text}\n")).expect("written");
            let mode = std::fs::Permissions::from_mode(0o755);
            std::fs::set_permissions(&path, mode).expect("set");
        }
        let argv = |name: &str| vec![format!("./{name}"), name.to_owned()];
        let claims = Claims {
            price_per_hour: Some(MicroDollars(400_000)),
            ..Claims::default()
        };
        let provider = CommandProvider::new(CommandSettings {
            name: "pool".parse().expect("a name"),
            programs: Programs {
                acquire: argv("acquire"),
                release: argv("release"),
                list: list.map(|_| argv("list")),
                facts: None,
                price: None,
            },
            timeout,
            offers: BTreeMap::from([("box".parse().expect("a name"), claims)]),
            folder: dir.path().to_owned(),
            records: dir.path().join("notes"),
            account: None,
            relay: None,
            means: Means {
                user: "tester".to_owned(),
                agent: None,
                host_keys: Arc::default(),
                builds: Arc::default(),
            },
            clock: Arc::new(SystemClock),
        });
        Self { dir, provider }
    }

    fn read(&self, name: &str) -> String {
        std::fs::read_to_string(self.dir.path().join(name)).unwrap_or_default()
    }

    async fn request(&self) -> CreateRequest {
        let lease: LeaseId = "lease.gpu[0]".parse().expect("a lease");
        let (generation, attempt) = (Generation(1), Attempt(1));
        let lineage = Lineage([7; 16]);
        let address = Address::Lease(lease.clone());
        let id = QuoteId("box".to_owned());
        let quote = self.provider.quote(&id, Bytes::gib(20)).await;
        CreateRequest {
            told: None,
            request_key: RequestKey::derive(&lineage, &address, generation, attempt),
            quote: quote.expect("seen").expect("there"),
            requirement: "cpus>=2, provider.offer=box"
                .parse()
                .expect("a requirement"),
            disk: Bytes::gib(20),
            image: Some("an/image:1".to_owned()),
            registry: None,
            mounts: Vec::new(),
            agent: None,
            boot: Boot {
                agent_key: SecretBox::new(Box::new([7; 32])),
                operator: OperatorId([1; 32]),
                lineage,
                lease,
                generation,
                attempt,
                relay: None,
                limits: None,
            },
        }
    }

    async fn create(&self) -> Outcome<Machine> {
        self.provider.create(self.request().await).await
    }

    async fn made(&self) -> Machine {
        match self.create().await {
            Outcome::Done(machine) => machine,
            Outcome::Refused(cause) | Outcome::InDoubt(cause) => panic!("{cause:?}"),
        }
    }

    async fn refused(&self) -> Cause {
        match self.create().await {
            Outcome::Refused(cause) => cause,
            Outcome::Done(_) | Outcome::InDoubt(_) => panic!("it was not refused"),
        }
    }
}

const OK: &str =
    r#"env | sort >got; echo noise; echo '{"ssh": "me@203.0.113.7:22", "mine": [1, 2]}'"#;

#[test]
fn a_lease_id_is_a_ulid_that_follows_from_the_key() {
    let key = |attempt| {
        let address = "lease.gpu[0]".parse().expect("an address");
        RequestKey::derive(&Lineage([7; 16]), &address, Generation(1), Attempt(attempt))
    };
    let id = lease_id(&key(1));
    assert_eq!(id.as_str(), "61JB79ZTFRZG3SDZ5622S8WNYK");
    assert_eq!(id, lease_id(&key(1)));
    assert_ne!(id, lease_id(&key(2)));
    assert!(id.as_str() < "8", "a ULID has 128 bits");
}

#[tokio::test]
async fn acquire_is_handed_what_the_contract_says_and_release_what_acquire_printed() {
    let stand = Stand::new(OK, r#"env | sort >given; echo "$@" >>given"#);
    let machine = stand.made().await;
    let got = stand.read("got");
    for line in [
        format!("ERRAND_LEASE_ID={}", machine.id),
        "ERRAND_OFFER=box".to_owned(),
        "ERRAND_LEASE_WHERE=cpus>=2".to_owned(),
        "ERRAND_LEASE_LOGIN=".to_owned(),
        "STAGELINE_LEASE=lease.gpu[0]".to_owned(),
        "STAGELINE_IMAGE=an/image:1".to_owned(),
        "STAGELINE_DISK=20".to_owned(),
    ] {
        assert!(got.lines().any(|other| other == line), "{line}: {got}");
    }
    assert!(got.contains("STAGELINE_BOOT_0="));
    let public = got
        .lines()
        .find(|line| line.starts_with("ERRAND_LEASE_SSH_KEY="));
    let made = if cfg!(feature = "ssh") {
        "ssh-ed25519 AAAA"
    } else {
        ""
    };
    assert!(public.is_some_and(|line| line.contains(made)), "{got}");
    assert!(!got.contains("ERRAND_LEASE_STATE"));
    // Where the agent is when nothing else is said.
    assert_eq!(
        machine.contact.direct,
        ["203.0.113.7:41641".parse().expect("an address")]
    );
    let released = stand.provider.release(&machine.id).await.expect("released");
    assert_eq!(released, Released::Accepted);
    let given = stand.read("given");
    let state = r#"ERRAND_LEASE_STATE={"ssh": "me@203.0.113.7:22", "mine": [1, 2]}"#;
    assert!(given.contains(state), "{given}");
    assert!(given.contains(&format!("ERRAND_LEASE_ID={}", machine.id)));
    assert!(given.ends_with("release\n"), "its own arguments: {given}");
    // By which it finds what it made, and what it let in there.
    for line in [
        public.expect("it is there"),
        "STAGELINE_LEASE=lease.gpu[0]",
        "STAGELINE_IMAGE=an/image:1",
        "STAGELINE_DISK=20",
        "STAGELINE_VERB=release",
    ] {
        assert!(given.lines().any(|other| other == line), "{line}: {given}");
    }
    for not in ["ERRAND_LEASE_WHERE", "STAGELINE_BOOT_0"] {
        assert!(!given.contains(not), "{not}: {given}");
    }
    assert!(stand.provider.list().await.expect("seen").is_empty());
}

#[tokio::test]
async fn a_failed_acquire_is_released_at_once_and_tells_why() {
    let stand = Stand::new("echo 'no luck' >&2; exit 3", "env >given");
    let cause = stand.refused().await;
    assert!(cause.message.contains("status 3"), "{}", cause.message);
    assert!(cause.message.contains("no luck"), "{}", cause.message);
    assert!(
        stand.read("given").contains("ERRAND_LEASE_STATE=\n"),
        "an empty state"
    );
    for (status, class) in [
        (75, FailureClass::Capacity),
        (77, FailureClass::Auth),
        (127, FailureClass::Config),
    ] {
        let stand = Stand::new(&format!("exit {status}"), "");
        assert_eq!(stand.refused().await.class, class);
    }
}

#[tokio::test]
async fn a_bad_answer_is_kept_for_release_before_it_is_refused() {
    let stand = Stand::new(r#"echo '{"id": 41}'"#, "env >given");
    let cause = stand.refused().await;
    assert!(cause.message.contains("neither"), "{}", cause.message);
    assert!(
        stand
            .read("given")
            .contains(r#"ERRAND_LEASE_STATE={"id": 41}"#)
    );
}

#[tokio::test]
async fn a_release_that_fails_leaves_the_machine_noted() {
    let stand = Stand::new(OK, "[ -e open ] || { echo 'the door is shut'; exit 1; }");
    let machine = stand.made().await;
    let cause = stand.provider.release(&machine.id).await.expect_err("shut");
    assert!(
        cause.message.contains("the door is shut"),
        "{}",
        cause.message
    );
    assert_eq!(stand.provider.list().await.expect("seen").len(), 1);
    std::fs::write(stand.dir.path().join("open"), "").expect("written");
    tokio::time::sleep(Duration::from_millis(1100)).await;
    stand.provider.release(&machine.id).await.expect("released");
    assert!(stand.provider.list().await.expect("seen").is_empty());
}

#[tokio::test]
async fn a_release_that_has_only_begun_is_not_the_end() {
    let stand = Stand::new(OK, r#"echo '{"pending": true}'"#);
    let machine = stand.made().await;
    stand.provider.release(&machine.id).await.expect("taken");
    let listed = stand.provider.list().await.expect("seen");
    assert_eq!(listed[0].status, MachineStatus::Ending);
}

#[tokio::test]
async fn what_takes_too_long_is_ended_with_all_that_it_started() {
    let stand = Stand::with(
        "sh -c 'trap \"\" TERM; sleep 8123' & wait",
        "",
        None,
        Duration::from_millis(300),
    );
    assert!(matches!(stand.create().await, Outcome::InDoubt(_)));
    let left = std::fs::read_dir("/proc").expect("Linux").flatten();
    let lines = left.filter_map(|one| std::fs::read(one.path().join("cmdline")).ok());
    let sleeps = |line: &str| line.contains("sleep 8123") || line.contains("sleep\u{0}8123");
    let left = lines
        .filter(|line| sleeps(&String::from_utf8_lossy(line)))
        .count();
    assert_eq!(left, 0);
    let listed = stand.provider.list().await.expect("seen");
    assert!(
        matches!(listed[0].status, MachineStatus::Dead(_)),
        "not believed"
    );
    // It is given back, and noted for a while still.
    stand.provider.release(&listed[0].id).await.expect("taken");
    let listed = stand.provider.list().await.expect("seen");
    assert_eq!(listed[0].status, MachineStatus::Ending);
}

#[tokio::test]
async fn secrets_are_taken_out_of_what_a_program_says() {
    let stand = Stand::new("env >&2; exit 1", "");
    stand.refused().await;
    let request = stand.request().await;
    let pieces = super::super::http::package(&request.boot, None).environment();
    assert_eq!(request.boot.agent_key.expose_secret(), &[7; 32]);
    let stand = Stand::new("env >&2; echo '{\"url\": \"https://203.0.113.9/\"}'", "");
    let machine = stand.made().await;
    let said = stand
        .provider
        .logs(&machine.id, 1 << 16)
        .await
        .expect("kept");
    let said = String::from_utf8_lossy(&said);
    assert!(said.contains("STAGELINE_BOOT_0=(hidden)"), "{said}");
    let first = &pieces["STAGELINE_BOOT_0"];
    assert!(!said.contains(&first[..60]), "{said}");
}

#[tokio::test]
async fn stderr_is_drained_and_its_last_lines_are_kept_short() {
    let stand = Stand::new(
        "i=0; while [ $i -lt 3000 ]; do echo \"line $i\" >&2; i=$((i+1)); done
head -c 100000 /dev/zero | tr '\\0' x >&2; echo >&2
echo '{\"url\": \"https://203.0.113.9/\"}'",
        "",
    );
    let machine = stand.made().await;
    let said = stand
        .provider
        .logs(&machine.id, 1 << 20)
        .await
        .expect("kept");
    let said = String::from_utf8_lossy(&said).into_owned();
    assert_eq!(said.lines().count(), 100);
    assert!(said.lines().all(|line| line.len() <= 300));
    assert!(said.contains("line 2999") && !said.contains("line 2\n"));
}

#[tokio::test]
async fn without_a_list_only_its_own_computer_can_tell() {
    let stand = Stand::new(OK, "");
    assert!(!stand.provider.traits().sees_account);
    let here = stand
        .provider
        .account()
        .await
        .expect("known")
        .expect("there");
    let elsewhere = Stand::new(OK, "");
    let there = elsewhere
        .provider
        .account()
        .await
        .expect("known")
        .expect("there");
    assert_ne!(here.id, there.id);
    assert_eq!(
        here.programs.expect("recorded").release,
        ["./release", "release"]
    );
}

#[tokio::test]
async fn a_listing_that_is_none_is_not_empty() {
    for (list, words) in [
        ("true", "print []"),
        ("echo '[{}]'", "neither"),
        ("echo '[]'; echo more", "one JSON array"),
        ("echo '[{\"name\": \"x\", \"status\": \"odd\"}]'", "status"),
        ("echo '[]'; exit 1", "status 1"),
    ] {
        let stand = Stand::with(OK, "", Some(list), Duration::from_secs(20));
        let blind = stand.provider.list().await.expect_err(list);
        assert!(
            blind.cause.message.contains(words),
            "{}",
            blind.cause.message
        );
    }
    let stand = Stand::with(OK, "", Some("echo '[]'"), Duration::from_secs(20));
    assert!(stand.provider.list().await.expect("seen").is_empty());
    // One that has just come up may not be listed yet.
    let machine = stand.made().await;
    let seen = stand.provider.describe(&machine.id).await.expect("seen");
    assert!(matches!(
        seen.expect("noted").status,
        MachineStatus::Pending(_)
    ));
}

#[tokio::test]
async fn a_program_that_is_none_says_what_is_wrong() {
    let stand = Stand::new(OK, "");
    let found = |name: &str| program::found(&[name.to_owned()], stand.dir.path());
    assert!(found("./acquire").is_ok());
    assert!(found("sh").is_ok(), "on the PATH");
    assert!(
        found("./nothing")
            .expect_err("not there")
            .contains("is not there")
    );
    assert!(
        found("no-such-program-1")
            .expect_err("not there")
            .contains("PATH")
    );
    std::fs::write(stand.dir.path().join("plain"), "echo").expect("written");
    assert!(found("./plain").expect_err("no mode").contains("chmod +x"));
    let odd = Stand::new(OK, "");
    std::fs::write(odd.dir.path().join("acquire"), "#!/no/such/shell\n").expect("written");
    let cause = odd.refused().await;
    assert!(cause.message.contains("first line"), "{}", cause.message);
    assert!(!Path::new(&odd.dir.path().join("got")).exists());
}

#[test]
fn answers_of_acquire() {
    let read = |line: &str| acquired(Some(line));
    let agent = read(r#"{"agent": ["127.0.0.1:1", "[::1]:2"]}"#).expect("addresses");
    assert_eq!(agent.direct.len(), 2);
    for (line, host) in [
        (r#"{"ssh": "me@pool-3"}"#, "pool-3"),
        (
            r#"{"ssh": "ssh://me@pool-3:2222", "host_key": "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIOMqqnkVzrm0SdG6UOoqKLsabgH5C9okWi0dh2l9GKJl"}"#,
            "pool-3",
        ),
        (r#"{"ssh": "me@[2001:db8::1]:22"}"#, "2001:db8::1"),
        (r#"{"ssh": "2001:db8::1"}"#, "2001:db8::1"),
        (r#"{"url": "https://pool.example/x"}"#, "pool.example"),
    ] {
        assert_eq!(read(line).expect(line).host.as_deref(), Some(host));
    }
    for line in [
        "",
        "ready",
        "[]",
        "{}",
        r#"{"url": ""}"#,
        r#"{"url": "unix:///run/x"}"#,
        r#"{"ssh": "/run/x.sock"}"#,
        r#"{"url": "https://x", "host_key": "ssh-ed25519 AAAA"}"#,
        r#"{"agent": "pool-3"}"#,
        r#"{"ssh": 3}"#,
        r#"{"ssh": "pool-3", "host_key": "AAAA"}"#,
    ] {
        assert!(read(line).is_err(), "{line}");
    }
    assert!(acquired(None).is_err());
}

#[test]
fn answers_of_the_other_programs() {
    assert!(is_pending(Some(r#"{"pending": true}"#)));
    for line in [
        Some("true"),
        Some(r#"{"pending": false}"#),
        Some("done"),
        None,
    ] {
        assert!(!is_pending(line));
    }
    assert_eq!(
        priced(Some("0.4")).expect("a price").price_per_hour,
        MicroDollars(400_000)
    );
    assert_eq!(
        priced(Some("0")).expect("free").price_per_hour,
        MicroDollars::ZERO
    );
    let few = priced(Some(r#"{"price_per_hour": 1, "available": 3}"#)).expect("a price");
    assert_eq!(few.available, Some(3));
    for line in ["-1", "\"1\"", "{}", "free", "1e300"] {
        assert!(priced(Some(line)).is_err(), "{line}");
    }
    let claimed = Facts {
        cpus: 4,
        memory: Bytes::gib(8),
        ..Facts::default()
    };
    let said = facts(
        Some(r#"{"memory": 16, "gpu": "A10", "gpus": 2, "vram": 24}"#),
        &claimed,
    );
    let said = said.expect("facts");
    assert_eq!((said.cpus, said.memory), (4, Bytes::gib(16)));
    assert_eq!((said.gpus.len(), said.gpus[1].vram), (2, Bytes::gib(24)));
    for line in [r#"{"memori": 1}"#, r#"{"memory": -1}"#, "16"] {
        assert!(facts(Some(line), &claimed).is_err(), "{line}");
    }
    let name = "sl-0707070707070707-00000000-g1a1";
    let all = format!(
        r#"[{{"name": "{name}", "status": "dead", "why": "gone", "price_per_hour": 0.5}}, {{"lease": "other"}}]"#
    );
    let all = listed(&all).expect("a list");
    assert_eq!(all[0].id, lease_id(&name.parse().expect("a key")));
    assert_eq!(all[0].status, MachineStatus::Dead("gone".to_owned()));
    assert_eq!((all[1].id.as_str(), &all[1].request_key), ("other", &None));
}

#[tokio::test]
async fn a_machine_that_has_ended_is_told_of_for_its_dates_alone() {
    let stand = Stand::with(OK, "", Some("cat listed"), Duration::from_secs(10));
    let list = stand.dir.path().join("listed");
    std::fs::write(&list, "[]").expect("written");
    assert_eq!(stand.provider.dated().await.expect("seen"), Some(vec![]));
    let made = stand.made().await;
    let name = made.request_key.expect("a key");
    let said = format!(
        r#"[{{"name": "{name}", "status": "ended", "created_at": "2026-01-02T03:04:05Z", "ended_at": "2026-01-02T03:04:15Z"}}]"#
    );
    std::fs::write(&list, said).expect("written");
    assert_eq!(stand.provider.list().await.expect("seen"), [], "it is gone");
    let dated = stand
        .provider
        .dated()
        .await
        .expect("seen")
        .expect("it tells");
    let told = dated[0].told().expect("dates");
    assert!(told.dates.over && told.machine == made.id);
    let span = told.dates.to.duration_since(told.dates.from);
    assert_eq!(
        (span.as_secs(), told.price_per_hour),
        (10, MicroDollars(400_000))
    );
    let without = Stand::new(OK, "");
    without.made().await;
    assert_eq!(without.provider.dated().await.expect("seen"), None);
}

#[test]
fn dates_of_a_list_are_by_one_clock_or_not_at_all() {
    let one = |dates: &str| listed(&format!(r#"[{{"lease": "m", {dates}}}]"#));
    let (made, end) = (
        r#""created_at": "2026-01-02T03:04:05Z""#,
        r#""ended_at": "2026-01-02T04:04:05+00:00""#,
    );
    let all = one(&format!(r#"{made}, {end}, "status": "ended""#)).expect("a list");
    let dates = all[0].dates.expect("dates");
    let ended = dates.ended_at.expect("it has ended");
    assert_eq!(ended.duration_since(dates.created_at).as_secs(), 3600);
    assert!(all[0].over);
    let all = one(&format!(r#"{made}, {end}, "status": "dead""#)).expect("a list");
    assert!(!all[0].over, "it is to be released");
    let all = one(&format!(r#"{made}, "now": "2026-01-02T03:04:06Z""#)).expect("a list");
    assert!(all[0].dates.is_some_and(|dates| dates.now.is_some()));
    for wrong in [
        end,
        r#""status": "ended""#,
        r#""created_at": "yesterday""#,
        r#""created_at": 5"#,
        r#""created_at": "2026-01-02T03:04:05Z", "status": "ended""#,
        r#""created_at": "2026-01-02T03:04:05Z", "ended_at": "2026-01-02T03:04:04Z""#,
    ] {
        assert!(one(wrong).is_err(), "{wrong}");
    }
}
