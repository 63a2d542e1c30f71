#!/usr/bin/env bash
# Checks the project: style and types, then all chosen levels of tests in one run of pytest, which shares its workers and models.
#
#   scripts/test.sh                      lint unit equality pipelines cli system: what a change needs while it is made
#   scripts/test.sh all                  these and the long ones: recipes strict emulated pages kills faults wheel fuzz sanitizers; what
#                                        .ci/run calls
#   FUZZ_SECONDS=600 scripts/test.sh fuzz    random cases for ten minutes a file, not 20 s; FUZZ_SEED=N repeats a run
#   FUZZ_CASES=100000 scripts/test.sh fuzz -- -k whole_searches    so many cases of each test that is chosen
#   scripts/test.sh unit equality        only these
#   scripts/test.sh unit -- -k loading   what follows -- goes to pytest
#   scripts/test.sh --device cuda        the level strict on a GPU, and no other unless it is named; without this option
#                                        it runs on a device that takes the place of one
#   scripts/test.sh --device cuda -- --stream-sanitizer    that, and PyTorch looks for races between streams
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

LEVELS=(lint unit equality pipelines cli system)
LONG=(recipes strict emulated pages kills faults wheel fuzz sanitizers)
PYTHON=.venv/bin/python
# Several threads per process run slower than one as soon as the cores are shared.
export OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}"
# Each of the many processes would compile some hundred modules anew.
unset PYTHONDONTWRITEBYTECODE

die() { printf 'test: error: %s\n' "$*" >&2; exit 2; }

lint() {
    "$PYTHON" -m ruff check .
    "$PYTHON" -m ruff format --check .
    "$PYTHON" -m mypy
}

# The tests of a level. Six levels share the folder tests/cli: files that no long level names are of the level cli.
# pages: what README and docs print, and pages in a browser; kills: work shared by processes that are killed.
tests_of() {
    local pages=(tests/cli/test_{readme,tour,troubleshooting,python_page,serve_page,proxies}.py) kills=(tests/cli/test_*_processes.py)
    local faults=(tests/cli/test_faults.py) wheel=(tests/cli/test_wheel.py) recipes=(tests/cli/test_*recipe*.py)
    recipes+=(tests/cli/test_{configs,wmt_data}.py)
    case "$1" in
        pages) printf '%s\n' "${pages[@]}" ;;
        kills) printf '%s\n' "${kills[@]}" ;;
        faults) printf '%s\n' "${faults[@]}" ;;
        wheel) printf '%s\n' "${wheel[@]}" ;;
        recipes) printf '%s\n' "${recipes[@]}" ;;
        sanitizers)
            printf 'tests/%s\n' unit/test_{beam_board,drafting_kernels,gpu_logits,gpu_arguments,gpu_cases,cross_attention,gpu_attention,gpu_kernels,gpu_products,int8,interleaved_step,kernels,nvrtc,proposer,whole_searches}.py equality/test_cached_decoder.py \
                equality/test_int8.py::test_batches_and_windows_change_nothing fuzz/test_packed.py::test_no_forged_folder_ends_the_process
            ;;
        cli) printf '%s\n' tests/cli/test_*.py | grep -vxF "$(printf '%s\n' "${pages[@]}" "${kills[@]}" "${faults[@]}" "${wheel[@]}" "${recipes[@]}")" ;;
        *) printf '%s\n' "tests/$1" ;;
    esac
}

# run_pytest LEVELS OPTION...: LEVELS are words; OPTIONS are for pytest. It ends with 5 when it has run nothing: fine for a
# selection by the user.
run_pytest() {
    local status=0 workers=(-n 2) tests=() level
    for level in $1; do mapfile -t -O "${#tests[@]}" tests < <(tests_of "$level"); done
    shift
    if [ "$device" = cuda ]; then workers=(-n 0); fi
    "$PYTHON" -m pytest -q --durations=25 --durations-min=1 --maxfail=20 --device "$device" "${workers[@]}" "$@" \
        "${pytest_options[@]+"${pytest_options[@]}"}" "${tests[@]}" || status=$?
    if [ "$status" = 5 ] && [ "${#pytest_options[@]}" -gt 0 ]; then status=0; fi
    return "$status"
}

# The kernels compiled with AddressSanitizer and UBSan, which end the process at the first fault and print where it is.
# Only the libraries that this processor runs. Python itself loses memory when it ends, so leaks are not looked for.
sanitizers() {
    local folder=.cache/sanitizers compiler=${CXX:-g++} sanitize=-fsanitize=address,undefined runtime usable
    runtime=$("$compiler" -print-file-name=libasan.so 2>/dev/null || true)
    case "$runtime" in
        /*) ;;
        *) printf 'skipped: %s has no libasan.so here\n' "$compiler" && return ;;
    esac
    usable=$("$PYTHON" -c 'from fairseq_aggdec.kernels import library as l; print(*l.supported(l._open("plain")))')
    AGGDEC_LIBRARIES=$usable CXXFLAGS="-O1 -g1 $sanitize -fno-sanitize-recover=all -D_GLIBCXX_SANITIZE_VECTOR -D_GLIBCXX_ASSERTIONS" \
        LDFLAGS=$sanitize "$PYTHON" setup.py -q build_ext --build-lib "$folder" --build-temp "$folder/temp"
    LD_PRELOAD="$runtime $("$compiler" -print-file-name=libstdc++.so)" ASAN_OPTIONS=detect_leaks=0 \
        UBSAN_OPTIONS=print_stacktrace=1 run_pytest sanitizers --capture=sys --kernels "$folder/fairseq_aggdec/kernels" \
        -k "not none and not compiler and not compiled_again" # without the kernels, or with a build of their own
}

levels=() device=cpu
while [ "$#" -gt 0 ] && [ "$1" != -- ]; do
    if [ "$1" = --device ]; then
        case "${2:-}" in cpu | cuda) device=$2 ;; *) die "--device ${2:-}: it must be cpu or cuda" ;; esac
        shift 2
        continue
    fi
    case " ${LEVELS[*]} ${LONG[*]} all " in
        *" $1 "*) if [ "$1" = all ]; then levels+=("${LEVELS[@]}" "${LONG[@]}"); else levels+=("$1"); fi ;;
        *) die "unknown level '$1' (choose from: ${LEVELS[*]} ${LONG[*]} all)" ;;
    esac
    shift
done
[ "$#" = 0 ] || shift
pytest_options=("$@")
if [ "${#levels[@]}" = 0 ]; then
    if [ "$device" = cuda ]; then levels=(strict); else levels=("${LEVELS[@]}"); fi
fi

bash scripts/setup.sh
together=()
for level in "${levels[@]}"; do
    case "$level" in lint | sanitizers) ;; *) together+=("$level") ;; esac
done
# step NAME COMMAND...
step() {
    local start=$SECONDS name=$1
    shift
    printf '== %s\n' "$name"
    "$@"
    printf '== %s passed in %d s\n' "$name" $((SECONDS - start))
}
chosen() { case " ${levels[*]} " in *" $1 "*) ;; *) false ;; esac; }
if chosen lint; then step lint lint; fi
if [ "${#together[@]}" -gt 0 ]; then step "${together[*]}" run_pytest "${together[*]}"; fi
if chosen sanitizers; then step sanitizers sanitizers; fi
printf '== all passed in %d s, set-up included\n' "$SECONDS"
