//! Real folders and real processes: a machine is made once, found again, and ended whole.

use stageline_core::resource::DISK;
use std::os::unix::fs::PermissionsExt as _;
use std::time::Instant;

use secrecy::SecretBox;
use stageline_core::id::{Address, Attempt, Generation, LeaseId, Lineage, OperatorId};
use stageline_core::unit::Bytes;

use super::process::ProcessId;
use super::*;
use crate::ambient::SystemClock;
use crate::provider::Boot;

/// Says where it listens and ends when asked to.
const POLITE: &str = r#"
trap 'exit 0' TERM
echo "hello from the agent"
env > "$3/seen-environment"
sleep 60 &
echo '{"direct":["127.0.0.1:4433"]}' > "$3/addr.new"
mv "$3/addr.new" "$3/agent.addr"
wait
"#;

/// Does not end when asked to, and has a worker that no marker tells, in a session of its own.
const STUBBORN: &str = r#"
trap '' TERM
mkdir "$3/workers"
env -i setsid sleep 60 &
while [ "$(cut -d ' ' -f 2 /proc/$!/stat)" != "(sleep)" ]; do :; done
echo "{\"pid\":$!,\"started\":$(cut -d ' ' -f 22 /proc/$!/stat)}" > "$3/workers/llama-0.pid"
echo '{"direct":["127.0.0.1:4433"]}' > "$3/addr.new"
mv "$3/addr.new" "$3/agent.addr"
while :; do sleep 60; done
"#;

/// Ends at once.
const DYING: &str = "echo 'no such verb' >&2; exit 2";

struct Case {
    folder: tempfile::TempDir,
    provider: LocalProvider,
}

impl Case {
    fn new(script: &str) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("agent.sh");
        std::fs::write(&file, script).expect("written");
        // `sh` reads it as data: a script that is run could still be open for writing in another test's child.
        let program = vec!["/bin/sh".into(), file.into()];
        Self::with(folder, program)
    }

    fn with(folder: tempfile::TempDir, program: Vec<OsString>) -> Self {
        let path = "/usr/bin:/bin";
        let settings = LocalSettings {
            name: "here".parse().expect("a name"),
            root: folder.path().join("state/machines"),
            program,
            environment: [("PATH".into(), path.into())].into(),
            slots: Some(2),
            price_per_hour: MicroDollars(7),
            stop_grace: Duration::from_millis(300),
        };
        let provider = LocalProvider::new(settings, Arc::new(SystemClock));
        Self { folder, provider }
    }

    fn root(&self) -> &Path {
        self.provider.inner.root.path()
    }

    async fn create(&self, attempt: u32) -> Outcome<Machine> {
        self.provider.create(request(attempt)).await
    }

    async fn up(&self, attempt: u32) -> Machine {
        let Outcome::Done(machine) = self.create(attempt).await else {
            panic!("not made");
        };
        self.when(&machine.id, |status| *status == MachineStatus::Running)
            .await
    }

    /// The machine as soon as its status is so.
    async fn when(&self, id: &MachineId, is: impl Fn(&MachineStatus) -> bool) -> Machine {
        let start = Instant::now();
        loop {
            let shown = self.provider.describe(id).await.expect("visible");
            let machine = shown.expect("there");
            if is(&machine.status) {
                return machine;
            }
            assert!(start.elapsed() < Duration::from_secs(20), "{machine:?}");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    fn own(&self, attempt: u32) -> Vec<ProcessId> {
        let key = request(attempt).request_key;
        let named = self.provider.inner.root.named(&key, &boot_id());
        let processes = Processes::look().expect("readable");
        let path = self.provider.inner.root.machine(&key);
        processes.of_machine(&path, &named).into_iter().collect()
    }

    async fn release(&self, machine: &Machine) {
        let released = self.provider.release(&machine.id).await;
        assert_eq!(released, Ok(Released::Accepted));
        self.is_empty().await;
        let again = self.provider.release(&machine.id).await;
        assert_eq!(again, Ok(Released::Unknown));
    }

    /// No machine, no process, no file.
    async fn is_empty(&self) {
        assert_eq!(self.provider.list().await, Ok(vec![]));
        let processes = Processes::look().expect("readable");
        assert_eq!(processes.folders_below(self.root()).count(), 0);
        let left = std::fs::read_dir(self.root()).map(Iterator::count);
        assert_eq!(left.unwrap_or(0), 0);
    }
}

fn request(attempt: u32) -> CreateRequest {
    let lease: LeaseId = "lease.box[0]".parse().expect("a lease");
    let lineage = Lineage([9; 16]);
    let address = Address::Lease(lease.clone());
    let (generation, attempt) = (Generation(1), Attempt(attempt));
    CreateRequest {
        told: None,
        request_key: RequestKey::derive(&lineage, &address, generation, attempt),
        requirement: stageline_core::offer::Requirement::default(),
        quote: Quote {
            provider: "here".parse().expect("a name"),
            id: QuoteId(QUOTE.to_owned()),
            facts: Facts::default(),
            price_per_hour: MicroDollars(7),
            disk: DiskRange::default(),
            supply: Supply::Many(1),
            bid: None,
        },
        disk: Bytes::gib(1),
        image: None,
        registry: None,
        mounts: Vec::new(),
        agent: None,
        boot: Boot {
            agent_key: SecretBox::new(Box::new([0xab; 32])),
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

#[tokio::test]
async fn a_machine_is_made_found_and_ended() {
    let case = Case::new(POLITE);
    let quotes = case.provider.search(&Requirement::default(), DISK).await;
    let quotes = quotes.expect("visible");
    assert_eq!(quotes[0].supply, Supply::Many(2));
    assert!(quotes[0].facts.cpus > 0 && quotes[0].facts.memory > Bytes(0));
    assert!(!case.root().exists(), "looking leaves no trace");

    let machine = case.up(1).await;
    assert_eq!(machine.request_key, Some(request(1).request_key));
    assert_eq!(machine.price_per_hour, MicroDollars(7));
    assert_eq!(machine.contact.direct.len(), 1);
    let prefix = RequestKey::mark(&Lineage([9; 16]));
    let found = case.provider.find(&prefix).await.expect("visible");
    assert_eq!(found[0].id, machine.id);
    assert_eq!(case.provider.find("sl-08").await, Ok(vec![]));

    let path = case.root().join(machine.id.as_str());
    let mode = |file: &str| {
        std::fs::metadata(path.join(file))
            .expect("there")
            .permissions()
    };
    assert_eq!(mode("agent.key").mode() & 0o777, 0o600);
    assert_eq!(mode("").mode() & 0o777, 0o700);
    assert_eq!(Folder::new(&path).read_key().expect("a key"), [0xab; 32]);
    let config = Folder::new(&path).read_config().expect("a configuration");
    assert_eq!(config.lease, request(1).boot.lease);
    let seen = std::fs::read_to_string(path.join("seen-environment")).expect("written");
    let marker = format!("STAGELINE_MACHINE_DIR={}", path.display());
    assert!(seen.lines().any(|line| line == marker), "{seen}");
    assert!(!seen.contains("CARGO"), "{seen}");
    let logs = case.provider.logs(&machine.id, 10).await.expect("readable");
    assert_eq!(logs, b"the agent\n");

    // A second process of the tool sees the same machine.
    let settings = case.provider.inner.settings.clone();
    let other = LocalProvider::new(settings, Arc::new(SystemClock));
    let listed = other.list().await.expect("visible");
    assert_eq!(listed[0].status, MachineStatus::Running);
    case.release(&machine).await;
}

#[tokio::test]
async fn the_same_key_is_the_same_machine() {
    let case = Case::new(POLITE);
    let machine = case.up(1).await;
    let record = || case.provider.inner.root.read(&request(1).request_key);
    let before = record().expect("readable");
    let Outcome::Done(again) = case.create(1).await else {
        panic!("not found again");
    };
    assert_eq!(again.id, machine.id);
    assert_eq!(record().expect("readable"), before);
    case.release(&machine).await;
}

#[tokio::test]
async fn what_does_not_end_is_killed_and_what_carries_no_marker_is_found() {
    let case = Case::new(STUBBORN);
    let machine = case.up(1).await;
    let own = case.own(1);
    assert!(own.len() >= 3, "agent, its sleep, and the worker: {own:?}");
    case.release(&machine).await;
    let processes = Processes::look().expect("readable");
    assert!(own.iter().all(|id| !processes.lives(*id)));

    // The same with an agent that was killed: nothing but the folder's record leads to its worker.
    let machine = case.up(1).await;
    let record = case.provider.inner.root.read(&request(1).request_key);
    let agent = record.expect("readable").and_then(|record| record.agent);
    let own = case.own(1);
    process::signal(agent.expect("started"), rustix::process::Signal::KILL).expect("sent");
    case.when(&machine.id, |s| matches!(s, MachineStatus::Dead(_)))
        .await;
    assert!(case.own(1).len() >= 2, "its sleep, and the worker");
    case.release(&machine).await;
    let processes = Processes::look().expect("readable");
    assert!(own.iter().all(|id| !processes.lives(*id)));
}

#[tokio::test]
async fn a_folder_that_was_deleted_by_hand_hides_no_process() {
    let case = Case::new(POLITE);
    let machine = case.up(1).await;
    let own = case.own(1);
    std::fs::remove_dir_all(case.root().join(machine.id.as_str())).expect("removed");
    let listed = case.provider.list().await.expect("visible");
    assert!(matches!(&listed[..], [one] if matches!(one.status, MachineStatus::Dead(_))));
    case.release(&machine).await;
    let processes = Processes::look().expect("readable");
    assert!(own.iter().all(|id| !processes.lives(*id)));
}

#[tokio::test]
async fn a_dead_agent_is_told_with_its_last_words() {
    let case = Case::new(DYING);
    let Outcome::Done(machine) = case.create(1).await else {
        panic!("not made");
    };
    let dead = case
        .when(&machine.id, |s| matches!(s, MachineStatus::Dead(_)))
        .await;
    let MachineStatus::Dead(words) = dead.status else {
        panic!("alive");
    };
    assert!(words.contains("no such verb"), "{words}");
    case.release(&machine).await;
}

#[tokio::test]
async fn creates_that_were_cut_leave_a_dead_machine() {
    let case = Case::new(POLITE);
    let key = request(1).request_key;
    let inner = &case.provider.inner;
    inner.root.prepare().expect("made");
    assert!(inner.root.claim(&key).expect("made"));
    let Outcome::Done(machine) = case.create(1).await else {
        panic!("not found");
    };
    assert!(matches!(machine.status, MachineStatus::Dead(_)));

    let record = Record {
        format: folder::RECORD_FORMAT,
        request_key: key,
        price_per_hour: MicroDollars(7),
        created_at: stageline_core::unit::Timestamp::UNIX_EPOCH,
        agent: None,
        boot_id: boot_id(),
    };
    inner.root.write(&record).expect("written");
    let listed = case.provider.list().await.expect("visible");
    assert!(matches!(listed[0].status, MachineStatus::Dead(_)));
    case.release(&machine).await;
}

#[tokio::test]
async fn numbers_from_before_a_restart_name_nobody() {
    let case = Case::new(POLITE);
    let machine = case.up(1).await;
    let inner = &case.provider.inner;
    let key = request(1).request_key;
    let mut record = inner.root.read(&key).expect("readable").expect("there");
    let agent = record.agent.expect("started");
    record.boot_id = "another".to_owned();
    inner.root.write(&record).expect("written");
    let shown = case.provider.describe(&machine.id).await.expect("visible");
    assert!(matches!(
        shown.expect("there").status,
        MachineStatus::Dead(_)
    ));
    assert!(!inner.root.named(&key, &boot_id()).contains(&agent));
    case.release(&machine).await;
}

#[tokio::test]
async fn what_is_not_ours_makes_blind_and_leftovers_are_swept() {
    let case = Case::new(POLITE);
    let machine = case.up(1).await;
    let trash = case.root().join(".trash-sl-x-0");
    std::fs::create_dir(&trash).expect("made");
    case.provider.list().await.expect("visible");
    assert!(!trash.exists());

    let foreign = case.root().join("holiday-photos");
    std::fs::write(&foreign, "x").expect("written");
    let blind = case.provider.list().await.expect_err("blind");
    assert!(blind.to_string().contains("holiday-photos"), "{blind}");
    assert!(case.provider.find("sl-").await.is_err());
    assert!(matches!(case.create(2).await, Outcome::Refused(_)));
    std::fs::remove_file(&foreign).expect("removed");

    let record = case.root().join(machine.id.as_str()).join("machine.json");
    std::fs::write(&record, "{\"format\":1,").expect("written");
    let blind = case.provider.list().await.expect_err("blind");
    assert!(blind.to_string().contains("machine.json"), "{blind}");
    case.release(&machine).await;
}

#[tokio::test]
async fn slots_run_out() {
    let case = Case::new(POLITE);
    let (one, two) = (case.up(1).await, case.up(2).await);
    let quotes = case.provider.search(&Requirement::default(), DISK).await;
    let quotes = quotes.expect("it can see");
    let left: Vec<Supply> = quotes.iter().map(|quote| quote.supply).collect();
    assert_eq!(left, [Supply::Many(0)], "one that is given back is free");
    assert_eq!(case.provider.quote(&quotes[0].id, DISK).await, Ok(None));
    let third = case.create(3).await;
    assert!(matches!(third, Outcome::Refused(cause) if cause.class == FailureClass::Capacity));
    case.provider.release(&one.id).await.expect("ended");
    case.release(&two).await;
}

#[tokio::test]
async fn a_create_that_cannot_be_is_refused_and_leaves_nothing() {
    let folder = tempfile::tempdir().expect("a folder");
    let case = Case::with(folder, vec!["/nowhere/stageline".into()]);
    let Outcome::Refused(cause) = case.create(1).await else {
        panic!("made");
    };
    assert!(cause.message.contains("/nowhere/stageline"), "{cause}");
    assert!(cause.hint.is_some());
    case.is_empty().await;

    let case = Case::new(POLITE);
    // Not even the superuser makes a folder below a file.
    std::fs::write(case.folder.path().join("state"), "x").expect("written");
    let Outcome::Refused(cause) = case.create(1).await else {
        panic!("made");
    };
    assert!(cause.message.contains("state/machines"), "{cause}");
    assert!(case.provider.release(&"x".parse().expect("an id")).await == Ok(Released::Unknown));
}
