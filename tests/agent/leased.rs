//! Machines of the `local` provider with real agents in them: made, spoken to, killed, deleted by hand, ended.

use stageline::core::resource::DISK;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use secrecy::SecretBox;
use stageline::agent::Folder;
use stageline::ambient::SystemClock;
use stageline::core::id::{Address, Attempt, Generation, RequestKey};
use stageline::core::offer::Requirement;
use stageline::core::resource::Outcome;
use stageline::core::unit::{Bytes, MicroDollars};
use stageline::machine::Machines as _;
use stageline::provider::local::{LocalProvider, LocalSettings};
use stageline::provider::{Boot, CreateRequest, Machine, MachineStatus, Provider as _, Released};

use super::{World, keys, lease, shell, spec, until};

/// Speaks the protocol, ends by nothing but KILL, and so does its child.
const STUBBORN: &str = r#"trap '' TERM INT HUP; (trap '' TERM; sleep 600) & echo '{"status":"ready","pid":7,"protocol":"stage/1","hidden_size":4,"layers":[0,1],"vocab":256,"context":512,"dtype":"f32"}'; while :; do sleep 600; done"#;

fn provider(world: &World) -> LocalProvider {
    let settings = LocalSettings {
        name: "here".parse().expect("a name"),
        root: world.dir.path().join("state/machines"),
        program: vec![env!("CARGO_BIN_EXE_stageline").into()],
        environment: [("PATH".into(), "/usr/bin:/bin".into())].into(),
        slots: Some(4),
        price_per_hour: MicroDollars::ZERO,
        stop_grace: Duration::from_secs(1),
    };
    LocalProvider::new(settings, Arc::new(SystemClock))
}

async fn up(world: &World, provider: &LocalProvider) -> Machine {
    let quotes = provider.search(&Requirement::default(), DISK).await;
    let address = Address::Lease(lease(0));
    let (generation, attempt) = (Generation(1), Attempt(1));
    let request = CreateRequest {
        told: None,
        request_key: RequestKey::derive(&world.lineage, &address, generation, attempt),
        requirement: stageline_core::offer::Requirement::default(),
        quote: quotes.expect("visible").remove(0),
        disk: Bytes::gib(1),
        image: None,
        registry: None,
        mounts: Vec::new(),
        agent: None,
        boot: Boot {
            agent_key: SecretBox::new(Box::new(*world.key(0).expose())),
            operator: keys::operator(&world.identity, &world.lineage).operator(),
            lineage: world.lineage,
            lease: lease(0),
            generation,
            attempt,
            relay: None,
            limits: None,
        },
    };
    let Outcome::Done(made) = provider.create(request).await else {
        panic!("not made");
    };
    until("the machine to run", || async {
        let shown = provider.describe(&made.id).await.expect("visible")?;
        (shown.status == MachineStatus::Running).then_some(shown)
    })
    .await
}

/// Every process that carries a folder below this one.
pub(super) fn carriers(root: &Path) -> usize {
    let marker = format!("STAGELINE_MACHINE_DIR={}", root.display());
    let entries = std::fs::read_dir("/proc").expect("readable").flatten();
    let environments = entries.filter_map(|e| std::fs::read(e.path().join("environ")).ok());
    environments
        .filter(|bytes| {
            let mut variables = bytes.split(|byte| *byte == 0);
            variables.any(|variable| variable.starts_with(marker.as_bytes()))
        })
        .count()
}

async fn gone(world: &World, provider: &LocalProvider, machine: &Machine) {
    let released = provider.release(&machine.id).await;
    assert_eq!(released, Ok(Released::Accepted));
    assert_eq!(provider.list().await, Ok(vec![]));
    let root = world.dir.path().join("state/machines");
    assert_eq!(carriers(&root), 0);
    assert_eq!(std::fs::read_dir(&root).expect("readable").count(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_leased_machine_answers_its_operator_and_leaves_nothing() {
    let world = World::new();
    let provider = provider(&world);
    let machine = up(&world, &provider).await;
    let target = world.target(0, machine.contact.clone());
    let status = world.client.status(&target).await.expect("it answers");
    assert_eq!(status.facts.cpus, machine.facts.cpus);
    gone(&world, &provider, &machine).await;
    assert!(world.client.status(&target).await.is_err());
}

#[tokio::test(flavor = "multi_thread")]
async fn workers_of_a_killed_agent_end_with_their_machine() {
    for delete_folder in [false, true] {
        let world = World::new();
        let provider = provider(&world);
        let machine = up(&world, &provider).await;
        let target = world.target(0, machine.contact.clone());
        let delivered = world.deliver(&[&target], &[&target]).await;
        delivered.expect("delivered");
        let spec = spec(0, 0, 1, shell(STUBBORN));
        world.start(&target, 0, &spec).await.expect("ready");
        let root = world.dir.path().join("state/machines");
        assert!(carriers(&root) >= 3, "agent, worker and its child");

        let folder = Folder::new(root.join(machine.id.as_str()));
        let record = std::fs::read(folder.root().join("machine.json")).expect("there");
        let record: serde_json::Value = serde_json::from_slice(&record).expect("JSON");
        let pid = record["agent"]["pid"].as_i64().expect("a number");
        let pid = rustix::process::Pid::from_raw(i32::try_from(pid).expect("small"));
        rustix::process::kill_process(pid.expect("a pid"), rustix::process::Signal::KILL)
            .expect("sent");
        until("the machine to be dead", || async {
            let shown = provider.describe(&machine.id).await.expect("visible")?;
            matches!(shown.status, MachineStatus::Dead(_)).then_some(())
        })
        .await;
        if delete_folder {
            std::fs::remove_dir_all(folder.root()).expect("removed");
            assert_eq!(provider.list().await.expect("visible").len(), 1);
        }
        gone(&world, &provider, &machine).await;
    }
}
