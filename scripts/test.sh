#!/usr/bin/env bash
# Checks the project: style and types, then the levels of tests, quickest first; stops at the first level that fails.
#
#   scripts/test.sh                      everything
#   scripts/test.sh unit equality        only these of: lint unit equality cli system
#   scripts/test.sh unit -- -k compat    what follows -- goes to pytest
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

LEVELS=(lint unit equality cli system)
PYTHON=.venv/bin/python
# Several threads per process run slower than one as soon as the cores are shared.
export OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}"

die() { printf 'test: error: %s\n' "$*" >&2; exit 2; }

lint() {
    "$PYTHON" -m ruff check .
    "$PYTHON" -m ruff format --check .
    "$PYTHON" -m mypy
}

# pytest ends with 5 when it has run nothing: fine for a level that is still empty or a selection by the user.
run_pytest() {
    local level=$1 status=0 workers=(-n 2 --dist loadfile)
    mkdir -p "tests/$level"
    "$PYTHON" -m pytest -q --durations=10 --durations-min=1 "${workers[@]}" \
        "${pytest_options[@]+"${pytest_options[@]}"}" "tests/$level" || status=$?
    if [ "$status" = 5 ] && { [ "$level" != unit ] || [ "${#pytest_options[@]}" -gt 0 ]; }; then status=0; fi
    return "$status"
}

levels=()
while [ "$#" -gt 0 ] && [ "$1" != -- ]; do
    case " ${LEVELS[*]} " in *" $1 "*) levels+=("$1") ;; *) die "unknown level '$1' (choose from: ${LEVELS[*]})" ;; esac
    shift
done
[ "$#" = 0 ] || shift
pytest_options=("$@")
[ "${#levels[@]}" -gt 0 ] || levels=("${LEVELS[@]}")

bash scripts/setup.sh
for level in "${levels[@]}"; do
    start=$SECONDS
    printf '== %s\n' "$level"
    if [ "$level" = lint ]; then lint; else run_pytest "$level"; fi
    printf '== %s passed in %d s\n' "$level" $((SECONDS - start))
done
printf '== all passed in %d s, set-up included\n' "$SECONDS"
