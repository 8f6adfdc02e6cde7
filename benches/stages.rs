//! Two stages against one, on the real model of `examples/local`, through the whole program.
//!
//! One topology has both: pipeline `one` (all layers on one machine) and pipeline `two` (split by the planner over two), each
//! exposed on the machine of its first stage, hops in f32, each worker with one thread that is pinned to a processor, where the
//! system lets us choose. First one request at a time, in pairs, now the one and now the other first: the same tokens, and the
//! median of the pairs' ratios. All workers on one processor: they never compute at once, so both pipelines have the same
//! arithmetic at the same speed, and what differs is what the split costs. Then the second stage on a processor of its own:
//! there the host also has to wake a virtual processor twice a token. All of that anew for each of several starts, since a
//! worker is up to a tenth quicker or slower for as long as it lives, by where in the computer's memory its weights came to
//! lie. Then four requests at once against each. Needs `examples/local/fetch-model` to have run, and `stageline-worker` beside
//! the program or in STAGELINE_WORKER.

#![expect(clippy::print_stdout, reason = "a benchmark's figures are its output")]

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

const STARTS: usize = 6;
/// Of each start.
const PAIRS: usize = 8;
const TOKENS: u32 = 64;
const AT_ONCE: usize = 4;

const PROMPTS: [&str; 4] = [
    "The history of the steam engine begins",
    "A good recipe for bread starts with",
    "The largest planets of the solar system are",
    "Once upon a time in a small village",
];

fn topology(model: &Path) -> String {
    let model = model.display();
    format!(
        r#"
version = 1
name = "bench"
[provider.here]
kind = "local"
slots = 3
[offer.any]
provider = "here"
[lease.whole]
offers = ["any"]
[lease.half]
offers = ["any"]
count = 2
[pipeline.one]
model = {{ path = "{model}" }}
dtype = "f32"
context = 1024
stages = {{ on = "lease.whole", split = "auto" }}
[pipeline.two]
model = {{ path = "{model}" }}
dtype = "f32"
context = 1024
stages = {{ on = "lease.half", split = "auto" }}
[exposure.one]
pipelines = ["one"]
serve = "openai"
via = "loopback"
listen = "127.0.0.1:0"
[exposure.two]
pipelines = ["two"]
serve = "openai"
via = "loopback"
listen = "127.0.0.1:0"
"#
    )
}

/// Ends everything at the end, also when something panics.
struct Deployed<'a>(&'a Path);

impl Drop for Deployed<'_> {
    fn drop(&mut self) {
        run(self.0, &["destroy", "--auto-approve"]);
    }
}

fn run(folder: &Path, arguments: &[&str]) -> String {
    let output = Command::new(env!("CARGO_BIN_EXE_stageline"))
        .args(arguments)
        .current_dir(folder)
        .env("STAGELINE_THREADS", "1")
        .stderr(Stdio::inherit())
        .output()
        .expect("the program runs");
    assert!(output.status.success(), "{arguments:?}: {}", output.status);
    String::from_utf8(output.stdout).expect("text")
}

/// A pipeline and where it is asked.
struct Pipeline {
    name: &'static str,
    url: String,
}

/// One stage, and two, out of what `status` knows.
fn pipelines(folder: &Path) -> [Pipeline; 2] {
    let status: Value = serde_json::from_str(&run(folder, &["status", "--json"])).expect("JSON");
    let lines = status["resources"].as_array().expect("resources");
    ["one", "two"].map(|name| {
        let address = format!("exposure.{name}");
        let mut lines = lines.iter();
        let exposure = lines.find(|line| line["address"] == address.as_str());
        let url = exposure.expect("the exposure")["detail"].as_str();
        let url = url.expect("its URL").to_owned();
        Pipeline { name, url }
    })
}

/// One greedy request: its text, its tokens, how long it took.
async fn ask(
    client: &reqwest::Client,
    Pipeline { name, url }: &Pipeline,
    prompt: &str,
) -> (String, u64, Duration) {
    let start = Instant::now();
    let body = json!({ "model": name, "prompt": prompt, "max_tokens": TOKENS, "temperature": 0 });
    let answer = client
        .post(format!("{url}/completions"))
        .json(&body)
        .send()
        .await;
    let answer: Value = answer.expect("an answer").json().await.expect("JSON");
    let text = answer["choices"][0]["text"]
        .as_str()
        .unwrap_or_else(|| panic!("{answer}"));
    let tokens = answer["usage"]["completion_tokens"]
        .as_u64()
        .expect("a count");
    (text.to_owned(), tokens, start.elapsed())
}

/// Tokens per second of four requests at once.
async fn at_once(client: &reqwest::Client, pipeline: &Pipeline) -> f64 {
    let start = Instant::now();
    let asked = PROMPTS
        .iter()
        .cycle()
        .take(AT_ONCE)
        .map(|prompt| ask(client, pipeline, prompt));
    let answers = futures::future::join_all(asked).await;
    let tokens: u64 = answers.iter().map(|(_, tokens, _)| tokens).sum();
    tokens as f64 / start.elapsed().as_secs_f64()
}

fn median(mut all: Vec<f64>) -> f64 {
    all.sort_by(f64::total_cmp);
    all[all.len() / 2]
}

/// One pair: tokens per second of one stage and of two, for the same request.
async fn pair(client: &reqwest::Client, both: &[Pipeline; 2], round: usize) -> (f64, f64) {
    let prompt = PROMPTS[round % PROMPTS.len()];
    let mut speeds = [0.0; 2];
    let mut texts = [const { String::new() }; 2];
    let order = if round.is_multiple_of(2) {
        [0, 1]
    } else {
        [1, 0]
    };
    for which in order {
        let (text, tokens, took) = ask(client, &both[which], prompt).await;
        texts[which] = text;
        speeds[which] = tokens as f64 / took.as_secs_f64();
    }
    assert_eq!(
        texts[0], texts[1],
        "the split pipeline answers something else"
    );
    (speeds[0], speeds[1])
}

/// Pairs of requests, one at a time.
#[derive(Default)]
struct Pairs {
    one: Vec<f64>,
    two: Vec<f64>,
    ratios: Vec<f64>,
    /// Medians of the starts.
    starts: Vec<f64>,
}

impl Pairs {
    /// Those of one start.
    async fn ask(&mut self, client: &reqwest::Client, both: &[Pipeline; 2]) {
        // What is asked first finds cold memory.
        pair(client, both, 0).await;
        let before = self.ratios.len();
        for round in 0..PAIRS {
            let (one, two) = pair(client, both, round).await;
            self.one.push(one);
            self.two.push(two);
            self.ratios.push(two / one);
        }
        self.starts.push(median(self.ratios[before..].to_vec()));
    }

    fn tell(mut self, how: &str) {
        println!(
            "one request at a time, {how}, {TOKENS} tokens, medians of {PAIRS} pairs of each of {STARTS} starts: the same text each time"
        );
        self.ratios.sort_by(f64::total_cmp);
        self.starts.sort_by(f64::total_cmp);
        let quarter = self.ratios.len() / 4;
        let (low, high) = (self.ratios[quarter], self.ratios[quarter * 3]);
        println!(
            "  one stage  {:>7.1} tokens/s\n  two stages {:>7.1} tokens/s   {:.3} x, half of the pairs {low:.3} to {high:.3}, starts {:.3?}",
            median(self.one),
            median(self.two),
            median(self.ratios),
            self.starts
        );
    }
}

/// Tokens per second of four requests at once, for each start.
#[derive(Default)]
struct Busy {
    one: Vec<f64>,
    two: Vec<f64>,
}

impl Busy {
    async fn ask(&mut self, client: &reqwest::Client, [one, two]: &[Pipeline; 2]) {
        self.one.push(at_once(client, one).await);
        self.two.push(at_once(client, two).await);
    }

    /// Against the best schedule of one stage: all at once, or one after the other.
    fn tell(self, alone: &[f64]) {
        let best = median(self.one).max(median(alone.to_vec()));
        let two = median(self.two);
        println!(
            "{AT_ONCE} requests at once, median of {STARTS} starts, against the best schedule of one stage"
        );
        println!(
            "  one stage  {best:>7.1} tokens/s\n  two stages {two:>7.1} tokens/s   {:.2} x",
            two / best
        );
    }
}

/// Gives the second stage of the split pipeline that processor, and all other workers the first one.
#[cfg(target_os = "linux")]
fn pin(folder: &Path, second: usize) {
    use rustix::thread::{CpuSet, Pid, sched_setaffinity};
    let ours = format!("STAGELINE_MODEL={}", folder.display());
    let numbers = |path: PathBuf| {
        let names = std::fs::read_dir(path).into_iter().flatten().flatten();
        names.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok())
    };
    for process in numbers("/proc".into()) {
        let of = PathBuf::from(format!("/proc/{process}"));
        let environment = std::fs::read(of.join("environ")).unwrap_or_default();
        let mut variables = environment.split(|byte| *byte == 0);
        if !variables.any(|variable| variable.starts_with(ours.as_bytes())) {
            continue;
        }
        let is_second = environment
            .split(|byte| *byte == 0)
            .any(|variable| variable == b"STAGE=1");
        let mut cpus = CpuSet::new();
        cpus.set(if is_second { second } else { 0 });
        for thread in numbers(of.join("task")).filter_map(Pid::from_raw) {
            sched_setaffinity(Some(thread), &cpus).expect("two processors");
        }
    }
}

#[cfg(not(target_os = "linux"))]
fn pin(_: &Path, _: usize) {}

fn main() {
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    let model = root.join("examples/local/models/SmolLM2-135M-Instruct.Q4_1.gguf");
    assert!(model.exists(), "run examples/local/fetch-model first");
    // Only http is spoken here; a client wants the provider all the same.
    rustls::crypto::ring::default_provider()
        .install_default()
        .ok();
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a folder on a disk");
    std::fs::write(folder.path().join("topology.toml"), topology(&model)).expect("a folder");
    let place = folder.path().canonicalize().expect("a folder");
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime");
    let (mut shared, mut own, mut busy) = (Pairs::default(), Pairs::default(), Busy::default());
    for _ in 0..STARTS {
        let deployed = Deployed(folder.path());
        run(folder.path(), &["apply", "--auto-approve"]);
        let both = pipelines(folder.path());
        runtime.block_on(async {
            let client = reqwest::Client::new();
            pin(&place, 0);
            shared.ask(&client, &both).await;
            pin(&place, 1);
            own.ask(&client, &both).await;
            busy.ask(&client, &both).await;
        });
        drop(deployed);
    }
    let alone = own.one.clone();
    shared.tell("on one processor");
    own.tell("a processor for each stage");
    busy.tell(&alone);
}
