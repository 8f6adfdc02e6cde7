//! Limits that the operator changes on a machine that ends itself.

use stageline::agent::{Config, OwnEnd};
use stageline::core::resource::LeaseLimits;
use stageline::core::unit::Millis;
use stageline::machine::Machines as _;

use super::World;

const BOOT: LeaseLimits = LeaseLimits {
    idle_timeout: Millis::minutes(20),
    max_lifetime: Millis::minutes(720),
};

const OTHER: LeaseLimits = LeaseLimits {
    idle_timeout: Millis::NEVER,
    max_lifetime: Millis::minutes(1440),
};

#[tokio::test(flavor = "multi_thread")]
async fn other_limits_are_on_disk_when_that_is_answered_and_not_said_to_be_kept() {
    let world = World::new();
    let path = world.folder(0).join("agent.json");
    let read = || -> Config {
        let bytes = std::fs::read(&path).expect("readable");
        serde_json::from_slice(&bytes).expect("a configuration")
    };
    let own = OwnEnd {
        limits: BOOT,
        url: "https://cloud.example/{id}".to_owned(),
        id: "THE_ID_OF_NO_MACHINE".to_owned(),
        key: "THE_KEY_OF_NO_MACHINE".to_owned(),
    };
    let config = Config {
        own_end: Some(own),
        ..read()
    };
    let text = serde_json::to_vec(&config).expect("plain data");
    std::fs::write(&path, text).expect("written");
    let (_agent, target) = world.agent(0).await;
    let told = world.client.limit(&target, OTHER).await;
    let refused = told.expect_err("it has no key to end itself with");
    assert!(refused.to_string().contains("handed no key"), "{refused}");
    // Where an agent that starts again finds them, and with all else as it was.
    let own = config.own_end.clone().map(|own| OwnEnd {
        limits: OTHER,
        ..own
    });
    assert_eq!(
        read(),
        Config {
            own_end: own,
            ..config
        }
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_machine_that_does_not_end_itself_has_no_limits_to_keep() {
    let world = World::new();
    let path = world.folder(0).join("agent.json");
    let before = std::fs::read(&path).expect("readable");
    let (_agent, target) = world.agent(0).await;
    let told = world.client.limit(&target, OTHER).await;
    told.expect("nothing is to be done");
    assert_eq!(std::fs::read(&path).expect("readable"), before);
}
