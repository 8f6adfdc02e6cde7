//! The program as a process: start-up, and `plan` over many leases. Processor time and the most memory of each child.
//!
//! Every figure is the least of several runs, since a busy computer only ever adds. Children are measured by the
//! difference of what the kernel accounts for ended children; the most memory is that of the largest one so far, so the
//! cases come in rising order. A full state is a snapshot and 1 MiB of journal. Measured is a copy of the program, as whoever
//! installs it has: what a linker has just written lies in small pieces in memory, which costs each start 0.3 ms and a long
//! plan more than 1 ms.

#![expect(clippy::print_stdout, reason = "a benchmark's figures are its output")]

use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use nix::sys::resource::{Usage, UsageWho, getrusage};
use nix::sys::time::TimeVal;
use stageline::ambient::SystemClock;
use stageline::core::id::{
    Address, Attempt, EndpointKey, Fingerprint, Generation, Lineage, Name, OperatorId, RequestKey,
    WriterId,
};
use stageline::core::journal::{Record, Verb};
use stageline::core::offer::{Facts, QuoteId};
use stageline::core::plan;
use stageline::core::resource::{Contact, LeaseReady, LeaseReceipt, Receipt, Spec};
use stageline::core::topology::{self, SourceFile, VarSources};
use stageline::core::unit::{Bytes, MicroDollars, Timestamp};
use stageline::store::{Begin, First, Journal, Mode, StateUrl, Store, Writer};

const RUNS: usize = 7;

/// The argument before the folder where a state is to be made.
const RECORD: &str = "record-a-state";

/// And the one that makes it measure one case.
const MEASURE: &str = "measure";

const LINEAGE: Lineage = Lineage([7; 16]);

fn usage() -> Usage {
    getrusage(UsageWho::RUSAGE_CHILDREN).expect("the kernel counts children")
}

fn span(time: TimeVal) -> Duration {
    let seconds = u64::try_from(time.tv_sec()).unwrap_or_default();
    Duration::from_secs(seconds)
        + Duration::from_micros(u64::try_from(time.tv_usec()).unwrap_or_default())
}

fn cpu() -> Duration {
    let usage = usage();
    span(usage.user_time()) + span(usage.system_time())
}

/// Measures in a process of its own: the kernel counts all children of one together.
fn case(name: &str, program: &Path, folder: &Path, arguments: &[&str]) {
    let status = Command::new(std::env::current_exe().expect("a program"))
        .args([MEASURE, name])
        .args([program, folder])
        .args(arguments)
        .status();
    assert!(
        status.expect("it runs").success(),
        "{name} was not measured"
    );
}

/// Runs the program and prints the least processor time that it took, and the most memory.
fn measure(name: &str, program: &Path, folder: &Path, arguments: &[String]) {
    let mut least = Duration::MAX;
    for _ in 0..RUNS {
        let before = cpu();
        let status = Command::new(program)
            .args(arguments)
            .current_dir(folder)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status()
            .expect("the program runs");
        assert!(status.success(), "{arguments:?}: {status}");
        least = least.min(cpu() - before);
    }
    let most = usage().max_rss() / 1024;
    println!(
        "{name:<60} {:>8.1} ms CPU {most:>6} MiB",
        least.as_secs_f64() * 1000.0
    );
}

/// So many leases from so many providers of 10,000 slots at most.
fn topology(leases: usize, providers: usize) -> String {
    let mut text = "version = 1\nname = \"bench\"\n".to_owned();
    for n in 0..providers {
        let slots = leases.div_ceil(providers);
        text.push_str(&format!(
            "[provider.here{n}]\nkind = \"local\"\nslots = {slots}\n[offer.any{n}]\nprovider = \"here{n}\"\n"
        ));
    }
    let offers: Vec<String> = (0..providers).map(|n| format!("\"any{n}\"")).collect();
    text.push_str(&format!(
        "[lease.box]\noffers = [{}]\ncount = {leases}\n",
        offers.join(", ")
    ));
    text
}

/// What a lease's `await` leaves in the journal, and before it its machine.
fn records(text: &str) -> Vec<[Record; 2]> {
    let files = [SourceFile {
        name: "topology.toml".to_owned(),
        text: text.to_owned(),
    }];
    let (topology, _) = topology::read(&files, &VarSources::default()).expect("a topology");
    let desired = plan::expand(&topology, &BTreeMap::new()).expect("it can be expanded");
    let of = |(address, spec): (&Address, &Spec)| {
        let Spec::Lease(lease) = spec else {
            return None;
        };
        let (generation, verb, at) = (Generation(1), Verb::Await, Timestamp::UNIX_EPOCH);
        let terms = lease.terms.first().expect("an offer");
        let key = RequestKey::derive(&LINEAGE, address, generation, Attempt(1));
        let receipt = LeaseReceipt {
            provider: terms.provider.clone(),
            provider_kind: terms.provider_kind.clone(),
            offer: terms.offer.clone(),
            account: None,
            quote: QuoteId("this-computer".to_owned()),
            machine: key.as_str().parse().expect("a key is printable"),
            request_key: key,
            price_per_hour: MicroDollars::ZERO,
            created_at: at,
            place: stageline_core::offer::Place::default(),
            ready: Some(LeaseReady {
                facts: Facts {
                    os: "linux".to_owned(),
                    arch: "x86_64".to_owned(),
                    cpus: 8,
                    memory: Bytes::gib(16),
                    disk: Bytes::gib(100),
                    tools: ["curl", "git", "ssh"].map(str::to_owned).to_vec(),
                    ..Facts::default()
                }
                .into(),
                endpoint: EndpointKey(Fingerprint::of(address.to_string().as_bytes()).0),
                contact: Contact::default(),
            }),
        };
        let started = Record::Started {
            address: address.clone(),
            generation,
            verb,
            launch: None,
            on: None,
            at,
        };
        let done = Record::Done {
            address: address.clone(),
            generation,
            verb,
            step: None,
            spec: Some(Box::new(spec.clone())),
            receipt: Some(Box::new(Receipt::Lease(Box::new(receipt)))),
            at,
        };
        Some([started, done])
    };
    desired.specs.iter().filter_map(of).collect()
}

/// A state as large as it gets: every lease in a snapshot, and nearly 1 MiB of journal above it, ten records an entry as
/// `apply` writes them.
async fn record(folder: &Path, text: &str) {
    let name: Name = "bench".parse().expect("a name");
    let url = StateUrl::of(folder.join("state"));
    let store = Store::open(&url, &name, None, Mode::Write)
        .await
        .expect("a store");
    let begin = Begin {
        command: "apply".to_owned(),
        by: "bench".to_owned(),
        plan: None,
        resume: false,
        expect_projection: None,
        first: Some(First {
            lineage: LINEAGE,
            operator: OperatorId([1; 32]),
            topology: name,
        }),
        wait_for_open: false,
    };
    let writer = Writer {
        id: WriterId([1; 16]),
        clock: Arc::new(SystemClock),
    };
    let loaded = store.read().await.expect("an empty state");
    let journal = Journal::begin(&store, loaded, begin, writer)
        .await
        .expect("a run");
    let all = records(text);
    for some in all.chunks(1000) {
        let records = some.iter().flatten().cloned().collect();
        journal.append(records).await.expect("it is written");
    }
    journal.snapshot_now().await;
    for some in all.chunks(5).cycle() {
        // At once and each by itself, as steps do: they become one entry, in few words.
        let each = some.iter().flatten().cloned();
        let appended = each.map(|record| journal.append(vec![record]));
        futures::future::try_join_all(appended)
            .await
            .expect("they are written");
        let read = store.read().await.expect("it is read");
        if read.journal_bytes > (1 << 20) - (16 << 10) {
            break;
        }
    }
    journal.finish(true).await.expect("the run ends");
}

/// The state is made by another process: the kernel counts what a process had before it became the program.
fn recorded(folder: &Path, text: &str) {
    std::fs::write(folder.join("bench.toml"), text).expect("a folder");
    let status = Command::new(std::env::current_exe().expect("a program"))
        .arg(RECORD)
        .arg(folder)
        .status();
    assert!(status.expect("it runs").success(), "no state was made");
}

fn main() {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .expect("a runtime");
    let arguments: Vec<String> = std::env::args().collect();
    if let [_, verb, folder] = arguments.as_slice()
        && verb == RECORD
    {
        let folder = Path::new(folder);
        let text = std::fs::read_to_string(folder.join("bench.toml")).expect("a topology");
        return runtime.block_on(record(folder, &text));
    }
    if let [_, verb, name, program, folder, rest @ ..] = arguments.as_slice()
        && verb == MEASURE
    {
        return measure(name, Path::new(program), Path::new(folder), rest);
    }
    drop(runtime);
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a folder on a disk");
    let program = folder.path().join("stageline");
    std::fs::copy(env!("CARGO_BIN_EXE_stageline"), &program).expect("room for a copy");
    case("version", &program, folder.path(), &["version"]);
    for (leases, providers) in [(1_000, 1), (1_000, 10), (10_000, 1), (10_000, 10)] {
        let text = topology(leases, providers);
        for state in ["empty", "full"] {
            let folder =
                tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a folder on a disk");
            std::fs::write(folder.path().join("topology.toml"), &text).expect("a folder");
            if state == "full" {
                recorded(folder.path(), &text);
            }
            let offers = if providers == 1 { "offer" } else { "offers" };
            let name =
                format!("plan --no-refresh, {leases} leases, {providers} {offers}, {state} state");
            case(&name, &program, folder.path(), &["plan", "--no-refresh"]);
        }
    }
}
