//! Draws events on stderr: something that moves on a terminal, a line now and then elsewhere; JSON lines on stdout
//! with `--json`.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use stageline_core::event::Event;
use stageline_core::id::{Address, LeaseId};
use stageline_core::journal::Verb;
use stageline_core::unit::{Bytes, MicroDollars, Millis};
use tokio::task::JoinHandle;

use super::console::Console;
use crate::ambient::SharedClock;

/// Between two heartbeat lines where nothing can move.
const HEARTBEAT: Duration = Duration::from_secs(5);

/// What moves appears when a run takes longer than this: what is over at once need not flicker.
const APPEARS_AFTER: Duration = Duration::from_millis(400);

/// Draws what happens in one run.
pub(crate) struct Reporter {
    shared: Arc<Shared>,
    heart: Option<JoinHandle<()>>,
}

struct Shared {
    console: Console,
    clock: SharedClock,
    start: Duration,
    board: Mutex<Board>,
    bar: Option<ProgressBar>,
}

/// What is going on.
#[derive(Default)]
struct Board {
    steps: u32,
    done: u32,
    /// Steps under way, since when, and the last that was heard of them.
    running: BTreeMap<(Address, Verb), (Duration, String)>,
    per_hour: MicroDollars,
}

impl Reporter {
    pub fn new(console: &Console, clock: SharedClock) -> Self {
        Self::on(console, clock, ProgressDrawTarget::stderr)
    }

    fn on(console: &Console, clock: SharedClock, target: fn() -> ProgressDrawTarget) -> Self {
        let bar = (console.lively && console.level >= 0 && !console.json).then(|| {
            let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::hidden());
            let style = ProgressStyle::with_template("{spinner} {pos}/{len} {wide_msg} {elapsed}");
            bar.set_style(style.expect("the template is fixed"));
            bar.enable_steady_tick(Duration::from_millis(120));
            bar
        });
        let shared = Arc::new(Shared {
            console: *console,
            start: clock.boottime(),
            clock,
            board: Mutex::new(Board::default()),
            bar,
        });
        let heart = (console.level >= 0).then(|| {
            let shared = Arc::clone(&shared);
            tokio::spawn(async move {
                if let Some(bar) = &shared.bar {
                    shared.clock.sleep(APPEARS_AFTER).await;
                    bar.set_draw_target(target());
                    return;
                }
                loop {
                    shared.clock.sleep(HEARTBEAT).await;
                    shared.heartbeat();
                }
            })
        });
        Self { shared, heart }
    }

    /// Where events go.
    pub fn sink(&self) -> Arc<dyn Fn(Event) + Send + Sync> {
        let shared = Arc::clone(&self.shared);
        Arc::new(move |event| shared.take(&event))
    }

    /// Takes what moves off the terminal.
    pub fn finish(&mut self) {
        if let Some(heart) = self.heart.take() {
            heart.abort();
        }
        if let Some(bar) = &self.shared.bar {
            bar.finish_and_clear();
        }
    }
}

impl Drop for Reporter {
    fn drop(&mut self) {
        self.finish();
    }
}

impl Shared {
    fn take(&self, event: &Event) {
        if self.console.json {
            let mut line = serde_json::to_string(event).expect("events are plain data");
            line.push('\n');
            // A reader that went away does not stop a run.
            let _ = self.console.data(&line);
        }
        let line = {
            let mut board = self.board.lock().expect("no holder panics");
            board.take(event, self.clock.boottime());
            self.line(event)
        };
        if let Some(line) = line {
            self.print(&line);
        }
        self.draw();
    }

    fn print(&self, line: &str) {
        if self.console.level < 0 {
            return;
        }
        match &self.bar {
            Some(bar) => bar.suspend(|| self.console.line(line)),
            None => self.console.line(line),
        }
    }

    fn draw(&self) {
        let Some(bar) = &self.bar else { return };
        let board = self.board.lock().expect("no holder panics");
        bar.set_length(u64::from(board.steps));
        bar.set_position(u64::from(board.done));
        bar.set_message(board.oldest(self.clock.boottime()));
    }

    fn heartbeat(&self) {
        let board = self.board.lock().expect("no holder panics");
        if board.running.is_empty() {
            return;
        }
        let now = self.clock.boottime();
        let passed = rounded(millis(now.saturating_sub(self.start)));
        let money = if board.per_hour == MicroDollars::ZERO {
            String::new()
        } else {
            format!(", {} per hour now", board.per_hour)
        };
        let line = format!(
            "after {passed}: {}/{} steps, {} running{money}; oldest: {}",
            board.done,
            board.steps,
            board.running.len(),
            board.oldest(now)
        );
        drop(board);
        self.console.line(&line);
    }

    /// What is worth a line of its own.
    fn line(&self, event: &Event) -> Option<String> {
        match event {
            Event::StepDone { address, verb, took, .. } => {
                quiet(*verb).then(|| format!("{address}: {} ({})", past(*verb), rounded(*took)))
            }
            Event::StepRefused { address, verb, cause, goes_on, .. } => {
                let next = if *goes_on { " (the next offer follows)" } else { "" };
                let hint = cause.hint.clone().or_else(|| where_to_look(address));
                let label = self.console.paint("1;31", "failed");
                let head = format!("{address}: {} {label}", verb.doing());
                Some(format!("{head}: {}{next}{}", cause.message, hinted(hint.as_ref())))
            }
            Event::StepInDoubt { address, verb, cause, .. } => {
                let label = self.console.paint("1;33", "in doubt");
                let head = format!("{address}: {} is {label}", verb.doing());
                Some(format!("{head}: {}{}", cause.message, hinted(cause.hint.as_ref())))
            }
            Event::LeaseUp { lease, machine, price_per_hour, agent } => {
                let agent = agent.map(|way| format!("; {way}")).unwrap_or_default();
                Some(format!("{lease}: machine {machine} is up, {price_per_hour} per hour{agent}"))
            }
            Event::Said { lease, line } => Some(format!("{lease}: | {line}")),
            Event::HostMet { lease, host, fingerprint } => Some(met(lease, host, fingerprint)),
            Event::MachineFailed { machine, cause, noted, goes_on, log, .. } => {
                let label = self.console.paint("1;31", "gave up");
                let why = given_up(&cause.message, log, *noted);
                let next = if *goes_on { "; the next offer follows" } else { "" };
                Some(format!("{why}\n  {label} machine {machine}: it is being released{next}"))
            }
            Event::Settling { address, attempt, until, free, per_hour, why } => {
                let bills = (!*free).then_some(*per_hour);
                let doubt = in_doubt(why.as_deref(), bills);
                Some(format!(
                    "{address}: try {attempt} is unresolved{doubt}; watching the provider's listing until {until:.0}"
                ))
            }
            Event::MachineFound { address, machine, kept } => {
                let fate = if *kept { "it is kept" } else { "it is released" };
                Some(format!("{address}: machine {machine} was found; {fate}"))
            }
            Event::ExtraReleased { address, machine } => {
                Some(format!("{address}: machine {machine} is gone"))
            }
            Event::AttemptAbsent { address, attempt } => {
                Some(format!("{address}: try {attempt} made no machine"))
            }
            Event::Lapsed { lease, limit, why } => Some(format!("{lease}: {}: {why}", limit.what_happens())),
            Event::Vanished { address, why } => Some(format!("{address}: gone: {why}")),
            Event::Fenced { by } => Some(format!("this run was fenced by {by}")),
            Event::Interrupted { signals: 1 } => Some(
                "interrupted: no new step is started; what runs gets 2 s. Interrupt again to stop now"
                    .to_owned(),
            ),
            Event::Interrupted { .. } => Some("interrupted again: stopped".to_owned()),
            Event::Retrying { address, cause, delay, .. } => Some(format!(
                "{address}: {}; again in {}",
                cause.message,
                rounded(*delay)
            )),
            Event::RunBegan { .. }
            | Event::StepStarted { .. }
            | Event::StepBlocked { .. }
            | Event::Launching { .. }
            | Event::LeaseReady { .. }
            | Event::LeaseEnded { .. }
            | Event::Progress { .. }
            | Event::Waiting { .. }
            | Event::Verified { .. }
            | Event::RunEnded { .. } => None,
        }
    }
}

/// Why a machine is given up.
fn given_up(why: &str, log: &[String], noted: bool) -> String {
    let host = if noted {
        "\n  noted: for a week plans of this topology leave its host out, or take its offer last where no host is told"
    } else {
        ""
    };
    format!("{why}{}{host}", last_lines(log))
}

/// Why a try is in doubt, and what it may cost.
fn in_doubt(why: Option<&str>, bills: Option<MicroDollars>) -> String {
    let why = why.map_or_else(String::new, |why| format!(" ({why})"));
    let bills = bills.map_or_else(String::new, |most| format!(" and may bill up to {most}/h"));
    format!("{why}{bills}")
}

/// What a machine that failed said last.
fn last_lines(log: &[String]) -> String {
    match log {
        [] => String::new(),
        [line] => format!("\n  its last line:\n  | {line}"),
        lines => format!(
            "\n  its last {} lines:\n  | {}",
            lines.len(),
            lines.join("\n  | ")
        ),
    }
}

/// A hint has a line of its own.
fn hinted(hint: Option<&String>) -> String {
    hint.map(|hint| format!("\nhint: {hint}"))
        .unwrap_or_default()
}

/// How far something is.
fn progress(done: u64, total: u64, what: &str) -> String {
    let percent = done
        .saturating_mul(100)
        .checked_div(total)
        .unwrap_or_default();
    match what {
        "bytes" => format!("{percent} %, {} of {}", Bytes(done), Bytes(total)),
        other => format!("{percent} % of {other}"),
    }
}

impl Board {
    fn take(&mut self, event: &Event, now: Duration) {
        match event {
            Event::RunBegan { steps, done, .. } => {
                self.steps = *steps;
                self.done = *done;
            }
            Event::StepStarted { address, verb, .. } => {
                let entry = self.running.entry((address.clone(), *verb));
                entry.or_insert_with(|| (now, String::new()));
            }
            Event::StepDone { address, verb, .. } => {
                self.running.remove(&(address.clone(), *verb));
                self.done += 1;
            }
            Event::StepRefused {
                address,
                verb,
                goes_on: false,
                ..
            }
            | Event::StepInDoubt { address, verb, .. } => {
                self.running.remove(&(address.clone(), *verb));
            }
            Event::LeaseUp { price_per_hour, .. } => {
                self.per_hour = self.per_hour.saturating_add(*price_per_hour);
            }
            Event::Waiting {
                address,
                verb,
                what,
                ..
            } => {
                if let Some((_, last)) = self.running.get_mut(&(address.clone(), *verb)) {
                    last.clone_from(what);
                }
            }
            Event::Progress {
                address,
                done,
                total,
                what,
            } => {
                let text = progress(*done, *total, what);
                let under = self
                    .running
                    .iter_mut()
                    .find(|((other, _), _)| other == address);
                if let Some((_, (_, last))) = under {
                    *last = text;
                }
            }
            Event::StepRefused { .. }
            | Event::HostMet { .. }
            | Event::Said { .. }
            | Event::Lapsed { .. }
            | Event::StepBlocked { .. }
            | Event::Retrying { .. }
            | Event::Launching { .. }
            | Event::LeaseReady { .. }
            | Event::MachineFailed { .. }
            | Event::LeaseEnded { .. }
            | Event::Settling { .. }
            | Event::MachineFound { .. }
            | Event::ExtraReleased { .. }
            | Event::AttemptAbsent { .. }
            | Event::Vanished { .. }
            | Event::Fenced { .. }
            | Event::Interrupted { .. }
            | Event::Verified { .. }
            | Event::RunEnded { .. } => {}
        }
    }

    fn oldest(&self, now: Duration) -> String {
        let oldest = self.running.iter().min_by_key(|(_, (since, _))| *since);
        let Some(((address, verb), (since, last))) = oldest else {
            return String::new();
        };
        let waited = rounded(millis(now.saturating_sub(*since)));
        let detail = if last.is_empty() {
            String::new()
        } else {
            format!(": {last}")
        };
        format!("{address} {} for {waited}{detail}", verb.doing())
    }
}

/// A failed check is the fault of some stage, and its own words tell more.
fn where_to_look(address: &Address) -> Option<String> {
    match address {
        Address::Pipeline(name) => Some(format!(
            "`stageline status` shows the stage that is at fault, `stageline logs stage.{name}[0]` what a worker said"
        )),
        Address::Lease(_)
        | Address::Delivery(_)
        | Address::Bundle(_)
        | Address::Stage(_)
        | Address::Exposure(_) => None,
    }
}

/// Steps without a call are not news.
fn quiet(verb: Verb) -> bool {
    !matches!(verb, Verb::Forget | Verb::Record | Verb::Acquire)
}

fn past(verb: Verb) -> &'static str {
    match verb {
        Verb::Acquire => "rented",
        Verb::Await => "ready",
        Verb::Record => "recorded",
        Verb::Deliver => "delivered",
        Verb::Start => "started",
        Verb::Stop => "stopped",
        Verb::Check => "answers",
        Verb::Expose => "exposed",
        Verb::Unexpose => "taken down",
        Verb::Forget => "forgotten",
        Verb::Release => "released, proven by the provider's listing",
    }
}

fn millis(span: Duration) -> Millis {
    Millis(u64::try_from(span.as_millis()).unwrap_or(u64::MAX))
}

/// To a tenth of a second below ten seconds, to whole seconds above.
fn rounded(span: Millis) -> String {
    if span.0 < 10_000 {
        format!("{}.{} s", span.0 / 1000, span.0 % 1000 / 100)
    } else {
        Millis(span.0 / 1000 * 1000).to_string()
    }
}

fn met(lease: &LeaseId, host: &str, fingerprint: &str) -> String {
    format!("{lease}: {host} is known by {fingerprint} from now on; another key is refused")
}

#[cfg(test)]
mod tests {
    use super::*;

    use indicatif::TermLike;

    use crate::ambient::FakeClock;

    /// A terminal that takes everything.
    #[derive(Debug)]
    struct Taker;

    impl TermLike for Taker {
        fn width(&self) -> u16 {
            80
        }
        fn move_cursor_up(&self, _: usize) -> std::io::Result<()> {
            Ok(())
        }
        fn move_cursor_down(&self, _: usize) -> std::io::Result<()> {
            Ok(())
        }
        fn move_cursor_right(&self, _: usize) -> std::io::Result<()> {
            Ok(())
        }
        fn move_cursor_left(&self, _: usize) -> std::io::Result<()> {
            Ok(())
        }
        fn write_line(&self, _: &str) -> std::io::Result<()> {
            Ok(())
        }
        fn write_str(&self, _: &str) -> std::io::Result<()> {
            Ok(())
        }
        fn clear_line(&self) -> std::io::Result<()> {
            Ok(())
        }
        fn flush(&self) -> std::io::Result<()> {
            Ok(())
        }
    }

    #[tokio::test]
    async fn what_moves_appears_only_when_a_run_is_slow() {
        let clock = FakeClock::manual("2026-01-02T03:04:05Z".parse().expect("a time"));
        let console = Console {
            json: false,
            json_log: false,
            color: false,
            color_err: false,
            width: 80,
            terminal: true,
            lively: true,
            can_ask: false,
            level: 0,
        };
        let target = || ProgressDrawTarget::term_like(Box::new(Taker));
        let mut reporter = Reporter::on(&console, Arc::new(clock.clone()), target);
        let hidden = |reporter: &Reporter| {
            let bar = reporter.shared.bar.as_ref().expect("lively");
            bar.is_hidden()
        };
        tokio::task::yield_now().await;
        clock.advance(APPEARS_AFTER - Duration::from_millis(1));
        tokio::task::yield_now().await;
        assert!(hidden(&reporter), "a quick run shows nothing that moves");
        clock.advance(Duration::from_millis(1));
        let deadline = tokio::time::Instant::now() + Duration::from_secs(10);
        while hidden(&reporter) {
            assert!(tokio::time::Instant::now() < deadline, "it never appears");
            tokio::task::yield_now().await;
        }
        reporter.finish();
    }
}
