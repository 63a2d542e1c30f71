# shellcheck shell=bash
# Shared by the recipes whose output resembles their input (bea2019, nlpcc18, wikilarge): from plain text to a trained
# Transformer, decoded by stock fairseq and by the plugin, and a table of quality and speed.
#
# A recipe sources this file, checks its data with `need` and `check_data`, writes $WORK/text (a stage) and calls
# `learn_and_decode` and `report`. $WORK/text holds {train,valid}.{src,tgt} and, for each name in SETS, NAME.src: plain
# text, a sentence a line. Every stage is done once; see common.sh.
#
# Environment, with the paper's values (Table 11) where it gives one:
#   data          VOCABULARY (32000 subwords), SUBWORDS (bpe or char), WORKERS (1)
#   architecture  ARCH, LAYERS (6+6, or 12+2), MODEL_FLAGS (more flags)
#   optimiser     MAX_TOKENS (5120 a GPU), UPDATE_FREQ (4 for 4 GPUs, more for fewer), LR (0.0005), WARMUP (4000),
#                 DROPOUT (0.3), MAX_EPOCH (60), MAX_UPDATE (none), SEED (1), TRAIN_FLAGS (more flags)
#   pre-training  SYNTHETIC (PREFIX of .src and .tgt; none), PRETRAIN_EPOCHS, PRETRAIN_WARMUP, FINETUNE_LR: see `learn_and_decode`
#   averaging     AVERAGE (5 last epochs)
#   decoding      SYSTEMS (beam5 beam1 greedy iad), BATCH_SIZE (1: online), DECODE_FLAGS (more flags, for all systems)
#   machine       DEVICE_FLAGS (--cpu where PyTorch finds no GPU), PRECISION_FLAGS (--fp16; on a CPU with AMX --amp), GPUS (those PyTorch finds)

. "$(dirname "${BASH_SOURCE[0]}")/../common.sh"
STEPS="$ROOT/scripts/recipes/recipe_steps.py"
export PYTHONPATH="$ROOT${PYTHONPATH:+:$PYTHONPATH}"

# -- data: everything that is missing is said at once, before any work

MISSING=()

# need VARIABLE NAME WHERE: VARIABLE becomes the path of the file NAME, looked for anywhere below DATA.
need() {
    local found
    found=$({ find -L "$DATA" -type f -path "*/$2" 2>/dev/null || true; } | LC_ALL=C sort | sed -n 1p)
    [ -n "$found" ] || MISSING+=("  $2"$'\n'"      $3")
    printf -v "$1" '%s' "$found"
}

check_data() {
    [ "${#MISSING[@]}" -gt 0 ] || return 0
    local folder="below $DATA"
    [ -d "$DATA" ] || folder="there, as the folder $DATA does not exist"
    die "${#MISSING[@]} of the files this recipe needs are not $folder:"$'\n'"$(printf '%s\n' "${MISSING[@]}")"
}

# -- settings

defaults() {
    # data
    VOCABULARY=${VOCABULARY:-32000}
    SUBWORDS=${SUBWORDS:-bpe}
    WORKERS=${WORKERS:-1}
    # architecture
    ARCH=${ARCH:-transformer_vaswani_wmt_en_de_big}
    LAYERS=${LAYERS:-6+6}
    MODEL_FLAGS=${MODEL_FLAGS:-}
    # optimiser
    LR=${LR:-0.0005}
    WARMUP=${WARMUP:-4000}
    DROPOUT=${DROPOUT:-0.3}
    MAX_TOKENS=${MAX_TOKENS:-5120}
    MAX_EPOCH=${MAX_EPOCH:-60}
    MAX_UPDATE=${MAX_UPDATE:-}
    SEED=${SEED:-1}
    TRAIN_FLAGS=${TRAIN_FLAGS:-}
    AVERAGE=${AVERAGE:-5}
    # decoding
    SYSTEMS=${SYSTEMS:-beam5 beam1 greedy iad}
    BATCH_SIZE=${BATCH_SIZE:-1}
    DECODE_FLAGS=${DECODE_FLAGS:-}
    # machine
    devices
    mkdir -p "$WORK"
}

# -- stages

subwords() {
    "$PYTHON" "$STEPS" subwords --text "$WORK/text" --output "$OUT" --kind "$SUBWORDS" --size "$VOCABULARY"
}

# binarise TEXT SETS: TEXT is a folder of subwords, SETS the names to decode (fairseq calls them test, test1, ...).
binarise() {
    local name prefixes=() splits=(--trainpref "$1/train" --validpref "$1/valid")
    for name in $2; do prefixes+=("$1/$name"); done
    [ "${#prefixes[@]}" = 0 ] || splits+=(--testpref "$(IFS=,; printf '%s' "${prefixes[*]}")")
    "$BIN/fairseq-preprocess" --user-dir "$USER_DIR" --source-lang src --target-lang tgt "${splits[@]}" \
        --joined-dictionary --srcdict "$WORK/subwords/dict.txt" --workers "$WORKERS" --destdir "$OUT"
}

# train DATA FLAG...: FLAGs come last and so overrule what is here.
train() {
    local data=$1; shift
    local flags=(
        # data
        "$data" --user-dir "$USER_DIR" --task translation --source-lang src --target-lang tgt
        --max-tokens "$MAX_TOKENS" --required-batch-size-multiple 1 --num-workers "$WORKERS"
        # architecture: one matrix for both vocabularies and the output, as the words are the same
        --arch "$ARCH" --encoder-layers "${LAYERS%+*}" --decoder-layers "${LAYERS#*+}"
        --share-all-embeddings --dropout "$DROPOUT"
        # optimiser
        --optimizer adam --adam-betas '(0.9, 0.98)' --adam-eps 1e-8 --weight-decay 0.0
        --lr "$LR" --lr-scheduler inverse_sqrt --warmup-updates "$WARMUP" --warmup-init-lr 1e-7
        --criterion label_smoothed_cross_entropy --label-smoothing 0.1
        --update-freq "${UPDATE_FREQ:-$(update_freq 4 4)}" --max-epoch "$MAX_EPOCH" --seed "$SEED"
        # files
        --save-dir "$OUT" --keep-last-epochs "$AVERAGE" --log-format simple --log-interval 100
    )
    # shellcheck disable=SC2086  # these are lists of flags
    "$BIN/fairseq-train" "${flags[@]}" $DEVICE_FLAGS $PRECISION_FLAGS $MODEL_FLAGS $TRAIN_FLAGS \
        ${MAX_UPDATE:+--max-update "$MAX_UPDATE"} "$@" 2>&1 | tee -a "$OUT/train.log"
}

# average_with_subwords TRAINED: the last AVERAGE epochs, beside the subwords that the model reads.
average_with_subwords() {
    average "$1" "$AVERAGE"
    cp "$WORK/subwords/spm.model" "$WORK/subwords/dict.txt" "$OUT"
}

# decode SYSTEM SET SUBSET: one sentence at a time by default, as the paper measures.
decode() {
    local model=("$WORK"/model/*.pt)
    local flags=(
        # data
        "$WORK/data" --user-dir "$USER_DIR" --source-lang src --target-lang tgt --gen-subset "$3"
        --batch-size "$BATCH_SIZE" --required-batch-size-multiple 1 --num-workers 0
        # model and search
        --path "${model[0]}"
    )
    case $1 in
        beam5) flags+=(--task translation_aggdec --decoding stock --beam 5) ;;
        beam1) flags+=(--task translation_aggdec --decoding stock --beam 1) ;;
        # Algorithm 1: copies behind a match that is the only one, and to the end of the source.
        iad) flags+=(--task translation_aggdec --decoding iad --beam 1 --variant iad-match=unique --draft-tokens all) ;;
        *) flags+=(--task translation_aggdec --decoding "$1" --beam 1) ;;
    esac
    # shellcheck disable=SC2206  # these are lists of flags
    flags+=($DEVICE_FLAGS $DECODE_FLAGS)
    generate "${flags[@]}"
    "$PYTHON" "$STEPS" hypotheses --generated "$OUT" --model "$WORK/subwords/spm.model" \
        --source "$WORK/text/$2.src" --output "$OUT/hypotheses.txt"
}

# -- whole recipes

# learn_and_decode: from $WORK/text to hypotheses. SYNTHETIC, if set, is the prefix of parallel text (.src and .tgt) to
# train on before; the vocabulary stays that of the real text.
learn_and_decode() {
    local start=() number=0 system name
    stage subwords subwords
    stage data binarise "$WORK/subwords" "$SETS"
    if [ -n "${SYNTHETIC:-}" ]; then
        stage pretrain-subwords encode_synthetic
        stage pretrain-data binarise "$WORK/pretrain-subwords" ""
        resume pretrain pretrain
        start=(--finetune-from-model "$WORK/pretrain/checkpoint_last.pt" --lr "${FINETUNE_LR:-0.0003}" --dropout 0.3)
    fi
    resume train train "$WORK/data" "${start[@]+"${start[@]}"}"
    stage model average_with_subwords "$WORK/train"
    for name in $SETS; do
        for system in $SYSTEMS; do
            stage "decode-$name-$system" decode "$system" "$name" "test$([ "$number" = 0 ] || printf '%s' "$number")"
        done
        number=$((number + 1))
    done
}

encode_synthetic() {
    "$PYTHON" "$STEPS" encode --model "$WORK/subwords/spm.model" --output "$OUT" \
        "train.src=$SYNTHETIC.src" "train.tgt=$SYNTHETIC.tgt" \
        "valid.src=$WORK/text/valid.src" "valid.tgt=$WORK/text/valid.tgt"
}

# pretrain: the column "Pretrain" of Table 11.
pretrain() {
    train "$WORK/pretrain-data" --lr 0.0003 --warmup-updates "${PRETRAIN_WARMUP:-8000}" --dropout 0.3 \
        --update-freq "${UPDATE_FREQ:-$(update_freq 16 4)}" --max-epoch "${PRETRAIN_EPOCHS:-10}"
}

# report METRIC-FLAGS...: scores every system on every set, into $WORK/results.{md,json}.
report() {
    # shellcheck disable=SC2086  # a list of names
    "$PYTHON" "$STEPS" report --work "$WORK" --systems $SYSTEMS "$@"
}
