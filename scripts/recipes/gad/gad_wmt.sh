#!/usr/bin/env bash
# Generalized aggressive decoding on WMT: Tables 5 and 14 of the aggressive decoding paper, with the hyper-parameters of Table 13.
#
#   scripts/recipes/gad/gad_wmt.sh wmt14-en-de [FOLDER]                      or wmt16-en-ro, or any set of wmt_data.sh
#   DIRECTION=de-en scripts/recipes/gad/gad_wmt.sh wmt14-en-de [FOLDER]      the other direction, from the same data
#   SIZE=big scripts/recipes/gad/gad_wmt.sh wmt14-en-de [FOLDER]             Table 8: big verifier and drafter, same teacher
#
# Teacher on the raw data; its outputs (beam 5) train verifier and drafter; the last AVERAGE checkpoints of each are averaged; a
# table of beam 5, beam 1, the drafter alone, GAD and GAD++ (high quality, high efficiency). Killed at any moment, the same
# command goes on.
# Environment: TEACHER, VERIFIER, DRAFTER (checkpoints that are ready: nothing of that kind is trained, nor what only it needs; for the
# authors' own see gad_authors.sh), TEACHER_ARCH (Transformer-big; base for wmt16-en-ro), SIZE (base; big: its models and results are named big-),
# VERIFIER_ARCH (transformer; big: Transformer-big), DRAFTER_ARCH (nar_drafter_SIZE), BLOCK_SIZE (25; big: 30), DROPOUT (0.1; the
# paper chooses among 0.1, 0.2, 0.3), TEACHER_DROPOUT (0.3 of Transformer-big, else DROPOUT), DRAFTER_DROPOUT (DROPOUT; 0.2 for
# en-ro), AVERAGE (10), HIGH_QUALITY and HIGH_EFFICIENCY (beta,tau; Tables 8 and 14),
# VERIFIER_FLAGS, DRAFTER_FLAGS, RUN (drafter; another name for one more drafter of the same verifier, with a table of its own), and
# what wmt_common.sh lists. gad_analyses.sh compares drafters: RUN=drafter-k10 BLOCK_SIZE=10 and so on for Table 6,
# RUN=drafter-k30 BLOCK_SIZE=30 and RUN=drafter-big-k30 BLOCK_SIZE=30 DRAFTER_ARCH=nar_drafter_big for Table 9.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/../common.sh"

case ${SIZE:=base} in # section 4.2.4
    base) VERIFIER_ARCH=${VERIFIER_ARCH:-transformer} BLOCK_SIZE=${BLOCK_SIZE:-25} OF_SIZE="" ;;
    big)
        VERIFIER_ARCH=${VERIFIER_ARCH:-transformer_vaswani_wmt_en_de_big} BLOCK_SIZE=${BLOCK_SIZE:-30} OF_SIZE=big-
        HIGH_EFFICIENCY=${HIGH_EFFICIENCY:-5,6.0} # Table 8
        ;;
    *) die "unknown SIZE '$SIZE' (choose from: base big)" ;;
esac
DRAFTER_ARCH=${DRAFTER_ARCH:-nar_drafter_$SIZE}
. "$(dirname "${BASH_SOURCE[0]}")/../wmt_common.sh"

case $SET in
    wmt16-en-ro) TEACHER_ARCH=${TEACHER_ARCH:-transformer} ;;
    *) TEACHER_ARCH=${TEACHER_ARCH:-transformer_vaswani_wmt_en_de_big} ;;
esac
DROPOUT=${DROPOUT:-0.1}
case $TEACHER_ARCH in # Vaswani et al.
    *_big) TEACHER_DROPOUT=${TEACHER_DROPOUT:-0.3} ;;
    *) TEACHER_DROPOUT=${TEACHER_DROPOUT:-$DROPOUT} ;;
esac
case $DIRECTION in # Table 14
    en-ro) HIGH_QUALITY=${HIGH_QUALITY:-5,4.0} HIGH_EFFICIENCY=${HIGH_EFFICIENCY:-5,6.0} ;;
    ro-en) HIGH_QUALITY=${HIGH_QUALITY:-3,2.0} HIGH_EFFICIENCY=${HIGH_EFFICIENCY:-5,3.0} ;;
    *) HIGH_QUALITY=${HIGH_QUALITY:-3,1.0} HIGH_EFFICIENCY=${HIGH_EFFICIENCY:-5,3.0} ;;
esac
AVERAGE=${AVERAGE:-10}
VERIFIER_FLAGS=${VERIFIER_FLAGS:-}
DRAFTER_FLAGS=${DRAFTER_FLAGS:-}
DISTILLED=$WORK/distilled-$DIRECTION
OWN=${RUN:+-$RUN}
COMMON=(--share-all-embeddings --keep-last-epochs "$AVERAGE")

# Table 13, left
autoregressive=("${COMMON[@]}"
    --criterion label_smoothed_cross_entropy
    --max-tokens 20000 --update-freq "$(update_freq 4 8)"
    --lr 0.001 --adam-betas '(0.9, 0.99)' --weight-decay 0.00001 --clip-norm 3.0 --warmup-updates 4000
    --max-update 100000 --max-epoch 1000)
# Table 13, right; for the small set what the authors' drafter of it was trained with
case $SET in
    wmt16-en-ro)
        schedule=(--update-freq "$(update_freq 2 8)" --lr 0.001 --warmup-updates 4000 --max-update 50000)
        DRAFTER_DROPOUT=${DRAFTER_DROPOUT:-0.2}
        ;;
    *)
        schedule=(--update-freq "$(update_freq 4 8)" --lr 0.0005 --warmup-updates 10000 --max-update 300000)
        DRAFTER_DROPOUT=${DRAFTER_DROPOUT:-$DROPOUT}
        ;;
esac
drafter=("${COMMON[@]}" --dropout "$DRAFTER_DROPOUT"
    --criterion glancing_loss --arch "$DRAFTER_ARCH" --block-size "$BLOCK_SIZE" --max-tokens 4096 "${schedule[@]}"
    --adam-betas '(0.9, 0.999)' --adam-eps 1e-6 --weight-decay 0.01 --clip-norm 5.0)

TEACHER=${TEACHER:-} VERIFIER=${VERIFIER:-} DRAFTER=${DRAFTER:-}
for file in "$TEACHER" "$VERIFIER" "$DRAFTER"; do
    [ -z "$file" ] || [ -e "$file" ] || die "$file does not exist"
done
if [ -z "$TEACHER" ] && { [ -z "$VERIFIER" ] || [ -z "$DRAFTER" ]; }; then
    learn "teacher-$DIRECTION" "$AVERAGE" "$DATA" --arch "$TEACHER_ARCH" --dropout "$TEACHER_DROPOUT" "${autoregressive[@]}"
    TEACHER=$WORK/teacher-$DIRECTION-model/model.pt
fi
[ -n "$VERIFIER" ] && [ -n "$DRAFTER" ] || distil "$TEACHER" "$DISTILLED"
if [ -z "$VERIFIER" ]; then
    # shellcheck disable=SC2086  # a list of flags
    learn "${OF_SIZE}verifier-$DIRECTION" "$AVERAGE" "$DISTILLED" --arch "$VERIFIER_ARCH" --dropout "$DROPOUT" "${autoregressive[@]}" $VERIFIER_FLAGS
    VERIFIER=$WORK/${OF_SIZE}verifier-$DIRECTION-model/model.pt
fi
if [ -z "$DRAFTER" ]; then
    # The authors' drafter begins with the encoder of its verifier; one of another size than the verifier cannot.
    [ "$DRAFTER_ARCH" != "nar_drafter_$SIZE" ] || drafter+=(--init-encoder-from "$VERIFIER")
    # shellcheck disable=SC2086
    learn "$OF_SIZE${RUN:-drafter}-$DIRECTION" "$AVERAGE" "$DISTILLED" "${drafter[@]}" $DRAFTER_FLAGS
    DRAFTER=$WORK/$OF_SIZE${RUN:-drafter}-$DIRECTION-model/model.pt
fi

verifier=(--path "$VERIFIER")
gad=("${verifier[@]}" --beam 1 --drafter-path "$DRAFTER" --draft-tokens "$BLOCK_SIZE")
relaxed() { printf '%s\n' --decoding gad --draft-tokens all --acceptance "top-beta:${1%,*}:${1#*,}"; }
mapfile -t QUALITY < <(relaxed "$HIGH_QUALITY")
mapfile -t EFFICIENCY < <(relaxed "$HIGH_EFFICIENCY")

system "${OF_SIZE}beam5" "verifier, beam 5" "${verifier[@]}" --decoding stock --beam 5
system "${OF_SIZE}beam1" "verifier, beam 1" "${verifier[@]}" --decoding stock --beam 1
[ -z "$TEACHER" ] || system teacher "teacher, beam 5" --path "$TEACHER" --decoding stock --beam 5
system "${OF_SIZE}greedy" "verifier, our greedy" "${verifier[@]}" --beam 1 --decoding greedy
system "${OF_SIZE}nar$OWN" "drafter alone" "${gad[@]}" --decoding nar
system "${OF_SIZE}gad$OWN" "GAD" "${gad[@]}" --decoding gad --draft-tokens all
system "${OF_SIZE}gad-quality$OWN" "GAD++ ($HIGH_QUALITY), high quality" "${gad[@]}" "${QUALITY[@]}"
system "${OF_SIZE}gad-efficiency$OWN" "GAD++ ($HIGH_EFFICIENCY), high efficiency" "${gad[@]}" "${EFFICIENCY[@]}"
report "Generalized aggressive decoding, $SET, $DIRECTION, $SIZE size" --oracle "decode-$DIRECTION-${OF_SIZE}beam1"
