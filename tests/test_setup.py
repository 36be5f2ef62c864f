"""scripts/make_venv.sh: which Python it takes, what it says when there is none, and when it does nothing."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
TOOLS = ("sh", "dirname", "pwd", "cat", "cksum", "uname", "grep", "rm", "printf", "mkdir", "find", "sed", "cp", "ln")


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A repository with what the script reads, and a PATH folder with no Python in it."""
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


def make_venv(clone: Path, *arguments: str, **variables: str) -> subprocess.CompletedProcess:
    environment = {"PATH": str(clone / "bin"), **variables}
    return subprocess.run(
        ["sh", "scripts/make_venv.sh", *arguments],
        cwd=clone,
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
    )


# A Python that prints its version and makes a .venv whose python writes its arguments to a file.
GOOD = """case "$*" in
  --version) echo Python 3.11.9 ;;
  -c*) echo 3.11 ;;
  "-m venv .venv"*) mkdir -p "$3/bin" "$3/lib/python3.11/site-packages"; cp venv-python "$3/bin/python" ;;
esac"""


def good_python(clone: Path, name: str, version: str = "3.11") -> None:
    program(clone / "bin" / name, GOOD.replace("3.11", version))
    program(clone / "venv-python", 'echo "$*" >> calls')


def test_without_python_it_says_what_to_install(clone):
    program(clone / "bin" / "python3.12", "echo 'pyenv: python3.12: command not found' >&2; exit 127")
    program(clone / "bin" / "python3", "echo 3.14")
    done = make_venv(clone)
    assert done.returncode == 2
    assert "error: found no Python 3.10 to 3.13 with the venv module (python3 is Python 3.14)" in done.stderr
    assert done.stderr.index("uv python install 3.11") < done.stderr.index("sudo apt install python3 python3-venv")
    assert not (clone / ".venv").exists()


@pytest.mark.parametrize(
    ("says", "problem"),
    [
        (None, "is not a program"),
        ("exit 127", "does not run"),
        ("echo 3.9", "is Python 3.9"),
        ("echo 3.14", "is Python 3.14"),
        ("echo is Python 3.12 without the venv module", "is Python 3.12 without the venv module"),
    ],
)
@pytest.mark.parametrize("before", ["new", "made"])
def test_a_wrong_python_is_named(clone, says, problem, before):
    good_python(clone, "python3.11")
    if before == "made":
        make_venv(clone)
    if says:
        program(clone / "wrong", says)
    done = make_venv(clone, PYTHON="./wrong")
    assert done.returncode == 2
    assert f"error: PYTHON=./wrong {problem}, and the default stack needs Python 3.10 to 3.12" in done.stderr
    assert (clone / ".venv").exists() is (before == "made")


def test_a_python_without_venv_module_is_recognized(clone):
    """With a real Python: Debian's without the package python3-venv has no module ensurepip."""
    (clone / "ensurepip.py").write_text("raise ImportError\n")
    done = make_venv(clone, PYTHON=sys.executable, PYTHONPATH=str(clone))
    assert done.returncode == 2
    version = "{}.{}".format(*sys.version_info)
    assert f"error: PYTHON={sys.executable} is Python {version} without the venv module" in done.stderr


def test_python_of_the_command_line_is_taken_and_replaces_another(clone):
    good_python(clone, "python3.11")
    make_venv(clone)
    good_python(clone, "elsewhere", "3.10")
    program(clone / "venv-python", "echo 3.10")
    done = make_venv(clone, PYTHON="elsewhere")
    assert "Making .venv with Python 3.10.9" in done.stderr
    assert make_venv(clone, PYTHON="elsewhere").stderr == ""  # up to date


@pytest.mark.parametrize("name", ["python3", "python3.13", "elsewhere"])
def test_with_only_python_3_13_it_is_the_modern_stack(clone, name):
    """DGL 2.1.0 has no wheel for it: the one for 3.12 is installed, with the hashes of the lock file."""
    good_python(clone, name, "3.13")
    program(clone / "venv-python", 'echo "$*" >> calls; case "$*" in *-r\\ /dev/stdin*) cat > stdin-$# ;; esac')
    variables = {"PYTHON": "elsewhere"} if name == "elsewhere" else {}
    assert make_venv(clone, "stack", **variables).stdout == "modern\n"
    done = make_venv(clone, **variables)
    assert done.returncode == 0, done.stderr
    assert "Python 3.13 runs only the modern stack" in done.stderr
    assert "uv python install 3.11" in done.stderr
    assert (clone / ".venv-modern" / "made-from").exists()
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


def test_an_older_python_is_preferred_to_3_13(clone):
    good_python(clone, "python3.13", "3.13")
    good_python(clone, "python3", "3.13")
    assert make_venv(clone, "stack").stdout == "modern\n"
    program(clone / "bin" / "uv", f"[ $2 = find ] && echo {clone}/of-uv/python")
    good_python(clone, "../of-uv/python", "3.12")  # `uv python install 3.12`
    assert make_venv(clone, "stack").stdout == "default\n"
    done = make_venv(clone)
    assert "Making .venv with Python 3.12.9" in done.stderr


def test_the_default_stack_of_3_13_is_refused(clone):
    good_python(clone, "python3", "3.13")
    done = make_venv(clone, STACK="default")
    assert done.returncode == 2
    assert "error: found no Python 3.10 to 3.12 with the venv module (python3 is Python 3.13)" in done.stderr


def test_a_default_stack_that_works_stays(clone):
    """An upgrade of the system may bring Python 3.13 while .venv still runs."""
    good_python(clone, "python3.11")
    make_venv(clone)
    (clone / "bin" / "python3.11").unlink()
    good_python(clone, "python3.13", "3.13")
    assert make_venv(clone, "stack").stdout == "default\n"
    assert make_venv(clone).stderr == ""


def test_a_shim_that_does_not_run_is_passed_over(clone):
    program(clone / "bin" / "python3.12", "exit 127")
    good_python(clone, "python3.11")
    done = make_venv(clone)
    assert done.returncode == 0, done.stderr
    assert "Making .venv with Python 3.11.9" in done.stderr
    calls = (clone / "calls").read_text()
    assert "-m pip install" in calls
    assert "--require-hashes --no-deps -r requirements.lock" in calls
    assert (clone / ".venv" / "made-from").exists()


def test_it_is_reused_until_the_lock_changes(clone):
    good_python(clone, "python3.11")
    make_venv(clone)
    first = (clone / "calls").read_text().count("pip install")
    assert make_venv(clone).returncode == 0
    assert (clone / "calls").read_text().count("pip install") == first
    with (clone / "requirements.lock").open("a") as lock:
        lock.write("# changed\n")
    make_venv(clone)
    assert (clone / "calls").read_text().count("pip install") == 2 * first


def test_the_modern_stack_has_a_venv_of_its_own(clone):
    good_python(clone, "python3.11")
    done = make_venv(clone, STACK="modern")
    assert done.returncode == 0, done.stderr
    assert "Making .venv-modern with Python 3.11.9" in done.stderr
    assert "--require-hashes --no-deps -r requirements-modern.lock" in (clone / "calls").read_text()
    assert (clone / ".venv-modern" / "made-from").exists()
    assert not (clone / ".venv").exists()


def test_an_unknown_stack_is_named(clone):
    done = make_venv(clone, STACK="future")
    assert done.returncode == 2
    assert "STACK=future is not known" in done.stderr


def test_a_moved_clone_makes_its_venv_again(clone, tmp_path_factory):
    """A .venv holds its own path: a copy in another folder does not work."""
    good_python(clone, "python3.11")
    make_venv(clone)
    moved = tmp_path_factory.mktemp("moved") / "clone"
    shutil.copytree(clone, moved, symlinks=True)
    (moved / "calls").unlink()
    assert make_venv(moved).returncode == 0
    assert "pip install" in (moved / "calls").read_text()


def test_a_failed_install_is_not_taken_for_done(clone):
    good_python(clone, "python3.11")
    program(clone / "venv-python", 'case "$*" in *requirements.lock*) exit 1 ;; esac')
    assert make_venv(clone).returncode == 1
    assert not (clone / ".venv" / "made-from").exists()


def test_a_venv_of_the_users_own_is_refused_and_stays(clone):
    good_python(clone, "python3.11")
    own = clone / ".venv" / "bin" / "python"
    program(own, "echo mine")
    for arguments in ((), ("remove",)):
        done = make_venv(clone, *arguments)
        assert done.returncode == 2
        assert f"error: {clone}/.venv was not made by scripts/make_venv.sh" in done.stderr
        assert "mv .venv .venv-mine" in done.stderr
        assert "echo mine" in own.read_text()


def test_a_link_to_a_venv_is_refused_and_leads_where_it_did(clone, tmp_path_factory):
    good_python(clone, "python3.11")
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    (elsewhere / "made-from").write_text("something else\n")
    (clone / ".venv").symlink_to(elsewhere)
    assert make_venv(clone).returncode == 2
    assert [path.name for path in elsewhere.iterdir()] == ["made-from"]


@pytest.mark.parametrize("when", ["making", "installing"])
def test_an_interrupted_install_is_known_and_repaired(clone, when):
    """Killed by a signal that no script can catch, while the folder is made or while packages are installed."""
    kill = "kill -9 $PPID"
    good_python(clone, "python3.11")
    if when == "making":
        program(clone / "bin" / "python3.11", GOOD.replace("cp venv-python", f"{kill}; exit; cp venv-python"))
    else:
        program(clone / "venv-python", f'case "$*" in *requirements.lock*) {kill} ;; esac')
    assert make_venv(clone).returncode == -9
    (clone / ".venv" / "half").mkdir()
    program(clone / "bin" / "python3.11", GOOD)
    program(clone / "venv-python", 'echo "$*" >> calls')
    done = make_venv(clone)
    assert done.returncode == 0, done.stderr
    assert not (clone / ".venv" / "half").exists()
    assert (clone / ".venv" / "made-from").exists()


def test_what_it_made_it_removes(clone):
    good_python(clone, "python3.11")
    assert make_venv(clone, "remove").returncode == 0  # there is nothing
    make_venv(clone)
    assert make_venv(clone, "remove").returncode == 0
    assert not (clone / ".venv").exists()


def test_without_python_the_venv_that_is_there_stays(clone):
    good_python(clone, "python3.11")
    make_venv(clone)
    with (clone / "requirements.lock").open("a") as lock:
        lock.write("# changed\n")
    (clone / "bin" / "python3.11").unlink()
    assert make_venv(clone).returncode == 2
    assert (clone / ".venv" / "made-from").exists()


def test_uv_is_used_when_there_is_no_python(clone):
    uv = 'echo "uv $*" >> calls; mkdir -p .venv/bin .venv/lib/python3.11/site-packages; cp venv-python .venv/bin/python'
    program(clone / "bin" / "uv", f"[ $2 = find ] && exit 2\n{uv}")
    program(clone / "venv-python", "")
    done = make_venv(clone)
    assert done.returncode == 0, done.stderr
    calls = (clone / "calls").read_text().splitlines()
    assert calls[0] == "uv venv --allow-existing --python 3.11 .venv"
    assert calls[1] == "uv pip install --python .venv/bin/python --require-hashes --no-deps -r requirements.lock"


def test_another_system_is_refused_with_a_way_out(clone):
    os.unlink(clone / "bin" / "uname")
    program(clone / "bin" / "uname", 'test "$1" = -s && echo Darwin || echo arm64')
    done = make_venv(clone)
    assert done.returncode == 2
    assert "this is Darwin on arm64" in done.stderr
    assert "virtual machine" in done.stderr
