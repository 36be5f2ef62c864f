"""Commands report a mistake in one line with exit code 2, before they write a file or start a process."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tutorial_lib.job.folder import CheckpointOptions
from tutorial_lib.job.layout import SshMachines
from tutorial_lib.launcher.backends.emulated import EmulationUnavailable
from tutorial_lib.tools import jobs
from tutorial_lib.tools.options import options_to_store, parse, run_command

PARTITION = ["partition", "--dataset", "synthetic-products"]
COMMANDS = "doctor data partition plan train launch finale trace explain submit fetch machines on"


@pytest.mark.parametrize("command", COMMANDS.split())
def test_help(command, run_here):
    done = run_here(command, "--help")
    assert done.returncode == 0
    assert f"Usage: python -m tutorial_lib {command}" in done.stdout


def modules_of(*words: str) -> tuple[subprocess.CompletedProcess, set[str]]:
    """Run a command in a new process, and return which of three slow packages it has imported."""
    code = f"import sys\nfrom tutorial_lib.tools.cli import main\ntry:\n    main({list(words)})\n"
    code += "finally:\n    print(*{'torch', 'dgl', 'matplotlib'} & set(sys.modules), file=sys.stderr)"
    wide = {**os.environ, "COLUMNS": "150"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, env=wide)
    return done, set(done.stderr.splitlines()[-1].split())


@pytest.mark.parametrize("words", [["train", "--help"], ["data", "cora"], ["train", "--dataset", "cora"]])
def test_help_and_misspelled_data_set_import_no_torch_or_dgl(words):
    done, imported = modules_of(*words)
    assert not imported
    if "--help" in words:
        for text in ("--embedding-learning-rate", "--ip_config", "For example", "Seed nodes per trainer"):
            assert text in done.stdout
    else:
        assert (done.returncode, done.stderr.startswith("error: unknown data set 'cora'")) == (2, True)


def arguments_of(*words: str) -> dict[str, Any]:
    """Return the arguments of a command's function by name, without running it."""
    arguments = parse(words)[1].arguments
    arguments.pop("options", None)
    return arguments


@pytest.mark.parametrize("separator", ["-", "_"])
def test_options_set_their_fields(separator):
    """Options can be written with underscores, as in DGL's launch tool, or with dashes."""

    def words(text: str) -> list[str]:
        return [f"--{word[2:].replace('-', separator)}" if word[:2] == "--" else word for word in text.split()]

    text = "--batch-size=7 --ahead 5 --seed 5 --stall-timeout 0 --trainers 3 --checkpoint-every 4 --ip-config ip.txt "
    text += "--remote-python py"
    given = arguments_of("train", *words(text), "--allow_public_addresses", "--resume", "--fanouts", "-1,3")
    assert (given["config"].batch_size, given["config"].ahead, given["fanouts"]) == (7, 5, "-1,3")
    assert (given["checkpointing"], given["source"].seed) == (CheckpointOptions(True, 4), 5)
    assert given["ssh"] == SshMachines(Path("ip.txt"), python="py", allow_public=True)
    assert (given["layout"].trainers, given["layout"].limits().stall) == (3, None)
    text = "--num-trainers 2 --num-samplers=1 --num-servers 3 --extra-envs A=1 --timeout 9 --part-config p.json "
    text += "--serving-timeout 2 --collective-timeout 33"
    given = arguments_of("launch", *words(text), "true", "--help", "--", "-x")
    request = given["request"]
    assert (request.trainers, request.samplers, request.servers) == (2, 1, 3)
    limits = request.limits()
    assert (request.extra_envs, limits.job, limits.serving, request.collective_timeout) == (["A=1"], 9, 2, 33)
    assert given["command"] == ["true", "--help", "--", "-x"]


def test_rest_of_line_belongs_to_command():
    given = arguments_of("on", "--name", "lab", "machine-1", "ss", "-tnp", "--name", "x", "--", "--help")
    assert given == {"machine": "machine-1", "command": ("ss", "-tnp", "--name", "x", "--", "--help"), "name": "lab"}
    assert arguments_of("on", "machine-0") == {"machine": "machine-0"}
    assert arguments_of("launch", "--part_config", "p", "--", "true", "--quiet")["command"] == ["true", "--quiet"]


@pytest.mark.parametrize(
    ("words", "emulate", "address_file"),
    [
        ("--emulate 2 --ip_config f", 2, None),
        ("--ip_config f --ssh_port 9", None, "ws/f"),
        ("", None, "ws/ip_config.txt"),
        ("--machines 1", None, None),
    ],
)
def test_launch_uses_the_chosen_machines(words, emulate, address_file, tmp_path, monkeypatch):
    """Without an option for machines, ``launch`` uses the machines of the address file over ssh."""
    seen = []
    monkeypatch.setattr(jobs.job_launch, "launch", lambda request, *_more, **_options: seen.append(request) or {})
    monkeypatch.chdir(tmp_path)
    script = ["python3", "x.py", "--emulate", "3"]
    run_command(["launch", "--part_config", "p", "--workspace", "ws", *words.split(), *script])
    assert (seen[0].command, seen[0].emulate) == (script, emulate)
    assert ((ssh := seen[0].ssh_machines) and ssh.ip_config) == (tmp_path / address_file if address_file else None)


def test_resume_uses_stored_options(tmp_path, monkeypatch):
    """Given options replace the stored ones. An option for machines replaces all stored options for machines."""
    seen = []

    def stop(_layout: Any, _ssh: Any, given: dict[str, Any]) -> None:
        seen.append(given)
        sys.exit()

    monkeypatch.setattr("tutorial_lib.tools.options.choose_machines", stop)
    monkeypatch.chdir(tmp_path)

    def recalled(*words: str) -> dict[str, Any]:
        with pytest.raises(SystemExit):
            run_command(["train", "--resume", "--trust", "--out", str(tmp_path), *words])
        return {name: value for name, value in seen[-1].items() if name not in ("resume", "trust", "out")}

    started = {"emulate": 2, "fanouts": "3", "root": Path("data"), "show_output": True, "cache": "1MB", "out": Path()}
    started |= {"wire": "1gbit", "own_disks": True}
    (tmp_path / "options.json").write_text(json.dumps(options_to_store(started)))
    assert recalled("--batch-size", "7", "--cache=2MB") == {
        **{"emulate": 2, "fanouts": "3", "root": tmp_path / "data", "show_output": True, "wire": "1gbit"},
        **{"own_disks": True, "batch_size": 7, "cache": "2MB"},
    }
    again = {"single_process": True, "root": Path("x"), "cache": "0", "fanouts": "3", "show_output": True}
    assert recalled("--single-process", "--root", "x", "--cache", "0") == again


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["train", "--wire", "fast"], "--wire 'fast' is not a rate"),
        (["train", "--wire", "1gbit", "--machines", "1"], "they need --emulate N"),
        (["train", "--emulate", "2", "--single-process"], "several options choose the machines"),
        (["train", "--emulate", "0"], "--emulate 0 is not in the range"),
        (["train", "--trainers", "0"], "--trainers 0 is not in the range 1 to 1024"),
        (["train", "--single-process", "--trainers", "4"], "--single-process cannot be used with --trainers"),
        ([*PARTITION, "--scale", "0.002", "--parts", "4000", "--out", "p"], "cut 4898"),
        (["train", "--fanouts", "10,0"], "--fanouts '10,0' is not a list"),
        (["data", "ogbn-products"], "ogbn-products"),
        ([*PARTITION, "--parts", "2", "--out", "p", "--method", "x"], "method x does"),
        (["train", "--epohcs", "3"], "Unknown option: --epohcs. Did you mean --epochs?"),
        (["trian"], 'Unknown command "trian". Did you mean "train"?'),
        (["train", "--epochs"], "--epochs requires an argument"),
        (["train", "--ssh_port", "22"], "cannot read ip_config.txt: No such file"),
        (["train", "extra"], "Unused Tokens: ['extra']"),
        (["train", "--hidden-size", "9" * 20], "--hidden-size 99"),
        (["train", "--stall-timeout", "nan"], "--stall-timeout nan is not in"),
    ],
)
def test_mistake_gives_one_line_and_no_files(arguments, words, tmp_path, run_here):
    root = [] if arguments[0] in ("launch", "trian") else ["--root", str(tmp_path / "data")]
    done = run_here(arguments[0], *root, *arguments[1:])
    assert done.returncode == 2, done.stderr
    (error,) = (line for line in done.stderr.splitlines() if line.startswith("error: "))
    assert words in error
    assert "Traceback" not in done.stderr
    assert {path.name for path in tmp_path.iterdir()} <= {"data"}


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--machines", "1"], "lists other machines than 127.0.0.1"),
        (["--ip_config", "b.txt"], "is not an IPv4 address"),
    ],
)
def test_mistake_in_launch(options, words, tmp_path, run_here, partition_of):
    (tmp_path / "ip_config.txt").write_text("10.0.0.1\n")
    (tmp_path / "b.txt").write_bytes(b"\xff\xfe\x00")
    done = run_here("launch", "--part_config", str(partition_of(1).config), *options, "true")
    assert (done.returncode, words in done.stderr.splitlines()[0]) == (2, True), done.stderr
    assert (tmp_path / "ip_config.txt").read_text() == "10.0.0.1\n"


def test_run_folder_in_use_is_not_changed(tmp_path, run_here):
    (tmp_path / "file").write_text("mine")
    for out, words in ((".", "is not empty"), ("file", "file is not a folder"), ("file/run", "file is not a folder")):
        done = run_here("train", "--out", str(tmp_path / out), "--root", str(tmp_path / "data"))
        assert (done.returncode, words in done.stderr.splitlines()[0]) == (2, True)
    assert [path.read_text() for path in tmp_path.iterdir()] == ["mine"]


@pytest.mark.parametrize(
    ("saved", "command", "end", "code"),
    [
        ("checkpoint/manifest.json", "train --resume --out 'my runs/a'", KeyboardInterrupt(), 130),
        # A checkpoint may still be on the machines.
        ("pending_download.json", "fetch 'my runs/a'", SystemExit(143), 143),
    ],
)
def test_failure_names_command_to_resume(end, code, saved, command, tmp_path, run_here, monkeypatch):
    from tutorial_lib.job import train

    def run_single(_source, _config, out, *_more, **_options):
        (out / "checkpoint").mkdir(parents=True)
        (out / saved).write_text("{}")
        raise end

    monkeypatch.setattr(train, "run_single", run_single)
    monkeypatch.chdir(tmp_path)
    done = run_here("train", "--single-process", "--out", "my runs/a")
    assert done.returncode == code
    last = done.stderr.splitlines()[-1]
    assert last == f"to continue: python -m tutorial_lib {command}".replace("my runs", f"{tmp_path}/my runs")


@pytest.mark.parametrize(("words", "code"), [("", 0), ("--emulate 2", 2), ("--wire 1gbit", 2), ("--own-disks", 2)])
def test_train_replaces_only_default_machines(words, code, tmp_path, run_here, monkeypatch):
    """L31. Otherwise ``options.json`` would contain options that exclude each other, and ``--resume`` would fail."""
    from tutorial_lib.job import train

    layouts = []

    def run_distributed(_source, layout, *_more):
        layouts.append(layout)
        if layout.emulate is None:
            sys.exit()
        raise EmulationUnavailable("no namespaces", "Allow them.")

    monkeypatch.setattr(train, "run_distributed", run_distributed)
    assert run_here("train", *words.split()).returncode == code
    assert [layout.emulate for layout in layouts] == ([2] if words else [2, None])


def test_data_and_partition_as_json(data_root, tmp_path, run_here):
    where = ["--scale", "0.005", "--root", str(data_root), "--json"]
    described = json.loads(run_here("data", "synthetic-products", *where).stdout)
    assert (described["nodes"], described["classes"]) == (round(2_449_029 * 0.005), 47)
    assert sum(described[f"{split}_nodes"] for split in ("train", "val", "test")) == described["nodes"]
    words = [*PARTITION, "--parts", "2", "--out", str(tmp_path / "p"), *where]
    first, second = (json.loads(run_here(*words).stdout) for _ in range(2))
    assert (first["reused"], second["reused"]) == (False, True)
    assert first["edge_cut"] == second["edge_cut"] > 0


def test_doctor_works_without_torch():
    """The doctor must be able to report that torch is missing."""
    code = "import sys\nsys.modules['torch'] = None\nfrom tutorial_lib.tools.cli import main\nmain(['doctor'])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert "[ok]   import dgl: dgl 2.1.0" in done.stdout, done.stderr
    assert "Traceback" not in done.stderr
