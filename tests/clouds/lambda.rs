//! Each verb of the adapter for Lambda Cloud against each fault that this cloud can show, and what it needs of an account.

use std::sync::Arc;
use std::time::{Duration, Instant};

use stageline::core::id::{Attempt, Generation, Lineage, MachineId, OperatorId, RequestKey};
use stageline::core::offer::{Quote, Requirement, Supply};
use stageline::core::resource::{DISK, FailureClass, Outcome};
use stageline::core::topology::{AgentSource, SecretRef};
use stageline::provider::http::CloudSettings;
use stageline::provider::lambda::Lambda;
use stageline::provider::{Boot, CreateRequest, Machine, MachineStatus, Provider, Released};
use stageline::sim::{Fault, Faults, Kind, Running};

use super::desk::{Desk, KEY, cloud};

const PREFIX: &str = "sl-00112233445566aa-0011aabb-";

fn adapter(cloud: &Running, key: &str, account: Option<&str>) -> Lambda {
    keyed(cloud, key, account, None)
}

fn keyed(cloud: &Running, key: &str, account: Option<&str>, ssh_key: Option<&str>) -> Lambda {
    let settings = CloudSettings {
        name: "cloud".parse().expect("a name"),
        url: Some(cloud.url()),
        key_ref: SecretRef::Env("LAMBDA_API_KEY".to_owned()),
        key: Ok(Arc::new(key.to_owned().into())),
        account: account.map(str::to_owned),
        relay: None,
        means: stageline::ssh::Means::default(),
        clock: Arc::new(stageline::ambient::SystemClock),
    };
    Lambda::new(settings, ssh_key.map(str::to_owned))
}

async fn quotes(lambda: &Lambda) -> Vec<Quote> {
    let wanted: Requirement = "gpu=a10|rtx_6000, vram>=24".parse().expect("one");
    let mut quotes = lambda.search(&wanted, DISK).await.expect("seen");
    quotes
        .retain(|quote| wanted.misfits(&quote.facts).is_empty() && quote.supply != Supply::Many(0));
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
        image: None,
        registry: None,
        mounts: Vec::new(),
        agent: Some(AgentSource::Fetch {
            url: "https://example.org/stageline".to_owned(),
            sha256: stageline::core::id::Sha256([7; 32]),
        }),
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

async fn create(lambda: &Lambda, attempt: u32) -> Outcome<Machine> {
    let mut quotes = quotes(lambda).await;
    let quote = quotes.remove(usize::try_from(attempt).expect("small") % quotes.len());
    lambda.create(request(quote, attempt)).await
}

async fn made(lambda: &Lambda) -> MachineId {
    match create(lambda, 1).await {
        Outcome::Done(machine) => machine.id,
        other @ (Outcome::Refused(_) | Outcome::InDoubt(_)) => panic!("{other:?}"),
    }
}

fn set(cloud: &Running, fault: Fault) {
    cloud.world.faults.replace(vec![fault]).expect("a knob");
}

/// How a launch must end: in doubt, or refused with a class.
type Wanted = Option<FailureClass>;

fn creates() -> Vec<(Fault, Wanted, usize)> {
    let of = Fault::of;
    vec![
        (of("create-500-after-commit"), None, 1),
        (of("create-timeout-after-commit"), None, 1),
        (of("create-cut"), None, 1),
        (of("create-500-no-commit"), None, 0),
        (of("create-late-commit").seconds(3000), None, 0),
        (of("create-wrong-count"), None, 2),
        (of("create-wrong-count").text("none"), None, 1),
        (of("server-error").after(2), None, 0),
        (of("offer-gone"), Some(FailureClass::Capacity), 0),
        (of("capacity"), Some(FailureClass::Capacity), 0),
        (of("quota"), Some(FailureClass::Quota), 0),
        (of("money"), Some(FailureClass::Money), 0),
        (of("money").text("inactive"), Some(FailureClass::Auth), 0),
        (of("bad-request"), Some(FailureClass::Config), 0),
        (of("auth-revoked"), Some(FailureClass::Auth), 0),
        (of("rate-429-plain").after(2), Some(FailureClass::Rate), 0),
        (
            of("rate-429-after").text("100000").after(2),
            Some(FailureClass::Rate),
            0,
        ),
    ]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_launch_is_sent_once_and_its_answer_believed_as_far_as_it_goes() {
    let cases = creates()
        .into_iter()
        .map(async |(fault, wanted, machines)| {
            let cloud = cloud(Kind::Lambda, vec![], 600, false).await;
            let lambda = adapter(&cloud, "k", None);
            let quote = quotes(&lambda).await.remove(0);
            let (what, late) = (format!("{fault:?}"), fault.knob == "create-late-commit");
            set(&cloud, fault);
            let outcome = lambda.create(request(quote, 1)).await;
            cloud.world.faults.replace(vec![]).expect("none");
            match (&outcome, wanted) {
                (Outcome::InDoubt(_), None) => {}
                (Outcome::Refused(cause), Some(class)) => assert_eq!(cause.class, class, "{what}"),
                (_, _) => panic!("{what}: {outcome:?}"),
            }
            let sent = cloud.world.lock().requests.get("create").copied();
            assert!(sent.unwrap_or(0) <= 1, "{what}: sent {sent:?} times");
            let found = async || lambda.find(PREFIX).await.expect("seen").len();
            assert_eq!(found().await, machines, "{what}");
            if late {
                cloud.world.clock.advance(4_000_000);
                let until = Instant::now() + Duration::from_secs(20);
                while found().await != 1 {
                    assert!(Instant::now() < until, "it never came");
                }
            }
            for machine in lambda.find(PREFIX).await.expect("seen") {
                lambda.release(&machine.id).await.expect("taken");
            }
            cloud.world.clock.advance(60_000);
            assert_eq!(lambda.find(PREFIX).await.expect("seen"), [], "{what}");
            cloud.stop().await;
        });
    futures::future::join_all(cases).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_listing_of_lambda_that_cannot_be_trusted_is_no_listing() {
    let of = Fault::of;
    let faults = [
        of("list-success-false"),
        of("list-truncated-json"),
        of("list-truncated-json").text("html"),
        of("list-truncated-json").text("1010"),
        of("list-page-lost"),
        of("list-page-lost").text("500"),
        of("auth-revoked"),
        of("server-error"),
    ];
    let cloud = cloud(Kind::Lambda, vec![], 600, false).await;
    let lambda = adapter(&cloud, "k", None);
    for attempt in 1..=5 {
        let Outcome::Done(_) = create(&lambda, attempt).await else {
            panic!("attempt {attempt}")
        };
    }
    assert_eq!(lambda.list().await.expect("seen").len(), 5);
    set(&cloud, of("list-pages"));
    assert_eq!(lambda.list().await.expect("all pages").len(), 5);
    for fault in faults {
        let what = format!("{fault:?}");
        set(&cloud, fault.clone());
        let listed = lambda.list().await;
        assert!(
            listed.is_err(),
            "{what}: {} listed",
            listed.map_or(0, |all| all.len())
        );
        // Once is no harm.
        if fault.knob != "auth-revoked" && fault.text.as_deref() != Some("1010") {
            set(&cloud, fault.times(1));
            assert_eq!(lambda.list().await.expect("seen again").len(), 5, "{what}");
        }
    }
    cloud.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_release_at_lambda_is_proven_by_listings_only() {
    let cloud = cloud(Kind::Lambda, vec![], 600, false).await;
    let lambda = adapter(&cloud, "k", None);
    let listed = async || lambda.list().await.expect("seen").len();
    let later = || cloud.world.clock.advance(60_000);
    // Says yes, does nothing; and does nothing once more, without the id in its answer.
    let id = made(&lambda).await;
    set(&cloud, Fault::of("terminate-noop").times(1));
    assert_eq!(lambda.release(&id).await, Ok(Released::Accepted));
    assert_eq!(listed().await, 1);
    tokio::time::sleep(Duration::from_millis(600)).await;
    set(&cloud, Fault::of("terminate-partial").times(1));
    assert!(lambda.release(&id).await.is_err());
    assert_eq!(listed().await, 1);
    // Says no, does it.
    set(&cloud, Fault::of("terminate-5xx").times(1));
    assert!(lambda.release(&id).await.is_ok());
    later();
    assert_eq!(listed().await, 0);
    // Gone is gone, however often.
    tokio::time::sleep(Duration::from_millis(600)).await;
    assert_eq!(lambda.release(&id).await, Ok(Released::Unknown));
    let id = made(&lambda).await;
    set(&cloud, Fault::of("terminate-forget"));
    assert_eq!(lambda.release(&id).await, Ok(Released::Accepted));
    assert_eq!(listed().await, 0);
    // Listed and billed for a while.
    let id = made(&lambda).await;
    set(&cloud, Fault::of("delete-late").seconds(3000));
    assert_eq!(lambda.release(&id).await, Ok(Released::Accepted));
    let status = lambda.list().await.expect("seen").remove(0).status;
    assert_eq!(status, MachineStatus::Ending);
    cloud.world.clock.advance(3_000_000);
    later();
    assert_eq!(listed().await, 0);
    // Listed and not billed.
    let id = made(&lambda).await;
    set(&cloud, Fault::of("list-ghost").seconds(3000));
    assert_eq!(lambda.release(&id).await, Ok(Released::Accepted));
    later();
    let bill = cloud.world.bill();
    assert_eq!(listed().await, 1);
    cloud.world.clock.advance(3_000_000);
    assert_eq!((listed().await, cloud.world.bill()), (0, bill));
    cloud.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_machine_of_lambda_is_seen_as_it_is() {
    let of = Fault::of;
    let dead = [
        of("boot-dies"),
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
        let cloud = cloud(Kind::Lambda, vec![fault.clone()], 600, false).await;
        let lambda = adapter(&cloud, "k", None);
        let id = made(&lambda).await;
        cloud.world.clock.advance(120_000);
        let seen = lambda.describe(&id).await.expect("seen").expect("listed");
        match &seen.status {
            MachineStatus::Dead(_) => assert!(over, "{fault:?}"),
            MachineStatus::Pending(_) => assert!(!over, "{fault:?}"),
            MachineStatus::Running | MachineStatus::Ending | MachineStatus::Interrupted(_) => {
                panic!("{fault:?}: {seen:?}")
            }
        }
        // One that never was healthy bills on until it is released; one that was taken back is gone with that.
        lambda.release(&id).await.expect("taken");
        cloud.world.clock.advance(60_000);
        assert_eq!(lambda.list().await.expect("seen"), [], "{fault:?}");
        assert_eq!(lambda.describe(&id).await, Ok(None), "{fault:?}");
        cloud.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_machine_of_lambda_that_never_boots_is_billed_until_it_is_ended() {
    let cloud = cloud(Kind::Lambda, vec![Fault::of("boot-never")], 1, false).await;
    let lambda = adapter(&cloud, "bill", None);
    let id = made(&lambda).await;
    let hour = lambda.describe(&id).await.expect("seen").expect("listed");
    let hour = hour.price_per_hour.0;
    cloud.world.clock.advance(3_600_000);
    lambda.release(&id).await.expect("taken");
    cloud.world.clock.advance(60_000);
    let bill = cloud.world.bill();
    // An hour, its way out, and the seconds of this test.
    assert!(
        (hour..hour + hour / 30).contains(&bill.0),
        "{bill} of {hour}"
    );
    cloud.world.clock.advance(3_600_000);
    assert_eq!(cloud.world.bill(), bill);
    cloud.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_machine_that_somebody_else_terminated_is_noticed_and_nothing_is_left_of_it() {
    let cloud = cloud(Kind::Lambda, vec![], 600, false).await;
    let lambda = adapter(&cloud, "k", None);
    let id = made(&lambda).await;
    let number = u64::from_str_radix(&id.as_str()[24..], 16).expect("an id of the simulator");
    assert!(cloud.world.release("k", number));
    cloud.world.clock.advance(10_000);
    let seen = lambda.describe(&id).await.expect("seen").expect("listed");
    assert!(matches!(seen.status, MachineStatus::Dead(_)), "{seen:?}");
    assert_eq!(lambda.list().await.expect("seen"), []);
    assert_eq!(lambda.release(&id).await, Ok(Released::Unknown));
    assert_eq!(lambda.describe(&id).await, Ok(None));
    cloud.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_new_or_odd_in_an_answer_of_lambda_is_read_all_the_same() {
    let cloud = cloud(Kind::Lambda, vec![Fault::of("schema-drift")], 600, false).await;
    let lambda = adapter(&cloud, "k", None);
    let id = made(&lambda).await;
    // Its name is not told any more, and its tag is.
    let listed = lambda.find(PREFIX).await.expect("seen");
    assert_eq!((listed.len(), &listed[0].id), (1, &id));
    assert!(listed[0].price_per_hour.0 > 0);
    cloud.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_accounts_key_at_lambda_proves_nothing() {
    let cloud = cloud(Kind::Lambda, vec![], 600, false).await;
    let lambda = adapter(&cloud, "team", None);
    made(&lambda).await;
    let account = lambda.account().await.expect("seen").expect("one");
    assert!(!format!("{account:?}").contains("team"));
    let own = adapter(&cloud, "team", Some(&account.id));
    assert_eq!(own.list().await.expect("seen").len(), 1);
    let other = adapter(&cloud, "another", Some(&account.id));
    let blind = other.list().await.expect_err("another account");
    assert_eq!(blind.cause.class, FailureClass::Auth);
    assert!(other.account().await.is_err());
    // Another key of the same account shows machines that were made there.
    let second = adapter(&cloud, "team.second-key", Some(&account.id));
    let seen = second.account().await.expect("seen").expect("one");
    assert_eq!(seen.id, account.id);
    assert_ne!(seen.key_fingerprint, account.key_fingerprint);
    assert_eq!(second.list().await.expect("seen").len(), 1);
    cloud.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_account_that_is_not_ready_rents_nothing() {
    let cloud = cloud(Kind::Lambda, vec![], 600, false).await;
    quotes(&adapter(&cloud, "k", None)).await;
    let refused = async |ssh_key: Option<&str>| {
        let lambda = keyed(&cloud, "k", None, ssh_key);
        match create(&lambda, 1).await {
            Outcome::Refused(cause) => {
                assert_eq!(cause.class, FailureClass::Config, "{cause:?}");
                format!("{} / {}", cause.message, cause.hint.unwrap_or_default())
            }
            other @ (Outcome::Done(_) | Outcome::InDoubt(_)) => panic!("{other:?}"),
        }
    };
    let cause = refused(Some("laptop")).await;
    assert!(
        cause.contains("no SSH key `laptop`") && cause.contains("rehearsal"),
        "{cause}"
    );
    let rules = {
        let mut inner = cloud.world.lock();
        let account = inner.accounts.get_mut("k").expect("it was asked");
        account["rules"].as_array_mut().expect("rules").pop()
    };
    let cause = refused(None).await;
    assert!(
        cause.contains("UDP port 41641") && cause.contains("[relay]"),
        "{cause}"
    );
    {
        let mut inner = cloud.world.lock();
        let account = inner.accounts.get_mut("k").expect("it was asked");
        account["rules"]
            .as_array_mut()
            .expect("rules")
            .extend(rules);
        account["ssh_keys"] = serde_json::json!([]);
    }
    let cause = refused(None).await;
    assert!(cause.contains("has no SSH key"), "{cause}");
    assert_eq!(cloud.world.lock().requests.get("create"), None);
    cloud.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn eight_launches_at_once_keep_every_distance() {
    // A launch each 3 s, a request each 0.25 s.
    const SPEED: u32 = 4;
    let cloud = cloud(Kind::Lambda, vec![], SPEED, false).await;
    let (one, two) = (adapter(&cloud, "pace", None), adapter(&cloud, "pace", None));
    let quote = quotes(&one).await.remove(0);
    let begun = Instant::now();
    let rent = async |lambda: &Lambda, attempt: u32| {
        tokio::time::sleep(lambda.turn()).await;
        let quote = lambda.quote(&quote.id, DISK).await.expect("seen");
        let outcome = lambda.create(request(quote.expect("there"), attempt)).await;
        assert!(matches!(outcome, Outcome::Done(_)), "{outcome:?}");
        // As somebody does who waits for it.
        let id = match outcome {
            Outcome::Done(machine) => machine.id,
            Outcome::Refused(_) | Outcome::InDoubt(_) => return,
        };
        for _ in 0..3 {
            lambda.describe(&id).await.expect("seen");
        }
    };
    let all = (1..=8).map(|attempt| rent(if attempt % 2 == 0 { &one } else { &two }, attempt));
    futures::future::join_all(all).await;
    let took = begun.elapsed();
    let seen = {
        let inner = cloud.world.lock();
        (inner.too_soon, inner.machines.len())
    };
    assert_eq!(seen, (0, 8));
    // Seven distances of 12 s, and little beside them.
    let least = Duration::from_secs(7 * 12) / SPEED;
    assert!(took >= least, "{took:?}");
    assert!(took < least * 2, "{took:?}, at least {least:?}");
    cloud.stop().await;
}

/// Two launches have had their turns, and the first one is told to come again later.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pause_that_a_launch_is_asked_for_holds_those_whose_turn_has_come() {
    let busy = Fault::of("create-429").text("45").times(1);
    let cloud = cloud(Kind::Lambda, vec![busy], 10, false).await;
    let lambda = adapter(&cloud, "k", None);
    let mut quotes = quotes(&lambda).await;
    let [first, second] = [1, 2].map(|attempt| request(quotes.remove(0), attempt));
    match lambda.create(first).await {
        Outcome::Refused(cause) => assert_eq!(cause.class, FailureClass::Rate),
        other @ (Outcome::Done(_) | Outcome::InDoubt(_)) => panic!("{other:?}"),
    }
    let told = Instant::now();
    let Outcome::Done(_) = lambda.create(second).await else {
        panic!("it waits for its moment")
    };
    // Launches are 12 s apart otherwise, by its clock.
    let waited = told.elapsed();
    assert!(waited >= Duration::from_millis(4_400), "{waited:?}");
    assert_eq!(cloud.world.lock().too_soon, 0);
    cloud.stop().await;
}

#[test]
fn a_knob_that_cannot_happen_is_refused_with_the_reason() {
    let parse =
        |knob: &str| Faults::parse(&format!("[[fault]]\nknob = \"{knob}\"\n")).expect("a knob");
    for (kind, knob, why) in [
        (Kind::Lambda, "create-200-false-with-id", "no bids"),
        (Kind::Lambda, "rate-429-daily", "by the day"),
        (Kind::Lambda, "other-account", "another key"),
        (Kind::Vastai, "terminate-partial", "names no machines"),
    ] {
        let error = parse(knob).fits(kind).expect_err("refused");
        assert!(error.contains(why) && error.contains(knob), "{error}");
    }
    assert_eq!(parse("other-account").fits(Kind::Vastai), Ok(()));
    assert_eq!(parse("terminate-partial").fits(Kind::Lambda), Ok(()));
    for kind in Kind::ALL {
        for (knob, _) in kind.cannot() {
            assert!(
                stageline::sim::fault::KNOBS
                    .iter()
                    .any(|(known, _)| known == knob),
                "{knob}"
            );
        }
    }
}

#[test]
fn four_offers_that_have_none_left_are_followed_by_the_fifth() {
    let desk = Desk::of(Kind::Lambda, vec![Fault::of("capacity").times(4)], 600, 1);
    desk.run("apply --auto-approve").exits(0);
    desk.agrees(1);
    assert_eq!(desk.cloud.world.lock().requests["create"], 5);
    desk.run("destroy --auto-approve").exits(0);
    desk.agrees(0);
}

#[test]
fn a_quota_stops_at_the_first_offer_and_says_whom_to_ask() {
    let desk = Desk::of(Kind::Lambda, vec![Fault::of("quota")], 600, 1);
    let ran = desk.run("apply --auto-approve");
    ran.exits(1)
        .says("global/quota-exceeded")
        .says("raise the account's quota");
    assert_eq!(desk.cloud.world.lock().requests["create"], 1);
    desk.agrees(0);
}

#[test]
fn a_price_that_moves_between_the_last_look_and_the_launch_is_held_against_the_ceiling() {
    let desk = Desk::of(
        Kind::Lambda,
        vec![Fault::of("price-rises").factor(1.02)],
        600,
        1,
    );
    desk.run("apply --auto-approve").exits(0);
    desk.agrees(1);
    desk.run("destroy --auto-approve").exits(0);
    let desk = Desk::of(
        Kind::Lambda,
        vec![Fault::of("price-rises").factor(10.0).times(1)],
        600,
        1,
    );
    desk.run("apply --auto-approve").exits(7);
    desk.agrees(0);
    assert_eq!(desk.cloud.world.lock().machines.len(), 1);
}

#[test]
fn a_terminate_that_does_nothing_is_said_again_until_the_listing_proves_it() {
    let desk = Desk::of(Kind::Lambda, vec![], 600, 1);
    desk.run("apply --auto-approve").exits(0);
    let faults = vec![
        Fault::of("terminate-noop").times(1),
        Fault::of("terminate-partial").times(1).after(1),
    ];
    desk.cloud.world.faults.replace(faults).expect("knobs");
    desk.run("destroy --auto-approve")
        .exits(0)
        .says("0 left at providers");
    desk.agrees(0);
}

#[test]
fn a_new_key_of_the_account_goes_on_and_another_accounts_does_not() {
    let desk = Desk::of(Kind::Lambda, vec![], 600, 1);
    desk.run("apply --auto-approve").exits(0);
    let ran = desk.run_with(Some("somebody-elses"), "plan --detailed-exitcode");
    ran.exits(5)
        .says("it is kept")
        .says("the key is another one");
    let second = format!("{KEY}.second");
    desk.run_with(Some(&second), "plan --detailed-exitcode")
        .exits(0)
        .says("Nothing to do");
    desk.run_with(Some(&second), "destroy --auto-approve")
        .exits(0)
        .says("0 left at providers");
    desk.agrees(0);
}

/// A key is also taken as a user without a password, as the provider takes it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_may_be_a_user_without_a_password() {
    rustls::crypto::ring::default_provider()
        .install_default()
        .ok();
    for (kind, password, status) in [
        (Kind::Lambda, "", 200),
        (Kind::Lambda, "x", 401),
        (Kind::Runpod, "", 401),
    ] {
        let cloud = super::desk::cloud(kind, vec![], 600, false).await;
        let path = match kind {
            Kind::Lambda => "api/v1/instances",
            Kind::Runpod | Kind::Vastai => "v2/pods",
        };
        let url = format!("http://{}/{path}", cloud.address);
        let asked = reqwest::Client::new().get(url);
        let asked = asked.basic_auth("key", Some(password)).send();
        let answer = asked.await.expect("an answer");
        assert_eq!(answer.status().as_u16(), status, "{kind:?} {password}");
        cloud.stop().await;
    }
}
