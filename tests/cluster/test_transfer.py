"""Files copied to a machine and back by the real program at the other end of real pipes, and what goes wrong there."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import pytest
from ssh_support import assert_private

from tutorial_lib.cluster import channel, transfer
from tutorial_lib.cluster.channel import Stopped, Watch
from tutorial_lib.cluster.emulated import EmulatedCluster
from tutorial_lib.cluster.spec import Machine
from tutorial_lib.cluster.transfer import Fetched, deliver, fetch, files_in
from tutorial_lib.errors import JobError

pytestmark = pytest.mark.usefixtures("nothing_left")
MACHINE = Machine("machine-7", "127.0.0.1")
SIZE = 5_000_000


class Here:
    """A transport that starts the other end on this computer; ``then`` is called with the process at once."""

    machines = (MACHINE,)

    def __init__(self, then: Callable[[subprocess.Popen], None] = lambda _process: None, shell: str = "") -> None:
        self.then, self.shell = then, shell

    def popen(self, _machine: Machine, argv, **kwargs) -> subprocess.Popen:
        before = ["bash", "-c", f'{self.shell}; exec "$@"', "bash"] if self.shell else []
        process = subprocess.Popen([*before, *argv], **kwargs)
        self.then(process)
        return process


@pytest.fixture
def source(tmp_path: Path) -> Path:
    folder = tmp_path / "source"
    (folder / "deep").mkdir(parents=True)
    (folder / "deep" / "large").write_bytes(os.urandom(SIZE))
    (folder / "small").write_text("some text")
    return folder


class Within(Watch):
    """Calls once, when checksums are compared and more than so many bytes are copied: the large file comes last."""

    def __init__(self, then: Callable[[], None], done: int = 0) -> None:
        super().__init__()
        self.then, self.done = [then], done

    def moved(self, done: int, _total: int) -> None:
        if done > self.done and self.then:
            self.then.pop()()


def send(
    source: Path, target: Path, cluster: Here | None = None, seconds: float = 20, watch: Watch | None = None
) -> int:
    return deliver(cluster or Here(), MACHINE, files_in(source), str(target), seconds, watch or Watch())


def bring(source: Path, target: Path, cluster: Here | None = None, seconds: float = 20, **options) -> Fetched:
    return fetch(cluster or Here(), MACHINE, str(source), target, seconds, **{"watch": Watch(), **options})


def assert_same(source: Path, target: Path) -> None:
    """The same files with the same content, and nothing else, hidden files included."""
    for one, other in ((source, target), (target, source)):
        for path in one.rglob("*"):
            if path.is_file():
                assert (other / path.relative_to(one)).read_bytes() == path.read_bytes()


def hidden_in(folder: Path) -> list[Path]:
    return list(folder.rglob(".*"))


@pytest.mark.parametrize("copy", [send, bring])
def test_only_what_differs_is_copied_also_where_the_size_is_the_same(copy, source, tmp_path):
    target = tmp_path / "target"
    count = lambda: n if isinstance(n := copy(source, target), int) else len(n.needed)  # noqa: E731
    assert count() == 2
    assert_same(source, target)
    assert count() == 0
    (target / "small").write_text("some TEXT")
    assert count() == 1
    assert_same(source, target)


def test_plain_files_are_found_and_what_is_to_be_skipped_is_not(tmp_path):
    (tmp_path / "inner").mkdir()
    for name in ("inner/kept.py", "left.pt", ".hidden"):
        (tmp_path / name).write_text("x")
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere")
    os.mkfifo(tmp_path / "pipe")  # who reads it waits for ever
    assert list(files_in(tmp_path, lambda path: path.suffix == ".pt")) == ["inner/kept.py"]


def test_many_copies_of_one_file_at_once_do_not_disturb_each_other(source, tmp_path):
    with ThreadPoolExecutor(8) as pool:
        results = list(pool.map(lambda _k: bring(source, tmp_path / "target"), range(8)))
    assert all(set(result.table) == {"small", "deep/large"} for result in results)
    assert_same(source, tmp_path / "target")


@pytest.mark.parametrize("copy", [send, bring])
def test_a_frozen_machine_ends_the_copy_within_the_limit(copy, source, tmp_path, saw):
    def freeze(process: subprocess.Popen) -> None:
        threading.Timer(0.0, os.kill, (process.pid, signal.SIGSTOP)).start()

    start = time.monotonic()
    with pytest.raises(JobError, match=r"copying (to|from) machine-7: nothing moved for 1 s") as caught:
        copy(source, tmp_path / "target", Here(freeze), seconds=1)
    seconds = time.monotonic() - start
    assert seconds < 5
    saw(f"the machine freezes while files are copied ({copy.__name__})", caught.value, seconds)


def test_a_machine_that_freezes_within_a_file_is_named_with_the_file(source, tmp_path):
    started = []
    stop = lambda: started[0].send_signal(signal.SIGSTOP)  # noqa: E731

    with pytest.raises(JobError, match=r"copying to machine-7: nothing moved for 1 s \(deep/large\)"):
        send(source, tmp_path / "target", Here(started.append), seconds=1, watch=Within(stop))


@pytest.mark.parametrize(("size", "how"), [(SIZE // 2, "shorter"), (SIZE + 9, "longer")])
@pytest.mark.parametrize("copy", [send, bring])
def test_a_file_that_changes_its_size_while_it_is_copied(copy, size, how, source, tmp_path, saw):
    """The receiver has its size and waits for so many bytes."""
    change = lambda: os.truncate(source / "deep" / "large", size)  # noqa: E731
    start = time.monotonic()
    with pytest.raises(JobError, match=rf"machine-7: .*deep/large became {how} while it was copied") as caught:
        if copy is send:
            send(source, tmp_path / "target", seconds=5, watch=Within(change))
        else:  # asked for a place, its size is known, and nothing is copied yet
            bring(source, tmp_path / "target", seconds=5, place=lambda name: change() or name)
    assert time.monotonic() - start < 5
    assert hidden_in(tmp_path / "target") == []
    assert not (tmp_path / "target" / "deep" / "large").exists() or how == "longer"
    saw(f"a file becomes {how} while it is copied ({copy.__name__})", caught.value, time.monotonic() - start)


def test_a_file_that_changes_its_content_while_it_is_copied_is_not_accepted(source, tmp_path):
    def change() -> None:
        with (source / "deep" / "large").open("r+b") as file:
            file.write(b"12345678")

    with pytest.raises(JobError, match=r"machine-7: .*deep/large arrived with another checksum"):
        send(source, tmp_path / "target", watch=Within(change))
    assert hidden_in(tmp_path / "target") == []


def test_what_is_replaced_or_removed_while_it_is_fetched_comes_whole(source, tmp_path):
    """As a checkpoint whose place the next one takes: what was open when the copy began is what comes."""
    old = (source / "deep" / "large").read_bytes()

    def replace(name: str) -> str:
        (source / "deep" / "large").unlink(missing_ok=True)
        return name

    bring(source, tmp_path / "target", place=replace)
    assert (tmp_path / "target" / "deep" / "large").read_bytes() == old


def test_a_full_disk_there_is_named_with_machine_and_file(emulation, source, tmp_path, saw):
    target = tmp_path / "disk"
    with EmulatedCluster(1, own_disks=True, private=[tmp_path]) as cluster:
        machine = cluster.machines[0]
        assert_private(cluster, [machine], tmp_path)
        cluster.on_disk(machine, target).mkdir(parents=True)
        command = ["mount", "-t", "tmpfs", "-o", "size=1m", "none", str(target)]
        assert cluster.popen(machine, command).wait(timeout=10) == 0
        with pytest.raises(JobError) as caught:
            deliver(cluster, machine, files_in(source), str(target), 20, Watch())
        left = cluster.popen(machine, ["ls", "-AR", str(target)], stdout=subprocess.PIPE, text=True).communicate()[0]
    assert caught.value.message.startswith("copying to machine-0: OSError: [Errno 28] No space left on device")
    assert f"{target}/deep/large" in caught.value.message
    assert ".large" not in left
    saw("the disk of a machine is full while files are copied to it", caught.value, "at once")


@contextlib.contextmanager
def largest_file(size: int) -> Iterator[None]:
    """This process may write no larger one: the kernel refuses, as a full disk or a quota would."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def test_a_disk_here_that_takes_no_more_is_named_with_the_file(source, tmp_path):
    def limit(process: subprocess.Popen) -> None:
        stack.enter_context(largest_file(1_000_000))

    with contextlib.ExitStack() as stack, pytest.raises(JobError) as caught:
        bring(source, tmp_path / "target", Here(limit))
    assert "copying from machine-7: on this computer: [Errno 27] File too large" in caught.value.message
    assert str(tmp_path / "target" / "deep" / "large") in caught.value.message
    assert hidden_in(tmp_path / "target") == []


def test_modes_are_kept_as_far_as_the_umask_allows(source, tmp_path):
    (source / "small").chmod(0o775)
    (source / "deep" / "large").chmod(0o666)
    old = os.umask(0o027)
    try:
        send(source, tmp_path / "target")
    finally:
        os.umask(old)
    assert (tmp_path / "target" / "small").stat().st_mode & 0o777 == 0o750
    assert (tmp_path / "target" / "deep" / "large").stat().st_mode & 0o777 == 0o640


def test_what_the_shell_prints_first_is_not_taken_for_an_answer(source, tmp_path):
    noise = """echo '["small"]'; echo 42; echo '{"received": 2}'; printf 'no end of line'"""
    assert send(source, tmp_path / "target", Here(shell=noise)) == 2
    assert_same(source, tmp_path / "target")
    with pytest.raises(JobError, match=r"prints without end"):
        send(source, tmp_path / "target", Here(shell="yes"))


def test_a_copy_that_takes_long_says_how_far_it_is_and_can_be_stopped(source, tmp_path, monkeypatch):
    monkeypatch.setattr(channel, "NOTICE_SECONDS", -1.0)
    monkeypatch.setattr(channel, "NOTICE_EVERY", -1.0)
    said: list[str] = []
    bring(source, tmp_path / "target", watch=Watch(said.append))
    assert "copying from machine-7: 5.0 of 5.0 MB so far" in said
    send(source, tmp_path / "sent", watch=Watch(said.append))
    assert "copying to machine-7: comparing checksums" in said
    start = time.monotonic()
    frozen = Here(lambda process: process.send_signal(signal.SIGSTOP))
    with pytest.raises(Stopped):
        watch = Watch(said.append, stopped=lambda: time.monotonic() - start > 0.5)
        bring(source, tmp_path / "other", frozen, watch=watch)
    assert said[-1] == "copying from machine-7: waiting for the machine (at most 20 s without a byte)"
    assert time.monotonic() - start < 3


def test_a_folder_is_removed_after_the_fetch_only_if_a_start_of_ours_made_it(source, tmp_path):
    assert not bring(source, tmp_path / "target", remove=True).removed
    assert source.exists()
    ours = tmp_path / "copy" / ".tutorial_lib" / "run-0123abcd"
    ours.parent.mkdir(parents=True)
    source.rename(ours)
    assert bring(ours, tmp_path / "home", remove=True).removed
    assert list((tmp_path / "copy").iterdir()) == []
    assert (tmp_path / "home" / "deep" / "large").stat().st_size == SIZE
    assert bring(ours, tmp_path / "home", remove=True) == ({}, [], True)
    (tmp_path / "copy").rmdir()
    with pytest.raises(JobError, match=f"copying from machine-7: there is no {tmp_path}/copy; is its disk mounted?"):
        bring(ours, tmp_path / "home")


def test_a_name_that_leads_out_of_the_folder_is_refused(source, tmp_path):
    with pytest.raises(JobError, match="'\\.\\./out' would lie outside of"):
        deliver(Here(), MACHINE, {"../out": source / "small"}, str(tmp_path / "target"), 20, Watch())
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("most", [1, 2])
def test_few_files_are_open_while_they_are_compared_of_many_one_is(tmp_path, monkeypatch, most):
    """So that a file that is replaced meanwhile comes whole, and a large workspace needs no thousand descriptors."""
    monkeypatch.setattr(transfer, "MAX_OPEN", most)
    files = {name: tmp_path / name for name in ("a", "b")}
    for path in files.values():
        path.write_text("x")
    before, seen = len(os.listdir("/proc/self/fd")), []
    answers = [[], {"received": 0}]
    channel = SimpleNamespace(
        send=lambda _table: seen.append(len(os.listdir("/proc/self/fd")) - before),
        receive=lambda: answers.pop(0),
        at_work=lambda: None,
    )
    assert transfer._send_files(channel, files) == 0
    assert seen == [2 if most == 2 else 0]
