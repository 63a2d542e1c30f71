#!/usr/bin/env bash
# Interleaved decoding where most is copied: Ukrainian error correction, on the data and the model of ua_gec.sh.
#
#   scripts/recipes/interleaved/interleaved_ua_gec.sh        trains GEOMETRIES, then tables of speed and of corrections
#
# A model begins as that of ua_gec.sh and learns to write from both ends on its synthetic errors, then on the real ones. Killed
# at any moment, the same command goes on.
# Environment: WORK (work/ua_gec), GEOMETRIES (2x1; as in interleaved_multi30k.sh), PRETRAIN_UPDATES (1000), MAX_UPDATE (300),
# BEAMS (4 1), TABLE_FLAGS (more for aggdec bench), DEVICE_FLAGS (--cpu where there is no GPU), PRECISION_FLAGS (--fp16,
# on a CPU with AMX --amp: half precision in training), BF16 (1: the table holds every system in bfloat16 too; 0),
# SEED (1), OUTPUT (docs/results/interleaved-ua_gec).
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/../common.sh"
. "$(dirname "${BASH_SOURCE[0]}")/interleaved_settings.sh"

WORK=${WORK:-$ROOT/work/ua_gec}
GEOMETRIES=${GEOMETRIES-2x1}
PRETRAIN_UPDATES=${PRETRAIN_UPDATES:-1000}
MAX_UPDATE=${MAX_UPDATE:-300}
BEAMS=${BEAMS:-4 1}
TABLE_FLAGS=${TABLE_FLAGS:-}
SEED=${SEED:-1}
devices
OUTPUT=${OUTPUT:-$ROOT/docs/results/interleaved-ua_gec}
BASE=$WORK/model/checkpoint.pt

check_each GEOMETRIES geometry "$GEOMETRY" "$GEOMETRY_FORM"
[ -e "$BASE" ] || die "$BASE is missing: run scripts/recipes/aggressive/ua_gec.sh first"

# learn GEOMETRY DATA UPDATES FLAG...
learn() {
    local directions=${1%x*} words=${1#*x} data=$2 updates=$3; shift 3
    # shellcheck disable=SC2086  # the flags are lists
    "$BIN/fairseq-train" "$data" --user-dir "$USER_DIR" --task translation_aggdec $DEVICE_FLAGS $PRECISION_FLAGS --seed "$SEED" \
        --arch interleaved_transformer --directions "$directions" --words-per-direction "$words" --dropout 0.1 "$@" \
        --criterion label_smoothed_cross_entropy --label-smoothing 0.1 \
        --optimizer adam --adam-betas '(0.9, 0.98)' --clip-norm 1.0 \
        --lr-scheduler polynomial_decay --total-num-update "$updates" --max-update "$updates" --warmup-updates 50 \
        --max-tokens 4000 --required-batch-size-multiple 1 --num-workers 0 \
        --save-dir "$OUT" --save-interval-updates 100 --validate-interval-updates 250 --validate-interval 1000000 \
        --keep-interval-updates 2 --no-epoch-checkpoints \
        --log-format simple --log-interval 50 2>&1 | tee -a "$OUT/train.log"
}

for geometry in $GEOMETRIES; do
    resume "interleaved-$geometry-pretrain" learn "$geometry" "$WORK/pretrain-data" "$PRETRAIN_UPDATES" \
        --base-checkpoint "$BASE" --lr 0.001
    resume "interleaved-$geometry" learn "$geometry" "$WORK/data" "$MAX_UPDATE" --base-checkpoint "$BASE" \
        --finetune-from-model "$WORK/interleaved-$geometry-pretrain/checkpoint_last.pt" --lr 0.0005
done

first=${BEAMS%% *}
BASELINES=("fairseq beam 4" "ours, beam $first" "ours, IAD")
SYSTEMS=(--system "fairseq beam 4=--decoding stock --beam 4" --system "fairseq beam 1=--decoding stock --beam 1"
    --system "ours, beam $first=--decoding beam --beam $first" --system "ours, IAD=--decoding iad --beam 1")
for beam in $BEAMS; do
    for folder in "$WORK"/interleaved-*x*/; do
        case $folder in *-pretrain/) continue ;; esac
        [ -e "$folder/checkpoint_last.pt" ] || continue
        SYSTEMS+=(--system "$(basename "$folder"), beam $beam=--decoding interleaved --beam $beam
            --path ${folder}checkpoint_last.pt")
    done
done
in_bf16 "ours, beam $first" "ours, IAD"
texts=$(mktemp -d)
trap 'rm -rf "$texts"' EXIT
# shellcheck disable=SC2086
aggdec bench "$WORK/data" --path "$BASE" --gen-subset test --batch-sizes 1 --post-process sentencepiece $DEVICE_FLAGS \
    "${SYSTEMS[@]}" --baselines "${BASELINES[@]}" --title "Interleaved decoding on UA-GEC" --hypotheses "$texts" \
    --output "$OUTPUT" $TABLE_FLAGS
hypotheses=("source=$WORK/text/test.src")
for file in "$texts"/*.txt; do hypotheses+=("$(basename "$file" .txt)=$file"); done
{
    printf '\nCorrections (P, R and F0.5 over token edits, two annotators), as scored by scripts.recipes.aggressive.gec_score:\n\n'
    "$PYTHON" -m scripts.recipes.aggressive.gec_score --source "$WORK/text/test.src" \
        --references "$WORK/text/test.tgt" "$WORK/text/test.tgt2" --hypothesis "${hypotheses[@]}" \
        --subword-model "$WORK/subwords/spm.model"
} >> "$OUTPUT.md"
