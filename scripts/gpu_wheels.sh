#!/usr/bin/env bash
# Fills a folder with the wheels that a machine with a GPU, PyTorch and no index needs for scripts/gpu_speed.sh.
#
#   scripts/gpu_wheels.sh FOLDER [--python 3.12] [--without NAME ...]
#
# --without: packages that the machine has already. fairseq-fixed travels without its examples and its compiled
# extensions, which nothing here imports; all wheels are packed again, as small as pip can read them. Ends with an error
# where folder and checkout together are above 60 MiB.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

LIMIT=60 # MiB
PACKAGES=(fairseq-fixed hydra-core omegaconf antlr4-python3-runtime bitarray cffi pycparser rapidfuzz portalocker
    scikit-learn scipy joblib cloudpickle threadpoolctl narwhals sentencepiece sacrebleu tabulate colorama lxml regex
    packaging PyYAML tqdm jinja2 markupsafe matplotlib pytest iniconfig pluggy pygments hypothesis sortedcontainers
    ctranslate2 transformers tokenizers huggingface-hub safetensors)

die() { printf 'gpu_wheels: error: %s\n' "$*" >&2; exit 2; }

folder=${1:-} version=3.12 without=' '
[ -n "$folder" ] || die 'name a folder'
shift
while [ "$#" -gt 0 ]; do
    case "$1" in
        --python) version=${2:-}; shift 2 ;;
        --without) shift; while [ "$#" -gt 0 ] && [ "${1#--}" = "$1" ]; do without+="$1 "; shift; done ;;
        *) die "unknown option $1" ;;
    esac
done
python=.venv/bin/python
[ -x "$python" ] || bash scripts/setup.sh
mkdir -p "$folder"

platforms=()
for glibc in 2_28 2_27 2_24 2_17 2_12 2_5; do platforms+=(--platform "manylinux_${glibc}_x86_64"); done
platforms+=(--platform manylinux2014_x86_64 --platform manylinux1_x86_64)
for name in "${PACKAGES[@]}"; do
    case "$without" in *" $name "*) continue ;; esac
    if [ "$name" = antlr4-python3-runtime ]; then # omegaconf needs this one, of which there is no wheel
        "$python" -m pip wheel --quiet --no-deps --wheel-dir "$folder" 'antlr4-python3-runtime==4.9.*'
        continue
    fi
    # The version that the tests run with, where they have one.
    pinned=$("$python" -m pip list --format=freeze 2>/dev/null | grep -iE "^${name//-/[-_]}==" || printf '%s' "$name")
    "$python" -m pip download --quiet --no-deps --only-binary=:all: --python-version "$version" --implementation cp \
        "${platforms[@]}" --dest "$folder" "$pinned"
done
"$python" - "$folder" <<'END'
import sys
import zipfile
from pathlib import Path

for path in Path(sys.argv[1]).glob("*.whl"):
    left_out = ("/examples/", ".so") if path.name.startswith("fairseq_fixed-") else ()
    small = path.with_suffix(".small")
    with zipfile.ZipFile(path) as whole, zipfile.ZipFile(small, "w", zipfile.ZIP_LZMA) as part:
        for entry in whole.infolist():
            if not any(name in entry.filename for name in left_out):
                part.writestr(entry.filename, whole.read(entry))
    small.replace(path)
END
size=$(($(du -sk --apparent-size "$folder" | cut -f1) + $(git ls-files -z | xargs -0 du -ck --apparent-size | tail -1 | cut -f1)))
printf '%s: %d MiB, with the checkout %d MiB\n' "$folder" "$(($(du -sk --apparent-size "$folder" | cut -f1) / 1024))" $((size / 1024))
[ "$size" -le $((LIMIT * 1024)) ] || die "more than $LIMIT MiB: name in --without what the machine has"
