#!/usr/bin/env bash
# Sequence-to-lattice on Multi30k (Deng and Rush 2021) at a small size, on the model of multi30k.sh.
#
#   scripts/recipes/lattice/lattice_multi30k.sh      tables of candidates, scorers of SETTINGS x LAYERS, then the table of results
#
# Killed at any moment, the same command goes on.
# Environment: SETTINGS (distilled raw; empty: only the table), LAYERS (1 2: of the scorer), NAT_LAYERS (1: of the decoder of a
# plain non-autoregressive Transformer, the baseline; empty: none), MAX_UPDATE (1000), LR (0.001), MARKOV_ORDER (mixed), CANDIDATES (32
# 64 128, for scorers of one layer; 1 and 64 for all), PAPER (empty; 64: numbers of candidates
# of rows with the paper's plain counts, and with scores normalised over the vocabulary), OUTPUT (docs/results/lattice-multi30k), and what multi30k_common.sh lists.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/../multi30k_common.sh"
need_base

SETTINGS=${SETTINGS-distilled raw}
LAYERS=${LAYERS-1 2}
NAT_LAYERS=${NAT_LAYERS-1}
MAX_UPDATE=${MAX_UPDATE:-1000}
CANDIDATES=${CANDIDATES:-32 64 128}
LR=${LR:-0.001}
MARKOV_ORDER=${MARKOV_ORDER:-mixed}
PAPER=${PAPER-}

tables() {
    aggdec lattice-tables "$(data_of "$1")" --output "$OUT"
}

# train SETTING FLAG...
train() {
    local setting=$1; shift
    # shellcheck disable=SC2086
    "$BIN/fairseq-train" "$(data_of "$setting")" --user-dir "$USER_DIR" --task translation_aggdec $DEVICE_FLAGS \
        $PRECISION_FLAGS --seed "$SEED" --dropout 0.2 --label-smoothing 0.1 "$@" \
        --optimizer adam --adam-betas '(0.9, 0.98)' --clip-norm 1.0 --weight-decay 0.0001 \
        --lr "$LR" --lr-scheduler inverse_sqrt --warmup-updates 400 $FLAGS \
        --max-tokens 4000 --required-batch-size-multiple 1 --max-update "$MAX_UPDATE" --num-workers 0 \
        --save-dir "$OUT" --save-interval-updates 500 --validate-interval-updates 500 --validate-interval 1000000 \
        --keep-interval-updates 2 --no-epoch-checkpoints \
        --log-format simple --log-interval 50 2>&1 | tee -a "$OUT/train.log"
}

for setting in $SETTINGS; do
    [ "$setting" != distilled ] || distil
    stage "lattice-$setting-$PAIR" tables "$setting"
    for layers in $LAYERS; do
        resume "scorer-$setting-$layers-$PAIR" train "$setting" --arch lattice_transformer --base-checkpoint "$BASE" \
            --decoder-layers "$layers" --markov-order "$MARKOV_ORDER" --criterion label_smoothed_cross_entropy
    done
    for layers in $NAT_LAYERS; do
        # shellcheck disable=SC2086
        resume "nat-$setting-$layers-$PAIR" train "$setting" --arch nar_drafter $MODEL_FLAGS --decoder-layers "$layers" \
            --block-size 40 --init-encoder-from "$BASE" --init-decoder-from "$BASE" --share-decoder-input-output-embed \
            --activation-fn relu --criterion glancing_loss --glancing-start 0 --glancing-end 0 --prefixes none
    done
done

BASELINES=("fairseq beam 5" "ours, greedy")
SYSTEMS=(--system "fairseq beam 5=--decoding stock --beam 5" --system "fairseq beam 1=--decoding stock --beam 1" --system "ours, greedy=--decoding greedy")
for folder in "$WORK"/scorer-*-"$PAIR"/; do
    [ -e "$folder/checkpoint_last.pt" ] || continue
    name=$(basename "$folder" "-$PAIR") name=${name#scorer-}
    options="--decoding lattice --path ${folder}checkpoint_last.pt --lattice $WORK/lattice-${name%-*}-$PAIR"
    label="${name%-*} data, ${name##*-} layers"
    SYSTEMS+=(--system "$label, N = 1=$options --variant lattice-candidates=1 --variant lattice-length-window=0")
    counts=$CANDIDATES
    [ "${name##*-}" = 1 ] || counts=64
    for count in $counts; do
        SYSTEMS+=(--system "$label, N = $count=$options --variant lattice-candidates=$count --variant lattice-least-probability=0")
        SYSTEMS+=(--system "$label, N = $count, likely ones=$options --variant lattice-candidates=$count")
    done
    for count in $PAPER; do
        plain="$options --variant lattice-candidates=$count --variant lattice-smoothing=none"
        SYSTEMS+=(--system "$label, N = $count, plain counts=$plain")
        SYSTEMS+=(--system "$label, N = $count, over the vocabulary=$options --variant lattice-candidates=$count --variant lattice-normalise=vocabulary")
    done
done
for folder in "$WORK"/nat-*-"$PAIR"/; do
    [ -e "$folder/checkpoint_last.pt" ] || continue
    SYSTEMS+=(--system "NAT, $(basename "$folder" "-$PAIR")=--decoding nar --drafter-path ${folder}checkpoint_last.pt")
done
for tables in "$WORK"/lattice-*-"$PAIR"/; do
    name=$(basename "$tables" "-$PAIR")
    SYSTEMS+=(--system "ours, greedy, shortlist of 64 (${name#lattice-} tables)=--decoding greedy --shortlist 64 --lattice $tables")
done
in_bf16 "ours, greedy"
compare --beam 1 --title "Sequence-to-lattice on Multi30k $PAIR" --output "${OUTPUT:-$ROOT/docs/results/lattice-multi30k}"
