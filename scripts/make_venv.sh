#!/bin/sh
# Make .venv from requirements.lock, or with STACK=modern .venv-modern from requirements-modern.lock; or do nothing when
# it is up to date. Called by every make target. With the argument `remove`, remove it. Without STACK, the modern stack
# is used if this computer has Python 3.13 and no older one. With the argument `stack`, print which one that is.
set -eu
cd "$(dirname "$0")/.."

say() { printf '%s\n' "$*" >&2; }

# Print the version of a Python that can make virtual environments, or in words why it cannot. A python3.12 may be found
# and still not run (a pyenv shim without that version), so each candidate is started.
examine() {
    command -v "$1" >/dev/null 2>&1 || { echo "is not a program"; return; }
    "$1" -c '
import sys
version = "%d.%d" % sys.version_info[:2]
try:
    import venv, ensurepip
except ImportError:
    version = "is Python %s without the venv module" % version
print(version)' 2>/dev/null || echo "does not run"
}

older="3.10 3.11 3.12"
find_python() { # the first one of the given versions
    for candidate in python3.12 python3.11 python3.10 \
        $(uv python find --system --no-project '>=3.10,<3.13' 2>/dev/null) python3.13 python3; do
        case " $1 " in *" $(examine "$candidate") "*) echo "$candidate"; return ;; esac
    done
}

only_newer() {
    if [ -n "${PYTHON:-}" ]; then
        [ "$(examine "$PYTHON")" = 3.13 ]
    else
        ! .venv/bin/python -c '' 2>/dev/null && [ -z "$(find_python "$older")" ] && [ -n "$(find_python 3.13)" ]
    fi
}

stack=${STACK:-default}
if [ -z "${STACK:-}" ] && only_newer; then stack=modern; fi
if [ "${1:-}" = stack ]; then
    echo "$stack"
    exit 0
fi

case "$stack" in
    default) venv=.venv lock=requirements.lock versions=$older ;;
    modern) venv=.venv-modern lock=requirements-modern.lock versions="$older 3.13" ;;
    *) say "error: STACK=$STACK is not known. Use STACK=default or STACK=modern"; exit 2 ;;
esac

python=${PYTHON:-}
if [ -n "$python" ] && [ "${1:-}" != remove ]; then
    version=$(examine "$python")
    case " $versions " in *" $version "*) ;; *)
        say "error: PYTHON=$python $(echo "$version" | sed 's/^[0-9]/is Python &/'), and the $stack stack needs" \
            "Python 3.10 to ${versions##* } with the venv module"
        say "what to do: name another (make run PYTHON=/path/to/python3.11), or leave PYTHON out"
        exit 2 ;;
    esac
fi

# The checksum of all inputs includes the path of the checkout, because a moved or copied .venv does not work.
wanted=$( (pwd -P; cat $lock pyproject.toml scripts/make_venv.sh) | cksum)
if [ "${1:-}" != remove ] && [ -x $venv/bin/python ] && [ "$(cat $venv/made-from 2>/dev/null)" = "$wanted" ] &&
    $venv/bin/python -c '' && { [ -z "$python" ] || [ "$(examine $venv/bin/python)" = "$version" ]; }; then
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
    say "what to do: on Windows use WSL2; on macOS use a Linux x86-64 machine or virtual machine (docs/installation.md)"
    exit 2
fi

[ -n "$python" ] || python=$(find_python "$versions")
if [ -z "$python" ] && ! command -v uv >/dev/null 2>&1; then
    [ "${STACK:-}" = default ] && newest=3.12 || newest=3.13
    say "error: found no Python 3.10 to $newest with the venv module (python3 $(examine python3 | sed 's/^[0-9]/is Python &/'))"
    say "what to do: install one, then run make again:"
    say "  without root:    uv python install 3.11     (uv is a single program: https://docs.astral.sh/uv)"
    say "  Debian, Ubuntu:  sudo apt install python3 python3-venv"
    say "  Fedora:          sudo dnf install python3.12"
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
    version=$(examine "$python")
    if [ "$version" = 3.13 ]; then
        say "Python 3.13 runs only the modern stack (torch 2.13, without GraphBolt for lesson 08); for the default stack," \
            "install an older one (uv python install 3.11)"
    fi
    say "Making $venv with $("$python" --version) ($(command -v "$python"))"
    "$python" -m venv $venv
    # --no-compile: Python compiles a module when it is first used, and most of these never are.
    set -- $venv/bin/python -m pip install --no-compile --progress-bar on --disable-pip-version-check --no-input
else
    version=3.11
    say "No suitable Python found; uv makes $venv with Python $version"
    uv venv --allow-existing --python $version $venv
    set -- uv pip install --python $venv/bin/python
fi

say "Installing $(grep -c '==' $lock) packages, about 3 GB to download and 6 GB on disk (torch brings CUDA libraries)"
site=$venv/lib/python$version/site-packages
if [ "$version" = 3.13 ]; then
    # DGL 2.1.0 has no wheel for Python 3.13. The one for 3.12 works there, because DGL replaces its only module that
    # is compiled for one Python (dgl/_ffi/_cy3) by ctypes. Its hashes are those of the lock file, too.
    sed '/^dgl==/,/[^\\]$/d' $lock | "$@" --require-hashes --no-deps -r /dev/stdin
    sed -n '/^dgl==/,/[^\\]$/p' $lock | "$@" --require-hashes --no-deps -r /dev/stdin \
        --python-version 3.12 --only-binary=:all: --target $site
else
    "$@" --require-hashes --no-deps -r $lock
fi
"$@" --no-deps --no-build-isolation -e .
# The lessons and the programs that they start import `support` in any folder.
echo "$(pwd -P)/notebooks" > $site/lessons.pth
if [ "$stack" = modern ]; then
    # `import dgl` then works in every program: lessons start some that do not import tutorial_lib first.
    ln -s "$(pwd -P)/tutorial_lib/compat/stack.py" $site/dgl_without_graphbolt.py
    echo 'import dgl_without_graphbolt; dgl_without_graphbolt.install()' > $site/dgl_without_graphbolt.pth
fi
# Python 3.12 and newer warn about backslashes in DGL's strings until its modules are compiled.
$venv/bin/python -W ignore -m compileall -q $site/dgl
$venv/bin/python -c 'import tutorial_lib, dgl, torch; print("Installed: torch", torch.__version__, "dgl", dgl.__version__)'
printf '%s\n' "$wanted" > $venv/made-from
