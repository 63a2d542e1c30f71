#!/usr/bin/env bash
# The methods of the four papers side by side on Multi30k: one table, one run, of what the other recipes trained.
#
#   scripts/recipes/methods_multi30k.sh       after any of gad_, blockwise_, interleaved_ and lattice_multi30k.sh
#
# What is not trained is left out. What is lossless is compared with stock --beam 1 of the same model, which is the model of
# multi30k.sh or the verifier of gad_multi30k.sh (a system's name says so). GAD and blockwise draft whole blocks, as in the
# papers; in the rows "default" they draft as they do without options.
# Environment: LIMIT (300 sentences; empty: all), BATCH_SIZES (1 8 32), LENGTHS (4: bins of source length at batch 1; empty:
# none), VERIFIER (verifier-PAIR/checkpoint_last.pt), DRAFTER (drafter-PAIR/checkpoint_best.pt), HEADS
# (blockwise-both-8-PAIR/checkpoint_best.pt), INT8 (1: the rows of ours again in 8 bits; 0), OUTPUT
# (docs/results/methods-multi30k), and what multi30k_common.sh lists.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/multi30k_common.sh"
need_base

LIMIT=${LIMIT-300}
BATCH_SIZES=${BATCH_SIZES:-1 8 32}
LENGTHS=${LENGTHS-4}
VERIFIER=${VERIFIER:-$WORK/verifier-$PAIR/checkpoint_last.pt}
DRAFTER=${DRAFTER:-$WORK/drafter-$PAIR/checkpoint_best.pt}
HEADS=${HEADS:-$WORK/blockwise-both-8-$PAIR/checkpoint_best.pt}
TABLES=$WORK/lattice-distilled-$PAIR
SCORER=$WORK/scorer-distilled-1-$PAIR/checkpoint_last.pt

# DEFAULT: what aggdec-generate does without an option, in fp32 on a CPU and on a GPU; --system alone means BLOCKS.
BLOCKS="--draft-tokens all" DEFAULT="--draft-tree auto --int8 drafts"
[ "$GPUS" = 0 ] || DEFAULT=$BLOCKS

INT8=${INT8:-1} SYSTEMS=()
# row FILE NAME OPTIONS: a system that needs FILE.
row() {
    if [ ! -e "$1" ]; then say "$1 is not there: $2 is left out"; return; fi
    SYSTEMS+=(--system "$2=$3")
    case "$INT8/$3" in 0/* | */*"--decoding stock"*) ;; *) SYSTEMS+=(--system "$2, 8 bits=$3 --int8") ;; esac
}

row "$BASE" "fairseq beam 5" "--decoding stock --beam 5"
row "$BASE" "fairseq beam 4" "--decoding stock --beam 4"
row "$BASE" "fairseq beam 1" "--decoding stock --beam 1"
row "$BASE" "ours, beam 5" "--decoding beam --beam 5"
row "$BASE" "ours, beam 4" "--decoding beam --beam 4"
row "$BASE" "ours, greedy" "--decoding greedy"
row "$VERIFIER" "fairseq beam 1, verifier" "--decoding stock --beam 1 --path $VERIFIER"
row "$VERIFIER" "ours, greedy, verifier" "--decoding greedy --path $VERIFIER"
GAD="--decoding gad --path $VERIFIER --drafter-path $DRAFTER"
row "$DRAFTER" "GAD, default, verifier" "$GAD $DEFAULT"
row "$DRAFTER" "GAD, verifier" "$GAD $BLOCKS"
row "$DRAFTER" "GAD++ (3, 1.0), verifier" "$GAD $BLOCKS --acceptance top-beta:3:1.0"
row "$DRAFTER" "GAD++ (5, 3.0), verifier" "$GAD $BLOCKS --acceptance top-beta:5:3.0"
row "$HEADS" "fairseq beam 1, blockwise" "--decoding stock --beam 1 --path $HEADS"
row "$HEADS" "blockwise, default" "--decoding blockwise --path $HEADS $DEFAULT"
row "$HEADS" "blockwise" "--decoding blockwise --path $HEADS $BLOCKS"
for geometry in 2x1 2x2; do
    model=$WORK/interleaved-$geometry-distilled-3-$PAIR/checkpoint_last.pt
    row "$model" "interleaved $geometry, beam 4" "--decoding interleaved --beam 4 --path $model"
done
row "$SCORER" "lattice, N = 64" "--decoding lattice --path $SCORER --lattice $TABLES"
BASELINES=("fairseq beam 4" "fairseq beam 1" "ours, beam 4" "ours, greedy")
in_bf16 "ours, greedy"
# shellcheck disable=SC2086
compare --beam 1 ${LIMIT:+--limit $LIMIT} --batch-sizes $BATCH_SIZES ${LENGTHS:+--by-length $LENGTHS} \
    --title "The four papers on Multi30k $PAIR" --output "${OUTPUT:-$ROOT/docs/results/methods-multi30k}"
