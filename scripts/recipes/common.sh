# Shared by every recipe: stages that survive a kill.
#
# A recipe sets WORK (its folder of results) and calls
#   stage  NAME COMMAND...   COMMAND writes into $OUT, a fresh folder; $OUT becomes $WORK/NAME once COMMAND succeeded.
#   resume NAME COMMAND...   the same, but what an interrupted try left in $OUT is kept (training continues from its checkpoint).
# A stage whose folder $WORK/NAME exists is done and is skipped; delete the folder to redo it.
# Sourced, not executed: the recipe itself starts with `set -euo pipefail`.

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
PYTHON="${PYTHON:-$ROOT/.venv/bin/python}"
BIN=$(dirname "$PYTHON")
USER_DIR="$ROOT/fairseq_aggdec"

say() { printf '[%(%H:%M:%S)T] %s\n' -1 "$*" >&2; }
die() { printf 'error: %s\n' "$*" >&2; exit 2; }

resume() {
    local name=$1; shift
    if [ -d "$WORK/$name" ]; then say "stage $name: done already, kept"; return; fi
    OUT="$WORK/$name.partial"
    mkdir -p "$OUT"
    say "stage $name: start"
    "$@"
    mv "$OUT" "$WORK/$name"
    say "stage $name: done"
}

stage() {
    [ -d "$WORK/$1" ] || rm -rf "${WORK:?}/$1.partial"
    resume "$@"
}
