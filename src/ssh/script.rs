//! What is run on a host: short scripts for any `sh` of any Linux, told apart by what they are for. Pure.
//!
//! All that stageline keeps on a host is below `~/.stageline`: programs by their digest, and for each host (homes may be shared by
//! several) the mark of who has it and the folder of its machine. A script never contains a single quote, so that it can be quoted for
//! whatever shell the user has; arguments are plain words. Nothing secret is in either.

/// A script.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Script(&'static str);

/// Where things are. `machine-id` tells hosts apart that share a home.
const HEAD: &str = r#"umask 077
cd "$HOME" || exit 72
[ -r /proc/self/environ ] || { echo "no /proc: agents run on Linux only" >&2; exit 69; }
I=$(cat /etc/machine-id 2>/dev/null)
[ -n "$I" ] || I=$(uname -n)
S="$HOME/.stageline"
D="$S/$I"
if [ -e "$S" ]; then [ -x "$S" ] || { echo "$S is not ours to enter" >&2; exit 73; }; fi
if [ -e "$D" ]; then [ -x "$D" ] || { echo "$D is not ours to enter" >&2; exit 73; }; fi
# Without -z, what is behind the first variable is no text to a busybox.
processes() { grep -lzF "STAGELINE_MACHINE_DIR=$D/machines/$1" /proc/[0-9]*/environ 2>/dev/null; }
"#;

/// Who has it, and what runs of ours. What runs comes last: of what was started before that, a process is seen as long as it lives.
pub(super) const LOOK: Script = Script(
    r#"printf "boot %s\n" "$(cat /proc/sys/kernel/random/boot_id)"
if [ -e "$D/mark" ]; then
  T=$(cat "$D/mark") || exit 73
  printf "%s\n" "$T" | sed "s/^/mark /"
fi
for M in "$D"/machines/*; do
  [ -d "$M" ] || continue
  K=${M##*/}
  [ -f "$M/started" ] && printf "started %s %s\n" "$K" "$(cat "$M/started")"
  [ -f "$M/agent/agent.addr" ] && printf "contact %s %s\n" "$K" "$(tr -d "\n" <"$M/agent/agent.addr")"
  [ -f "$M/out" ] && printf "last %s %s\n" "$K" "$(tail -n 1 "$M/out" | cut -c 1-200)"
done
P=$(processes "")
# One that is just becoming another program has no environment for a moment.
[ -z "$P" ] && ls "$D"/machines/*/started >/dev/null 2>&1 && { sleep 0.3 2>/dev/null || sleep 1; P=$(processes ""); }
for F in $P; do
  tr "\0" "\n" <"$F" 2>/dev/null | sed -n "s|^STAGELINE_MACHINE_DIR=$D/machines/\([a-z0-9-]*\)/.*|runs \1|p"
done | sort -u
true
"#,
);

/// What the host is.
pub(super) const MEASURE: Script = Script(
    r#"printf "os %s\n" "$(uname -s)"
printf "arch %s\n" "$(uname -m)"
L=$(getconf GNU_LIBC_VERSION 2>/dev/null)
[ -n "$L" ] || { command -v ldd >/dev/null && L=$(ldd --version 2>&1 | head -n 1); }
# Without these two, the loader that is there tells.
G=; U=
for F in /lib64/ld-linux-* /lib/ld-linux-* /lib/*/ld-linux-*; do [ -e "$F" ] && G=yes; done
for F in /lib/ld-musl-*; do [ -e "$F" ] && U=musl; done
[ -n "$L$G" ] || L=${U:-"no C library"}
printf "libc %s\n" "$L"
printf "cpus %s\n" "$(nproc 2>/dev/null || grep -c ^processor /proc/cpuinfo)"
printf "memory %s\n" "$(sed -n "s/^MemTotal: *//p" /proc/meminfo)"
printf "disk %s\n" "$(df -Pk . | tail -n 1)"
nvidia-smi --query-gpu=name,memory.total,driver_version --format=csv,noheader,nounits 2>/dev/null | sed "s/^/gpu /"
true
"#,
);

/// Takes the host, if nobody has it: a link is made at once or not at all. `$1` is the request key, the mark comes by standard input.
pub(super) const CLAIM: Script = Script(
    r#"mkdir -p "$D/machines" || exit 73
T="$D/mark.$1.$$"
cat >"$T" || exit 73
[ "$(tail -n 1 "$T")" = end ] || { rm -f "$T"; exit 74; }
sync "$T" 2>/dev/null || sync
ln "$T" "$D/mark" 2>/dev/null && R=claimed || R=taken
rm -f "$T"
[ -e "$D/mark" ] || { echo "no link can be made in $D" >&2; exit 73; }
echo "$R"
sed "s/^/mark /" "$D/mark"
"#,
);

/// Whether a program is there. `$1` is the folder's digest, `$2` the program's, `$3` its name.
pub(super) const HAS: Script = Script(
    r#"command -v sha256sum >/dev/null || { echo "there is no sha256sum" >&2; exit 69; }
F="$S/bin/$1/$3"
[ -x "$F" ] && [ "$(sha256sum <"$F" | cut -d " " -f 1)" = "$2" ] && echo has
true
"#,
);

/// Puts a program there, whole or not at all; it comes by standard input. Arguments as [`HAS`].
pub(super) const PUT: Script = Script(
    r#"B="$S/bin/$1"
mkdir -p "$B" || exit 73
T="$B/.$3.$$"
cat >"$T" || { rm -f "$T"; exit 73; }
[ "$(sha256sum <"$T" | cut -d " " -f 1)" = "$2" ] || { rm -f "$T"; echo "other"; exit 0; }
chmod 700 "$T" && mv -f "$T" "$B/$3" || exit 73
echo put
"#,
);

/// Whether the program runs there. Arguments as [`HAS`].
pub(super) const TRY: Script = Script(
    r#""$S/bin/$1/$3" version
"#,
);

/// Starts the agent, detached, unless it runs. `$1` is the request key, `$2` the program's folder, `$3` whether the host has to be
/// marked as ours. Its variables come by standard input: they are secret. What follows are names of variables that a container was
/// handed for itself: whoever logs in there may not have them.
/// That it was started is written down once it is seen: nobody takes it for dead before it lives. A rented machine keeps how it is
/// started again (`again`): whatever runs at its boot runs that.
pub(super) const START: Script = Script(
    r#"M="$D/machines/$1"
[ "$3" = unmarked ] || [ "$(head -n 1 "$D/mark" 2>/dev/null)" = "$1" ] || { echo "the host is not ours any more" >&2; exit 75; }
mkdir -p "$M" || exit 73
[ -n "$(processes "$1/")" ] && { echo runs; exit 0; }
E=
while IFS= read -r L; do
  [ "$L" = end ] && E=yes && break
  export "$L"
done
[ -n "$E" ] || { echo "the variables were cut off" >&2; exit 74; }
export STAGELINE_MACHINE_DIR="$M/agent"
K=$1
B=$2
R=
[ "$3" = unmarked ] && R=again
shift 3
for V in "$@"; do
  eval "[ -n \"\$$V\" ]" && continue
  X=$(tr "\0" "\n" 2>/dev/null </proc/1/environ | sed -n "s/^$V=//p" | head -n 1)
  [ -n "$X" ] && export "$V=$X"
done
P=
command -v setsid >/dev/null && P=setsid
cd "$M" || exit 73
if [ -n "$R" ]; then
  echo "$S/bin/$B/stageline" >program
  for V in "$@"; do echo "$V"; done >variables
  cat >again.new <<"EOS" && mv -f again.new again || exit 73
cd "${0%/*}" || exit 73
while read -r V; do
  eval "[ -n \"\$$V\" ]" && continue
  X=$(tr "\0" "\n" 2>/dev/null </proc/1/environ | sed -n "s/^$V=//p" | head -n 1)
  [ -n "$X" ] && export "$V=$X"
done <variables
export STAGELINE_MACHINE_DIR="$PWD/agent"
P=
command -v setsid >/dev/null && P=setsid
trap "" HUP
$P "$(cat program)" agent --dir "$PWD/agent" >>out 2>&1 </dev/null &
EOS
fi
# Not every busybox has nohup.
trap "" HUP
$P "$S/bin/$B/stageline" agent --boot-env --dir "$M/agent" >>"$M/out" 2>&1 </dev/null &
N=0
while [ -z "$(processes "$K/")" ] && [ $N -lt 30 ]; do
  N=$((N + 1))
  sleep 0.1 2>/dev/null || sleep 1
done
cat /proc/sys/kernel/random/boot_id >"$M/started" || exit 73
echo started
"#,
);

/// The digest of the folder that its agent runs from; nothing where it is none of ours. `$1` is the request key.
pub(super) const RUNS_FROM: Script = Script(
    r#"for F in $(processes "$1/"); do
  readlink "${F%environ}exe" 2>/dev/null
done | sed -n "s|^.*/\([0-9a-f]\{64\}\)/stageline$|\1|p" | head -n 1
"#,
);

/// Ends what runs, removes its folder, and then its mark; says what is left. `$1` is the request key.
pub(super) const END: Script = Script(
    r#"M="$D/machines/$1"
for W in TERM KILL; do
  N=0
  while P=$(processes "$1/"); [ -n "$P" ] && [ $N -lt 50 ]; do
    for F in $P; do Q=${F#/proc/}; kill -$W "${Q%/environ}" 2>/dev/null; done
    N=$((N + 1))
    sleep 0.1 2>/dev/null || sleep 1
  done
done
P=$(processes "$1/")
[ -z "$P" ] || { echo left processes: $P; exit 0; }
rm -rf "$M" || { echo "left $M"; exit 0; }
[ "$(head -n 1 "$D/mark" 2>/dev/null)" = "$1" ] && rm -f "$D/mark"
[ "$(head -n 1 "$D/mark" 2>/dev/null)" = "$1" ] && { echo "left $D/mark"; exit 0; }
rmdir "$D/machines" "$D" 2>/dev/null
echo ended
"#,
);

/// What the agent and its program said. `$1` is the request key, `$2` how many bytes of each.
pub(super) const LOGS: Script = Script(
    r#"M="$D/machines/$1"
tail -c "$2" "$M/agent/agent.log" 2>/dev/null
tail -c "$2" "$M/out" 2>/dev/null
true
"#,
);

impl Script {
    /// The command of the host's shell that runs it with these words.
    pub(super) fn with(self, words: &[&str]) -> String {
        let mut command = format!("exec sh -c '{HEAD}{}' stageline", self.0);
        for word in words {
            debug_assert!(is_plain(word), "`{word}` is not a plain word");
            command.push(' ');
            command.push_str(word);
        }
        command
    }
}

/// A word that no shell reads as anything else.
pub(super) fn is_plain(word: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    !word.is_empty() && word.chars().all(plain)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scripts_can_be_quoted_for_any_shell() {
        let all = [
            LOOK, MEASURE, CLAIM, HAS, PUT, TRY, START, RUNS_FROM, END, LOGS,
        ];
        for text in all.iter().map(|script| script.0).chain([HEAD]) {
            // `!` is history to csh, also in single quotes; a doubled backslash is one to fish.
            for bad in ["'", "!", "\\\\"] {
                assert!(!text.contains(bad), "{bad} in {text}");
            }
            let checked = std::process::Command::new("sh")
                .args(["-n", "-c", text])
                .output();
            let checked = checked.expect("there is a sh");
            assert!(
                checked.status.success(),
                "{}",
                String::from_utf8_lossy(&checked.stderr)
            );
        }
    }

    #[test]
    fn words_stand_behind_the_script() {
        let command = LOGS.with(&["sl-00-g1a1", "4096"]);
        assert!(command.starts_with("exec sh -c '"), "{command}");
        assert!(
            command.ends_with("' stageline sl-00-g1a1 4096"),
            "{command}"
        );
        for word in ["", "a b", "$x", "a;b", "'"] {
            assert!(!is_plain(word), "{word}");
        }
    }
}
