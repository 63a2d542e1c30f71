#!/usr/bin/env bash
# The analyses of Ge et al. (appendix B), on a drafter of gad_multi30k.sh or gad_wmt.sh: one table each, made once.
#
#   scripts/recipes/gad/gad_analyses.sh                     all of ANALYSES, of gad_multi30k.sh
#   ANALYSES=tolerance scripts/recipes/gad/gad_analyses.sh  one of them
#   SET=wmt14-en-de scripts/recipes/gad/gad_analyses.sh     of gad_wmt.sh; DIRECTION=de-en: of the other direction
#
#   block-size   Table 6: tokens drafted at once; by a drafter trained for so many where there is one (BLOCK_SIZE=5
#                RUN=drafter-k5 gad_multi30k.sh), else by DRAFTER, cut short
#   tolerance    Table 7: --acceptance top-beta:RANK:NATS
#   batch        Figure 7: latency against batch size
#   drafter      Table 9: all drafters that are trained
#   modules      Table 15 and Figure 8: time by module, and speed-up of single sentences, of GAD++ over beam 5
#   memory       Table 16: peak memory
#   traces       Table 17: what drafter and verifier wrote, of GAD and of GAD++
#
# A table that is there already is kept: delete its .json (the .html of traces) to make it anew.
# Environment: SET, DIRECTION (SET's), WORK (work/SET or work/multi30k), SOURCE and TARGET (de, en), DRAFTER (its folder's name without the pair: drafter),
# VERIFIER (that of gad_multi30k.sh), ANALYSES, BLOCK_SIZES (1 3 5 7 10), BETAS (1 3 5), TAUS (0.25 0.5 1.0 3.0 5.0),
# TABLE_FLAGS (more for aggdec bench), DEVICE_FLAGS (--cpu where there is no GPU), OUTPUT (docs/results/gad-SET).
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/../common.sh"

SET=${SET:-}
WORK=${WORK:-$ROOT/work/${SET:-multi30k}}
if [ -z "$SET" ]; then
    PAIR=${SOURCE:-de}-${TARGET:-en} BINARISED=$WORK/data-$PAIR TITLE="Multi30k $PAIR" MADE_BY=scripts/recipes/gad/gad_multi30k.sh
    VERIFIER=${VERIFIER:-$WORK/verifier-$PAIR/checkpoint_last.pt} BEST=-$PAIR/checkpoint_best.pt
else # the folders of wmt_common.sh
    PAIR=${DIRECTION:-${SET#*-}} BINARISED=$WORK/data-${SET#*-} TITLE="$SET, $PAIR" MADE_BY="scripts/recipes/gad/gad_wmt.sh $SET"
    VERIFIER=${VERIFIER:-$WORK/verifier-$PAIR-model/model.pt} BEST=-$PAIR-model/model.pt
fi
checkpoint_of() { echo "$WORK/$1$BEST"; } # of a drafter's name
DRAFTER=$(checkpoint_of "${DRAFTER:-drafter}")
ANALYSES=${ANALYSES:-block-size tolerance batch drafter modules memory traces}
BLOCK_SIZES=${BLOCK_SIZES:-1 3 5 7 10}
BETAS=${BETAS:-1 3 5}
TAUS=${TAUS:-0.25 0.5 1.0 3.0 5.0}
TABLE_FLAGS=${TABLE_FLAGS:-}
devices
OUTPUT=${OUTPUT:-$ROOT/docs/results/gad-${SET:-multi30k}}
GAD="--decoding gad --drafter-path $DRAFTER"
RELAXED="--acceptance top-beta:5:3.0" # high efficiency, section 4.2.3

# shellcheck disable=SC2206
DATA=("$BINARISED" --source-lang "${PAIR%-*}" --target-lang "${PAIR#*-}" --path "$VERIFIER" --gen-subset test --max-len-a 1.2 --max-len-b 10 $DEVICE_FLAGS)

for analysis in $ANALYSES; do
    case $analysis in
        block-size | tolerance | batch | drafter | modules | memory | traces) ;;
        *) die "unknown analysis '$analysis' in ANALYSES (choose from: block-size tolerance batch drafter modules memory traces)" ;;
    esac
done
[ -e "$DRAFTER" ] || die "$DRAFTER is missing: run $MADE_BY first"

# compare NAME TITLE OPTIONS...   OPTIONS go to aggdec bench
compare() {
    local name=$1 title=$2; shift 2
    if [ -e "$OUTPUT-$name.json" ]; then say "$OUTPUT-$name.json is there already, kept"; return; fi
    # shellcheck disable=SC2086  # the flags are lists
    aggdec bench "${DATA[@]}" --batch-sizes 1 --beam 1 --post-process sentencepiece \
        --title "GAD on $TITLE: $title" "$@" $TABLE_FLAGS --output "$OUTPUT-$name"
}

# table NAME TITLE OPTIONS...   the same, with both kinds of greedy decoding as baselines
table() {
    local name=$1 title=$2; shift 2
    compare "$name" "$title" --system "fairseq beam 1=--decoding stock --beam 1" --system "ours, greedy=--decoding greedy" "$@" \
        --baselines "fairseq beam 1" "ours, greedy"
}

block_size() {
    local systems=() size own options
    for size in $BLOCK_SIZES auto; do
        options="$GAD --draft-tokens $size" own=$(checkpoint_of "drafter-k$size")
        [ ! -e "$own" ] || options="--decoding gad --drafter-path $own"
        systems+=(--system "k = $size=$options" --system "GAD++, k = $size=$options $RELAXED")
    done
    table block-size "block size (Table 6)" "${systems[@]}"
}

tolerance() {
    local systems=()
    for beta in $BETAS; do
        for tau in $TAUS; do
            systems+=(--system "beta $beta, tau $tau=$GAD --acceptance top-beta:$beta:$tau")
        done
    done
    table tolerance "relaxed acceptance (Table 7)" "${systems[@]}"
}

batch() {
    table batch "batch size (Figure 7)" --system "GAD=$GAD" --batch-sizes 1 2 4 8 16 32
}

drafter() {
    local systems=() name options checkpoint
    for checkpoint in "$WORK"/drafter*"$BEST"; do
        [ -e "$checkpoint" ] || continue
        name=$(basename "${checkpoint%"$BEST"}") options="--decoding gad --drafter-path $checkpoint"
        systems+=(--system "$name=$options" --system "GAD++, $name=$options $RELAXED")
    done
    table drafter "drafters (Table 9)" "${systems[@]}"
}

modules() {
    compare modules "time by module (Table 15), speed-up of single sentences (Figure 8)" --system "fairseq beam 5=--decoding stock --beam 5" \
        --system "fairseq beam 1=--decoding stock --beam 1" --system "ours, greedy=--decoding greedy" --system "GAD=$GAD" --system "GAD++=$GAD $RELAXED" \
        --baselines "fairseq beam 5" --distribution "GAD++"
}

memory() {
    compare memory "memory (Table 16)" --memory --system "fairseq beam 1=--decoding stock --beam 1" --system "fairseq beam 5=--decoding stock --beam 5" \
        --system "GAD=$GAD" --system "GAD++=$GAD $RELAXED"
}

traces() {
    trace traces ""
    trace traces-relaxed "$RELAXED"
}

# trace NAME OPTIONS
trace() {
    if [ -e "$OUTPUT-$1.html" ]; then say "$OUTPUT-$1.html is there already, kept"; return; fi
    # shellcheck disable=SC2086
    aggdec trace "${DATA[@]}" $GAD $2 --report "$OUTPUT-$1.html"
}

for analysis in $ANALYSES; do "${analysis//-/_}"; done
