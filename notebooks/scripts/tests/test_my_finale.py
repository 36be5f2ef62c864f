"""Tests of ``my_finale.py``. A folder of this computer plays the disk of each machine, and a script plays ssh."""

import numpy as np
import pytest

import my_finale
from finale_plan import Plan


@pytest.fixture
def plan(tmp_path):
    """Machines red and blue, spare machines green and gray. A file such as ``off-blue`` switches a machine off."""
    folder = tmp_path / "job"
    script = (
        f'[ -e {tmp_path}/off-$1 ] && exit 255\nexec sh -c "$(printf %s "$2" | sed "s:{folder}:{tmp_path}/$1:g")"\n'
    )
    (tmp_path / "remote.sh").write_text(script)
    for name in ("parts/part0", "parts/part1", "parts/part10", "logs"):
        (folder / name).mkdir(parents=True)
    for name in ("train.py", "sage.py", "logs/old.py", "plan.json", "ip_config.txt", "parts/tiny.json"):
        (folder / name).write_text(name)
    for name in ("parts/manifest.json", "parts/node_map.npy", "parts/part0/graph.dgl", "parts/part10/graph.dgl"):
        (folder / name).write_text(name)
    (folder / "parts/part1/graph.dgl").write_bytes(b"a\nb\r\n\0" * 50_000)
    spares = {"green": "10.0.0.3", "gray": "10.0.0.4"}
    machines = {"red": "10.0.0.1", "blue": "10.0.0.2"}
    return Plan(str(folder), machines, "", spares, shell=f"sh {tmp_path}/remote.sh {{}}", dataset="tiny")


def files(part):
    """Return the paths for the machine of a part at the first attempt."""
    return ["ip_config.txt", f"parts/part{part}", "parts/tiny.json", "sage.py", "train.py"]


def test_files_for_each_part(plan):
    """Part 1 is not part 10. The other programs in subfolders, and the files for this computer, stay here."""
    got, expected = [my_finale.files_for(plan, part) for part in (0, 1)], [files(0), files(1)]
    assert got == expected


def test_files_of_an_earlier_attempt(plan, tmp_path):
    """Only the machine of part 0 gets the checkpoint and the best weights, if these files exist."""
    (tmp_path / "job" / "best.pt").write_text("weights")
    got, expected = [my_finale.files_for(plan, part) for part in (0, 1)], [["best.pt", *files(0)], files(1)]
    assert got == expected


def files_on(tmp_path, machine):
    """Return the content of each file on the disk of a machine."""
    disk = tmp_path / machine
    return {str(path.relative_to(disk)): path.read_bytes() for path in sorted(disk.rglob("*")) if path.is_file()}


def test_send(plan, tmp_path):
    """The folder does not exist on the machine yet. Each file arrives unchanged, and no archive remains."""
    before = files_on(tmp_path, "job")
    my_finale.send(plan, "blue", ["parts/part1", "train.py"])
    names = ["parts/part1/graph.dgl", "train.py"]
    got = files_on(tmp_path, "blue"), (tmp_path / "red").exists(), files_on(tmp_path, "job")
    expected = {name: before[name] for name in names}, False, before
    assert got == expected


def test_send_again(plan, tmp_path):
    """A new copy replaces a file of an earlier attempt, and other files remain on the machine."""
    my_finale.send(plan, "red", ["train.py", "sage.py"])
    (tmp_path / "job" / "train.py").write_text("a new version")
    my_finale.send(plan, "red", ["train.py"])
    got, expected = files_on(tmp_path, "red"), {"sage.py": b"sage.py", "train.py": b"a new version"}
    assert got == expected


def error_of(function, *arguments):
    """Return the type and the text of the error that a function raises."""
    try:
        return "no error", function(*arguments)
    except NotImplementedError:
        raise
    except Exception as error:
        return type(error).__name__, str(error)


@pytest.mark.parametrize("problem", ["off", "full", "no file"])
def test_send_fails(problem, plan, tmp_path):
    """Check the exit codes of both programs: tar here, and the command on the machine."""
    paths = ["train.py"] if problem == "full" else ["parts/part1"]
    if problem == "off":
        (tmp_path / "off-blue").touch()
    elif problem == "full":
        (tmp_path / "blue").touch()  # a file, so the machine cannot create the folder
    else:
        paths += ["no_such_file.py"]
    got, expected = error_of(my_finale.send, plan, "blue", paths), ("RuntimeError", "copying to blue failed")
    assert got == expected


@pytest.mark.parametrize(
    ("off", "names", "left"),
    [
        ([], ["red", "blue"], ["green", "gray"]),
        (["blue"], ["red", "green"], ["gray"]),
        (["red"], ["green", "blue"], ["gray"]),
        (["red", "blue"], ["green", "gray"], []),
    ],
)
def test_replace_failed(off, names, left, plan, tmp_path):
    """A spare machine takes the position of the failed one, because the position is the number of the part."""
    for machine in off:
        (tmp_path / f"off-{machine}").touch()
    addresses = {**plan.machines, **plan.spares}
    following = my_finale.replace_failed(plan, plan.machines)
    got = list(following.items()), list(plan.spares), list(plan.machines), following is plan.machines
    expected = [(name, addresses[name]) for name in names], left, ["red", "blue"], False
    assert got == expected


def test_no_spare_machine(plan, tmp_path):
    """The error names the machine that nothing can replace."""
    del plan.spares["gray"]
    for machine in ("red", "blue"):
        (tmp_path / f"off-{machine}").touch()
    got = error_of(my_finale.replace_failed, plan, plan.machines)
    expected = "RuntimeError", "no spare machine for blue"
    assert got == expected


def run_train(plan, tmp_path, monkeypatch, errors, off=()):
    """Let each attempt raise the next error, or succeed. Return the result of ``train``, and the used machines."""
    used, errors = [], list(errors)

    def attempt(_plan, machines, _phases):
        used.append(" ".join(machines))
        (tmp_path / "red").mkdir(exist_ok=True)
        (tmp_path / "red" / "model.pt").write_text(f"attempt {len(used)}")
        if len(used) == 1:
            for machine in off:
                (tmp_path / f"off-{machine}").touch()
        if errors and (error := errors.pop(0)):
            raise error

    monkeypatch.setattr(my_finale, "attempt", attempt)
    return error_of(my_finale.train, plan, []), used


def test_train_at_the_first_attempt(plan, tmp_path, monkeypatch, capsys):
    """Return the name of the first machine."""
    got = run_train(plan, tmp_path, monkeypatch, []), capsys.readouterr().out
    expected = (("no error", "red"), ["red blue"]), ""
    assert got == expected


@pytest.mark.parametrize("error", [RuntimeError("blue failed"), TimeoutError("blue still runs")])
def test_train_again(error, plan, tmp_path, monkeypatch, capsys):
    """The checkpoint is on this computer before the second attempt. A spare machine replaces the failed one."""
    got = run_train(plan, tmp_path, monkeypatch, [error], ["blue"]), capsys.readouterr().out
    expected = (("no error", "red"), ["red blue", "red green"]), f"attempt 1 failed: {error}\n"
    assert got == expected
    got, expected = (tmp_path / "job" / "model.pt").read_text(), "attempt 1"
    assert got == expected


def test_the_first_machine_fails(plan, tmp_path, monkeypatch):
    """Its checkpoint is lost, so an older one counts. The results are on the machine that replaces it."""
    (tmp_path / "job" / "model.pt").write_text("an older checkpoint")
    got = run_train(plan, tmp_path, monkeypatch, [RuntimeError("red failed")], ["red"])
    expected = ("no error", "green"), ["red blue", "green blue"]
    assert got == expected
    got, expected = (tmp_path / "job" / "model.pt").read_text(), "an older checkpoint"
    assert got == expected


def test_machines_of_the_third_attempt(plan, tmp_path, monkeypatch):
    """After two attempts, the third one continues with the machines of the second."""
    plan.attempts = 3
    got = run_train(plan, tmp_path, monkeypatch, [RuntimeError("a"), RuntimeError("b")], ["blue"])
    expected = ("no error", "red"), ["red blue", "red green", "red green"]
    assert got == expected


def test_the_last_attempt_fails(plan, tmp_path, monkeypatch, capsys):
    """Raise the error of the last attempt, and use no spare machine for an attempt that will not come."""
    errors = [RuntimeError("first"), TimeoutError("second"), None]
    got = run_train(plan, tmp_path, monkeypatch, errors), list(plan.spares), capsys.readouterr().out
    printed = "attempt 1 failed: first\nattempt 2 failed: second\n"
    expected = (("TimeoutError", "second"), ["red blue", "red blue"]), ["green", "gray"], printed
    assert got == expected


def test_other_errors(plan, tmp_path, monkeypatch):
    """A ValueError is a mistake in the plan, such as another learning rate. A second attempt would not help."""
    got = run_train(plan, tmp_path, monkeypatch, [ValueError("lr is 0.5, and was 0.01")])
    expected = ("ValueError", "lr is 0.5, and was 0.01"), ["red blue"]
    assert got == expected


@pytest.mark.parametrize("dtype", ["int64", "float32"])
def test_to_original(dtype):
    """The class of the node with the new ID 0 belongs to row ``node_map[0]`` of the result."""
    rows, node_map = np.array([10, 11, 12, 13, 14], dtype=dtype), np.array([3, 0, 4, 2, 1])
    original = my_finale.to_original(rows, node_map)
    got = original.tolist(), str(original.dtype), rows.tolist()
    expected = [11, 14, 13, 10, 12], dtype, [10, 11, 12, 13, 14]
    assert got == expected
