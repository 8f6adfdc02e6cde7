//! Which program a stage's worker is, and everything it is started with.
//!
//! What always holds: a worker's environment is ours and the topology's, not whatever the agent was started with; no
//! secret is an argument. The native worker is built once per level of CPU, since its kernels are chosen when it is
//! compiled and a generic build is three times slower; here the best build that this CPU can run is picked.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

use secrecy::{ExposeSecret as _, SecretString};
use stageline_core::id::StageId;
use stageline_core::resource::{EngineSpec, StageSpec};
use stageline_core::stage_protocol::environment;

use super::folder::MACHINE_DIR;
use crate::machine::control::Refusal;

/// What of the agent's own environment a worker gets: where programs, homes and languages are, and how logs are asked for.
pub const INHERITED: [&str; 9] = [
    "PATH",
    "HOME",
    "LANG",
    "LC_ALL",
    "TMPDIR",
    "LD_LIBRARY_PATH",
    "RUST_LOG",
    "RUST_BACKTRACE",
    "RAYON_NUM_THREADS",
];

/// Names one program for every native worker, whatever lies beside the agent.
pub const WORKER: &str = "STAGELINE_WORKER";

/// A program with arguments and environment. Its values are never printed: some are secret.
pub struct Launch {
    /// What is run.
    pub program: PathBuf,
    /// With these arguments.
    pub args: Vec<String>,
    /// In this environment and nothing else.
    pub env: BTreeMap<OsString, OsString>,
}

/// What the launch of a worker depends on besides its spec.
#[derive(Clone, Debug)]
pub struct Site {
    /// The agent's folder.
    pub folder: PathBuf,
    /// The part of the agent's environment that counts here: [`INHERITED`] and [`WORKER`].
    pub env: BTreeMap<OsString, OsString>,
    /// Where builds of the native worker may lie, best first.
    pub bins: Vec<PathBuf>,
}

impl Site {
    /// The site of an agent in this process.
    pub fn here(folder: &Path) -> Self {
        let wanted = |name: &OsString| {
            name.to_str()
                .is_some_and(|name| INHERITED.contains(&name) || name == WORKER)
        };
        let mut bins = vec![folder.join("bin")];
        let own = std::env::current_exe().ok();
        bins.extend(own.as_deref().and_then(Path::parent).map(Path::to_owned));
        Self {
            folder: folder.to_owned(),
            env: std::env::vars_os()
                .filter(|(name, _)| wanted(name))
                .collect(),
            bins,
        }
    }
}

/// How a stage's worker is started; none for the stub, which is no process.
///
/// # Errors
/// [`Refusal`] when there is no program to start.
pub fn launch(
    site: &Site,
    stage: &StageId,
    spec: &StageSpec,
    model: Option<&Path>,
    secrets: &BTreeMap<String, SecretString>,
) -> Result<Option<Launch>, Refusal> {
    let (program, mut args) = match &spec.engine {
        EngineSpec::Stub => return Ok(None),
        EngineSpec::Native => (native(site, stage)?, Vec::new()),
        EngineSpec::Command(argv) => {
            let (program, args) = argv.split_first().ok_or_else(|| {
                Refusal::new("bad-request", format!("{stage}: its command is empty"))
            })?;
            (PathBuf::from(program), args.to_vec())
        }
    };
    args.extend(spec.engine_args.iter().cloned());
    let mut env = site.env.clone();
    env.remove(&OsString::from(WORKER));
    let mut set = |name: &str, value: OsString| env.insert(name.into(), value);
    // The topology's own come first: what the protocol says is not theirs to change.
    for (name, value) in &spec.env {
        set(name, value.into());
    }
    for (name, value) in secrets {
        set(name, value.expose_secret().into());
    }
    for (name, value) in protocol_env(stage, spec) {
        set(name, value.into());
    }
    if let Some(path) = model {
        set(environment::MODEL, path.into());
    }
    set(MACHINE_DIR, site.folder.clone().into());
    Ok(Some(Launch { program, args, env }))
}

fn protocol_env(stage: &StageId, spec: &StageSpec) -> Vec<(&'static str, String)> {
    let layers = spec.layers.map_or_else(
        || format!("{}..{}", stage.index, stage.index + 1),
        |layers| layers.to_string(),
    );
    let mut env = vec![
        (environment::STAGE, stage.index.to_string()),
        (environment::NUM_STAGES, spec.num_stages.to_string()),
        (environment::LAYERS, layers),
        (environment::DTYPE, spec.dtype.name().to_owned()),
    ];
    if let Some(context) = spec.context {
        env.push((environment::CONTEXT, context.to_string()));
    }
    if spec.gpus.is_empty() {
        env.push((environment::DEVICE, "cpu".to_owned()));
    } else {
        // The worker sees its own GPUs only, numbered from 0.
        let visible: Vec<String> = spec.gpus.iter().map(ToString::to_string).collect();
        env.push(("CUDA_VISIBLE_DEVICES", visible.join(",")));
        env.push((environment::DEVICE, "cuda:0".to_owned()));
    }
    env
}

/// The best build of the native worker that this CPU can run.
fn native(site: &Site, stage: &StageId) -> Result<PathBuf, Refusal> {
    if let Some(path) = site.env.get(&OsString::from(WORKER)) {
        return Ok(path.into());
    }
    let names = builds(&cpu_levels());
    let found = site
        .bins
        .iter()
        .flat_map(|dir| names.iter().map(move |name| dir.join(name)))
        .find(|path| path.is_file());
    found.ok_or_else(|| {
        let places: Vec<String> = site
            .bins
            .iter()
            .map(|dir| dir.display().to_string())
            .collect();
        let message = format!(
            "{stage}: there is no native worker here: none of {} in {}",
            names.join(", "),
            places.join(" or ")
        );
        Refusal::new("worker-missing", message)
            .hint("build it beside the `stageline` program: cargo build -p stageline-worker")
    })
}

/// Names of builds for these kinds of CPU, best first, and the build for any.
fn builds(levels: &[&str]) -> Vec<String> {
    let special = levels
        .iter()
        .map(|level| format!("stageline-worker-{level}"));
    special.chain(["stageline-worker".to_owned()]).collect()
}

/// The levels of the x86-64 psABI that have a build of their own and that this CPU has, best first.
#[cfg(target_arch = "x86_64")]
fn cpu_levels() -> Vec<&'static str> {
    use std::arch::is_x86_feature_detected as has;
    let v2 = has!("sse3") && has!("ssse3") && has!("sse4.1") && has!("sse4.2") && has!("popcnt");
    let v3 = v2
        && has!("avx")
        && has!("avx2")
        && has!("bmi1")
        && has!("bmi2")
        && has!("f16c")
        && has!("fma")
        && has!("lzcnt")
        && has!("movbe");
    let v4 = v3
        && has!("avx512f")
        && has!("avx512bw")
        && has!("avx512cd")
        && has!("avx512dq")
        && has!("avx512vl");
    [("x86-64-v4", v4), ("x86-64-v3", v3), ("x86-64-v2", v2)]
        .into_iter()
        .filter_map(|(level, present)| present.then_some(level))
        .collect()
}

/// This architecture has one level.
#[cfg(target_arch = "aarch64")]
fn cpu_levels() -> Vec<&'static str> {
    vec!["aarch64"]
}

/// No build is made for this architecture in particular.
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
fn cpu_levels() -> Vec<&'static str> {
    Vec::new()
}

#[cfg(test)]
mod tests {
    use super::*;

    use stageline_core::topology::{Dtype, Layers};
    use stageline_core::unit::Millis;

    fn site(folder: &Path) -> Site {
        Site {
            folder: folder.to_owned(),
            env: [("PATH".into(), "/bin".into())].into(),
            bins: vec![folder.join("bin"), folder.join("beside")],
        }
    }

    fn spec(engine: EngineSpec) -> StageSpec {
        StageSpec {
            on: "lease.a[0]".parse().expect("a lease"),
            num_stages: 2,
            engine,
            layers: Some(Layers { start: 0, end: 3 }),
            model: None,
            engine_args: vec!["--more".to_owned()],
            env: [("STAGE", "9"), ("X", "y")]
                .map(|(name, value)| (name.to_owned(), value.to_owned()))
                .into(),
            secrets: BTreeMap::new(),
            gpus: Vec::new(),
            dtype: Dtype::F32,
            context: Some(64),
            ready_timeout: Millis::seconds(1),
        }
    }

    fn stage() -> StageId {
        "stage.p[1]".parse().expect("a stage")
    }

    #[test]
    fn a_worker_gets_the_protocols_environment_and_nothing_of_ours() {
        let dir = tempfile::tempdir().expect("a folder");
        let command = EngineSpec::Command(vec!["python3".to_owned(), "w.py".to_owned()]);
        let secrets = [("KEY".to_owned(), SecretString::from("canary".to_owned()))].into();
        let launch = launch(
            &site(dir.path()),
            &stage(),
            &spec(command),
            Some(Path::new("/m")),
            &secrets,
        )
        .expect("launchable")
        .expect("a process");
        assert_eq!(launch.args, ["w.py", "--more"]);
        let text: Vec<String> = launch
            .env
            .iter()
            .map(|(name, value)| format!("{}={}", name.display(), value.display()))
            .filter(|line| !line.starts_with(MACHINE_DIR))
            .collect();
        assert_eq!(
            text,
            [
                "KEY=canary",
                "NUM_STAGES=2",
                "PATH=/bin",
                "STAGE=1",
                "STAGELINE_CONTEXT=64",
                "STAGELINE_DEVICE=cpu",
                "STAGELINE_DTYPE=f32",
                "STAGELINE_LAYERS=0..3",
                "STAGELINE_MODEL=/m",
                "X=y"
            ]
        );
    }

    #[test]
    fn the_best_build_that_runs_here_is_picked() {
        assert_eq!(
            builds(&["x86-64-v3", "x86-64-v2"]),
            [
                "stageline-worker-x86-64-v3",
                "stageline-worker-x86-64-v2",
                "stageline-worker"
            ]
        );
        assert_eq!(builds(&[]), ["stageline-worker"]);
        let dir = tempfile::tempdir().expect("a folder");
        let site = site(dir.path());
        let refusal = native(&site, &stage()).expect_err("none yet");
        assert_eq!(refusal.code, "worker-missing");
        assert!(refusal.message.contains("stage.p[1]"), "{refusal}");
        std::fs::create_dir(dir.path().join("beside")).expect("made");
        let plain = dir.path().join("beside/stageline-worker");
        std::fs::write(&plain, b"").expect("made");
        assert_eq!(native(&site, &stage()).expect("found"), plain);
    }
}
