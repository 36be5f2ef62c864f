"""scripts/make_venv.sh: choice of Python, error messages and reuse."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
TOOLS = ("sh", "dirname", "pwd", "cat", "cksum", "uname", "grep", "rm", "printf", "mkdir", "find", "sed", "cp", "ln")


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A repository with the files of the script, and a PATH folder without Python."""
    (tmp_path / "scripts").mkdir()
    (tmp_path / "bin").mkdir()
    shutil.copy(ROOT / "scripts" / "make_venv.sh", tmp_path / "scripts")
    for name in ("requirements.lock", "requirements-modern.lock", "pyproject.toml"):
        shutil.copy(ROOT / name, tmp_path)
    for tool in TOOLS:
        (tmp_path / "bin" / tool).symlink_to(shutil.which(tool))
    return tmp_path


def program(path: Path, script: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


def make_venv(clone: Path, *arguments: str, code: int | None = 0, **variables: str) -> subprocess.CompletedProcess:
    """Run the script and check its exit code."""
    command, path = ["sh", "scripts/make_venv.sh", *arguments], {"PATH": str(clone / "bin")}
    done = subprocess.run(command, cwd=clone, env=path | variables, capture_output=True, text=True, timeout=60)
    assert done.returncode == code, done.stderr
    return done


# A Python that prints its version and makes a .venv whose python writes its arguments to a file.
GOOD = """case "$*" in
  --version) echo Python 3.11.9 ;;
  -c*) echo 3.11 ;;
  "-m venv .venv"*) mkdir -p "$3/bin" "$3/lib/python3.11/site-packages"; cp venv-python "$3/bin/python" ;;
esac"""


def good_python(clone: Path, name: str = "python3.11", version: str = "3.11") -> None:
    program(clone / "bin" / name, GOOD.replace("3.11", version))
    program(clone / "venv-python", 'echo "$*" >> calls')


@pytest.fixture
def made(clone: Path) -> Path:
    """A clone with a .venv of Python 3.11."""
    good_python(clone)
    make_venv(clone)
    return clone


@pytest.mark.parametrize(("variables", "newest"), [({}, "3.13"), ({"STACK": "default"}, "3.12")])
def test_missing_python_names_packages_to_install(clone, variables, newest):
    program(clone / "bin" / "python3.12", "echo 'pyenv: python3.12: command not found' >&2; exit 127")
    found = "3.13" if variables else "3.14"
    good_python(clone, "python3", found)
    printed = make_venv(clone, code=2, **variables).stderr
    assert f"error: found no Python 3.10 to {newest} with the venv module (python3 is Python {found})" in printed
    assert printed.index("uv python install 3.11") < printed.index("sudo apt install python3 python3-venv")
    assert not (clone / ".venv").exists()


def test_unsuitable_python_keeps_existing_venv(made):
    """Debian's Python without the package python3-venv has no module ensurepip."""
    program(made / "broken", "exit 127")
    program(made / "new", "echo 3.14")
    (made / "ensurepip.py").write_text("raise ImportError\n")
    real = "is Python {}.{} without the venv module".format(*sys.version_info)
    problems = {"./no": "is not a program", "./broken": "does not run", "./new": "is Python 3.14", sys.executable: real}
    for python, problem in problems.items():
        printed = make_venv(made, code=2, PYTHON=python, PYTHONPATH=str(made)).stderr
        assert f"error: PYTHON={python} {problem}, and the default stack needs Python 3.10 to 3.12" in printed
    assert (made / ".venv" / "made-from").exists()


def test_python_argument_replaces_venv(made):
    good_python(made, "elsewhere", "3.10")
    program(made / "venv-python", "echo 3.10")
    assert "Making .venv with Python 3.10.9" in make_venv(made, PYTHON="elsewhere").stderr
    assert make_venv(made, PYTHON="elsewhere").stderr == ""  # up to date


@pytest.mark.parametrize("name", ["python3", "elsewhere"])
def test_python_3_13_selects_modern_stack(clone, name):
    """DGL 2.1.0 has no wheel for 3.13, so the wheel for 3.12 is installed with the locked hashes."""
    good_python(clone, name, "3.13")
    program(clone / "venv-python", 'echo "$*" >> calls; case "$*" in *-r\\ /dev/stdin*) cat > stdin-$# ;; esac')
    variables = {"PYTHON": "elsewhere"} if name == "elsewhere" else {}
    assert make_venv(clone, "stack", **variables).stdout == "modern\n"
    done = make_venv(clone, **variables)
    assert "Python 3.13 runs only the modern stack" in done.stderr
    assert "uv python install 3.11" in done.stderr
    assert not (clone / ".venv").exists()
    calls = [call.split(" --no-input ")[1] for call in (clone / "calls").read_text().splitlines() if "stdin" in call]
    site = ".venv-modern/lib/python3.13/site-packages"
    assert calls == [
        "--require-hashes --no-deps -r /dev/stdin",
        f"--require-hashes --no-deps -r /dev/stdin --python-version 3.12 --only-binary=:all: --target {site}",
    ]
    rest, dgl = sorted((path.read_text() for path in clone.glob("stdin-*")), key=len, reverse=True)
    lock = (clone / "requirements-modern.lock").read_text()
    assert dgl.startswith("dgl==2.1.0 ")
    assert dgl in lock
    assert lock.replace(dgl, "") == rest
    assert all(line.startswith("    --hash=sha256:") for line in dgl.splitlines()[1:])
    assert (clone / site / "dgl_without_graphbolt.pth").exists()
    assert (clone / site / "dgl_without_graphbolt.py").readlink() == clone / "tutorial_lib" / "compat" / "stack.py"


def test_older_python_is_preferred_to_3_13(clone):
    """This includes a Python of ``uv`` and a .venv that still runs when the system gets Python 3.13."""
    good_python(clone, "python3.13", "3.13")
    program(clone / "bin" / "uv", f"[ $2 = find ] && echo {clone}/of-uv/python")
    good_python(clone, "../of-uv/python", "3.12")
    assert make_venv(clone, "stack").stdout == "default\n"
    assert "Making .venv with Python 3.12.9" in make_venv(clone).stderr
    (clone / "of-uv" / "python").unlink()
    assert make_venv(clone, "stack").stdout == "default\n"


@pytest.mark.parametrize(
    ("variables", "folder", "lock"),
    [({}, ".venv", "requirements.lock"), ({"STACK": "modern"}, ".venv-modern", "requirements-modern.lock")],
)
def test_each_stack_has_its_own_venv(clone, variables, folder, lock):
    program(clone / "bin" / "python3.12", "exit 127")  # a shim that does not run is passed over
    good_python(clone)
    assert f"Making {folder} with Python 3.11.9" in make_venv(clone, **variables).stderr
    calls = (clone / "calls").read_text()
    assert "-m pip install" in calls
    assert f"--require-hashes --no-deps -r {lock}" in calls
    assert (clone / folder / "made-from").exists()
    assert len(list(clone.glob(".venv*"))) == 1
    assert "STACK=future is not known" in make_venv(clone, code=2, STACK="future").stderr


def test_venv_is_reused_until_lock_changes(made):
    calls = made / "calls"
    first = calls.read_text().count("pip install")
    make_venv(made)
    assert calls.read_text().count("pip install") == first
    with (made / "requirements.lock").open("a") as lock:
        lock.write("# changed\n")
    python = (made / "bin" / "python3.11").rename(made / "python")
    make_venv(made, code=2)
    assert (made / ".venv" / "made-from").exists()  # without Python, the existing venv is kept
    python.rename(made / "bin" / "python3.11")
    make_venv(made)
    assert calls.read_text().count("pip install") == 2 * first
    for _ in range(2):  # there is something, then nothing
        make_venv(made, "remove")
        assert not (made / ".venv").exists()


def test_moved_clone_recreates_venv(made, tmp_path_factory):
    """A .venv contains its path, so a copy in another folder does not work."""
    moved = shutil.copytree(made, tmp_path_factory.mktemp("moved") / "clone", symlinks=True)
    assert "Making .venv with Python 3.11.9" in make_venv(moved).stderr


@pytest.mark.parametrize("linked", [False, True])
def test_foreign_venv_is_refused_and_kept(clone, linked, tmp_path_factory):
    good_python(clone)
    if linked:
        (elsewhere := tmp_path_factory.mktemp("elsewhere") / "made-from").write_text("something else\n")
        (clone / ".venv").symlink_to(elsewhere.parent)
    own = clone / ".venv" / "bin" / "python"
    program(own, "echo mine")
    for arguments in ((), ("remove",)):
        done = make_venv(clone, *arguments, code=2)
        assert f"error: {clone}/.venv was not made by scripts/make_venv.sh" in done.stderr
        assert "mv .venv .venv-mine" in done.stderr
        assert "echo mine" in own.read_text()


@pytest.mark.parametrize(("when", "end", "code"), [("making", "kill -9 $PPID; exit", -9), ("installing", "exit 1", 1)])
def test_broken_install_is_repaired(clone, when, end, code):
    """The install was killed while it made the folder, or failed while it installed packages."""
    good_python(clone)
    if when == "making":
        program(clone / "bin" / "python3.11", GOOD.replace("cp venv-python", f"{end}; cp venv-python"))
    else:
        program(clone / "venv-python", f'case "$*" in *requirements.lock*) {end} ;; esac')
    make_venv(clone, code=code)
    assert not (clone / ".venv" / "made-from").exists()
    (clone / ".venv" / "half").mkdir()
    good_python(clone)
    make_venv(clone)
    assert not (clone / ".venv" / "half").exists()
    assert (clone / ".venv" / "made-from").exists()


def test_uv_is_used_without_python(clone):
    uv = 'echo "uv $*" >> calls; mkdir -p .venv/bin .venv/lib/python3.11/site-packages; cp venv-python .venv/bin/python'
    program(clone / "bin" / "uv", f"[ $2 = find ] && exit 2\n{uv}")
    program(clone / "venv-python", "")
    make_venv(clone)
    calls = (clone / "calls").read_text().splitlines()
    install = "uv pip install --python .venv/bin/python --require-hashes --no-deps -r requirements.lock"
    assert calls[:2] == ["uv venv --allow-existing --python 3.11 .venv", install]


def test_unsupported_system_is_refused_with_remedy(clone):
    (clone / "bin" / "uname").unlink()
    program(clone / "bin" / "uname", 'test "$1" = -s && echo Darwin || echo arm64')
    done = make_venv(clone, code=2)
    assert "this is Darwin on arm64" in done.stderr
    assert "virtual machine" in done.stderr
