#!/usr/bin/env bash
# Makes or updates .venv/ with everything fairseq_aggdec needs; over at once when nothing changed.
#
# Variables that a user may set:
#   BASE_PYTHON   the Python to build on, 3.10 to 3.13 (default: the first found, those first for which fairseq has a wheel)
#   AGGDEC_TORCH  the PyTorch to take, as pip spells it: torch==2.12.1 (default: see choose_torch)
#   AGGDEC_EXTRAS  what to install besides (test; .ci/run takes test,docs)
#   AGGDEC_UV=0   install by pip alone; uv, which is fetched otherwise, takes half the time
#   AGGDEC_LIBRARIES  kernels to compile: plain avx2 avxvnni avx512 amx neon (default: plain and what is best here)
#   REDO_VENV=1   make .venv/ afresh
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

TORCH_VERSION=2.13.0
TORCH_CPU_INDEX=https://download.pytorch.org/whl/cpu
EXTRAS=${AGGDEC_EXTRAS:-test} # what the scripts and the tests use
PYTHON=.venv/bin/python
LOG=.venv/setup.log
CONSTRAINTS=.venv/constraints.txt
STAMP=.venv/setup-stamp           # what the environment was made from; written last
UNFINISHED=.venv/setup-unfinished # there while we work: found at the start, a run was killed

say() { printf 'setup: %s\n' "$*" >&2; }
die() { printf 'setup: error: %s\n' "$*" >&2; exit 1; }

version_of() { "$1" -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null || true; }

supported() { case "$(version_of "$1")" in 3.10 | 3.11 | 3.12 | 3.13) ;; *) false ;; esac; }

choose_python() {
    local candidate candidates=${BASE_PYTHON:-python3.11 python3.12 python3.13 python3.10 python3} found=
    for candidate in $candidates; do
        if supported "$candidate" && "$candidate" -c 'import ensurepip, venv' 2>/dev/null; then
            echo "$candidate"
            return
        fi
        found+=" $(version_of "$candidate")"
    done
    found=$(echo $found)
    die "needs Python 3.10 to 3.13 with venv, tried $candidates${found:+ and found $found}; name one in BASE_PYTHON."
}

# All that the environment depends on; its folder, which stands in its commands, comes last.
wanted_stamp() {
    printf '%s\n' "$(cat setup.py pyproject.toml scripts/setup.sh fairseq_aggdec/kernels/source/{,search/,vector/}*.* | cksum)" "${AGGDEC_TORCH:-}${AGGDEC_LIBRARIES:-}${AGGDEC_EXTRAS:-}" "$PWD"
}

right_python() { # the Python in .venv runs and is of the version asked for
    supported "$PYTHON" &&
        { [ -z "${BASE_PYTHON:-}" ] || [ "$(version_of "$PYTHON")" = "$(version_of "$BASE_PYTHON")" ]; }
}

moved() { [ -e "$STAMP" ] && [ "$(tail -n 1 "$STAMP")" != "$PWD" ]; }

usable() { [ ! -e "$UNFINISHED" ] && [ -z "${REDO_VENV:-}" ] && right_python && ! moved; }

up_to_date() { [ -e "$STAMP" ] && [ "$(cat "$STAMP")" = "$1" ]; }

make_venv() {
    local python
    python=$(choose_python)
    if [ -d .venv ]; then say "removing .venv: unfinished, moved, of another Python, or REDO_VENV is set"; fi
    rm -rf .venv
    mkdir .venv
    touch "$UNFINISHED"
    "$python" -m venv .venv
}

# Of fairseq PyPI has wheels for Python 3.11 and 3.12 on x86-64 (the extra `fairseq` in setup.py); else it is compiled.
check_compiler() {
    local include
    case "$(version_of "$PYTHON") $(uname -sm)" in "3.11 Linux x86_64" | "3.12 Linux x86_64") return ;; esac
    say "fairseq has no wheel for Python $(version_of "$PYTHON") here: compiling it takes three minutes on two cores"
    command -v "${CXX:-c++}" >/dev/null || command -v g++ >/dev/null ||
        die "building fairseq-fixed needs a C++ compiler (on Debian: apt-get install g++)."
    include=$("$PYTHON" -c 'import sysconfig; print(sysconfig.get_path("include"))')
    [ -e "$include/Python.h" ] ||
        die "building fairseq-fixed needs Python's headers (on Debian: apt-get install python3-dev)."
}

has_cpu_build() { # does an index (options for pip) have the CPU build for this Python?
    grep -qE " ${TORCH_VERSION//./\\.}\+cpu(,|$)" <<<"$("$PYTHON" -m pip index versions torch "$@" 2>/dev/null)"
}

# Sets `torch` (a requirement) and `index` (options for pip). For Linux the public index has PyTorch
# with gigabytes of CUDA. Without a GPU we want the CPU build: from the configured index if it
# is there, else from PyTorch's own; if neither has it, what there is.
choose_torch() {
    index=()
    torch=${AGGDEC_TORCH:-torch==$TORCH_VERSION}
    if [ -n "${AGGDEC_TORCH:-}" ] || [ "$(uname -s)" != Linux ]; then return; fi
    if nvidia-smi -L >/dev/null 2>&1; then return; fi
    if has_cpu_build; then
        torch="torch==$TORCH_VERSION+cpu"
    elif has_cpu_build --index-url "$TORCH_CPU_INDEX" --retries 0 --timeout 15; then
        torch="torch==$TORCH_VERSION+cpu"
        index=(--extra-index-url "$TORCH_CPU_INDEX")
    else
        say "no index that can be reached has the CPU build of PyTorch $TORCH_VERSION for Python $(version_of "$PYTHON"):" \
            "taking $torch, which may bring gigabytes of CUDA (AGGDEC_TORCH names another)"
    fi
}

# Of the kernels a checkout needs the plain set, which the others are compared with, and the best that this processor runs.
# A wheel has all of them: pip, without this variable, compiles each. The file that tells what the processor can do: $1.
choose_libraries() {
    local flags best=
    flags=" $(grep -m 1 -E '^(flags|Features)[[:space:]]*:' "${1:-/proc/cpuinfo}" 2>/dev/null || true) "
    case "$(uname -m)$flags" in
        x86_64*" amx_int8 "*) best=amx ;;
        x86_64*" avx512_vnni "*) best=avx512 ;;
        x86_64*" avx_vnni "*) best=avxvnni ;;
        x86_64*" avx2 "*) best=avx2 ;;
        aarch64*" asimddp "*) best=neon ;;
    esac
    echo "plain $best"
}

# part NAME COMMAND...: runs it, its output in the log, and tells how long it took.
part() {
    local name=$1 start=$SECONDS
    shift
    "$@" >>"$LOG" 2>&1 || return
    say "$((SECONDS - start)) s: $name"
}

pip_install() { "$PYTHON" -m pip install --no-compile "$@"; }

# The checkout and what it needs; its kernels are compiled already.
# uv knows neither pip's settings nor its constraints: it gets the index, and PyTorch is there already.
install_rest() {
    local default
    local -x AGGDEC_LIBRARIES=
    if [ "${AGGDEC_UV:-1}" = 0 ] || ! "$PYTHON" -m uv --version; then
        pip_install --no-build-isolation ${index[@]+"${index[@]}"} "$torch" -e ".[$EXTRAS]"
        return
    fi
    default=${UV_DEFAULT_INDEX:-${PIP_INDEX_URL:-$("$PYTHON" -m pip config get global.index-url 2>/dev/null || true)}}
    "$PYTHON" -c 'import importlib.metadata as m; print("torch==" + m.version("torch"))' >"$CONSTRAINTS.torch"
    env ${default:+"UV_DEFAULT_INDEX=$default"} UV_CONSTRAINT="$CONSTRAINTS.torch" UV_BUILD_CONSTRAINT="$CONSTRAINTS.torch" \
        "$PYTHON" -m uv pip install --python "$PYTHON" --no-build-isolation-package fairseq-aggdec -e ".[$EXTRAS]"
}

# One environment has one fairseq: what an earlier checkout installed goes.
remove_other_fairseq() {
    local found
    found=$("$PYTHON" -m pip list --format freeze 2>/dev/null | sed -nE 's/^((ve-)?fairseq(-fixed)?)=.*/\1/p')
    case "$found" in "" | ve-fairseq) return ;; esac
    case "$(version_of "$PYTHON") $(uname -sm)" in "3.11 Linux x86_64" | "3.12 Linux x86_64") ;; *) return ;; esac
    "$PYTHON" -m pip uninstall -y $found
}

kernels() { "$PYTHON" setup.py -q build_ext --inplace; }

# The isolated build of fairseq-fixed would fetch a PyTorch of its own, the newest and with CUDA,
# unless it is pinned there too: by PIP_CONSTRAINT for older versions of pip, by
# PIP_BUILD_CONSTRAINT for newer ones. Its parts that text tasks need are compiled with -O3 by its own
# flags; CFLAGS halves the time for the others. With CUDA_HOME it would look for nvcc as well.
# The kernels are compiled while PyTorch is fetched.
install() {
    local compiling tools=("setuptools>=77")
    printf '%s\n' "$torch" >"$CONSTRAINTS"
    export CFLAGS="${CFLAGS:--O1 -g0}" AGGDEC_LIBRARIES="${AGGDEC_LIBRARIES:-$(choose_libraries)}" \
        PIP_CONSTRAINT="$CONSTRAINTS" PIP_BUILD_CONSTRAINT="$CONSTRAINTS" PIP_NO_INPUT=1 PIP_DISABLE_PIP_VERSION_CHECK=1
    unset CUDA_HOME
    [ "${AGGDEC_UV:-1}" = 0 ] || tools+=(uv)
    : >"$LOG"
    remove_other_fairseq >>"$LOG" 2>&1
    part "tools" pip_install "${tools[@]}" || part "tools" pip_install "${tools[0]}" || return
    part "compiling the kernels, meanwhile" kernels &
    compiling=$!
    part "PyTorch" pip_install ${index[@]+"${index[@]}"} "$torch" || { wait "$compiling"; return 1; }
    wait "$compiling" || true # without a compiler there are none; the package says so
    part "fairseq and the rest" install_rest &&
        part "a look at fairseq" "$PYTHON" -c 'from fairseq_aggdec.startup.known_fairseq import check_fairseq as c; c()'
}

main() {
    local wanted
    wanted=$(wanted_stamp) # before `install` sets variables of its own
    if usable && up_to_date "$wanted"; then return; fi
    usable || make_venv
    check_compiler
    choose_torch
    touch "$UNFINISHED"
    say "installing $torch, fairseq and the rest into .venv (two minutes the first time; log: $LOG)"
    if ! install; then
        rm "$UNFINISHED" # failed, not killed: pip left things in order, the next run may go on
        tail -n 40 "$LOG" >&2
        die "the installation of $torch and the rest failed: see above, the whole log is $LOG." \
            "(AGGDEC_TORCH names another PyTorch.)"
    fi
    printf '%s\n' "$wanted" >"$STAMP"
    rm "$UNFINISHED"
    say "done in $SECONDS s, Python $(version_of "$PYTHON"); enter it with: source .venv/bin/activate"
}

if command -v flock >/dev/null; then # one at a time, where the system can lock
    exec 9<scripts/setup.sh
    flock 9
fi
main </dev/null
