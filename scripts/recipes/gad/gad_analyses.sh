#!/usr/bin/env bash
# The analyses of Ge et al. (appendix B), on a drafter of gad_multi30k.sh or gad_wmt.sh: one table each, made once.
#
#   scripts/recipes/gad/gad_analyses.sh                     all of ANALYSES, of gad_multi30k.sh
#   ANALYSES=tolerance scripts/recipes/gad/gad_analyses.sh  one of them
#   SET=wmt14-en-de scripts/recipes/gad/gad_analyses.sh     of gad_wmt.sh; DIRECTION=de-en: of the other direction
#
#   block-size   Table 6, validation set: tokens drafted at once, GAD and GAD++ (3, 1.0); by a drafter trained for that
#                number where there is one (BLOCK_SIZE=5 RUN=drafter-k5 gad_multi30k.sh), else by DRAFTER, cut short
#   tolerance    Table 7, validation set: --acceptance top-beta:RANK:NATS
#   batch        Figure 7: latency against batch size, of beam 5, GAD and GAD++ (5, 3.0)
#   drafter      Table 9: DRAFTERS, GAD and GAD++ (3, 1.0) and (5, 3.0)
#   modules      Table 15 and Figure 8: time by module, and speed-up of single sentences, of GAD++ (5, 3.0) over beam 5
#   memory       Table 16: peak memory, GAD++ (5, 3.0)
#   traces       Table 17: what drafter and verifier wrote, of GAD and of GAD++ (3, 1.0); of SET 10 tokens are drafted at once
#
# Tables are of the test set if nothing else is said. A table that is there already is kept: delete its .json (the .html of
# traces) to make it anew.
# Environment: SET, DIRECTION (SET's), WORK (work/SET or work/multi30k), SOURCE and TARGET (de, en), DRAFTER (its folder's name without the pair: drafter),
# VERIFIER (that of gad_multi30k.sh), ANALYSES, BLOCK_SIZES (10 15 20 25 30; of gad_multi30k.sh 1 3 5 7 10), BETAS (3 5; of
# gad_multi30k.sh 1 3 5), TAUS (1 2 3 4 5; of gad_multi30k.sh 0.25 0.5 1.0 3.0 5.0), DRAFTERS (names: drafter-k30 drafter-big-k30;
# of gad_multi30k.sh all that are trained), TABLE_FLAGS (more for aggdec bench), DEVICE_FLAGS (--cpu where there is no GPU), OUTPUT (docs/results/gad-SET).
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/../common.sh"

SET=${SET:-}
WORK=${WORK:-$ROOT/work/${SET:-multi30k}}
if [ -z "$SET" ]; then
    GRID="1 3 5 7 10" RANKS="1 3 5" NATS="0.25 0.5 1.0 3.0 5.0" TRACED=all
    PAIR=${SOURCE:-de}-${TARGET:-en} BINARISED=$WORK/data-$PAIR TITLE="Multi30k $PAIR" MADE_BY=scripts/recipes/gad/gad_multi30k.sh
    VERIFIER=${VERIFIER:-$WORK/verifier-$PAIR/checkpoint_last.pt} BEST=-$PAIR/checkpoint_best.pt
else # the folders of wmt_common.sh
    GRID="10 15 20 25 30" RANKS="3 5" NATS="1 2 3 4 5" TRACED=10 DRAFTERS=${DRAFTERS:-drafter-k30 drafter-big-k30}
    PAIR=${DIRECTION:-${SET#*-}} BINARISED=$WORK/data-${SET#*-} TITLE="$SET, $PAIR" MADE_BY="scripts/recipes/gad/gad_wmt.sh $SET"
    VERIFIER=${VERIFIER:-$WORK/verifier-$PAIR-model/model.pt} BEST=-$PAIR-model/model.pt
fi
checkpoint_of() { echo "$WORK/$1$BEST"; } # of a drafter's name
DRAFTER=$(checkpoint_of "${DRAFTER:-drafter}")
ANALYSES=${ANALYSES:-block-size tolerance batch drafter modules memory traces}
BLOCK_SIZES=${BLOCK_SIZES:-$GRID}
BETAS=${BETAS:-$RANKS}
TAUS=${TAUS:-$NATS}
TABLE_FLAGS=${TABLE_FLAGS:-}
devices
OUTPUT=${OUTPUT:-$ROOT/docs/results/gad-${SET:-multi30k}}
DRAFTED="--decoding gad --drafter-path $DRAFTER"
GAD="$DRAFTED --draft-tokens all" # the paper's k; without it as many are drafted as pay
QUALITY="--acceptance top-beta:3:1.0" # of Tables 6 and 17
RELAXED="--acceptance top-beta:5:3.0" # high efficiency: of the figures, Tables 15 and 16

# shellcheck disable=SC2206
DATA=("$BINARISED" --source-lang "${PAIR%-*}" --target-lang "${PAIR#*-}" --path "$VERIFIER" --max-len-a 1.2 --max-len-b 10 $DEVICE_FLAGS)

for analysis in $ANALYSES; do
    case $analysis in
        block-size | tolerance | batch | drafter | modules | memory | traces) ;;
        *) die "unknown analysis '$analysis' in ANALYSES (choose from: block-size tolerance batch drafter modules memory traces)" ;;
    esac
done
[ -e "$DRAFTER" ] || die "$DRAFTER is missing: run $MADE_BY first"

# compare NAME TITLE OPTIONS...   OPTIONS go to aggdec bench, SUBSET is decoded (test)
compare() {
    local name=$1 title=$2; shift 2
    if [ -e "$OUTPUT-$name.json" ]; then say "$OUTPUT-$name.json is there already, kept"; return; fi
    # shellcheck disable=SC2086  # the flags are lists
    aggdec bench "${DATA[@]}" --gen-subset "${SUBSET:-test}" --batch-sizes 1 --beam 1 --post-process sentencepiece \
        --title "GAD on $TITLE: $title" "$@" $TABLE_FLAGS --output "$OUTPUT-$name"
}

# table NAME TITLE OPTIONS...   the same, with beam 5 and both kinds of greedy decoding as baselines
table() {
    local name=$1 title=$2; shift 2
    compare "$name" "$title" --system "fairseq beam 5=--decoding stock --beam 5" --system "fairseq beam 1=--decoding stock --beam 1" --system "ours, greedy=--decoding greedy" "$@" \
        --baselines "fairseq beam 5" "fairseq beam 1" "ours, greedy"
}

block_size() {
    local systems=() size own options
    for size in $BLOCK_SIZES auto; do
        options="$DRAFTED --draft-tokens $size" own=$(checkpoint_of "drafter-k$size")
        [ ! -e "$own" ] || options="--decoding gad --drafter-path $own --draft-tokens all"
        systems+=(--system "k = $size=$options" --system "GAD++, k = $size=$options $QUALITY")
    done
    SUBSET=valid table block-size "block size (Table 6)" "${systems[@]}"
}

tolerance() {
    local systems=()
    for beta in $BETAS; do
        for tau in $TAUS; do
            systems+=(--system "beta $beta, tau $tau=$GAD --acceptance top-beta:$beta:$tau")
        done
    done
    SUBSET=valid table tolerance "relaxed acceptance (Table 7)" "${systems[@]}"
}

batch() {
    table batch "batch size (Figure 7)" --system "GAD=$GAD" --system "GAD++=$GAD $RELAXED" --batch-sizes 1 2 4 8 16 32
}

# trained: names of all drafters.
trained() {
    local checkpoint
    for checkpoint in "$WORK"/drafter*"$BEST"; do
        [ ! -e "$checkpoint" ] || basename "${checkpoint%"$BEST"}"
    done
}

drafter() {
    local systems=() name options
    for name in ${DRAFTERS:-$(trained)}; do
        [ -e "$(checkpoint_of "$name")" ] || die "$(checkpoint_of "$name") is missing: RUN=$name $MADE_BY trains it"
        options="--decoding gad --drafter-path $(checkpoint_of "$name") --draft-tokens all"
        systems+=(--system "$name=$options" --system "GAD++ (3, 1.0), $name=$options $QUALITY"
            --system "GAD++ (5, 3.0), $name=$options $RELAXED")
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
    trace traces-relaxed "$QUALITY"
}

# trace NAME OPTIONS
trace() {
    if [ -e "$OUTPUT-$1.html" ]; then say "$OUTPUT-$1.html is there already, kept"; return; fi
    # shellcheck disable=SC2086
    aggdec trace "${DATA[@]}" --gen-subset test $DRAFTED $2 --draft-tokens "$TRACED" --report "$OUTPUT-$1.html"
}

for analysis in $ANALYSES; do "${analysis//-/_}"; done
