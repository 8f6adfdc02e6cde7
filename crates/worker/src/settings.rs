//! What a worker learns from its environment.
//!
//! What always holds: the environment is read through a function that the caller passes, so that tests need none; each
//! complaint names the variable, its value and what it should be.

use std::path::PathBuf;

use stageline_core::stage_protocol::{Dtype, Layers, environment, excerpt};

use crate::failure::Failure;

/// Which part of which model to run, and how.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Which stage this is, from 0.
    pub stage: u32,
    /// How many there are.
    pub num_stages: u32,
    /// The layers to run.
    pub layers: Layers,
    /// The model file.
    pub model: PathBuf,
    /// Numbers on the hop.
    pub dtype: Dtype,
    /// Where to compute.
    pub device: DeviceName,
    /// The most positions of a request, if less than the model's own.
    pub context: Option<u32>,
    /// How many threads, if said.
    pub threads: Option<usize>,
}

/// Where to compute.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeviceName {
    /// The processor.
    Cpu,
    /// A CUDA device, by index.
    Cuda(usize),
}

/// More threads than any machine that we know has.
const THREADS_MAX: usize = 1024;

impl Settings {
    /// Reads the settings by the variables' names.
    pub fn read(variable: impl Fn(&str) -> Option<String>) -> Result<Self, Failure> {
        let required = |name: &str| {
            let value = variable(name).filter(|value| !value.is_empty());
            value.ok_or_else(|| {
                Failure::stage(format!(
                    "{name} is not set; the agent sets it for each worker"
                ))
            })
        };
        let number = |name: &str, value: String| {
            value
                .parse::<u32>()
                .map_err(|_| wrong(name, &value, "a whole number"))
        };
        let stage = number(environment::STAGE, required(environment::STAGE)?)?;
        let num_stages = number(environment::NUM_STAGES, required(environment::NUM_STAGES)?)?;
        if stage >= num_stages {
            return Err(Failure::stage(format!(
                "STAGE is {stage} and NUM_STAGES is {num_stages}; stages count from 0"
            )));
        }
        let layers = read_layers(&required(environment::LAYERS)?)?;
        if layers.start == 0 && stage > 0 || layers.start > 0 && stage == 0 {
            return Err(Failure::stage(format!(
                "{} is {layers} for stage {stage}; the first stage, and only it, begins with layer 0",
                environment::LAYERS
            )));
        }
        let dtype = match variable(environment::DTYPE) {
            None => Dtype::Bf16,
            Some(name) => Dtype::from_name(&name)
                .ok_or_else(|| wrong(environment::DTYPE, &name, "bf16 or f32"))?,
        };
        let context = match variable(environment::CONTEXT) {
            None => None,
            Some(value) => match number(environment::CONTEXT, value)? {
                0 => return Err(wrong(environment::CONTEXT, "0", "at least 1")),
                context => Some(context),
            },
        };
        let threads = variable(environment::THREADS)
            .map(read_threads)
            .transpose()?;
        let device = read_device(variable(environment::DEVICE).as_deref().unwrap_or("cpu"))?;
        let model = PathBuf::from(required(environment::MODEL)?);
        Ok(Self {
            stage,
            num_stages,
            layers,
            model,
            dtype,
            device,
            context,
            threads,
        })
    }

    /// Whether prompts enter here.
    pub fn is_first(&self) -> bool {
        self.stage == 0
    }

    /// Whether tokens are picked here.
    pub fn is_last(&self) -> bool {
        self.stage + 1 == self.num_stages
    }
}

fn wrong(name: &str, value: &str, expected: &str) -> Failure {
    Failure::stage(format!(
        "{name} is `{}`; it must be {expected}",
        excerpt(value.as_bytes(), 100)
    ))
}

fn read_layers(text: &str) -> Result<Layers, Failure> {
    let bounds = text
        .split_once("..")
        .and_then(|(start, end)| Some((start.parse().ok()?, end.parse().ok()?)));
    match bounds {
        Some((start, end)) if start < end => Ok(Layers { start, end }),
        _ => Err(wrong(
            environment::LAYERS,
            text,
            "a..b, whole numbers, a below b",
        )),
    }
}

fn read_threads(text: String) -> Result<usize, Failure> {
    match text.parse() {
        Ok(threads @ 1..=THREADS_MAX) => Ok(threads),
        _ => Err(wrong(
            environment::THREADS,
            &text,
            &format!("a whole number from 1 to {THREADS_MAX}"),
        )),
    }
}

fn read_device(text: &str) -> Result<DeviceName, Failure> {
    let cuda = |index: &str| index.parse().map(DeviceName::Cuda).ok();
    match text.split_once(':') {
        None if text == "cpu" => Some(DeviceName::Cpu),
        None if text == "cuda" => Some(DeviceName::Cuda(0)),
        Some(("cuda", index)) => cuda(index),
        _ => None,
    }
    .ok_or_else(|| wrong(environment::DEVICE, text, "cpu or cuda:N"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(changes: &[(&str, &str)]) -> Result<Settings, String> {
        let base = [
            ("STAGE", "1"),
            ("NUM_STAGES", "3"),
            ("STAGELINE_LAYERS", "2..4"),
            ("STAGELINE_MODEL", "m.gguf"),
        ];
        let find = |from: &[(&str, &str)], name: &str| {
            from.iter()
                .find(|(key, _)| *key == name)
                .map(|(_, value)| (*value).to_owned())
        };
        Settings::read(|name| find(changes, name).or_else(|| find(&base, name)))
            .map_err(|failure| failure.message)
    }

    #[test]
    fn settings_are_read() {
        let settings = check(&[
            ("STAGELINE_DTYPE", "f32"),
            ("STAGELINE_DEVICE", "cuda:1"),
            ("STAGELINE_THREADS", "2"),
        ]);
        let settings = settings.expect("fine");
        assert_eq!(settings.layers, Layers { start: 2, end: 4 });
        assert_eq!(
            (settings.dtype, settings.device),
            (Dtype::F32, DeviceName::Cuda(1))
        );
        assert_eq!((settings.is_first(), settings.is_last()), (false, false));
    }

    #[test]
    fn mistakes_are_named() {
        let wrong = |name, value| check(&[(name, value)]).expect_err("a mistake");
        assert_eq!(
            wrong("STAGE", "3"),
            "STAGE is 3 and NUM_STAGES is 3; stages count from 0"
        );
        assert_eq!(
            wrong("STAGE", ""),
            "STAGE is not set; the agent sets it for each worker"
        );
        assert_eq!(
            wrong("STAGELINE_LAYERS", "4..4"),
            "STAGELINE_LAYERS is `4..4`; it must be a..b, whole numbers, a below b"
        );
        assert_eq!(
            wrong("STAGELINE_LAYERS", "0..4"),
            "STAGELINE_LAYERS is 0..4 for stage 1; the first stage, and only it, begins with layer 0"
        );
        assert_eq!(
            wrong("STAGELINE_DEVICE", "tpu"),
            "STAGELINE_DEVICE is `tpu`; it must be cpu or cuda:N"
        );
        assert_eq!(
            wrong("STAGELINE_THREADS", "0"),
            "STAGELINE_THREADS is `0`; it must be a whole number from 1 to 1024"
        );
        assert_eq!(
            wrong("STAGELINE_DTYPE", "f16"),
            "STAGELINE_DTYPE is `f16`; it must be bf16 or f32"
        );
    }
}
