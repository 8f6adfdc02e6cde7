//! What a host's traces say of the machine on it.

use stageline_core::id::Lineage;

use super::*;
use crate::ambient::SystemClock;
use crate::ssh::{Place, Trace};

const KEY: &str = "sl-0707070707070707-00000000-g1a1";
const OTHER: &str = "sl-0808080808080808-00000000-g1a1";

fn provider() -> SshProvider {
    let host = OwnHost {
        place: Place {
            user: "root".to_owned(),
            address: "192.0.2.1".to_owned(),
            port: 22,
        },
        keys: Vec::new(),
        agent: None,
        known: None,
        price_per_hour: MicroDollars::ZERO,
        tags: vec!["fast".to_owned(), "left".to_owned()],
        declared: true,
    };
    SshProvider::new(SshSettings {
        name: "own".parse().expect("a name"),
        hosts: vec![host],
        offers: BTreeMap::new(),
        ssh_keys: Vec::new(),
        means: Means {
            user: "tester".to_owned(),
            agent: None,
            host_keys: Arc::default(),
            builds: Arc::default(),
        },
        relay: None,
        who: "tester@here".to_owned(),
        clock: Arc::new(SystemClock),
    })
}

fn key(text: &str) -> RequestKey {
    text.parse().expect("a key")
}

fn mark(text: &str) -> Mark {
    Mark::new(
        key(text),
        (Lineage([7; 16]), "lease.node[0]".parse().expect("a lease")),
        "box".parse().expect("a name"),
        "alice@laptop".to_owned(),
        "2026-01-02T03:04:05Z".parse().expect("a time"),
    )
}

fn seen(marked: Option<&str>, traces: &[(&str, Trace)]) -> Seen {
    Seen {
        mark: marked.map(mark),
        traces: traces
            .iter()
            .map(|(text, trace)| (key(text), trace.clone()))
            .collect(),
    }
}

/// What is said of the machine with [`KEY`].
fn status(seen: &Seen) -> MachineStatus {
    let provider = provider();
    provider.status(&provider.desks[0], seen, &key(KEY)).0
}

#[test]
fn a_machine_is_what_its_host_shows() {
    let runs = Trace {
        runs: true,
        started: Some(true),
        ..Trace::default()
    };
    let ended = Trace {
        started: Some(true),
        last: "no space left".to_owned(),
        ..Trace::default()
    };
    let earlier = Trace {
        started: Some(false),
        ..Trace::default()
    };
    assert_eq!(status(&seen(Some(KEY), &[])), MachineStatus::Running);
    assert_eq!(
        status(&seen(Some(KEY), &[(KEY, runs.clone())])),
        MachineStatus::Running
    );
    for (seen, words) in [
        (seen(Some(KEY), &[(KEY, ended)]), "no space left"),
        (seen(Some(KEY), &[(KEY, earlier)]), "started anew"),
        (seen(None, &[(KEY, runs.clone())]), "not marked"),
        (seen(Some(OTHER), &[(KEY, runs)]), "not marked"),
    ] {
        let MachineStatus::Dead(why) = status(&seen) else {
            panic!("{words}: it is not dead");
        };
        assert!(why.contains(words), "{why}");
    }
}

#[test]
fn an_agent_is_looked_for_where_its_host_answers() {
    let provider = provider();
    let desk = &provider.desks[0];
    let told = Contact {
        direct: vec!["10.0.0.7:41641".parse().expect("an address")],
        relay: None,
    };
    let relay = "https://relay.example".to_owned();
    let contact = desk.contact(told.clone(), Some(&relay));
    assert_eq!((contact.direct, contact.relay), (told.direct, Some(relay)));
}

#[test]
fn what_is_measured_counts_and_what_cannot_be_is_claimed() {
    let provider = provider();
    let desk = &provider.desks[0];
    let measured = Facts {
        cpus: 8,
        ..Facts::default()
    };
    let claims = Claims {
        facts: Facts {
            cpus: 64,
            region: Some("EU".to_owned()),
            ..Facts::default()
        },
        price_per_hour: None,
    };
    let facts = desk.claimed(&measured, &claims);
    assert_eq!((facts.cpus, facts.region.as_deref()), (8, Some("EU")));
    assert_eq!(facts.extra["tags"], "fast left");
    assert_eq!(facts.extra["address"], "192.0.2.1");
}

#[tokio::test]
async fn a_machine_on_a_host_that_is_not_here_is_not_gone() {
    let provider = provider();
    let id: MachineId = format!("root@192.0.2.9:22/{KEY}").parse().expect("an id");
    assert!(provider.describe(&id).await.is_err());
    assert!(provider.release(&id).await.is_err());
}
