#!/usr/bin/env bash
# Interleaved bidirectional decoding on Multi30k (Zhang et al. 2020) at a small size, on the model of multi30k.sh.
#
#   scripts/recipes/interleaved/interleaved_multi30k.sh      trains GEOMETRIES x SETTINGS x LAYERS, then the table of all that is trained
#
# A geometry is DIRECTIONSxWORDS: 1x1 Transformer, 2x1 IBDecoder, 2x2 IBDecoder + SA, 4x1 IMDecoder, 1x2 vanilla SA. Killed at
# any moment, the same command goes on.
# Environment: GEOMETRIES (2x1 2x2), SETTINGS (distilled raw; empty: only the table), LAYERS (3, of the decoder; 2 as well:
# students), ABLATIONS (none; vanilla-mask vanilla-positions middle-to-side independent-directions, Table 2 of the paper;
# one-by-one, for Table 3), START (warm: begin as the model of multi30k.sh; scratch: not, in folders of their own),
# MAX_UPDATE (1500), LR (0.001), BEAMS (4 1), OUTPUT
# (docs/results/interleaved-multi30k), and what multi30k_common.sh lists.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/../multi30k_common.sh"
. "$(dirname "${BASH_SOURCE[0]}")/interleaved_settings.sh"

GEOMETRIES=${GEOMETRIES:-2x1 2x2}
SETTINGS=${SETTINGS-distilled raw}
LAYERS=${LAYERS:-3}
MAX_UPDATE=${MAX_UPDATE:-1500}
LR=${LR:-0.001}
ABLATIONS=${ABLATIONS:-}
BEAMS=${BEAMS:-4 1}
check_each GEOMETRIES geometry "$GEOMETRY" "$GEOMETRY_FORM"
check_choices ABLATIONS ablation "$ABLATION_NAMES"
check_choices SETTINGS setting "raw distilled"
case ${START:=warm} in
    warm) BEGIN=(--base-checkpoint "$BASE") SUFFIX="" ;;
    scratch) BEGIN=() SUFFIX=-scratch ;;
    *) die "unknown START '$START' (choose from: warm scratch)" ;;
esac
need_base

# train GEOMETRY SETTING LAYERS [FLAG...]
train() {
    local directions=${1%x*} words=${1#*x} setting=$2 layers=$3
    shift 3
    # shellcheck disable=SC2086
    "$BIN/fairseq-train" "$(data_of "$setting")" --user-dir "$USER_DIR" --task translation_aggdec $DEVICE_FLAGS \
        $PRECISION_FLAGS --seed "$SEED" \
        --arch interleaved_transformer --directions "$directions" --words-per-direction "$words" \
        $MODEL_FLAGS --decoder-layers "$layers" --share-all-embeddings --dropout 0.2 "$@" "${BEGIN[@]}" \
        --criterion label_smoothed_cross_entropy --label-smoothing 0.1 \
        --optimizer adam --adam-betas '(0.9, 0.98)' --clip-norm 1.0 --weight-decay 0.0001 \
        --lr "$LR" --lr-scheduler polynomial_decay --warmup-updates 200 --total-num-update "$MAX_UPDATE" \
        --max-tokens 4000 --required-batch-size-multiple 1 --max-update "$MAX_UPDATE" --num-workers 0 \
        --save-dir "$OUT" --save-interval-updates 250 --validate-interval-updates 250 --validate-interval 1000000 \
        --keep-interval-updates 2 --no-epoch-checkpoints \
        $FLAGS --log-format simple --log-interval 50 2>&1 | tee -a "$OUT/train.log"
}

for setting in $SETTINGS; do
    [ "$setting" != distilled ] || distil
    for layers in $LAYERS; do
        for geometry in $GEOMETRIES; do
            resume "interleaved-$geometry-$setting-$layers$SUFFIX-$PAIR" train "$geometry" "$setting" "$layers"
        done
        for ablation in $ABLATIONS; do
            resume "interleaved-$ablation-2x1-$setting-$layers$SUFFIX-$PAIR" train 2x1 "$setting" "$layers" "--$ablation"
        done
    done
done

first=${BEAMS%% *}
BASELINES=("fairseq beam 4" "ours, beam $first" "ours, greedy")
SYSTEMS=(--system "fairseq beam 4=--decoding stock --beam 4" --system "fairseq beam 1=--decoding stock --beam 1"
    --system "ours, beam $first=--decoding beam --beam $first" --system "ours, greedy=--decoding greedy --beam 1")
for folder in "$WORK"/interleaved*-"$PAIR"/; do
    [ -e "$folder/checkpoint_last.pt" ] || continue
    name=$(basename "$folder" "-$PAIR")
    for beam in $BEAMS; do
        SYSTEMS+=(--system "$name, beam $beam=--decoding interleaved --beam $beam --path ${folder}checkpoint_last.pt")
    done
done
in_bf16 "ours, beam $first" "ours, greedy"
compare --title "Interleaved decoding on Multi30k $PAIR" --output "${OUTPUT:-$ROOT/docs/results/interleaved-multi30k}"
