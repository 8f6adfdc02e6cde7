//! Which processor this build needs, and whether the machine has it.
//!
//! `stageline-worker` is built once per x86-64 level into files of their own; the agent takes the highest one that the
//! machine can run. A build that meets a lesser machine all the same says so instead of dying of an illegal instruction.
//! (The kernels for Q4_K, Q6_K and, with AVX-512 VNNI, Q8_0 weights look at the processor at run time whatever the build;
//! the level matters for all other formats, which the compiler vectorises.)
//!
//! What always holds: nothing here touches a vector register on purpose before it has looked.

use crate::failure::Failure;
use stageline_core::stage_protocol::ErrorCode;

/// The level that this build was made for: `x86-64`, `x86-64-v2`, `x86-64-v3`, `x86-64-v4`, `native`, or an architecture.
pub const LEVEL: &str = env!("STAGELINE_CPU_LEVEL");

/// The features that the compiler was allowed to use, joined by commas.
const FEATURES: &str = env!("STAGELINE_CPU_FEATURES");

/// The features that this build needs and this machine lacks.
pub fn missing() -> Vec<&'static str> {
    FEATURES
        .split(',')
        .filter(|feature| detected(feature) == Some(false))
        .collect()
}

/// Fails where the machine cannot run this build.
pub fn check() -> Result<(), Failure> {
    let missing = missing();
    if missing.is_empty() {
        return Ok(());
    }
    let message = format!(
        "this worker was built for {LEVEL}; this machine's processor lacks {}; put a build for a lower level beside \
         `stageline`",
        missing.join(", ")
    );
    Err(Failure {
        code: ErrorCode::UnsupportedCpu,
        message,
    })
}

/// Whether the machine has a feature; `None` for those that nobody can ask about.
#[cfg(target_arch = "x86_64")]
fn detected(feature: &str) -> Option<bool> {
    macro_rules! table {
        ($($name:tt),*) => {
            match feature {
                $($name => Some(std::arch::is_x86_feature_detected!($name)),)*
                _ => None,
            }
        };
    }
    table!(
        "sse3",
        "ssse3",
        "sse4.1",
        "sse4.2",
        "sse4a",
        "popcnt",
        "avx",
        "avx2",
        "bmi1",
        "bmi2",
        "f16c",
        "fma",
        "lzcnt",
        "movbe",
        "avx512f",
        "avx512bw",
        "avx512cd",
        "avx512dq",
        "avx512vl",
        "avx512vnni",
        "avx512bf16",
        "avx512vbmi",
        "avx512vbmi2",
        "avx512bitalg",
        "avx512vpopcntdq",
        "avx512ifma",
        "avx512vp2intersect",
        "avx512fp16",
        "avxvnni",
        "gfni",
        "vaes",
        "vpclmulqdq",
        "aes",
        "pclmulqdq",
        "sha",
        "adx",
        "rdseed",
        "rdrand",
        "fxsr"
    )
}

/// Whether the machine has a feature; elsewhere the architecture's base is all that builds use.
#[cfg(not(target_arch = "x86_64"))]
fn detected(_feature: &str) -> Option<bool> {
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_machine_that_runs_the_tests_can_run_them() {
        assert_eq!(check(), Ok(()));
    }

    #[test]
    #[cfg(target_arch = "x86_64")]
    fn features_are_looked_up() {
        assert_eq!(detected("sse4.2"), Some(true));
        assert_eq!(detected("crt-static"), None);
    }
}
