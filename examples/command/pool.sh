#!/bin/sh
# A pool of machines of your own, as a provider of kind `command`: `pool.sh acquire`, `release`, `list`.
#
# A machine is claimed by a link whose target is the lease id: making it is atomic, and it says whose the machine is. Here each
# machine is a folder and an agent on this computer; for a real pool, start the agent on machine number $slot instead, with the
# variables STAGELINE_BOOT_0, _1, ... in its environment, and print where it listens.
#
#   POOL         the folder of the pool       POOL_SLOTS   how many machines it has
set -eu
pool=${POOL:-$PWD/pool}
mkdir -p "$pool/slots"

# The agent of a lease, if it runs: a number alone may be another process's by now.
agent_of() {
    pid=$(cat "$pool/$1/pid" 2>/dev/null) || return 1
    case $(ps -ww -o args= -p "$pid" 2>/dev/null) in *"$1"*) echo "$pid" ;; *) return 1 ;; esac
}

acquire() {
    machine=$pool/$ERRAND_LEASE_ID
    slot=
    for number in $(seq "${POOL_SLOTS:-2}"); do
        if ln -s "$ERRAND_LEASE_ID" "$pool/slots/$number" 2>/dev/null ||
            [ "$(readlink "$pool/slots/$number")" = "$ERRAND_LEASE_ID" ]; then
            slot=$number
            break
        fi
    done
    # 75 says that there is none left: another offer may do.
    [ -n "$slot" ] || { echo "all ${POOL_SLOTS:-2} machines of the pool are taken" >&2; exit 75; }
    echo "machine $slot is claimed" >&2
    mkdir -p "$machine"
    # By this name `list` tells whose it is, on any computer.
    echo "$STAGELINE_NAME" >"$machine/name"
    nohup stageline agent --boot-env --listen 127.0.0.1:0 --dir "$machine/agent" \
        >"$machine/log" 2>&1 </dev/null &
    echo $! >"$machine/pid"
    until [ -s "$machine/agent/agent.addr" ]; do
        kill -0 $! 2>/dev/null || { tail -n 5 "$machine/log" >&2; exit 1; }
        sleep 0.1
    done
    address=$(tr -d ' \n' <"$machine/agent/agent.addr" | sed 's/.*"direct":\["\([^"]*\)".*/\1/')
    printf '{"agent": "%s", "slot": %s}\n' "$address" "$slot"
}

# Twice, or for a machine that never came to be: it succeeds.
release() {
    if pid=$(agent_of "$ERRAND_LEASE_ID"); then
        kill "$pid" 2>/dev/null || true
        tries=0
        while agent_of "$ERRAND_LEASE_ID" >/dev/null; do
            tries=$((tries + 1))
            [ "$tries" -lt 50 ] || kill -9 "$pid" 2>/dev/null || true
            [ "$tries" -lt 100 ] || { echo "process $pid does not end"; exit 1; }
            sleep 0.1
        done
    fi
    rm -rf "${pool:?}/$ERRAND_LEASE_ID"
    for link in "$pool"/slots/*; do
        [ "$(readlink "$link" || true)" != "$ERRAND_LEASE_ID" ] || rm "$link"
    done
}

list() {
    printf '['
    comma=
    for link in "$pool"/slots/*; do
        lease=$(readlink "$link") || continue
        if agent_of "$lease" >/dev/null; then status=running; else status=dead; fi
        name=$(cat "$pool/$lease/name" 2>/dev/null || true)
        printf '%s{"lease": "%s", "name": "%s", "status": "%s"}' "$comma" "$lease" "$name" "$status"
        comma=,
    done
    printf ']\n'
}

case ${1:-} in
acquire | release | list) "$1" ;;
*) echo "usage: pool.sh acquire|release|list" >&2; exit 64 ;;
esac
