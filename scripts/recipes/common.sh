# Shared by every recipe: stages that survive a kill.
#
# A recipe sets WORK (its folder of results) and calls
#   stage  NAME COMMAND...   COMMAND writes into $OUT, a fresh folder; $OUT becomes $WORK/NAME once COMMAND succeeded.
#   resume NAME COMMAND...   the same, but what an interrupted try left in $OUT is kept (training continues from its checkpoint).
# A stage whose folder $WORK/NAME exists is done and is skipped; delete the folder to redo it. Where it was made with other
# settings than it would be made with now, or from a stage that was, it is moved aside and made anew (KEEP=1: kept).
# Sourced, not executed: the recipe itself starts with `set -euo pipefail`.

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
PYTHON="${PYTHON:-$ROOT/.venv/bin/python}"
BIN=$(dirname "$PYTHON")
USER_DIR="$ROOT/fairseq_aggdec"
export PYTHONPATH="$ROOT${PYTHONPATH:+:$PYTHONPATH}" # python -m scripts.recipes...

aggdec() { "$PYTHON" -m fairseq_aggdec.cli.main "$@"; }
say() { printf '[%(%H:%M:%S)T] %s\n' -1 "$*" >&2; }
die() { printf 'error: %s\n' "$*" >&2; exit 2; }

# Variables that say where and on what a stage runs, not what comes out.
NO_SETTINGS=' OUT WORK ROOT PYTHON BIN USER_DIR DEVICE_FLAGS PRECISION_FLAGS GPUS BF16 WORKERS '

# called COMMAND: the text of a function and of those that it calls, each once, without the programs in other languages that they
# hold (between <<'PYTHON' and PYTHON), whose words are no commands.
called() {
    local -A seen=()
    local waiting=("$1") functions line=$'\n' name body other called
    mapfile -t functions < <(compgen -A function)
    while [ "${#waiting[@]}" -gt 0 ]; do
        name=${waiting[0]} waiting=("${waiting[@]:1}")
        [ -z "${seen[$name]:-}" ] && body=$(declare -f "$name" | sed "/<<'PYTHON'/,/^PYTHON\$/{/<<'PYTHON'/!d}") || continue
        seen[$name]=1
        printf '%s\n' "$body"
        for other in "${functions[@]}"; do
            called="($line|[;&|(!]|then|do|else|if) *$other( |;|\\)|$line)"
            if [[ $line$body$line =~ $called ]]; then waiting+=("$other"); fi # a grep for each would take seconds
        done
    done
}

# settings NAME COMMAND...: what a stage depends on: its arguments, the variables that it reads, and the other stages whose folders
# these name.
settings() {
    local name=$1 body found stage
    shift
    body=$(called "$1")
    found=$(printf '%s\n' "$*"; values "$body"; folders "$body")
    for stage in $(grep -oE "$WORK/[^/ \"')]+" <<<"$found" | sort -u); do
        stage=${stage##*/}
        [ "$stage" = "$name" ] || [ ! -e "$WORK/.settings/$stage" ] || printf 'stage %s %s\n' "$stage" "$(cksum < "$WORK/.settings/$stage")"
    done
    # As many tokens an update on any number of GPUs: the number of passes is no setting.
    found=${found//$WORK/WORK}
    sed -E 's/--update-freq"?( "?|" ")[0-9]+//g' <<<"${found//$ROOT/ROOT}"
}

# values TEXT: the variables that a function's text reads, with what they hold.
values() {
    local variable
    for variable in $(grep -oE '\$\{?[A-Z][A-Z0-9_]+' <<<"$1" | tr -d '${' | sort -u); do
        case $NO_SETTINGS in *" $variable "*) ;; *) declare -p "$variable" 2>/dev/null | sed 's/^declare -[^ ]* //' || true ;; esac
    done
}

# folders TEXT: those of WORK that a function's text names, "$WORK/NAME-$PAIR" written out.
folders() {
    local folder
    for folder in $(grep -oE '\$WORK/[A-Za-z0-9_.+${}-]+' <<<"$1" | sort -u); do
        (eval "echo \"$folder\"") 2>/dev/null || true
    done
}

# unchanged NAME COMMAND...: the stage was made with the settings of today, or nobody wrote down with which.
unchanged() {
    local record=$WORK/.settings/$1
    [ ! -e "$record" ] || [ "$(cat "$record")" = "$(settings "$@")" ]
}

# fresh NAME COMMAND...: moves $WORK/NAME aside if it was made with other settings; writes down those of today.
fresh() {
    local name=$1 made aside; shift
    for made in "$WORK/$name" "$WORK/$name.partial"; do
        [ -e "$made" ] && ! unchanged "$name" "$@" || continue
        if [ "${KEEP:-0}" = 1 ]; then say "stage $name: made with other settings; kept, as KEEP=1 says"; return; fi
        aside=$made.before-$(date +%Y%m%d-%H%M%S)
        say "stage $name: made with other settings, see below; made anew, and what was there is in $aside"
        diff "$WORK/.settings/$name" <(settings "$name" "$@") | grep '^[<>]' | cut -c1-300 >&2 || true
        mv "$made" "$aside"
    done
    mkdir -p "$WORK/.settings"
    settings "$name" "$@" > "$WORK/.settings/$name"
}

resume() {
    local name=$1; shift
    fresh "$name" "$@"
    if [ -d "$WORK/$name" ]; then say "stage $name: done already, kept"; return; fi
    OUT="$WORK/$name.partial"
    mkdir -p "$OUT"
    say "stage $name: start"
    "$@"
    mv "$OUT" "$WORK/$name"
    say "stage $name: done"
}

stage() {
    fresh "$@"
    [ -d "$WORK/$1" ] || rm -rf "${WORK:?}/$1.partial"
    resume "$@"
}

# devices: sets GPUS (those PyTorch finds), DEVICE_FLAGS (--cpu where there is none), PRECISION_FLAGS (--fp16; --amp on a CPU
# with AMX, as PyTorch compiles every new shape of a bfloat16 product, which costs other CPUs more than it saves) and BF16 (1; 0
# on a CPU that does not multiply bfloat16) unless they are set.
devices() {
    [ -n "${GPUS:-}" ] || GPUS=$("$PYTHON" -c 'import torch; print(torch.cuda.device_count())')
    if [ "$GPUS" -gt 0 ]; then
        DEVICE_FLAGS=${DEVICE_FLAGS:-} PRECISION_FLAGS=${PRECISION_FLAGS---fp16}
    else
        DEVICE_FLAGS=${DEVICE_FLAGS---cpu}
        if grep -qw amx_bf16 /proc/cpuinfo 2>/dev/null; then PRECISION_FLAGS=${PRECISION_FLAGS---amp}; fi
        if [ -r /proc/cpuinfo ] && ! grep -qwE 'avx512_bf16|amx_bf16|bf16' /proc/cpuinfo; then BF16=${BF16:-0}; fi
        PRECISION_FLAGS=${PRECISION_FLAGS-}
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
    aggdec average-checkpoints --output "$OUT/model.pt" "${checkpoints[@]}"
}

# untrained DATA FLAG...: a checkpoint of translation_aggdec after one update.
untrained() {
    # shellcheck disable=SC2086  # the flags are a list
    "$BIN/fairseq-train" "$@" --user-dir "$USER_DIR" --task translation_aggdec $DEVICE_FLAGS --seed 1 \
        --criterion label_smoothed_cross_entropy --optimizer sgd --lr 1e-6 --max-tokens 400 --max-update 1 --num-workers 0 \
        --required-batch-size-multiple 1 --disable-validation --no-epoch-checkpoints --save-dir "$OUT" --log-format simple
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
