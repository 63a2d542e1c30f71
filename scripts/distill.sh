#!/usr/bin/env bash
# Sequence-level distillation: DATA with the targets of its training set replaced by what a teacher writes, as a data
# folder OUTPUT for fairseq-train.
#
#   scripts/distill.sh DATA OUTPUT --path teacher.pt [options of fairseq-generate, of the plugin and of aggdec distill]
#
# One process per visible GPU, or PROCESSES on the CPU (1); one where torchrun or srun start the processes. Several machines with
# OUTPUT in a shared folder: the same command on each, at any time. Kill what you like: the same command goes on. The process that
# ends last makes the data folder.
#
# Environment: PROCESSES, PYTHON (.venv/bin/python of the checkout), OMP_NUM_THREADS (cores / PROCESSES).
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

GPUS=()
if [ -n "${LOCAL_RANK:-}${SLURM_STEP_ID:-}" ]; then
    PROCESSES=${PROCESSES:-1}
else
    mapfile -t GPUS < <(visible_gpus "$@" | sed '/^$/d')
    PROCESSES=${PROCESSES:-$((${#GPUS[@]} > 0 ? ${#GPUS[@]} : 1))}
fi
[[ $PROCESSES =~ ^[1-9][0-9]{0,4}$ ]] || die "PROCESSES=$PROCESSES is no number of processes"
[ -z "${SHARDS:-}${FIRST:-}" ] ||
    die "SHARDS and FIRST are not needed any more: start the same command on every machine"
CORES=$(nproc)
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-$((CORES > PROCESSES ? CORES / PROCESSES : 1))}
export PYTHONPATH="$ROOT${PYTHONPATH:+:$PYTHONPATH}"

distill() { exec "$PYTHON" -m fairseq_aggdec.cli.main distill "$DATA" --output "$OUTPUT" "$@"; }

# aggdec distill says more, but after it has started; and the logs must not be written into somebody's data folder.
[ ! "$OUTPUT" -ef "$DATA" ] || die "OUTPUT $OUTPUT is DATA, whose training set would be lost: name a new folder"
[ -d "$OUTPUT/shards" ] || [ -z "$(ls -A "$OUTPUT" 2>/dev/null)" ] ||
    die "OUTPUT $OUTPUT holds files that distillation did not write: name a new folder"
[ "$PROCESSES" -gt 1 ] || distill "$@"

PIDS=()
stop() { trap - INT TERM; say "stopped; the same command goes on"; kill "${PIDS[@]}" 2>/dev/null || true; exit 130; }
trap stop INT TERM
LOGS=$OUTPUT/shards/$HOSTNAME.$$
mkdir -p "$OUTPUT/shards"
for ((number = 0; number < PROCESSES; number++)); do
    (
        [ "${#GPUS[@]}" = 0 ] || export CUDA_VISIBLE_DEVICES=${GPUS[$((number % ${#GPUS[@]}))]}
        distill "$@" >"$LOGS.$number.log" 2>&1
    ) &
    PIDS+=("$!")
done
say "$PROCESSES processes; progress: tail -f $LOGS.*.log"

FAILED=()
for number in "${!PIDS[@]}"; do
    wait "${PIDS[$number]}" || FAILED+=("$number")
done
for number in "${FAILED[@]+"${FAILED[@]}"}"; do
    say "process $number failed; the end of $LOGS.$number.log:"
    tail -n 5 "$LOGS.$number.log" >&2
done
if [ "${#FAILED[@]}" -gt 0 ]; then
    die "${#FAILED[@]} of $PROCESSES processes failed; once the reason is gone, the same command goes on where they stopped"
fi
grep -hE '^[^ ]+: [0-9]+ of [0-9]+ pairs kept|is made already$' "$LOGS".*.log
