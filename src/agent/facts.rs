//! What this computer is: measured, never believed.
//!
//! The agent's facts decide whether a machine is kept, so each number is the one that a process here can really use:
//! processors after affinity and quota, memory after the control group's limit, disk free to an ordinary user. What
//! cannot be measured is zero or absent, and so satisfies no requirement. It refuses to guess.

use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use stageline_core::offer::{Facts, Gpu};
use stageline_core::unit::Bytes;

use crate::ambient;

/// A driver that hangs must not hang the agent; a healthy `nvidia-smi` takes under two seconds even with eight GPUs.
const NVIDIA_SMI_TIMEOUT: Duration = Duration::from_secs(10);

/// More output than any machine's list of GPUs.
const NVIDIA_SMI_MAX: usize = 64 << 10;

/// GPUs and their driver.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Gpus {
    /// In the order of the driver.
    pub gpus: Vec<Gpu>,
    /// Version of the driver.
    pub driver: Option<String>,
    /// Highest CUDA version that the driver takes.
    pub cuda: Option<String>,
}

/// Measures this computer; disk is what is free where `dir` is or will be.
pub async fn measure(dir: &Path) -> Facts {
    let gpus = gpus().await;
    measure_with(dir, gpus)
}

/// The same with GPUs that were measured before: they do not change while a driver is loaded.
pub fn measure_with(dir: &Path, gpus: Gpus) -> Facts {
    Facts {
        os: std::env::consts::OS.to_owned(),
        arch: std::env::consts::ARCH.to_owned(),
        cpus: cpus(),
        memory: memory(),
        disk: disk(dir),
        gpus: gpus.gpus,
        driver: gpus.driver,
        cuda: gpus.cuda,
        ..Facts::default()
    }
}

/// Logical processors after affinity and control group quota.
pub fn cpus() -> u32 {
    std::thread::available_parallelism()
        .ok()
        .and_then(|count| u32::try_from(count.get()).ok())
        .unwrap_or(1)
}

/// Free disk where `dir` is, or where it would be made: the nearest folder above that exists.
pub fn disk(dir: &Path) -> Bytes {
    let free = |path: &Path| rustix::fs::statvfs(path).ok();
    let absolute = std::path::absolute(dir).unwrap_or_else(|_| dir.to_owned());
    absolute
        .ancestors()
        .find_map(free)
        .map_or(Bytes(0), |stat| {
            Bytes(stat.f_bavail.saturating_mul(stat.f_frsize))
        })
}

/// Main memory: the machine's, or the control group's limit when that is smaller.
pub fn memory() -> Bytes {
    let total = total_memory();
    match cgroup_limit() {
        Some(limit) if limit.0 > 0 && limit < total => limit,
        Some(_) | None => total,
    }
}

#[cfg(target_os = "linux")]
fn total_memory() -> Bytes {
    let info = rustix::system::sysinfo();
    #[expect(
        clippy::useless_conversion,
        reason = "the width of these fields differs between platforms"
    )]
    let (total, unit) = (u64::from(info.totalram), u64::from(info.mem_unit));
    Bytes(total.saturating_mul(unit.max(1)))
}

#[cfg(not(target_os = "linux"))]
fn total_memory() -> Bytes {
    let output = std::process::Command::new("sysctl")
        .args(["-n", "hw.memsize"])
        .stdin(Stdio::null())
        .output();
    let text = output.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned());
    Bytes(text.ok().and_then(|text| text.parse().ok()).unwrap_or(0))
}

/// The smallest memory limit of this process's control group and all above it.
fn cgroup_limit() -> Option<Bytes> {
    let own = std::fs::read_to_string("/proc/self/cgroup").ok()?;
    let read = |path: &Path| std::fs::read_to_string(path).ok();
    limit_in(&own, Path::new("/sys/fs/cgroup"), &read)
}

/// [`cgroup_limit`] with its files handed in.
fn limit_in(own: &str, root: &Path, read: &dyn Fn(&Path) -> Option<String>) -> Option<Bytes> {
    let mut smallest: Option<u64> = None;
    for line in own.lines() {
        let mut fields = line.splitn(3, ':');
        let (Some(_), Some(controllers), Some(path)) =
            (fields.next(), fields.next(), fields.next())
        else {
            continue;
        };
        let (base, file) = if controllers.is_empty() {
            (root.to_owned(), "memory.max")
        } else if controllers.split(',').any(|name| name == "memory") {
            (root.join("memory"), "memory.limit_in_bytes")
        } else {
            continue;
        };
        let full = base.join(path.trim_start_matches('/'));
        let above = full.ancestors().take_while(|dir| dir.starts_with(&base));
        for limit in above.filter_map(|dir| read(&dir.join(file))?.trim().parse().ok()) {
            smallest = Some(smallest.map_or(limit, |old: u64| old.min(limit)));
        }
    }
    smallest.map(Bytes)
}

/// GPUs as `nvidia-smi` shows them; none where there is no such program or it fails.
pub async fn gpus() -> Gpus {
    let query = "--query-gpu=name,memory.total,driver_version";
    let Some(table) = nvidia_smi(&[query, "--format=csv,noheader,nounits"]).await else {
        return Gpus::default();
    };
    let mut gpus = parse_gpus(&table);
    if !gpus.gpus.is_empty() {
        gpus.cuda = nvidia_smi(&[]).await.as_deref().and_then(parse_cuda);
    }
    gpus
}

async fn nvidia_smi(args: &[&str]) -> Option<String> {
    // To look costs less than a process that finds nothing.
    let path = ambient::variable("PATH").unwrap_or_default();
    let mut folders = std::env::split_paths(&path);
    if !path.is_empty() && !folders.any(|folder| folder.join("nvidia-smi").exists()) {
        return None;
    }
    let run = tokio::process::Command::new("nvidia-smi")
        .args(args)
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .kill_on_drop(true)
        .output();
    let output = tokio::time::timeout(NVIDIA_SMI_TIMEOUT, run)
        .await
        .ok()?
        .ok()?;
    let shown = &output.stdout[..output.stdout.len().min(NVIDIA_SMI_MAX)];
    output
        .status
        .success()
        .then(|| String::from_utf8_lossy(shown).into_owned())
}

/// Reads lines such as `NVIDIA GeForce RTX 4090, 24564, 550.54.14`; memory is in MiB. Lines of another shape are not GPUs.
fn parse_gpus(table: &str) -> Gpus {
    let mut found = Gpus::default();
    for line in table.lines() {
        // A name may hold a comma one day; the two fields behind it cannot.
        let mut fields = line.rsplitn(3, ',').map(str::trim);
        let (Some(driver), Some(memory), Some(model)) =
            (fields.next(), fields.next(), fields.next())
        else {
            continue;
        };
        let Ok(mebibytes) = memory.parse::<u64>() else {
            continue;
        };
        if model.is_empty() {
            continue;
        }
        found.gpus.push(Gpu {
            model: model.to_owned(),
            vram: Bytes(mebibytes.saturating_mul(1 << 20)),
        });
        found.driver.get_or_insert_with(|| driver.to_owned());
    }
    found
}

/// Finds `CUDA Version: 12.4` in the head of the plain table.
fn parse_cuda(text: &str) -> Option<String> {
    let (_, rest) = text.split_once("CUDA Version:")?;
    let version: String = rest
        .trim_start()
        .chars()
        .take_while(|c| c.is_ascii_digit() || *c == '.')
        .collect();
    (!version.is_empty()).then_some(version)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gpus_are_read_from_the_drivers_table() {
        let table =
            "NVIDIA GeForce RTX 4090, 24564, 550.54.14\nNVIDIA A100-SXM4-80GB, 81920, 550.54.14\n";
        let gpus = parse_gpus(table);
        assert_eq!(gpus.gpus.len(), 2);
        assert_eq!(gpus.gpus[1].model, "NVIDIA A100-SXM4-80GB");
        assert_eq!(gpus.gpus[1].vram, Bytes::gib(80));
        assert_eq!(gpus.driver.as_deref(), Some("550.54.14"));
    }

    #[test]
    fn a_broken_driver_has_no_gpus() {
        for text in [
            "",
            "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.",
            "NVIDIA H100, [N/A], 550",
            "Unable to determine the device handle for GPU0000:01:00.0: Unknown Error, x, y",
        ] {
            assert_eq!(parse_gpus(text), Gpus::default(), "{text}");
        }
    }

    #[test]
    fn the_cuda_version_is_in_the_plain_table() {
        let head = "| NVIDIA-SMI 550.54.14   Driver Version: 550.54.14   CUDA Version: 12.4     |";
        assert_eq!(parse_cuda(head).as_deref(), Some("12.4"));
        assert_eq!(parse_cuda("| CUDA Version: N/A |"), None);
    }

    #[test]
    fn the_smallest_limit_above_counts() {
        let files = |path: &Path| match path.to_str()? {
            "/cg/a/b/memory.max" => Some("max\n".to_owned()),
            "/cg/a/memory.max" => Some("1048576\n".to_owned()),
            "/cg/memory.max" => Some("4194304\n".to_owned()),
            _ => None,
        };
        assert_eq!(
            limit_in("0::/a/b\n", Path::new("/cg"), &files),
            Some(Bytes(1 << 20))
        );
        assert_eq!(limit_in("0::/\n", Path::new("/none"), &files), None);
        let old = |path: &Path| {
            (path == Path::new("/cg/memory/x/memory.limit_in_bytes")).then(|| "77".to_owned())
        };
        assert_eq!(
            limit_in("9:cpu,memory:/x\n1:cpuset:/\n", Path::new("/cg"), &old),
            Some(Bytes(77))
        );
    }

    #[test]
    fn this_computer_has_something_of_everything() {
        let dir = tempfile::tempdir().expect("a folder");
        let facts = measure_with(&dir.path().join("not/yet"), Gpus::default());
        assert!(facts.cpus > 0 && facts.memory.0 > 0 && facts.disk.0 > 0);
        assert_eq!(facts.os, std::env::consts::OS);
    }
}
