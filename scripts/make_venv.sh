#!/bin/sh
# Make .venv from requirements.lock, or with STACK=modern .venv-modern from requirements-modern.lock; or do nothing when
# it is up to date. Called by every make target. With the argument `remove`, remove it.
set -eu
cd "$(dirname "$0")/.."

say() { printf '%s\n' "$*" >&2; }

case "${STACK:-default}" in
    default) venv=.venv lock=requirements.lock ;;
    modern) venv=.venv-modern lock=requirements-modern.lock ;;
    *) say "error: STACK=$STACK is not known; there are STACK=default and STACK=modern"; exit 2 ;;
esac

# What it depends on. The folder's own path is part of it: a moved or copied .venv does not work.
wanted=$( (pwd -P; cat $lock pyproject.toml scripts/make_venv.sh) | cksum)
if [ "${1:-}" != remove ] && [ -x $venv/bin/python ] && [ "$(cat $venv/made-from 2>/dev/null)" = "$wanted" ] &&
    $venv/bin/python -c ''; then
    exit 0
fi

# Only what this script has made is removed, finished or not. A link leads to somebody else's folder.
mark=made-by-make_venv
if [ -L $venv ] || { [ -e $venv ] && ! [ -f $venv/$mark ] && ! [ -f $venv/made-from ]; }; then
    say "error: $(pwd -P)/$venv was not made by scripts/make_venv.sh, so it is neither replaced nor removed"
    say "what to do: move it away (mv $venv $venv-mine) or remove it yourself, then run make again"
    exit 2
fi
if [ "${1:-}" = remove ]; then
    rm -rf $venv
    exit 0
fi

if [ "$(uname -s)" != Linux ] || [ "$(uname -m)" != x86_64 ]; then
    say "error: this is $(uname -s) on $(uname -m); DGL 2.1.0 is installed on Linux x86-64 only"
    say "what to do: on Windows use WSL2; on macOS use a Linux x86-64 machine or virtual machine (README, Requirements)"
    exit 2
fi

# A python3.12 may be found and still not run (a pyenv shim without that version): try it.
suits() {
    "$1" -c 'import sys, venv, ensurepip; sys.exit(not (3, 10) <= sys.version_info[:2] <= (3, 12))' >/dev/null 2>&1
}

python=
for candidate in "${PYTHON:-python3.12}" python3.12 python3.11 python3.10 python3; do
    if suits "$candidate"; then
        python=$candidate
        break
    fi
done

if [ -z "$python" ] && ! command -v uv >/dev/null 2>&1; then
    say "error: found no Python 3.10, 3.11 or 3.12 with the venv module (DGL 2.1.0 has no build for newer ones)"
    say "what to do: install one, then run make again:"
    say "  Debian, Ubuntu:  sudo apt install python3 python3-venv     (or python3.11 python3.11-venv)"
    say "  Fedora:          sudo dnf install python3.12"
    say "  without root:    install uv (https://docs.astral.sh/uv), which brings its own Python"
    say "  or name one:     make run PYTHON=/path/to/python3.11"
    exit 2
fi

if [ -e $venv ]; then
    # The mark goes last: what an interrupted removal leaves is still known to be ours.
    find $venv -mindepth 1 -maxdepth 1 ! -name $mark ! -name made-from -exec rm -rf {} +
else
    mkdir $venv
fi
: > $venv/$mark
rm -f $venv/made-from

if [ -n "$python" ]; then
    say "Making $venv with $("$python" --version) ($(command -v "$python"))"
    "$python" -m venv $venv
    # --no-compile: Python compiles a module when it is first used, and most of these never are.
    set -- $venv/bin/python -m pip install --no-compile --progress-bar on --disable-pip-version-check --no-input
else
    say "No suitable Python found; uv makes $venv with Python 3.11"
    uv venv --allow-existing --python 3.11 $venv
    set -- uv pip install --python $venv/bin/python
fi

say "Installing $(grep -c '==' $lock) packages, about 3 GB to download and 6 GB on disk (torch brings CUDA libraries)"
"$@" --require-hashes --no-deps -r $lock
"$@" --no-deps --no-build-isolation -e .
$venv/bin/python -c 'import tutorial_lib, dgl, torch; print("Installed: torch", torch.__version__, "dgl", dgl.__version__)'
printf '%s\n' "$wanted" > $venv/made-from
