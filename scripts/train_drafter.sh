#!/usr/bin/env bash
# A drafter for a trained model, from the model and the data it was trained on: what it writes for the training set is
# distilled, then a drafter of one layer with its encoder learns to write that, or block heads with a layer of their own.
#
#   scripts/train_drafter.sh DATA VERIFIER [OUTPUT]
#   KIND=heads scripts/train_drafter.sh DATA VERIFIER [OUTPUT]
#
# DATA is a data folder of fairseq-preprocess, VERIFIER a checkpoint of an ordinary fairseq Transformer. The drafter is then
# OUTPUT/drafter/checkpoint_best.pt (OUTPUT: DATA-drafter), or the verifier with heads OUTPUT/heads/checkpoint_best.pt, one
# model that writes what VERIFIER does; decode with
#
#   fairseq-generate DATA --path VERIFIER --decoding gad --drafter-path OUTPUT/drafter/checkpoint_best.pt
#   fairseq-generate DATA --path OUTPUT/heads/checkpoint_best.pt --decoding blockwise
#
# Training ends early when the tokens that would stand (mean_accepted in the log) no longer grow. Killed at any moment, the
# same command goes on.
# Environment: KIND (drafter, or heads), LAYERS (1, of the drafter's decoder or the heads' own), BLOCK_SIZE (10), SPLICED (0; 1: it
# learns from as many sources again, each the beginning of one sentence and the end of another), MAX_UPDATE (5000), PATIENCE (6
# validations, one every 250 updates), LR (0.001), MAX_TOKENS (4000; heads 2000), SEED (1), FLAGS (more for fairseq-train),
# DISTILL_FLAGS (more for distill.sh: --max-len-a 1.2 --max-len-b 10), DEVICE_FLAGS, PRECISION_FLAGS, BF16, PYTHON: see
# recipes/multi30k_common.sh.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/recipes/common.sh"

[ "$#" -ge 2 ] && [ "$#" -le 3 ] && [ "${1#-}" = "$1" ] || die "usage: scripts/train_drafter.sh DATA VERIFIER [OUTPUT]"
DATA=${1%/}
VERIFIER=$2
WORK=${3:-$DATA-drafter}
[ -d "$DATA" ] || die "the folder $DATA does not exist"
[ -f "$VERIFIER" ] || die "the checkpoint $VERIFIER does not exist"
mkdir -p "$WORK"
KIND=${KIND:-drafter}
LAYERS=${LAYERS:-1}
BLOCK_SIZE=${BLOCK_SIZE:-10}
case $KIND in drafter|heads) ;; *) die "unknown KIND '$KIND' (choose from: drafter heads)" ;; esac
case ${SPLICED:-0} in 0|1) ;; *) die "unknown SPLICED '$SPLICED' (choose from: 0 1)" ;; esac
case ${SPLICED:-0}$(printf ' %s' ${DISTILL_FLAGS:-}) in
    1*' --subsets'* | 1*' --dataset-impl'*)
        die "SPLICED=1 distils all parts of the training set as they are: leave --subsets and --dataset-impl out of DISTILL_FLAGS" ;;
esac
MAX_UPDATE=${MAX_UPDATE:-5000}
devices

# The sizes of the verifier, whose encoder and embeddings the drafter shares.
sizes() {
    "$PYTHON" - "$VERIFIER" <<'PYTHON'
import sys

from fairseq_aggdec.compat import load_checkpoint

state = load_checkpoint(sys.argv[1])
model = (state.get("cfg") or {}).get("model") or state.get("args")
named = model if hasattr(model, "keys") else vars(model)
names = ("embed_dim", "ffn_embed_dim", "attention_heads")
flags = [f"--encoder-layers {named['encoder_layers']}"]
for side in ("encoder", "decoder"):
    flags += [f"--{side}-{name.replace('_', '-')} {named[f'{side}_{name}']}" for name in names]
    if named.get(f"{side}_normalize_before"):
        flags.append(f"--{side}-normalize-before")
    if named.get(f"{side}_learned_pos"):
        flags.append(f"--{side}-learned-pos")
flags.append(f"--activation-fn {named.get('activation_fn', 'relu')}")
print(" ".join(flags))
PYTHON
}

# What DISTILL_FLAGS say about the languages of DATA.
languages() {
    # shellcheck disable=SC2086  # the flags are a list
    set -- ${DISTILL_FLAGS:-}
    while [ "$#" -gt 0 ]; do
        case $1 in
            -s | -t | --source-lang | --target-lang) printf '%s %s ' "$1" "${2:-}" ;;
            --source-lang=* | --target-lang=*) printf '%s ' "$1" ;;
        esac
        shift
    done
}

splice() {
    # shellcheck disable=SC2046
    "$PYTHON" -m fairseq_aggdec.distill.spliced_sources "$DATA" --output "$OUT/data" $(languages)
}

# distil DATA NAME [SUBSET...]: makes $WORK/NAME. An output that was cut at its maximum length is a poor target for a translator,
# not for a drafter: the verifier will write such ones again.
distil() {
    local options=(--decoding greedy --beam 1 --keep-cut)
    [ "$#" = 2 ] || options+=(--subsets "${@:3}")
    # On a CPU the compiled kernels make fp32 the faster one.
    [ "$BF16" = 0 ] || [ "$GPUS" = 0 ] || options+=(--bf16)
    # shellcheck disable=SC2086  # the flags are lists
    bash "$ROOT/scripts/distill.sh" "$1" "$WORK/$2" --path "$VERIFIER" --batch-size 64 $DEVICE_FLAGS \
        ${DISTILL_FLAGS:---max-len-a 1.2 --max-len-b 10} "${options[@]}"
}

# distilled DATA NAME [SUBSET...]: the same, once for these settings; what was begun goes on.
distilled() {
    fresh "$2" distil "$@"
    [ -e "$WORK/$2/distillation.json" ] || distil "$@"
}

# A drafter fills one block per sentence; heads fill one behind every position, of which a part is enough. Of a training set in
# parts (train train1 ...), fairseq-train takes the first --upsample-primary times, by default -1 times.
train() {
    local options
    # shellcheck disable=SC2206  # the sizes are a list
    case $KIND in
        drafter)
            SIZES=$(sizes)
            options=(--task translation_aggdec --arch nar_drafter $SIZES --decoder-layers "$LAYERS"
                --criterion glancing_loss --slot-decay 0.8 --eval-acceptance "$VERIFIER"
                --share-verifier-encoder "$VERIFIER" --init-decoder-from "$VERIFIER" --share-decoder-input-output-embed
                --slot-predicts next --prefix-attention causal --max-tokens "${MAX_TOKENS:-4000}") ;;
        heads)
            options=(--task translation --arch blockwise_transformer --base-checkpoint "$VERIFIER" --freeze-base
                --identity-first-head --head-layers "$LAYERS" --head-layout per-head --head-hidden-dim 32
                --criterion blockwise_loss --head-loss mean --head-decay 0.8 --head-positions 0.2
                --max-tokens "${MAX_TOKENS:-2000}") ;;
    esac
    # shellcheck disable=SC2086
    "$BIN/fairseq-train" "$1" --user-dir "$USER_DIR" $DEVICE_FLAGS $PRECISION_FLAGS \
        --seed "${SEED:-1}" "${options[@]}" --block-size "$BLOCK_SIZE" --slot-chain --dropout 0 --label-smoothing 0.1 \
        --optimizer adam --adam-betas '(0.9, 0.98)' --clip-norm 3.0 --lr "${LR:-0.001}" \
        --lr-scheduler polynomial_decay --warmup-updates $((MAX_UPDATE < 4000 ? MAX_UPDATE / 10 : 400)) \
        --total-num-update "$MAX_UPDATE" --max-update "$MAX_UPDATE" --patience "${PATIENCE:-6}" \
        --required-batch-size-multiple 1 --num-workers 0 --upsample-primary 1 \
        --best-checkpoint-metric mean_accepted --maximize-best-checkpoint-metric \
        --save-dir "$OUT" --save-interval-updates 250 --validate-interval-updates 250 --validate-interval 1000000 \
        --keep-interval-updates 1 --no-epoch-checkpoints ${FLAGS:-} --log-format simple --log-interval 50 2>&1 |
        tee -a "$OUT/train.log"
}

if [ "${SPLICED:-0}" = 0 ]; then
    DISTILLED=distilled
    distilled "$DATA" $DISTILLED
else
    DISTILLED=distilled-spliced
    stage spliced splice
    # shellcheck disable=SC2046  # the names of sets, train train1 ..., are words
    distilled "$WORK/spliced/data" $DISTILLED \
        $(find "$WORK/spliced/data" -name 'train*.*-*.*' -printf '%f\n' | cut -d. -f1 | grep -E '^train[0-9]*$' | sort -u)
fi
resume "$KIND" train "$WORK/$DISTILLED"
say "done: $WORK/$KIND/checkpoint_best.pt"
