# Shared by every recipe: stages that survive a kill.
#
# A recipe sets WORK (its folder of results) and calls
#   stage  NAME COMMAND...   COMMAND writes into $OUT, a fresh folder; $OUT becomes $WORK/NAME once COMMAND succeeded.
#   resume NAME COMMAND...   the same, but what an interrupted try left in $OUT is kept (training continues from its checkpoint).
# A stage whose folder $WORK/NAME exists is done and is skipped; delete the folder to redo it.
# Sourced, not executed: the recipe itself starts with `set -euo pipefail`.

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
PYTHON="${PYTHON:-$ROOT/.venv/bin/python}"
BIN=$(dirname "$PYTHON")
USER_DIR="$ROOT/fairseq_aggdec"

say() { printf '[%(%H:%M:%S)T] %s\n' -1 "$*" >&2; }
die() { printf 'error: %s\n' "$*" >&2; exit 2; }

resume() {
    local name=$1; shift
    if [ -d "$WORK/$name" ]; then say "stage $name: done already, kept"; return; fi
    OUT="$WORK/$name.partial"
    mkdir -p "$OUT"
    say "stage $name: start"
    "$@"
    mv "$OUT" "$WORK/$name"
    say "stage $name: done"
}

stage() {
    [ -d "$WORK/$1" ] || rm -rf "${WORK:?}/$1.partial"
    resume "$@"
}

# devices: sets GPUS (those PyTorch finds), DEVICE_FLAGS (--cpu where there is none), PRECISION_FLAGS (--fp16; on a CPU that
# multiplies bfloat16 --amp) and BF16 (1; 0 on a CPU that does not multiply it) unless they are set.
devices() {
    [ -n "${GPUS:-}" ] || GPUS=$("$PYTHON" -c 'import torch; print(torch.cuda.device_count())')
    if [ "$GPUS" -gt 0 ]; then
        DEVICE_FLAGS=${DEVICE_FLAGS:-} PRECISION_FLAGS=${PRECISION_FLAGS---fp16}
    else
        DEVICE_FLAGS=${DEVICE_FLAGS---cpu}
        if [ ! -r /proc/cpuinfo ] || grep -qwE 'avx512_bf16|amx_bf16|bf16' /proc/cpuinfo; then
            PRECISION_FLAGS=${PRECISION_FLAGS---amp}
        else
            PRECISION_FLAGS=${PRECISION_FLAGS-} BF16=${BF16:-0}
        fi
    fi
    BF16=${BF16:-1}
}

# update_freq N GPUS: N on the paper's number of GPUs, and as many tokens an update on another.
update_freq() { printf '%s' $((($1 * $2 + (GPUS > 0 ? GPUS : 1) - 1) / (GPUS > 0 ? GPUS : 1))); }

# average TRAINED N: the last N checkpoints of epochs (or, without these, of updates), or the last one of a shorter run.
average() {
    local checkpoints
    mapfile -t checkpoints < <(find "$1" -name 'checkpoint[0-9]*.pt' | sort -V | tail -n "$2")
    [ "${#checkpoints[@]}" -gt 0 ] || mapfile -t checkpoints < <(find "$1" -name 'checkpoint_*_*.pt' | sort -V | tail -n "$2")
    # The last of several may be younger than the last that has a number.
    [ "${#checkpoints[@]}" -gt 1 ] || checkpoints=("$1/checkpoint_last.pt")
    "$PYTHON" "$ROOT/scripts/average_checkpoints.py" --output "$OUT/model.pt" "${checkpoints[@]}"
}

# generate FLAG...: fairseq-generate, with its command, output and log in $OUT.
generate() {
    printf '%s ' fairseq-generate "$@" > "$OUT/command.txt"
    "$BIN/fairseq-generate" "$@" > "$OUT/generate.txt" 2> "$OUT/log.txt" || { tail -n 20 "$OUT/log.txt" >&2; return 1; }
}

# checksum PART FILE: the SHA-256 of a download is that of CHECKSUMS (a file of sha256sum with names of files, yours) or of
# SHA256SUMS beside FILE, where the first download of every file is written down: what changed upstream is not mixed in.
checksum() {
    local sum name known list notes
    name=$(basename "$2") notes=$(dirname "$2")/SHA256SUMS
    read -r sum _ < <(sha256sum "$1")
    for list in "${CHECKSUMS:-}" "$notes"; do
        [ -n "$list" ] && [ -e "$list" ] || continue
        known=$(awk -v name="$name" '$2 == name || $2 == "*" name { print $1; exit }' "$list")
        [ -z "$known" ] || [ "$known" = "$sum" ] ||
            die "$1 has the SHA-256 $sum, not $known as $list says: delete it and download anew, or mend $list"
        [ -z "$known" ] || return 0
    done
    printf '%s  %s\n' "$sum" "$name" >> "$notes"
}

# fetch FILE URL: an archive that was cut short goes on where it stopped, and is read to its end before it counts.
fetch() {
    local part=$1.partial check=("$PYTHON" "$ROOT/scripts/recipes/wmt_steps.py" check "$1.partial") continue=()
    [ ! -e "$1" ] || return 0
    mkdir -p "$(dirname "$1")"
    case $1 in *gz | *.tar | *.zip) continue=(-C -) ;; *) check=(true) ;; esac
    if [ ! -e "$part" ] || [ "${check[0]}" = true ] || ! "${check[@]}" 2>/dev/null; then
        say "download $2"
        curl -fL --retry 5 --no-progress-meter "${continue[@]}" -o "$part" "$2" ||
            die "$2 cannot be downloaded; put $(basename "$1") into $(dirname "$1")"
        "${check[@]}" || exit 1 # also in a subshell, where set -e does not hold
    fi
    checksum "$part" "$1"
    mv "$part" "$1"
}

# in_bf16 BASELINE...: SYSTEMS, which holds --system NAME=OPTIONS ..., holds each again with --bf16 and a name that says so, and
# BASELINES these of them too; not with BF16=0.
in_bf16() {
    local item again=()
    [ "$BF16" != 0 ] || return 0
    for item in "${SYSTEMS[@]}"; do
        [ "$item" = --system ] || again+=(--system "${item%%=--*}, bf16=--${item#*=--} --bf16")
    done
    SYSTEMS+=("${again[@]}") BASELINES+=("${@/%/, bf16}")
}
