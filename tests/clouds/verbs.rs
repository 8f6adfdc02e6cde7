//! Each verb of our adapter against each fault that this cloud can show.

use std::sync::Arc;
use std::time::Duration;

use stageline::core::id::{Attempt, Generation, Lineage, MachineId, OperatorId, RequestKey};
use stageline::core::offer::{Quote, Requirement};
use stageline::core::resource::{DISK, FailureClass, Outcome};
use stageline::core::topology::SecretRef;
use stageline::provider::http::CloudSettings;
use stageline::provider::vastai::Vastai;
use stageline::provider::{Boot, CreateRequest, Machine, MachineStatus, Provider, Released};
use stageline::sim::{Fault, Kind, Running};

use super::desk::cloud;

const PREFIX: &str = "sl-00112233445566aa-0011aabb-";

fn adapter(cloud: &Running, key: &str, account: Option<&str>) -> Vastai {
    Vastai::new(CloudSettings {
        name: "vast".parse().expect("a name"),
        url: Some(cloud.url()),
        key_ref: SecretRef::Env("VAST_API_KEY".to_owned()),
        key: Ok(Arc::new(key.to_owned().into())),
        account: account.map(str::to_owned),
        relay: None,
        means: stageline::ssh::Means::default(),
        clock: Arc::new(stageline::ambient::SystemClock),
    })
}

async fn quotes(vast: &Vastai) -> Vec<Quote> {
    let wanted: Requirement = "gpu=rtx_4090|rtx_3090, vram>=24".parse().expect("one");
    let mut quotes = vast.search(&wanted, DISK).await.expect("seen");
    quotes.retain(|quote| wanted.misfits(&quote.facts).is_empty());
    quotes.sort_by_key(|quote| quote.price_per_hour);
    quotes
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

async fn create(vast: &Vastai, attempt: u32) -> Outcome<Machine> {
    let mut quotes = quotes(vast).await;
    let quote = quotes.remove(usize::try_from(attempt).expect("small") % 4);
    vast.create(request(quote, attempt)).await
}

async fn made(vast: &Vastai) -> MachineId {
    match create(vast, 1).await {
        Outcome::Done(machine) => machine.id,
        other @ (Outcome::Refused(_) | Outcome::InDoubt(_)) => panic!("{other:?}"),
    }
}

fn set(cloud: &Running, fault: Fault) {
    cloud.world.faults.replace(vec![fault]).expect("a knob");
}

/// How a create must end: in doubt, or refused with a class.
type Wanted = Option<FailureClass>;

fn creates() -> Vec<(Fault, Wanted, usize)> {
    let of = Fault::of;
    vec![
        (of("create-500-after-commit"), None, 1),
        (of("create-timeout-after-commit"), None, 1),
        (of("create-cut"), None, 1),
        (of("create-500-no-commit"), None, 0),
        (of("create-late-commit").seconds(3000), None, 0),
        (of("create-200-false-with-id"), None, 1),
        (of("create-wrong-count"), None, 2),
        (of("create-wrong-count").text("none"), None, 1),
        (of("server-error"), None, 0),
        (of("offer-gone"), Some(FailureClass::OfferGone), 0),
        (of("quota"), Some(FailureClass::Quota), 0),
        (of("money"), Some(FailureClass::Money), 0),
        (of("capacity"), Some(FailureClass::Capacity), 0),
        (of("bad-request"), Some(FailureClass::Config), 0),
        (of("auth-revoked"), Some(FailureClass::Auth), 0),
        (of("rate-429-plain"), Some(FailureClass::Rate), 0),
        (
            of("rate-429-after").text("100000"),
            Some(FailureClass::Rate),
            0,
        ),
    ]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_create_is_sent_once_and_its_answer_believed_as_far_as_it_goes() {
    let cases = creates()
        .into_iter()
        .map(async |(fault, wanted, machines)| {
            let cloud = cloud(Kind::Vastai, vec![], 600, false).await;
            let vast = adapter(&cloud, "k", None);
            let quote = quotes(&vast).await.remove(0);
            let (knob, late) = (fault.knob.clone(), fault.knob == "create-late-commit");
            set(&cloud, fault);
            let outcome = vast.create(request(quote, 1)).await;
            cloud.world.faults.replace(vec![]).expect("none");
            match (&outcome, wanted) {
                (Outcome::InDoubt(_), None) => {}
                (Outcome::Refused(cause), Some(class)) => assert_eq!(cause.class, class, "{knob}"),
                (_, _) => panic!("{knob}: {outcome:?}"),
            }
            let sent = cloud
                .world
                .lock()
                .requests
                .get("create")
                .copied()
                .unwrap_or(0);
            assert!(sent <= 1, "{knob}: sent {sent} times");
            assert_eq!(
                vast.find(PREFIX).await.expect("seen").len(),
                machines,
                "{knob}"
            );
            if late {
                cloud.world.clock.advance(4_000_000);
                let found = async || vast.find(PREFIX).await.expect("seen").len();
                for _ in 0..200 {
                    if found().await == 1 {
                        break;
                    }
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
                assert_eq!(found().await, 1);
            }
            for machine in vast.find(PREFIX).await.expect("seen") {
                vast.release(&machine.id).await.expect("taken");
            }
            assert_eq!(vast.find(PREFIX).await.expect("seen"), [], "{knob}");
            cloud.stop().await;
        });
    futures::future::join_all(cases).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_listing_that_cannot_be_trusted_is_no_listing() {
    let of = Fault::of;
    let faults = [
        of("list-success-false"),
        of("list-truncated-json"),
        of("list-truncated-json").text("html"),
        of("list-truncated-json").text("1010"),
        of("list-page-lost"),
        of("list-page-lost").text("500"),
        of("list-page-lost").text("dropped"),
        of("auth-revoked"),
        of("other-account"),
        of("server-error"),
    ];
    let cloud = cloud(Kind::Vastai, vec![], 600, false).await;
    let vast = adapter(&cloud, "k", None);
    vast.account().await.expect("seen");
    for attempt in 1..=30 {
        let Outcome::Done(_) = create(&vast, attempt).await else {
            panic!("attempt {attempt}")
        };
        // Offers are one each; prices stay.
        let mut inner = cloud.world.lock();
        for offer in inner.offers.values_mut() {
            offer.taken = false;
        }
    }
    assert_eq!(vast.list().await.expect("seen").len(), 30);
    for fault in faults {
        let what = format!("{fault:?}");
        set(&cloud, fault.clone());
        let listed = vast.list().await;
        assert!(
            listed.is_err(),
            "{what}: {} listed",
            listed.map_or(0, |all| all.len())
        );
        // Once is no harm.
        if fault.knob != "other-account"
            && fault.knob != "auth-revoked"
            && fault.text.as_deref() != Some("1010")
        {
            set(&cloud, fault.times(1));
            assert_eq!(vast.list().await.expect("seen again").len(), 30, "{what}");
        }
    }
    cloud.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_release_is_proven_by_listings_only() {
    let cloud = cloud(Kind::Vastai, vec![], 600, false).await;
    let vast = adapter(&cloud, "k", None);
    let listed = async || vast.list().await.expect("seen").len();
    // Says yes, does nothing.
    let id = made(&vast).await;
    set(&cloud, Fault::of("terminate-noop").times(1));
    assert_eq!(vast.release(&id).await, Ok(Released::Accepted));
    assert_eq!(listed().await, 1);
    tokio::time::sleep(Duration::from_millis(600)).await;
    // Says no, does it.
    set(&cloud, Fault::of("terminate-5xx").times(1));
    assert_eq!(vast.release(&id).await, Ok(Released::Unknown));
    assert_eq!(listed().await, 0);
    // Gone is gone, however often.
    assert_eq!(vast.release(&id).await, Ok(Released::Unknown));
    // Listed and billed for a while.
    let id = made(&vast).await;
    set(&cloud, Fault::of("delete-late").seconds(3000));
    assert_eq!(vast.release(&id).await, Ok(Released::Accepted));
    assert_eq!(listed().await, 1);
    cloud.world.clock.advance(3_000_000);
    assert_eq!(listed().await, 0);
    // Listed and not billed.
    let id = made(&vast).await;
    set(&cloud, Fault::of("list-ghost").seconds(3000));
    assert_eq!(vast.release(&id).await, Ok(Released::Accepted));
    let bill = cloud.world.bill();
    assert_eq!(listed().await, 1);
    cloud.world.clock.advance(3_000_000);
    assert_eq!((listed().await, cloud.world.bill()), (0, bill));
    cloud.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_machine_is_seen_as_it_is() {
    let of = Fault::of;
    let dead = [
        of("boot-dies").text("exited"),
        of("boot-dies").text("oci"),
        of("boot-dies").text("offline"),
        of("boot-dies").text("unknown"),
        of("preempt").seconds(1),
        of("host-offline").seconds(1_000_000),
    ];
    let pending = [
        of("boot-never"),
        of("boot-slow").seconds(1500),
        of("ip-missing").seconds(100_000),
    ];
    let cases = dead
        .map(|fault| (fault, true))
        .into_iter()
        .chain(pending.map(|fault| (fault, false)));
    for (fault, over) in cases {
        let cloud = cloud(Kind::Vastai, vec![fault.clone()], 600, false).await;
        let vast = adapter(&cloud, "k", None);
        let id = made(&vast).await;
        cloud.world.clock.advance(120_000);
        let seen = vast.list().await.expect("seen");
        let machine = seen
            .iter()
            .find(|machine| machine.id == id)
            .expect("listed");
        match &machine.status {
            MachineStatus::Dead(_) => assert!(over, "{fault:?}"),
            MachineStatus::Pending(_) => assert!(!over, "{fault:?}"),
            MachineStatus::Running | MachineStatus::Ending | MachineStatus::Interrupted(_) => {
                panic!("{fault:?}: {machine:?}")
            }
        }
        cloud.stop().await;
    }
}

/// As an apply does it that has eight leases: each takes a turn, and a new one when it was too soon.
async fn rented(vast: &Vastai, quote: Quote, attempt: u32) {
    loop {
        tokio::time::sleep(vast.turn()).await;
        match vast.create(request(quote.clone(), attempt)).await {
            Outcome::Done(_) => return,
            Outcome::Refused(cause) => assert_eq!(cause.class, FailureClass::Rate),
            Outcome::InDoubt(cause) => panic!("{cause:?}"),
        }
    }
}

/// One is told to come again later than the others may wait for their moment.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn creates_that_give_up_waiting_do_not_put_off_the_others() {
    let busy = Fault::of("create-429").text("60").times(1);
    let cloud = cloud(Kind::Vastai, vec![busy], 5, false).await;
    let vast = adapter(&cloud, "k", None);
    let quotes = quotes(&vast).await.into_iter();
    let all = quotes.zip(1..=8);
    let all = all.map(|(quote, attempt)| rented(&vast, quote, attempt));
    let all = tokio::time::timeout(Duration::from_secs(60), futures::future::join_all(all));
    let all = all.await.expect("they get up");
    let (creates, made, too_soon) = {
        let inner = cloud.world.lock();
        (
            inner.requests["create"],
            inner.machines.len(),
            inner.too_soon,
        )
    };
    assert_eq!((all.len(), creates, made, too_soon), (8, 9, 8, 0));
    cloud.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_new_or_odd_in_an_answer_is_read_all_the_same() {
    let cloud = cloud(Kind::Vastai, vec![Fault::of("schema-drift")], 600, false).await;
    let vast = adapter(&cloud, "k", None);
    assert!(!quotes(&vast).await.is_empty());
    let id = made(&vast).await;
    let listed = vast.list().await.expect("seen");
    assert_eq!((listed.len(), &listed[0].id), (1, &id));
    assert!(listed[0].price_per_hour.0 > 0);
    // An offer that was not asked for is none of ours.
    set(&cloud, Fault::of("offer-breaks-filter"));
    let wanted: Requirement = "gpu=h100".parse().expect("one");
    let all = vast.search(&wanted, DISK).await.expect("seen");
    assert!(
        all.iter()
            .any(|quote| !wanted.misfits(&quote.facts).is_empty())
    );
    let one = all.first().expect("some").id.clone();
    let again = vast.quote(&one, DISK).await.expect("seen");
    assert!(
        again.is_none_or(|quote| quote.id == one),
        "gone, or the same"
    );
    cloud.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_search_that_is_used_up_for_the_day_is_not_asked_for_again() {
    let cloud = cloud(Kind::Vastai, vec![Fault::of("rate-429-daily")], 600, false).await;
    let vast = adapter(&cloud, "k", None);
    let wanted: Requirement = "vram>=24".parse().expect("one");
    let blind = vast.search(&wanted, DISK).await.expect_err("used up");
    assert_eq!(blind.cause.class, FailureClass::Quota, "{blind:?}");
    assert!(
        blind.cause.message.contains("daily search quota"),
        "{blind:?}"
    );
    let (_, until) = blind
        .cause
        .message
        .split_once(", until ")
        .expect("it is told");
    assert!(until.ends_with("T00:00:00Z"), "{blind:?}");
    assert_eq!(cloud.world.lock().requests["search"], 1);
    cloud.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_accounts_key_proves_nothing() {
    let cloud = cloud(Kind::Vastai, vec![], 600, false).await;
    let vast = adapter(&cloud, "k", None);
    made(&vast).await;
    let account = vast.account().await.expect("seen").expect("one").id;
    let own = adapter(&cloud, "k", Some(&account));
    assert_eq!(own.list().await.expect("seen").len(), 1);
    let other = adapter(&cloud, "another", Some(&account));
    let blind = other.list().await.expect_err("another account");
    assert_eq!(blind.cause.class, FailureClass::Auth);
    assert!(!format!("{blind:?}").contains("another\""), "{blind:?}");
    assert!(other.account().await.is_err());
    cloud.stop().await;
}

/// Between its turn and its create an offer is read again, which takes the longer the earlier the turn was: all are sent at once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn eight_creates_keep_their_distance_however_long_each_is_on_its_way() {
    let cloud = cloud(Kind::Vastai, vec![], 10, false).await;
    let (one, two) = (adapter(&cloud, "pace", None), adapter(&cloud, "pace", None));
    let quotes = quotes(&one).await;
    let rent = async |vast: &Vastai, attempt: u32| {
        tokio::time::sleep(vast.turn()).await;
        let late = Duration::from_millis(470) * (8 - attempt);
        tokio::time::sleep(late).await;
        let quote = quotes[usize::try_from(attempt).expect("small") - 1].clone();
        let outcome = vast.create(request(quote, attempt)).await;
        assert!(matches!(outcome, Outcome::Done(_)), "{outcome:?}");
    };
    let all = (1..=8).map(|attempt| rent(if attempt % 2 == 0 { &one } else { &two }, attempt));
    futures::future::join_all(all).await;
    let seen = {
        let inner = cloud.world.lock();
        (inner.too_soon, inner.machines.len())
    };
    assert_eq!(seen, (0, 8));
    cloud.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_request_of_ours_comes_too_soon() {
    let cloud = cloud(Kind::Vastai, vec![], 1, false).await;
    let (one, two) = (adapter(&cloud, "pace", None), adapter(&cloud, "pace", None));
    // Two at once, of one account; each would do alone.
    let list = async |vast: &Vastai| {
        for _ in 0..2 {
            vast.list().await.expect("seen");
        }
    };
    futures::join!(list(&one), list(&one), list(&two));
    let turns = [one.turn(), two.turn()];
    assert!(
        turns[0] < Duration::from_millis(100) && turns[1] > Duration::from_millis(4400),
        "{turns:?}"
    );
    assert_eq!(cloud.world.lock().too_soon, 0);
    cloud.stop().await;
}

/// Both have had their turns. The first is told to come again later, and prices rise while the second waits for its moment.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_create_that_had_to_wait_is_not_sent_at_a_price_that_rose_meanwhile() {
    let busy = Fault::of("create-429").text("16").times(1);
    let cloud = cloud(Kind::Vastai, vec![busy], 2, false).await;
    let vast = adapter(&cloud, "k", None);
    let quotes = quotes(&vast).await;
    let create =
        async |quote: &Quote, attempt| match vast.create(request(quote.clone(), attempt)).await {
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
    let now = vast
        .quote(&quotes[1].id, DISK)
        .await
        .expect("seen")
        .expect("there");
    assert_eq!(create(&now, 3).await, None);
    assert_eq!(sent(&cloud), 2);
    cloud.stop().await;
}
