#!/usr/bin/env bash
# Builds the original fast_align (Dyer et al. 2013) from its sources: FOLDER/fast_align.
#
#   scripts/recipes/lattice/fast_align.sh FOLDER
#
# Environment: RAW (the folder of the archive; default: FOLDER). An archive that is there is not downloaded. Needs cmake and a C++
# compiler, curl for the download.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/../common.sh"

FOLDER=$(realpath -m "${1:?usage: $0 FOLDER}")
COMMIT=cab1e9aac8d3bb02ff5ae58218d8d225a039fa11
ARCHIVE=$(realpath -m "${RAW:-$FOLDER}")/fast_align-$COMMIT.tar.gz
for tool in cmake c++; do
    command -v "$tool" > /dev/null || die "fast_align cannot be built: there is no $tool"
done

mkdir -p "$FOLDER"
fetch "$ARCHIVE" "https://github.com/clab/fast_align/archive/$COMMIT.tar.gz"
sources=$(mktemp -d "$FOLDER/sources.XXXXXX")
trap 'rm -rf "$sources"' EXIT
tar -xzf "$ARCHIVE" -C "$sources" --strip-components 1
# Its CMakeLists.txt names a version that CMake 4 refuses.
cmake -S "$sources" -B "$sources/build" -DCMAKE_POLICY_VERSION_MINIMUM=3.5 -DCMAKE_BUILD_TYPE=Release >&2
cmake --build "$sources/build" --target fast_align >&2
program=$(find "$sources" -name fast_align -type f -perm -u+x | head -n 1)
[ -n "$program" ] || die "fast_align was not built"
mv "$program" "$FOLDER/fast_align"
say "$FOLDER/fast_align"
