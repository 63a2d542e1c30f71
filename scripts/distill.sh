#!/usr/bin/env bash
# Sequence-level distillation: DATA with the targets of its training set replaced by what a teacher writes, as a data
# folder OUTPUT for fairseq-train.
#
#   scripts/distill.sh DATA OUTPUT --path teacher.pt [options of fairseq-generate, of the plugin and of distill.py]
#
# One process per visible GPU, or PROCESSES on the CPU (1). Kill it when you like: the same command goes on.
# Several machines with OUTPUT in a shared folder: the same command on each, with SHARDS, the processes on all of them, and
# FIRST, the processes on the machines before this one; the last machine to finish makes the data folder.
#
#   SHARDS=12 FIRST=0 scripts/distill.sh ...     on a machine with 8 GPUs
#   SHARDS=12 FIRST=8 scripts/distill.sh ...     on one with 4
#
# Environment: PROCESSES, SHARDS, FIRST, PYTHON (.venv/bin/python of the checkout), OMP_NUM_THREADS (cores / PROCESSES).
set -euo pipefail

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
PYTHON=${PYTHON:-$ROOT/.venv/bin/python}
say() { printf 'distill: %s\n' "$*" >&2; }
die() { printf 'error: %s\n' "$*" >&2; exit 2; }

[ "$#" -ge 2 ] && [ "${1#-}" = "$1" ] && [ "${2#-}" = "$2" ] ||
    die "usage: scripts/distill.sh DATA OUTPUT --path teacher.pt [options]"
DATA=$1
OUTPUT=$2
shift 2

# The GPUs by the names that CUDA_VISIBLE_DEVICES takes; none with --cpu.
visible_gpus() {
    case " $* " in *" --cpu "*) return ;; esac
    if [ -n "${CUDA_VISIBLE_DEVICES+set}" ]; then
        tr , '\n' <<<"$CUDA_VISIBLE_DEVICES" | sed '/^\(-1\)\{0,1\}$/d'
    else
        "$PYTHON" -c 'import torch; print(*range(torch.cuda.device_count()), sep="\n")'
    fi
}

mapfile -t GPUS < <(visible_gpus "$@" | sed '/^$/d')
if [ "${#GPUS[@]}" -gt 0 ]; then PROCESSES=${PROCESSES:-${#GPUS[@]}}; else PROCESSES=${PROCESSES:-1}; fi
FIRST=${FIRST:-0}
SHARDS=${SHARDS:-$((FIRST + PROCESSES))}
CORES=$(getconf _NPROCESSORS_ONLN)
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-$((CORES > PROCESSES ? CORES / PROCESSES : 1))}
export PYTHONPATH="$ROOT${PYTHONPATH:+:$PYTHONPATH}"

distill() { "$PYTHON" "$ROOT/scripts/distill.py" "$DATA" --output "$OUTPUT" "$@"; }

# What one process prints goes to the terminal, what several print to files.
start() {
    local shard=$1 log=$2
    shift 2
    [ "${#GPUS[@]}" = 0 ] || export CUDA_VISIBLE_DEVICES=${GPUS[$(((shard - FIRST) % ${#GPUS[@]}))]}
    [ "$PROCESSES" = 1 ] || exec >"$log" 2>&1
    exec "$PYTHON" "$ROOT/scripts/distill.py" "$DATA" --output "$OUTPUT" "$@" \
        --distributed-world-size "$SHARDS" --distributed-rank "$shard"
}

PIDS=()
stop() { trap - INT TERM; say "stopped; the same command goes on"; kill "${PIDS[@]}" 2>/dev/null || true; exit 130; }
trap stop INT TERM

mkdir -p "$OUTPUT/shards"
for ((shard = FIRST; shard < FIRST + PROCESSES; shard++)); do
    start "$shard" "$OUTPUT/shards/$shard.log" "$@" &
    PIDS+=("$!")
done
[ "$PROCESSES" = 1 ] || say "$PROCESSES processes; progress: tail -f $OUTPUT/shards/*.log"

FAILED=()
for index in "${!PIDS[@]}"; do
    wait "${PIDS[$index]}" || FAILED+=("$((FIRST + index))")
done
for shard in "${FAILED[@]+"${FAILED[@]}"}"; do
    say "shard $shard of $SHARDS failed"
    [ "$PROCESSES" = 1 ] || { say "the end of $OUTPUT/shards/$shard.log:"; tail -n 5 "$OUTPUT/shards/$shard.log" >&2; }
done
if [ "${#FAILED[@]}" -gt 0 ]; then
    die "${#FAILED[@]} of $PROCESSES processes failed; once the reason is gone, the same command goes on where they stopped"
fi

# Status 3: other machines are not done yet.
status=0
distill "$@" --merge || status=$?
if [ "$status" = 3 ] && [ "$SHARDS" -gt "$PROCESSES" ]; then
    say "the machine that finishes last makes the data folder"
    exit 0
fi
exit "$status"
