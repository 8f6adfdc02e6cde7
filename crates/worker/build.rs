//! Tells the program which processor features it was built for, so that it can refuse a machine in words.
//!
//! Cargo passes the target's features in the environment; `target-cpu=native` shows only in the flags.
#![expect(
    clippy::disallowed_methods,
    reason = "a build script has nothing but its environment"
)]

use std::env;

/// Features of the x86-64 levels, each level on top of the one before.
const LEVELS: [(&str, &[&str]); 3] = [
    (
        "x86-64-v2",
        &["sse3", "ssse3", "sse4.1", "sse4.2", "popcnt"],
    ),
    (
        "x86-64-v3",
        &[
            "avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "lzcnt", "movbe",
        ],
    ),
    (
        "x86-64-v4",
        &["avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"],
    ),
];

fn main() {
    let features = env::var("CARGO_CFG_TARGET_FEATURE").unwrap_or_default();
    let arch = env::var("CARGO_CFG_TARGET_ARCH").unwrap_or_default();
    let flags = env::var("CARGO_ENCODED_RUSTFLAGS").unwrap_or_default();
    let level = if flags.contains("target-cpu=native") {
        "native".to_owned()
    } else if arch == "x86_64" {
        let has = |feature: &&str| features.split(',').any(|present| present == *feature);
        let reached = LEVELS
            .iter()
            .take_while(|(_, needed)| needed.iter().all(has))
            .last();
        reached.map_or("x86-64", |(name, _)| name).to_owned()
    } else {
        arch
    };
    println!("cargo::rustc-env=STAGELINE_CPU_LEVEL={level}");
    println!("cargo::rustc-env=STAGELINE_CPU_FEATURES={features}");
    println!("cargo::rerun-if-env-changed=CARGO_ENCODED_RUSTFLAGS");
    println!("cargo::rerun-if-changed=build.rs");
}
