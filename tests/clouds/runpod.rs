//! Each verb of our adapter for RunPod against each fault that this cloud can show, and jobs that need more than one offer or another
//! key.

use std::sync::Arc;
use std::time::{Duration, Instant};

use stageline::core::id::{Attempt, Generation, Lineage, MachineId, OperatorId, RequestKey};
use stageline::core::offer::{Quote, Requirement, Supply};
use stageline::core::resource::{DISK, FailureClass, Outcome};
use stageline::core::topology::SecretRef;
use stageline::core::unit::MicroDollars;
use stageline::provider::http::CloudSettings;
use stageline::provider::runpod::Runpod;
use stageline::provider::{
    Boot, CreateRequest, Machine, MachineStatus, Provider, RegistryLogin, Released,
};
use stageline::sim::{Fault, Kind, Running};

use super::desk::{self, Desk};
use crate::relay::Relay;

const PREFIX: &str = "sl-00112233445566aa-0011aabb-";

async fn cloud(faults: Vec<Fault>, speed: u32) -> Running {
    desk::cloud(Kind::Runpod, faults, speed, false).await
}

fn adapter(cloud: &Running, key: &str, account: Option<&str>) -> Runpod {
    Runpod::new(CloudSettings {
        name: "pods".parse().expect("a name"),
        url: Some(cloud.url()),
        key_ref: SecretRef::Env("RUNPOD_API_KEY".to_owned()),
        key: Ok(Arc::new(key.to_owned().into())),
        account: account.map(str::to_owned),
        // Pods are reached by it; nobody dials it here.
        relay: Some("https://relay.example".to_owned()),
        means: stageline::ssh::Means::default(),
        clock: Arc::new(stageline::ambient::SystemClock),
    })
}

async fn found(pods: &Runpod, text: &str) -> Vec<Quote> {
    let wanted: Requirement = text.parse().expect("a requirement");
    let mut quotes = pods.search(&wanted, DISK).await.expect("seen");
    quotes
        .retain(|quote| wanted.misfits(&quote.facts).is_empty() && quote.supply != Supply::Many(0));
    quotes.sort_by_key(|quote| quote.price_per_hour);
    quotes
}

async fn quotes(pods: &Runpod) -> Vec<Quote> {
    found(pods, "gpu=rtx_4090|rtx_3090, vram>=24").await
}

fn request(quote: Quote, attempt: u32) -> CreateRequest {
    let key: RequestKey = format!("{PREFIX}g1a{attempt}").parse().expect("a key");
    CreateRequest {
        told: None,
        request_key: key,
        requirement: stageline_core::offer::Requirement::default(),
        quote,
        disk: DISK,
        image: Some("img:1".to_owned()),
        registry: None,
        mounts: Vec::new(),
        agent: None,
        boot: Boot {
            agent_key: secrecy::SecretBox::new(Box::new([1; 32])),
            operator: OperatorId([2; 32]),
            lineage: Lineage([3; 16]),
            lease: "lease.node[0]".parse().expect("an id"),
            generation: Generation(1),
            attempt: Attempt(attempt),
            relay: None,
            limits: None,
        },
    }
}

async fn create(pods: &Runpod, attempt: u32) -> Outcome<Machine> {
    let quote = quotes(pods).await.remove(0);
    pods.create(request(quote, attempt)).await
}

async fn made(pods: &Runpod) -> MachineId {
    match create(pods, 1).await {
        Outcome::Done(machine) => machine.id,
        other @ (Outcome::Refused(_) | Outcome::InDoubt(_)) => panic!("{other:?}"),
    }
}

fn set(cloud: &Running, fault: Fault) {
    cloud.world.faults.replace(vec![fault]).expect("a knob");
}

/// Two creates have had their turns, and the first one is told to come again later.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pause_that_a_create_is_asked_for_holds_those_whose_turn_has_come() {
    let busy = Fault::of("create-429").text("45").times(1);
    let cloud = cloud(vec![busy], 10).await;
    let pods = adapter(&cloud, "k", None);
    let mut quotes = quotes(&pods).await;
    let [first, second] = [1, 2].map(|attempt| request(quotes.remove(0), attempt));
    match pods.create(first).await {
        Outcome::Refused(cause) => assert_eq!(cause.class, FailureClass::Rate),
        other @ (Outcome::Done(_) | Outcome::InDoubt(_)) => panic!("{other:?}"),
    }
    let told = std::time::Instant::now();
    let Outcome::Done(_) = pods.create(second).await else {
        panic!("it waits for its moment")
    };
    let waited = told.elapsed();
    assert!(
        waited >= std::time::Duration::from_millis(4_400),
        "{waited:?}"
    );
    cloud.stop().await;
}

/// How a create must end: in doubt, or refused with a class; and how many pods there are then.
type Case = (Fault, Option<FailureClass>, usize);

fn creates() -> Vec<Case> {
    use FailureClass::{Auth, Capacity, Config, Money, Quota, Rate};
    let of = Fault::of;
    vec![
        (of("create-500-after-commit"), None, 1),
        (of("create-timeout-after-commit"), None, 1),
        (of("create-cut"), None, 1),
        (of("create-500-no-commit"), None, 0),
        (of("create-late-commit").seconds(3000), None, 0),
        (of("create-wrong-count").text("none"), None, 1),
        (of("server-error"), None, 0),
        (of("offer-gone"), Some(Capacity), 0),
        (of("quota"), Some(Quota), 0),
        (of("money"), Some(Money), 0),
        (of("capacity"), Some(Capacity), 0),
        (of("bad-request"), Some(Config), 0),
        (of("auth-revoked"), Some(Auth), 0),
        (of("rate-429-plain"), Some(Rate), 0),
        (of("rate-429-after").text("100000"), Some(Rate), 0),
        (of("rate-429-daily"), Some(Quota), 0),
    ]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_create_is_sent_once_and_its_answer_believed_as_far_as_it_goes() {
    let cases = creates()
        .into_iter()
        .map(async |(fault, wanted, machines)| {
            let cloud = cloud(vec![], 600).await;
            let pods = adapter(&cloud, "k", None);
            let quote = quotes(&pods).await.remove(0);
            let (knob, late) = (fault.knob.clone(), fault.knob == "create-late-commit");
            set(&cloud, fault);
            let outcome = pods.create(request(quote, 1)).await;
            cloud.world.faults.replace(vec![]).expect("none");
            match (&outcome, wanted) {
                (Outcome::InDoubt(_), None) => {}
                (Outcome::Refused(cause), Some(class)) => assert_eq!(cause.class, class, "{knob}"),
                (_, _) => panic!("{knob}: {outcome:?}"),
            }
            let sent = cloud.world.lock().requests.get("create").copied();
            assert!(sent.unwrap_or(0) <= 1, "{knob}: sent {sent:?} times");
            let there = async || pods.find(PREFIX).await.expect("seen");
            assert_eq!(there().await.len(), machines, "{knob}");
            if late {
                cloud.world.clock.advance(4_000_000);
                let deadline = Instant::now() + Duration::from_secs(20);
                while there().await.is_empty() && Instant::now() < deadline {
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
                assert_eq!(there().await.len(), 1);
            }
            for machine in there().await {
                pods.release(&machine.id).await.expect("taken");
            }
            assert_eq!(there().await, [], "{knob}");
            cloud.stop().await;
        });
    futures::future::join_all(cases).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_second_pod_of_one_create_is_found_by_its_name() {
    let cloud = cloud(vec![Fault::of("create-wrong-count")], 600).await;
    let pods = adapter(&cloud, "k", None);
    let kept = made(&pods).await;
    let all = pods.find(PREFIX).await.expect("seen");
    assert_eq!(all.len(), 2);
    assert!(all.iter().any(|machine| machine.id == kept));
    cloud.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_listing_that_cannot_be_trusted_is_no_listing() {
    let of = Fault::of;
    let faults = [
        of("list-success-false"),
        of("list-truncated-json"),
        of("list-truncated-json").text("html"),
        of("list-truncated-json").text("1010"),
        of("auth-revoked"),
        of("server-error"),
    ];
    let cloud = cloud(vec![], 600).await;
    let pods = adapter(&cloud, "k", None);
    for attempt in 1..=5 {
        let outcome = create(&pods, attempt).await;
        assert!(matches!(outcome, Outcome::Done(_)), "{outcome:?}");
    }
    assert_eq!(pods.list().await.expect("seen").len(), 5);
    for fault in faults {
        let what = format!("{fault:?}");
        set(&cloud, fault.clone());
        let listed = pods.list().await;
        assert!(listed.is_err(), "{what}: {listed:?}");
        // Once is no harm.
        if fault.knob != "auth-revoked" && fault.text.as_deref() != Some("1010") {
            set(&cloud, fault.times(1));
            assert_eq!(pods.list().await.expect("seen again").len(), 5, "{what}");
        }
    }
    cloud.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_release_is_proven_by_listings_only() {
    let cloud = cloud(vec![], 600).await;
    let pods = adapter(&cloud, "k", None);
    let listed = async || pods.list().await.expect("seen").len();
    // Says yes, does nothing.
    let id = made(&pods).await;
    set(&cloud, Fault::of("terminate-noop").times(1));
    assert_eq!(pods.release(&id).await, Ok(Released::Accepted));
    assert_eq!(listed().await, 1);
    tokio::time::sleep(Duration::from_millis(600)).await;
    // Says no, does it.
    set(&cloud, Fault::of("terminate-5xx").times(1));
    assert_eq!(pods.release(&id).await, Ok(Released::Unknown));
    assert_eq!(listed().await, 0);
    // Gone is gone, however often.
    assert_eq!(pods.release(&id).await, Ok(Released::Unknown));
    // A new pod is not known for a while, which proves nothing.
    set(&cloud, Fault::of("get-404-lag").seconds(3000));
    let id = made(&pods).await;
    assert_eq!(pods.release(&id).await, Ok(Released::Unknown));
    assert_eq!(listed().await, 1);
    cloud.world.clock.advance(3_000_000);
    // Listed and billed for a while.
    set(&cloud, Fault::of("delete-late").seconds(3000));
    assert_eq!(pods.release(&id).await, Ok(Released::Accepted));
    assert_eq!(listed().await, 1);
    cloud.world.clock.advance(3_000_000);
    assert_eq!(listed().await, 0);
    // Listed and not billed.
    let id = made(&pods).await;
    set(&cloud, Fault::of("list-ghost").seconds(3000));
    assert_eq!(pods.release(&id).await, Ok(Released::Accepted));
    let bill = cloud.world.bill();
    assert_eq!(listed().await, 1);
    cloud.world.clock.advance(3_000_000);
    assert_eq!((listed().await, cloud.world.bill()), (0, bill));
    cloud.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pod_is_seen_as_it_is() {
    let of = Fault::of;
    let dead = [
        of("boot-dies").text("exited"),
        of("boot-dies").text("oci"),
        of("preempt").seconds(1),
    ];
    // A dead container is reported as running; a probe of the agent finds out, within a deadline.
    let pending = [
        of("boot-dies").text("offline"),
        of("boot-dies").text("unknown"),
        of("host-offline").seconds(1_000_000),
        of("boot-never"),
        of("boot-slow").seconds(1500),
    ];
    let cases = dead
        .map(|fault| (fault, true))
        .into_iter()
        .chain(pending.map(|fault| (fault, false)));
    for (fault, over) in cases {
        let cloud = cloud(vec![fault.clone()], 600).await;
        let pods = adapter(&cloud, "k", None);
        let id = made(&pods).await;
        cloud.world.clock.advance(120_000);
        let seen = pods.describe(&id).await.expect("seen").expect("listed");
        match &seen.status {
            MachineStatus::Dead(_) => assert!(over, "{fault:?}"),
            MachineStatus::Pending(phase) => assert!(!over, "{fault:?}: {phase}"),
            MachineStatus::Running | MachineStatus::Ending | MachineStatus::Interrupted(_) => {
                panic!("{fault:?}: {seen:?}")
            }
        }
        cloud.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_new_or_odd_in_an_answer_is_read_all_the_same() {
    let cloud = cloud(vec![Fault::of("schema-drift")], 600).await;
    let pods = adapter(&cloud, "k", None);
    assert!(!quotes(&pods).await.is_empty());
    let id = made(&pods).await;
    let listed = pods.list().await.expect("seen");
    assert_eq!((listed.len(), &listed[0].id), (1, &id));
    assert!(listed[0].price_per_hour.0 > 0);
    cloud.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_offer_is_read_again_before_it_is_taken() {
    let cloud = cloud(vec![], 600).await;
    let pods = adapter(&cloud, "k", None);
    let one = found(&pods, "gpu=rtx_4090, provider.cloud=secure")
        .await
        .remove(0);
    // 0.59, and 20 GB at 0.10 a month.
    assert_eq!(one.price_per_hour, MicroDollars(590_000 + 2_778));
    cloud.world.lock().price_factor = 1.1;
    let again = pods
        .quote(&one.id, DISK)
        .await
        .expect("seen")
        .expect("there");
    assert_eq!(again.price_per_hour, MicroDollars(649_000 + 2_778));
    let Outcome::Done(_) = pods.create(request(again.clone(), 1)).await else {
        panic!("it is there")
    };
    let machine = pods.list().await.expect("seen").remove(0);
    assert_eq!(
        machine.price_per_hour, again.price_per_hour,
        "billed as quoted"
    );
    assert_eq!(machine.facts.region, one.facts.region);
    // What the requirement asks for goes along, and comes back in the name.
    let more = "gpu=rtx_4090, gpus=2, memory>=80, cuda>=12.8";
    let large = found(&pods, more).await.remove(0);
    let large = pods
        .quote(&large.id, DISK)
        .await
        .expect("seen")
        .expect("there");
    let wanted: Requirement = more.parse().expect("one");
    assert_eq!(wanted.misfits(&large.facts), []);
    assert!(matches!(
        pods.create(request(large, 2)).await,
        Outcome::Done(_)
    ));
    // Sold out meanwhile, or no longer in the catalogue.
    for offer in cloud.world.lock().offers.values_mut() {
        offer.taken = true;
    }
    assert_eq!(pods.quote(&one.id, DISK).await, Ok(None));
    let other = one.id.0.replace("4090", "4091");
    let other = stageline::core::offer::QuoteId(other);
    assert_eq!(pods.quote(&other, DISK).await, Ok(None));
    cloud.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_accounts_key_proves_nothing() {
    let cloud = cloud(vec![], 600).await;
    let pods = adapter(&cloud, "team", None);
    let id = made(&pods).await;
    let account = pods.account().await.expect("seen").expect("one");
    let with = |key: &str| adapter(&cloud, key, Some(&account.id));
    assert_eq!(with("team").list().await.expect("seen").len(), 1);
    // Pods of ours on another account prove nothing about this one.
    made(&adapter(&cloud, "another", None)).await;
    let blind = with("another").list().await.expect_err("another account");
    assert_eq!(blind.cause.class, FailureClass::Auth);
    assert!(with("another").account().await.is_err());
    // A new key of the same account shows pods that were made there, and then also their absence.
    let renewed = with("team.second-key");
    let seen = renewed.account().await.expect("seen").expect("one");
    assert_eq!(seen.id, account.id);
    assert_ne!(seen.key_fingerprint, account.key_fingerprint);
    renewed.release(&id).await.expect("taken");
    assert_eq!(renewed.list().await, Ok(vec![]));
    assert!(
        with("team.third-key").list().await.is_err(),
        "nothing to know it by"
    );
    cloud.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_log_is_taken_from_a_stream_without_an_end() {
    let cloud = cloud(vec![], 600).await;
    let pods = adapter(&cloud, "k", None);
    let id = made(&pods).await;
    cloud.world.clock.advance(120_000);
    let log = pods.logs(&id, 4096).await.expect("a log");
    let log = String::from_utf8(log).expect("text");
    assert!(log.contains("create container img:1\n"), "{log}");
    let nobody: MachineId = "nobody".parse().expect("an id");
    assert!(pods.logs(&nobody, 4096).await.is_err());
    cloud.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn eight_at_once_are_never_too_many() {
    // Requests are counted up to this pace: 60 in 6 s.
    let cloud = cloud(vec![], 10).await;
    let (one, two) = (adapter(&cloud, "pace", None), adapter(&cloud, "pace", None));
    let quote = quotes(&one).await.remove(0);
    let rent = async |pods: &Runpod, attempt: u32| {
        let quote = pods.quote(&quote.id, DISK).await.expect("seen");
        tokio::time::sleep(pods.turn()).await;
        let outcome = pods.create(request(quote.expect("there"), attempt)).await;
        let Outcome::Done(machine) = outcome else {
            panic!("{outcome:?}")
        };
        // As somebody does who waits for it.
        for _ in 0..20 {
            pods.describe(&machine.id).await.expect("seen");
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        for _ in 0..8 {
            pods.list().await.expect("seen");
        }
    };
    let all = (1..=8).map(|attempt| rent(if attempt % 2 == 0 { &one } else { &two }, attempt));
    futures::future::join_all(all).await;
    let (too_soon, machines, listings) = {
        let inner = cloud.world.lock();
        (inner.too_soon, inner.machines.len(), inner.requests["list"])
    };
    assert_eq!((too_soon, machines), (0, 8));
    assert!(listings < 8 * 28, "they share listings: {listings}");
    cloud.stop().await;
}

#[test]
fn the_fifth_offer_is_taken_when_four_have_no_capacity() {
    let desk = Desk::of(Kind::Runpod, vec![Fault::of("capacity").times(4)], 600, 1);
    let ran = desk.run("apply --auto-approve");
    ran.exits(0).says("no longer any instances");
    desk.agrees(1);
    assert_eq!(desk.cloud.world.lock().requests["create"], 5, "each once");
    desk.run("destroy --auto-approve").exits(0);
    desk.agrees(0);
}

#[test]
fn a_price_above_the_ceiling_is_not_paid() {
    let desk = Desk::of(Kind::Runpod, vec![], 600, 1);
    desk.run("plan --out plan.json").exits(0);
    desk.cloud.world.lock().price_factor = 10.0;
    desk.run("apply plan.json").exits(7);
    desk.agrees(0);
}

#[test]
fn a_listing_without_pods_in_it_creates_nothing_and_ends_nothing() {
    let desk = Desk::new(Kind::Runpod, vec![]);
    desk.run("apply --auto-approve").exits(0);
    let set = |table| desk.cloud.world.faults.replace(table).expect("knobs");
    set(vec![Fault::of("list-success-false")]);
    desk.run("plan")
        .exits(5)
        .says("nobody could tell")
        .says("it is kept");
    set(vec![]);
    // Another account's key shows none of them.
    let other = Some("another-key");
    let ran = desk.run_with(other, "plan");
    ran.says("this may be another account").says("it is kept");
    desk.run_with(other, "destroy --auto-approve").exits(5);
    set(vec![Fault::of("list-success-false")]);
    desk.run("destroy --auto-approve").exits(5);
    set(vec![]);
    desk.run("destroy --auto-approve")
        .exits(0)
        .says("0 left at providers");
    desk.agrees(0);
}

#[test]
fn a_pod_that_tells_no_address_is_reached_by_its_relay() {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .expect("a runtime");
    let relay = runtime.block_on(Relay::start(&["sesame"]));
    let hidden = Fault::of("ip-missing").seconds(100_000_000);
    let desk = Desk::of(Kind::Runpod, vec![hidden], 600, 2);
    desk.file("relay-ca.pem", &relay.ca_pem);
    let relayed = format!(
        "{}\n[relay]\nurl = \"{}\"\nca = \"relay-ca.pem\"\ntoken = {{ command = [\"echo\", \"sesame\"] }}\n",
        desk.topology(2),
        relay.url
    );
    desk.write(&relayed);
    desk.run("apply --auto-approve").exits(0).says("is up");
    desk.agrees(2);
    desk.run("ask Hello").exits(0);
    assert!(relay.guests() > 2, "two agents, and we");
    desk.run("destroy --auto-approve").exits(0);
    desk.agrees(0);
    runtime.block_on(relay.stop());
}

/// Both have had their turns. The first is told to come again later, and prices rise while the second waits for its moment.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_create_that_had_to_wait_is_not_sent_at_a_price_that_rose_meanwhile() {
    let busy = Fault::of("create-429").text("16").times(1);
    let cloud = cloud(vec![busy], 2).await;
    let pods = adapter(&cloud, "k", None);
    let quotes = quotes(&pods).await;
    let create =
        async |quote: &Quote, attempt| match pods.create(request(quote.clone(), attempt)).await {
            Outcome::Done(_) => None,
            Outcome::Refused(cause) => Some(cause),
            Outcome::InDoubt(cause) => panic!("{cause:?}"),
        };
    let first = create(&quotes[0], 1).await.expect("it is too soon");
    assert_eq!(first.class, FailureClass::Rate);
    cloud.world.lock().price_factor = 1.2;
    let second = create(&quotes[1], 2).await.expect("it costs more");
    assert_eq!(
        second.class,
        FailureClass::Rate,
        "it is tried anew, from its price on"
    );
    assert!(
        second.message.contains("when its create was written down"),
        "{second:?}"
    );
    let sent = |cloud: &Running| cloud.world.lock().requests["create"];
    assert_eq!(sent(&cloud), 1);
    let now = pods
        .quote(&quotes[1].id, DISK)
        .await
        .expect("seen")
        .expect("there");
    assert_eq!(create(&now, 3).await, None);
    assert_eq!(sent(&cloud), 2);
    cloud.stop().await;
}

/// The account is held for half a minute: a login whose turn is that far off is none, and nothing is in doubt.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_create_whose_login_would_have_to_wait_is_refused_and_not_in_doubt() {
    let busy = Fault::of("create-429").text("60").times(1);
    let cloud = cloud(vec![busy], 2).await;
    let pods = adapter(&cloud, "k", None);
    let mut quotes = quotes(&pods).await;
    let [first, mut second] = [1, 2].map(|attempt| request(quotes.remove(0), attempt));
    second.registry = Some(RegistryLogin {
        server: "registry.example".to_owned(),
        username: "somebody".to_owned(),
        password: "pull-me".to_owned().into(),
    });
    let began = Instant::now();
    for request in [first, second] {
        match pods.create(request).await {
            Outcome::Refused(cause) => assert_eq!(cause.class, FailureClass::Rate),
            other @ (Outcome::Done(_) | Outcome::InDoubt(_)) => panic!("{other:?}"),
        }
    }
    assert!(began.elapsed() < Duration::from_secs(20));
    {
        let inner = cloud.world.lock();
        assert_eq!((inner.requests["create"], inner.machines.len()), (1, 0));
    }
    cloud.stop().await;
}
