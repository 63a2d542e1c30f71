#!/usr/bin/env bash
# Sequence-to-lattice translation: Tables 1, 2 and 4 to 9 of Deng and Rush (2021), with the settings of Table 8.
#
#   scripts/recipes/lattice/lattice_wmt.sh iwslt14-de-en [FOLDER]                    or wmt14-en-de, wmt16-en-ro
#   DIRECTION=de-en scripts/recipes/lattice/lattice_wmt.sh wmt14-en-de [FOLDER]      the other direction, from the same data
#
# Teacher on the raw data; its outputs (beam 5) are the distilled data; word alignment and tables of candidates, and a scorer, for
# raw and distilled data; of every scorer the checkpoint with the best validation BLEU at N = 64; a table of the teacher, the
# lattice at each N, the teacher drafted by the lattice, and a plain NAT. Killed at any moment, the same command goes on.
# Environment: SETTINGS (distilled raw), LAYERS (1: of the scorer), CANDIDATES (32 64 128; N = 1 is always there), MARKOV_ORDER (mixed),
# SMOOTHING (none, the paper's), NORMALISE (vocabulary, the paper's; candidates), NAT_LAYERS (6: of the decoder of a plain
# non-autoregressive Transformer, trained without glancing on each of SETTINGS; empty: none), NAT_LENGTH (its longest output: 250
# pieces), LEAST (0: score every candidate), LENGTH_WINDOW (3), TEACHER_ARCH, AVERAGE (10 last checkpoints of the
# teacher), DROPOUT, TABLE_FLAGS (more for lattice_tables.py), SCORER_FLAGS, VOCABULARY (10000, 40000 or 32000 pieces) and what
# wmt_common.sh lists; FAST_ALIGN (the program fast_align; default: built from its sources by fast_align.sh, before anything else;
# empty: aggdec lattice-tables estimates by itself, in less memory).
set -euo pipefail

for tool in cmake c++; do # before hours of other work
    [ -n "${FAST_ALIGN+given}" ] || command -v "$tool" > /dev/null || {
        echo "error: fast_align cannot be built: there is no $tool; name the program in FAST_ALIGN, or nothing: FAST_ALIGN=" >&2
        exit 2
    }
done
[ -z "${FAST_ALIGN:-}" ] || command -v "$FAST_ALIGN" > /dev/null || {
    echo "error: there is no program FAST_ALIGN=$FAST_ALIGN" >&2
    exit 2
}

HEADS=8 HIDDEN=2048 # those of the base size
case ${1:-} in # Table 8, appendix A.3 and section 4
    iwslt14-de-en)
        export VOCABULARY=${VOCABULARY:-10000}
        PRECISION_FLAGS=${PRECISION_FLAGS-} # the only one in full precision
        PAPER=(--dropout "${DROPOUT:-0.3}" --max-tokens 4096 --warmup-updates 4000 --max-update 120000 --lr 0.0005 --weight-decay 0.0001)
        GPUS_OF_PAPER=1 ACCUMULATED=1 HEADS=4 HIDDEN=1024
        TEACHER_ARCH=${TEACHER_ARCH:-transformer_iwslt_de_en}
        ;;
    wmt14-en-de)
        export VOCABULARY=${VOCABULARY:-40000}
        PAPER=(--dropout "${DROPOUT:-0.1}" --max-tokens 4096 --warmup-updates 4000 --max-update 240000 --lr 0.0007 --weight-decay 0)
        GPUS_OF_PAPER=3 ACCUMULATED=3
        ;;
    wmt16-en-ro)
        PAPER=(--dropout "${DROPOUT:-0.3}" --max-tokens 5461 --warmup-updates 10000 --max-update 240000 --lr 0.0007 --weight-decay 0.01)
        GPUS_OF_PAPER=3 ACCUMULATED=1
        ;;
    "") ;;
    *)
        printf "error: set '%s' is none of the paper's (choose from: iwslt14-de-en wmt14-en-de wmt16-en-ro)\n" "$1" >&2
        exit 2
        ;;
esac
RECIPE=lattice # its vocabulary and teacher are not those of gad_wmt.sh
. "$(dirname "${BASH_SOURCE[0]}")/../wmt_common.sh"

SETTINGS=${SETTINGS:-distilled raw}
LAYERS=${LAYERS:-1}
CANDIDATES=${CANDIDATES:-32 64 128}
MARKOV_ORDER=${MARKOV_ORDER:-mixed}
SMOOTHING=${SMOOTHING:-none}
NORMALISE=${NORMALISE:-vocabulary}
NAT_LAYERS=${NAT_LAYERS-6}
NAT_LENGTH=${NAT_LENGTH:-250}
LEAST=${LEAST:-0}
LENGTH_WINDOW=${LENGTH_WINDOW:-3}
TEACHER_ARCH=${TEACHER_ARCH:-transformer}
AVERAGE=${AVERAGE:-10}
TABLE_FLAGS=${TABLE_FLAGS:-}
SCORER_FLAGS=${SCORER_FLAGS:-}
DISTILLED=$WORK/distilled-$DIRECTION
TEACHER=$WORK/teacher-$DIRECTION-model/model.pt
SHARED=("${PAPER[@]}" --update-freq "$(update_freq "$ACCUMULATED" "$GPUS_OF_PAPER")" --max-epoch 10000
    --share-all-embeddings --adam-betas '(0.9, 0.98)')
TRAINING=("${SHARED[@]}" --criterion label_smoothed_cross_entropy)
SIZES=(--encoder-layers 6 --encoder-embed-dim 512 --decoder-embed-dim 512
    --encoder-attention-heads "$HEADS" --decoder-attention-heads "$HEADS"
    --encoder-ffn-embed-dim "$HIDDEN" --decoder-ffn-embed-dim "$HIDDEN")
SCORES=(--variant lattice-smoothing="$SMOOTHING" --variant lattice-normalise="$NORMALISE"
    --variant lattice-least-probability="$LEAST")

data_of() {
    case $1 in
        raw) echo "$DATA" ;;
        distilled) echo "$DISTILLED" ;;
        *) die "unknown setting '$1' in SETTINGS (choose from: raw distilled)" ;;
    esac
}

aligner() { RAW="${RAW:-$WORK/raw}" bash "$ROOT/scripts/recipes/lattice/fast_align.sh" "$OUT"; }

tables() {
    # shellcheck disable=SC2086
    aggdec lattice-tables "$1" "${LANGUAGES[@]}" --output "$OUT" ${FAST_ALIGN:+--fast-align "$FAST_ALIGN"} $TABLE_FLAGS
}

# scorer SETTING LAYERS: sizes of the teacher but for the depth of its decoder, everything from scratch.
scorer() {
    # shellcheck disable=SC2086
    train "$(data_of "$1")" --arch lattice_transformer --decoder-layers "$2" --markov-order "$MARKOV_ORDER" "${TRAINING[@]}" \
        "${SIZES[@]}" --no-epoch-checkpoints --best-checkpoint-metric bleu --maximize-best-checkpoint-metric \
        --eval-bleu --eval-bleu-args '{"beam": 1}' --eval-bleu-remove-bpe sentencepiece --eval-tokenized-bleu \
        --decoding lattice --lattice "$WORK/lattice-$1-$DIRECTION" --variant lattice-candidates=64 --variant lattice-length-window=3 \
        "${SCORES[@]}" $SCORER_FLAGS
}

# nat SETTING LAYERS: the baseline, of the teacher's sizes; from scratch, and its decoder sees no token of the reference.
nat() {
    train "$(data_of "$1")" --arch nar_drafter --decoder-layers "$2" --block-size "$NAT_LENGTH" --prefixes none \
        "${SHARED[@]}" "${SIZES[@]}" --criterion glancing_loss --glancing-start 0 --glancing-end 0 --no-epoch-checkpoints
}

for setting in $SETTINGS; do data_of "$setting" > /dev/null; done
[ -n "${FAST_ALIGN+given}" ] || { stage fast_align aligner; FAST_ALIGN=$WORK/fast_align/fast_align; }
learn "teacher-$DIRECTION" "$AVERAGE" "$DATA" --arch "$TEACHER_ARCH" --keep-last-epochs "$AVERAGE" "${TRAINING[@]}"
case " $SETTINGS " in *" distilled "*) distil "$TEACHER" "$DISTILLED" ;; esac
for setting in $SETTINGS; do
    stage "lattice-$setting-$DIRECTION" tables "$(data_of "$setting")"
    for layers in $LAYERS; do resume "scorer-$setting-$layers-$DIRECTION" scorer "$setting" "$layers"; done
    for layers in $NAT_LAYERS; do resume "nat-$setting-$layers-$DIRECTION" nat "$setting" "$layers"; done
done

system beam5 "teacher, beam 5" --path "$TEACHER" --decoding stock --beam 5
system beam1 "teacher, beam 1" --path "$TEACHER" --decoding stock --beam 1
system greedy "teacher, our greedy" --path "$TEACHER" --beam 1 --decoding greedy
for setting in $SETTINGS; do
    for layers in $LAYERS; do
        name=$setting-$layers label="$setting data, $layers layers"
        checkpoint=$WORK/scorer-$name-$DIRECTION/checkpoint_best.pt
        [ -e "$checkpoint" ] || die "$checkpoint is missing: the scorer was trained without validation"
        lattice=(--lattice "$WORK/lattice-$setting-$DIRECTION" "${SCORES[@]}")
        scored=(--path "$checkpoint" --decoding lattice "${lattice[@]}")
        system "$name-1" "$label, N = 1" "${scored[@]}" --variant lattice-candidates=1 --variant lattice-length-window=0
        for count in $CANDIDATES; do
            system "$name-$count" "$label, N = $count" "${scored[@]}" --variant lattice-candidates="$count" --variant lattice-length-window="$LENGTH_WINDOW"
        done
    done
    for layers in $NAT_LAYERS; do
        system "nat-$setting-$layers" "plain NAT, $setting data, $layers layers" --path "$TEACHER" --decoding nar --beam 1 \
            --drafter-path "$WORK/nat-$setting-$layers-$DIRECTION/checkpoint_last.pt"
    done
done
report "Sequence-to-lattice, $SET, $DIRECTION" --oracle "decode-$DIRECTION-beam1"
