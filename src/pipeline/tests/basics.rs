//! Every number of stages answers, however they are placed and whoever asks.

use super::*;

const QUESTION: &str = "What does the river carry";

async fn answer_over(places: Vec<usize>) -> (String, Finish, (u32, u32)) {
    let ring = Ring::over(places, Timing::default()).await;
    ring.set_rosters();
    ring.attach_stubs(&[]);
    let answer = ask(&*ring.infer(), QUESTION, 64).await.expect("an answer");
    ring.nothing_in_flight().await;
    ring.stop().await;
    answer
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn any_number_of_stages_on_any_machines_gives_the_same_answer() {
    let one = answer_over(vec![0]).await;
    assert_eq!(one.1, Finish::Stop);
    assert_eq!(one.2.0, 5);
    for places in [
        vec![0, 1],
        vec![0, 0],
        vec![0, 1, 2],
        vec![0, 1, 0],
        vec![1, 1, 0],
        vec![0, 1, 2, 3, 4],
        vec![0, 1, 1, 0, 2],
    ] {
        assert_eq!(answer_over(places.clone()).await, one, "{places:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn prompts_of_many_parts_and_many_at_once_are_answered() {
    let ring = Ring::new(3).await;
    ring.set_rosters();
    ring.attach_stubs(&["--hidden-size=256"]);
    let infer = ring.infer();
    let texts: Vec<String> = (0..8)
        .map(|n| format!("p{n} ").repeat(1 + 300 * n))
        .collect();
    let alone = {
        let one = Ring::new(1).await;
        one.set_rosters();
        one.attach_stubs(&[]);
        let mut alone = Vec::new();
        for text in &texts {
            alone.push(ask(&*one.infer(), text, 20).await.expect("an answer"));
        }
        one.stop().await;
        alone
    };
    let asked = texts.iter().map(|text| ask(&*infer, text, 20));
    let together = futures::future::try_join_all(asked).await.expect("answers");
    assert_eq!(together, alone);
    ring.nothing_in_flight().await;
    ring.stop().await;
}
