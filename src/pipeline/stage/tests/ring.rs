//! Whole rings, driven in random order: whatever is delivered first, every request gets its answer and leaves nothing.

use super::*;

/// A small generator, so that a failing run can be repeated by its number.
struct Dice(u64);

impl Dice {
    fn below(&mut self, n: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 >> 33).expect("31 bits") % n
    }
}

/// One stage with what is on its way to and from its worker, and on its edges.
struct Member {
    core: Core,
    worker: StubWorker,
    to_worker: Vec<ToWorker>,
    from_worker: Vec<FromWorker>,
    next: Outbox,
    prev: Outbox,
    tokens: Outbox,
}

struct Ring {
    members: Vec<Member>,
    now: Duration,
    /// Most bytes that ever waited at one stage.
    queued_most: u64,
}

/// Something that may happen next.
#[derive(Clone, Copy)]
enum Move {
    ToWorker(usize),
    FromWorker(usize),
    Express(usize),
    Bulk(usize),
    Back(usize),
    Token,
}

impl Ring {
    fn new(num_stages: u32) -> Self {
        let member = |stage| Member {
            core: ready(stage, num_stages),
            worker: StubWorker::new(&StubOptions {
                stage,
                num_stages,
                dtype: Dtype::F32,
                context: None,
                engine_args: vec![],
            })
            .expect("no arguments")
            .0,
            to_worker: vec![],
            from_worker: vec![],
            next: Outbox::default(),
            prev: Outbox::default(),
            tokens: Outbox::default(),
        };
        Self {
            members: (0..num_stages).map(member).collect(),
            now: SECOND,
            queued_most: 0,
        }
    }

    fn route(&mut self, at: usize) {
        let member = &mut self.members[at];
        for out in member.core.take_out() {
            match out {
                Out::Worker(message) => member.to_worker.push(message),
                Out::Express(Side::Next, frame) => member.next.express(frame),
                Out::Express(Side::Prev, frame) => member.prev.express(frame),
                Out::Express(Side::TokensOut, frame) => member.tokens.express(frame),
                Out::Express(Side::TokensIn, frame) => panic!("{frame:?} against the stream"),
                Out::Chunk {
                    tag,
                    begin,
                    remaining_ms,
                    activation,
                } => member.next.chunk(tag, begin, remaining_ms, activation),
                Out::Forget(tag) => member.next.forget(tag),
            }
        }
        self.queued_most = self.queued_most.max(member.core.queued_bytes);
    }

    fn frames(&mut self, at: usize, side: Side, frames: impl IntoIterator<Item = Frame>) {
        for frame in frames {
            let taken = self.members[at].core.on_frame(self.now, side, frame);
            taken.expect("stages keep the protocol");
            self.route(at);
        }
    }

    /// Does one thing, if there is something to do.
    fn make(&mut self, what: Move) -> bool {
        let last = self.members.len() - 1;
        self.now += Duration::from_micros(1);
        match what {
            Move::ToWorker(at) => {
                let member = &mut self.members[at];
                if member.to_worker.is_empty() {
                    return false;
                }
                let message = member.to_worker.remove(0);
                member.from_worker.extend(member.worker.take(message));
            }
            Move::FromWorker(at) => {
                let member = &mut self.members[at];
                if member.from_worker.is_empty() {
                    return false;
                }
                let message = member.from_worker.remove(0);
                member.core.on_worker(self.now, message);
                self.route(at);
            }
            Move::Express(at) => match self.members[at].next.take_express().now_or_never() {
                Some(frames) if at < last => self.frames(at + 1, Side::Prev, frames.expect("open")),
                _ => return false,
            },
            Move::Bulk(at) => match self.members[at].next.take_bulk().now_or_never() {
                Some(frames) if at < last => self.frames(at + 1, Side::Prev, frames.expect("open")),
                _ => return false,
            },
            Move::Back(at) => match self.members[at].prev.take_express().now_or_never() {
                Some(frames) if at > 0 => self.frames(at - 1, Side::Next, frames.expect("open")),
                _ => return false,
            },
            Move::Token => match self.members[last].tokens.take_express().now_or_never() {
                Some(frames) => self.frames(0, Side::TokensIn, frames.expect("open")),
                None => return false,
            },
        }
        true
    }

    fn moves(&self) -> Vec<Move> {
        let mut moves = vec![Move::Token];
        for at in 0..self.members.len() {
            moves.extend([
                Move::ToWorker(at),
                Move::FromWorker(at),
                Move::Express(at),
                Move::Bulk(at),
                Move::Back(at),
            ]);
        }
        moves
    }

    /// Makes random moves until nothing is left to do; `between` may do something else before each.
    fn run(&mut self, dice: &mut Dice, mut between: impl FnMut(&mut Self, &mut Dice)) {
        let moves = self.moves();
        loop {
            between(self, dice);
            let first = dice.below(moves.len());
            let (before, after) = moves.split_at(first);
            if !after.iter().chain(before).any(|what| self.make(*what)) {
                return;
            }
        }
    }

    fn assert_empty(&self, seed: u64) {
        for (at, member) in self.members.iter().enumerate() {
            assert!(member.core.requests.is_empty(), "seed {seed}, stage {at}");
            assert!(member.core.numbers.is_empty(), "seed {seed}, stage {at}");
            assert_eq!(member.core.queued_bytes, 0, "seed {seed}, stage {at}");
            assert_eq!(
                member.worker.kept(),
                0,
                "seed {seed}, stage {at}: a cache is left"
            );
        }
    }
}

fn text_of(events: &[Result<Event, InferError>]) -> String {
    events
        .iter()
        .filter_map(|event| match event {
            Ok(Event::Text { text, .. }) => Some(text.as_str()),
            Ok(Event::Started { .. } | Event::Done { .. }) | Err(_) => None,
        })
        .collect()
}

#[test]
fn every_request_is_answered_alike_in_any_order_of_deliveries() {
    let texts = ["a river", "b ", "the hills at night"];
    let long = "many words ".repeat(600);
    let expected = |text: &str| {
        let mut ring = Ring::new(1);
        let (_, mut answers) = ring.members[0]
            .core
            .submit(SECOND, prompt(text, 12), 0)
            .expect("free");
        ring.route(0);
        ring.run(&mut Dice(1), |_, _| {});
        text_of(&told(&mut answers))
    };
    let alone: Vec<String> = texts
        .iter()
        .chain([&long.as_str()])
        .map(|t| expected(t))
        .collect();
    for num_stages in [1, 2, 3, 5] {
        for seed in 1..12 {
            let mut ring = Ring::new(num_stages);
            let mut dice = Dice(seed * 7919);
            let mut answers: Vec<Answers> = Vec::new();
            let mut wanted: Vec<&str> = texts.to_vec();
            wanted.push(&long);
            ring.run(&mut dice, |ring, dice| {
                if answers.len() < wanted.len() && dice.below(5) == 0 {
                    let request = prompt(wanted[answers.len()], 12);
                    let submitted = ring.members[0].core.submit(ring.now, request, 0);
                    answers.push(submitted.expect("within the limit").1);
                    ring.route(0);
                }
            });
            while answers.len() < wanted.len() {
                let request = prompt(wanted[answers.len()], 12);
                let submitted = ring.members[0].core.submit(ring.now, request, 0);
                answers.push(submitted.expect("within the limit").1);
                ring.route(0);
                ring.run(&mut dice, |_, _| {});
            }
            for (answers, alone) in answers.iter_mut().zip(&alone) {
                let events = told(answers);
                assert!(matches!(events.first(), Some(Ok(Event::Started { .. }))));
                let ended = matches!(events.last(), Some(Ok(Event::Done { .. })));
                assert!(ended, "seed {seed}, {num_stages} stages: {events:?}");
                assert_eq!(&text_of(&events), alone, "seed {seed}, {num_stages} stages");
            }
            ring.assert_empty(seed);
        }
    }
}

#[test]
fn a_cancel_at_any_moment_frees_every_stage_and_disturbs_nobody() {
    let long = "many words ".repeat(900);
    for num_stages in [1, 2, 4] {
        for seed in 1..40 {
            let mut ring = Ring::new(num_stages);
            let mut dice = Dice(seed * 104_729);
            let submit = |ring: &mut Ring, text: &str| {
                let submitted = ring.members[0].core.submit(SECOND, prompt(text, 9), 0);
                ring.route(0);
                submitted.expect("free")
            };
            let (_, mut stays) = submit(&mut ring, "this one stays");
            let (gone, mut gone_answers) = submit(&mut ring, &long);
            let (gone_too, _) = submit(&mut ring, "short");
            let mut left = dice.below(120);
            let mut left_too = dice.below(60);
            ring.run(&mut dice, |ring, _| {
                for (left, tag) in [(&mut left, gone), (&mut left_too, gone_too)] {
                    if *left == 0 {
                        ring.members[0].core.cancel(ring.now, tag);
                        ring.route(0);
                    }
                    *left = left.wrapping_sub(1);
                }
            });
            ring.members[0].core.cancel(ring.now, gone);
            ring.route(0);
            ring.run(&mut dice, |_, _| {});
            let events = told(&mut stays);
            let ended = matches!(events.last(), Some(Ok(Event::Done { .. })));
            assert!(ended, "seed {seed}, {num_stages} stages: {events:?}");
            let last = told(&mut gone_answers).pop();
            assert!(
                matches!(
                    &last,
                    Some(
                        Ok(Event::Done { .. })
                            | Err(InferError {
                                code: InferCode::Cancelled,
                                ..
                            })
                    )
                ),
                "seed {seed}: {last:?}"
            );
            ring.assert_empty(seed);
        }
    }
}

/// A worker that fails somewhere in the ring: its caller hears of it, all stages free the request, the others go on.
#[test]
fn an_error_anywhere_reaches_its_caller_and_nobody_else() {
    for num_stages in [1_u32, 2, 4] {
        for seed in 1..40 {
            let mut ring = Ring::new(num_stages);
            let mut dice = Dice(seed * 15_485_863);
            let victim_stage = dice.below(num_stages as usize);
            let submit = |ring: &mut Ring, text: &str| {
                let submitted = ring.members[0].core.submit(SECOND, prompt(text, 9), 0);
                ring.route(0);
                submitted.expect("free")
            };
            let (tag, mut victim) = submit(&mut ring, &"many words ".repeat(400));
            let (_, mut other) = submit(&mut ring, "another one");
            let mut countdown = 1 + dice.below(6);
            ring.run(&mut dice, |ring, _| {
                let member = &mut ring.members[victim_stage];
                let Some(number) = member.core.requests.get(&tag).map(|r| r.number) else {
                    return;
                };
                for answer in &mut member.from_worker {
                    let id = match answer {
                        FromWorker::Hidden { id, .. } | FromWorker::Continue { id } => *id,
                        FromWorker::Token(sampled) => sampled.id,
                        FromWorker::Loading { .. }
                        | FromWorker::Ready(_)
                        | FromWorker::Failed { .. }
                        | FromWorker::Error { .. } => continue,
                    };
                    if id == number && countdown > 0 {
                        countdown -= 1;
                        if countdown == 0 {
                            *answer = FromWorker::Error {
                                id: Some(id),
                                code: ErrorCode::Internal,
                                message: "out of memory\u{1b}[0m".into(),
                            };
                        }
                    }
                }
            });
            let events = told(&mut other);
            let ended = matches!(events.last(), Some(Ok(Event::Done { .. })));
            assert!(ended, "seed {seed}, {num_stages} stages: {events:?}");
            match told(&mut victim).pop() {
                Some(Err(error)) => {
                    assert_eq!(error.code, InferCode::Internal);
                    let text = format!("stage.p[{victim_stage}]: out of memory\u{fffd}[0m");
                    assert_eq!(error.message, text, "seed {seed}");
                }
                last => assert!(
                    countdown > 0 && matches!(last, Some(Ok(Event::Done { .. }))),
                    "seed {seed}: {last:?}"
                ),
            }
            ring.assert_empty(seed);
        }
    }
}

/// A prompt of 60 parts: however the deliveries come, no stage but the first holds more than two parts in each direction.
#[test]
fn a_huge_prompt_waits_at_the_first_stage_and_lets_others_by() {
    for seed in 1..10 {
        let mut ring = Ring::new(3);
        let mut dice = Dice(seed * 6_700_417);
        let (_, mut huge) = ring.members[0]
            .core
            .submit(SECOND, prompt(&"w ".repeat(8000), 2), 0)
            .expect("free");
        let (_, mut small) = ring.members[0]
            .core
            .submit(SECOND, prompt("small", 9), 0)
            .expect("free");
        ring.route(0);
        let part = 512 * u64::from(HIDDEN_SIZE) * 4;
        let mut small_done_at = None;
        let mut small_events = vec![];
        let mut huge_started = false;
        ring.run(&mut dice, |ring, _| {
            small_events.extend(told(&mut small));
            let ended = matches!(small_events.last(), Some(Ok(Event::Done { .. })));
            let at_last = ring.members[2].core.requests.values().map(|r| r.made).max();
            huge_started |= ring.members[2].core.in_flight() > 0;
            if ended && small_done_at.is_none() {
                small_done_at = Some(at_last);
            }
            for member in &ring.members[1..] {
                assert!(member.core.queued_bytes <= 4 * part, "seed {seed}");
            }
        });
        let events = told(&mut huge);
        assert!(
            matches!(events.last(), Some(Ok(Event::Done { .. }))),
            "seed {seed}"
        );
        small_events.extend(told(&mut small));
        assert!(
            small_done_at.is_some(),
            "seed {seed}: the short one came last: {small_events:?}"
        );
        assert!(huge_started && ring.queued_most >= 8 * part, "seed {seed}");
        ring.assert_empty(seed);
    }
}

#[test]
fn answers_end_as_they_should() {
    let mut ring = Ring::new(2);
    let (_, mut answers) = ring.members[0]
        .core
        .submit(SECOND, prompt("one two three", 2), 0)
        .expect("free");
    ring.route(0);
    ring.run(&mut Dice(3), |_, _| {});
    let events = told(&mut answers);
    assert_eq!(events.len(), 4, "{events:?}");
    assert_eq!(events[0], Ok(Event::Started { prompt_tokens: 3 }));
    let done = Event::Done {
        finish: Finish::Length,
        completion_tokens: 2,
    };
    assert_eq!(events[3], Ok(done));
}
