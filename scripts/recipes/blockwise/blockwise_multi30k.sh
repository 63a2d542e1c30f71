#!/usr/bin/env bash
# Blockwise parallel decoding on Multi30k: Table 1 of Stern et al. at a small size, on the model of multi30k.sh.
#
#   scripts/recipes/blockwise/blockwise_multi30k.sh            the grid of SETTINGS x BLOCK_SIZES, then the table of all that is trained
#
# Settings, as in the paper: regular (base frozen), distillation (frozen, distilled data), fine-tuning (base trained on),
# both. The base of distillation and both is the verifier of gad_multi30k.sh, trained on distilled data, and the data is what
# it writes. Killed at any moment, the same command goes on.
# Environment: SETTINGS (all four; empty: only the table), BLOCK_SIZES (8 4; the paper's are 1 2 4 6 8 10, and 1 of a frozen
# base is the base), VERIFIER, VERIFIER_UPDATE, SAMPLED (as in gad_multi30k.sh), MAX_UPDATE (5000), LR (0.001, a base that is trained on 0.0003),
# HEAD_LAYOUT (per-head), HEAD_FLAGS (more for the heads: --head-hidden-dim 256), NAME (put behind the settings' names: with
# HEAD_LAYOUT=dense NAME=-dense, both-dense/8 stands beside both/8), HEAD_LOSS (mean: as many updates as fit in little time),
# HEAD_DECAY (0.8: near heads, on which the others depend, count more), MAX_TOKENS (2000, of a minibatch), PAPER (1: dense heads,
# one of them drawn per minibatch, each as often, head 1 of a frozen base too; one LR, and the last checkpoint of every model,
# so that all have as many updates; 0), ANALYSES (none), OUTPUT
# (docs/results/blockwise-multi30k), and what multi30k_common.sh lists.
#
# ANALYSES come last, each made once (delete its .json, or the .html, to make it anew):
#   audit   equality of every model with stock --beam 1, of a frozen base with that of the base checkpoint
#   trace   three sentences step by step, of the largest model of the setting both (section 7.4)
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/../multi30k_common.sh"
need_base

SETTINGS=${SETTINGS-regular distillation fine-tuning both}
BLOCK_SIZES=${BLOCK_SIZES:-8 4}
MAX_UPDATE=${MAX_UPDATE:-5000}
MAX_TOKENS=${MAX_TOKENS:-2000}
CHECKPOINT=checkpoint_best.pt FIRST_HEAD=(--identity-first-head)
if [ "${PAPER:=0}" = 1 ]; then
    HEAD_LAYOUT=${HEAD_LAYOUT:-dense} HEAD_LOSS=${HEAD_LOSS:-sample} HEAD_DECAY=${HEAD_DECAY:-1} LR=${LR:-0.001}
    CHECKPOINT=checkpoint_last.pt FIRST_HEAD=()
fi
HEAD_LAYOUT=${HEAD_LAYOUT:-per-head}
HEAD_LOSS=${HEAD_LOSS:-mean}
HEAD_DECAY=${HEAD_DECAY:-0.8}
HEAD_FLAGS=${HEAD_FLAGS:-}
NAME=${NAME:-}
ANALYSES=${ANALYSES:-}
OUTPUT=${OUTPUT:-$ROOT/docs/results/blockwise-multi30k}

for analysis in $ANALYSES; do
    case $analysis in
        audit | trace) ;;
        *) die "unknown analysis '$analysis' in ANALYSES (choose from: audit trace)" ;;
    esac
done

train() {
    local setting=$1 block_size=$2 data=$DATA base=$BASE flags=()
    local frozen=(--freeze-base "${FIRST_HEAD[@]}" --dropout 0.1 --lr "${LR:-0.001}")
    local trained_on=(--dropout 0.1 --lr "${LR:-0.0003}")
    case $setting in
        regular) flags=("${frozen[@]}") ;;
        distillation) flags=("${frozen[@]}"); data=$GUESSED base=$VERIFIER ;;
        fine-tuning) flags=("${trained_on[@]}") ;;
        both) flags=("${trained_on[@]}"); data=$GUESSED base=$VERIFIER ;;
        *) die "unknown setting '$setting' in SETTINGS (choose from: regular distillation fine-tuning both)" ;;
    esac
    # shellcheck disable=SC2086
    "$BIN/fairseq-train" "$data" --user-dir "$USER_DIR" --task translation_aggdec $DEVICE_FLAGS \
        $PRECISION_FLAGS --seed "$SEED" --upsample-primary 1 \
        --arch blockwise_transformer --base-checkpoint "$base" --block-size "$block_size" --head-layout "$HEAD_LAYOUT" \
        "${flags[@]}" $HEAD_FLAGS \
        --criterion blockwise_loss --head-loss "$HEAD_LOSS" --head-decay "$HEAD_DECAY" --label-smoothing 0.1 \
        --optimizer adam --adam-betas '(0.9, 0.98)' --clip-norm 1.0 \
        --lr-scheduler polynomial_decay --warmup-updates 200 --total-num-update "$MAX_UPDATE" $FLAGS \
        --max-tokens "$MAX_TOKENS" --required-batch-size-multiple 1 --max-update "$MAX_UPDATE" --num-workers 0 \
        --best-checkpoint-metric mean_accepted --maximize-best-checkpoint-metric \
        --save-dir "$OUT" --save-interval-updates 500 --validate-interval-updates 500 --validate-interval 1000000 \
        --keep-interval-updates 2 --no-epoch-checkpoints \
        --log-format simple --log-interval 50 2>&1 | tee -a "$OUT/train.log"
}

case " $SETTINGS " in
    *" both "* | *" distillation "*) need_verifier ;;
esac
for block_size in $BLOCK_SIZES; do
    for setting in $SETTINGS; do
        case $setting/$block_size in regular/1 | distillation/1) continue ;; esac
        resume "blockwise-$setting$NAME-$block_size-$PAIR" train "$setting" "$block_size"
    done
done

MODELS=("regular/1=$BASE") VERIFIER=${VERIFIER:-$WORK/verifier-$PAIR/checkpoint_last.pt}
[ ! -e "$VERIFIER" ] || MODELS+=("distillation/1=$VERIFIER")
for folder in "$WORK"/blockwise-*-*-"$PAIR"/; do
    [ -e "$folder/$CHECKPOINT" ] || continue
    name=$(basename "$folder" "-$PAIR") name=${name#blockwise-}
    MODELS+=("${name%-*}/${name##*-}=$folder$CHECKPOINT")
done
# shellcheck disable=SC2206  # the flags are lists
TEST=("$DATA" --gen-subset test --max-len-a 1.2 --max-len-b 10 $DEVICE_FLAGS)
# shellcheck disable=SC2086
"$PYTHON" -m scripts.recipes.blockwise.table "${TEST[@]}" --models "${MODELS[@]}" --batch-size 32 \
    --post-process sentencepiece $TABLE_FLAGS --output "$OUTPUT"

# once RESULT COMMAND...: runs a command, unless its result is there.
once() {
    if [ -e "$1" ]; then say "$1 is there already, kept"; return; fi
    "${@:2}"
}

audit() {
    local model name reference
    for model in "${MODELS[@]}"; do
        name=${model%%=*} reference=()
        case $name in
            */1) continue ;; # a base
            regular*) reference=(--reference "$BASE") ;;
            distillation*) reference=(--reference "$VERIFIER") ;;
        esac
        name=$OUTPUT-equality-${name/\//-}
        once "$name.json" aggdec audit "${TEST[@]}" --path "${model#*=}" --decoding blockwise --batch-sizes 1 8 32 \
            "${reference[@]}" --output "$name"
    done
}

trace() {
    local largest
    largest=$(printf '%s\n' "${MODELS[@]}" | grep "^both$NAME/" | sort -V | tail -n 1) ||
        die "ANALYSES=trace needs a model of the setting both"
    once "$OUTPUT-trace.html" aggdec trace "${TEST[@]}" --path "${largest#*=}" --decoding blockwise --count 3 \
        --post-process sentencepiece --report "$OUTPUT-trace.html"
}

for analysis in $ANALYSES; do "$analysis"; done
