#!/usr/bin/env bash
# Runs the tests in environments of their own: other Pythons, PyTorches and fairseqs.
#
#   scripts/matrix.sh [FOLDER [CELL...]]     FOLDER: where the environments stand (work/matrix); each takes minutes, and
#                                            gigabytes where PyTorch comes with CUDA
#
# A cell is PYTHON,TORCH,FAIRSEQ[,MORE...], as pip spells them; FAIRSEQ may be a folder, which is installed in editable mode:
#   python3.11,torch==2.13.0,ve-fairseq==0.12.3
#   python3.10,torch==2.6.0,~/fairseq,numpy<2
# PYTHON may be an environment that is there already (its bin/python): then nothing is installed, and TORCH and FAIRSEQ
# only name what it has: .venv/bin/python,-,-
#
#   LEVELS="unit equality pipelines"   whole levels, in place of the files in TESTS below
#   FAIRSEQ=folder                     a clone of facebook's fairseq: one more cell
#   SELECT=word                        only tests whose names have it (pytest -k)
#
# Each cell trains a model and decodes those of all cells before it, with the same output. Sums of fairseq's files are taken
# before and after. A line for each cell is written to FOLDER/environments.jsonl, the table to FOLDER/environments.md.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

# A minute of one core: what is read of fairseq, of OmegaConf and of a checkpoint, losslessness, and pipelines of tasks of
# one's own and of hubs.
TESTS=(tests/unit/test_{known_fairseq,stored_nodes,stored_pickled}.py tests/equality/test_lossless.py::test_adversarial_drafters
    tests/pipelines/test_ones_own.py::test_{what_else_stock_reads_of_a_call,a_beam_that_the_task_sets,arguments_that_only_the_task_knows}
    tests/pipelines/test_hubs.py::test_{weights_are_packed_once,bart})
if [ -n "${LEVELS:-}" ]; then TESTS=(${LEVELS// /" "}); TESTS=("${TESTS[@]/#/tests/}"); fi
CELLS=(
    "python3.11,torch==2.13.0,ve-fairseq==0.12.3"
    "python3.11,torch==2.13.0,fairseq-fixed==0.12.3.1"
    "python3.11,torch==2.6.0,ve-fairseq==0.12.3"
    "python3.11,torch==2.14.1,ve-fairseq==0.12.3"
    "python3.12,torch==2.13.0,fairseq-fixed==0.12.3.1"
    "python3.13,torch==2.13.0,fairseq-fixed==0.12.3.1"
)
# A clone of facebook's, where there is one.
[ ! -d "${FAIRSEQ:-}" ] || CELLS+=("python3.10,torch==2.6.0,$FAIRSEQ,numpy<2")
say() { printf 'matrix: %s\n' "$*" >&2; }
folder=$(realpath -m "${1:-work/matrix}")
[ "$#" -lt 1 ] || shift
[ "$#" -eq 0 ] || CELLS=("$@")
mkdir -p "$folder"
export OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}"

# put PLACE PACKAGE...: by uv where there is one. It is quicker, and takes the metadata of facebook's fairseq and of what
# that asks for, which only pip<24.1 takes.
put() {
    local python=$1/bin/python
    shift
    if command -v uv >/dev/null; then
        uv pip install -q --python "$python" "$@"
    else
        "$python" -m pip install -q --no-compile "$@"
    fi
}

# make PLACE PYTHON TORCH FAIRSEQ MORE...
make() {
    local place=$1 python=$2 torch=$3 fairseq=$4 more=("${@:5}") pip=() rest=()
    for one in "${more[@]+"${more[@]}"}"; do case "$one" in pip*) pip+=("$one") ;; *) rest+=("$one") ;; esac; done
    "$python" -m venv "$place"
    [ "${#pip[@]}" = 0 ] || "$place/bin/python" -m pip install -q "${pip[@]}"
    put "$place" "$torch" "setuptools>=77,<81" wheel cython ninja numpy "${rest[@]+"${rest[@]}"}"
    # Where fairseq is compiled, an environment of its own would bring another PyTorch.
    [ ! -d "$fairseq" ] || set -- -e "$fairseq"
    [ -d "$fairseq" ] || set -- "$fairseq"
    PATH=$place/bin:$PATH put "$place" --no-build-isolation "$@" "$torch" "${rest[@]+"${rest[@]}"}"
    "$place/bin/python" - >"$place/tests.txt" <<'PYTHON'
import runpy, sys
import setuptools
setuptools.setup = lambda **given: None
sys.argv = ["setup.py", "--version"]
names = runpy.run_path("setup.py")
print("\n".join(x for x in names["EXTRAS"]["test"] if not x.startswith(("fairseq", "ve-fairseq", "setuptools"))))
PYTHON
    # The package leaves the fairseq that is there alone.
    sums "$place/bin/python" >"$place/before"
    # The kernels need no headers of Python: the first cell compiles them. An editable installation would do so each time.
    "$place/bin/python" setup.py -q build_ext --inplace
    AGGDEC_LIBRARIES='' put "$place" --no-build-isolation -r "$place/tests.txt" -e . "$torch" "${rest[@]+"${rest[@]}"}"
}

sums() { # of all files of the fairseq that this Python imports, but compiled ones
    (cd / && "$1" -c 'import importlib.util as u; print(u.find_spec("fairseq").submodule_search_locations[0])') |
        { read -r found && find "$found" -type f -not -name '*.pyc' -print0 | sort -z | xargs -0 sha256sum; }
}

failed=0
for cell in "${CELLS[@]}"; do
    IFS=, read -r -a parts <<<"$cell"
    name=$(tr -cs 'A-Za-z0-9.\n' - <<<"$cell" | sed 's/^-*//; s/-*$//')
    python=${parts[0]} place=$folder/$name
    if [ -n "${parts[2]:-}" ] && [ "${parts[2]}" != - ]; then
        if [ ! -e "$place/made" ]; then
            say "$cell: making it"
            rm -rf "$place"
            set +e # in a condition, `set -e` would not hold inside of `make`
            (set -e && make "$place" "${parts[@]}")
            status=$?
            set -e
            [ "$status" = 0 ] || { say "$cell: it could not be made" && failed=1 && continue; }
            touch "$place/made"
        fi
        python=$place/bin/python
    elif [ -e "$python" ]; then
        python=$(realpath -s "$python") # not what it links to, which is the Python outside of the environment
    fi
    mkdir -p "$place"
    [ -e "$place/before" ] || sums "$python" >"$place/before"
    say "$cell: running ${TESTS[*]}"
    status=0
    "$python" -m pytest -q -n 0 ${SELECT:+-k "$SELECT"} --junitxml "$place/tests.xml" -o cache_dir="$place/cache" "${TESTS[@]}" >"$place/log" 2>&1 || status=$?
    "$python" -m tests.exchange "$folder" "$name" >"$place/exchange" 2>&1 || status=1
    sums "$python" | cmp -s - "$place/before" || { say "$cell: files of fairseq have changed" && status=1; }
    "$python" -m tests.exchange --record "$folder" "$name" "$status"
    say "$(tail -n 1 "$place/log"); $(tail -n 1 "$place/exchange")"
    failed=$((failed | status))
done
exit "$failed"
