"""Trainers stay on the CPUs of one NUMA node: on made-up computers here, and bound for real to what this one has."""

import os
import subprocess
import sys

import pytest

from tutorial_lib.trainer.numa import gpu_nodes, nodes, numbers, share

TWO = {0: {0, 1, 2, 3}, 1: {4, 5, 6, 7}}


@pytest.fixture
def computer(tmp_path):
    """Files as the kernel and NVIDIA's driver show them: two nodes, a third without CPUs, and four GPUs."""
    for node, cpus in {0: "0-3,8-9\n", 1: "4-7\n", 2: "\n"}.items():
        folder = tmp_path / f"sys/devices/system/node/node{node}"
        folder.mkdir(parents=True)
        (folder / "cpulist").write_text(cpus)
    for bus, node in {"0000:17:00.0": 1, "0000:65:00.0": 1, "0000:ca:00.0": 0, "0000:e3:00.0": 0}.items():
        (tmp_path / f"proc/driver/nvidia/gpus/{bus}").mkdir(parents=True)
        folder = tmp_path / f"sys/bus/pci/devices/{bus}"
        folder.mkdir(parents=True)
        (folder / "numa_node").write_text(f"{node}\n")
    return tmp_path


def test_lists_of_cpus_are_read_as_the_kernel_writes_them():
    assert numbers("0-2,8,10-11\n") == {0, 1, 2, 8, 10, 11}
    assert numbers("\n") == set()


def test_nodes_have_the_cpus_that_the_process_may_use(computer):
    assert nodes(set(range(16)), computer) == {0: {0, 1, 2, 3, 8, 9}, 1: {4, 5, 6, 7}}
    assert nodes({4, 5}, computer) == {1: {4, 5}}


@pytest.mark.parametrize(
    ("visible", "found"),
    [(None, [1, 1, 0, 0]), ("2,0", [0, 1]), ("GPU-8f2a", []), ("7", []), ("", [])],
    ids=["all", "numbers", "names", "none of these", "hidden"],
)
def test_gpus_hang_on_nodes(computer, visible, found):
    assert gpu_nodes({} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}, computer) == found


@pytest.mark.parametrize(
    ("trainers", "of_gpus", "firsts"),
    [
        (2, [], [0, 4]),
        (4, [], [0, 0, 4, 4]),
        (4, [1, 1, 0, 0], [4, 4, 0, 0]),
        (4, [1, 0, 1, 0, 1, 1], [4, 0, 4, 0]),
        (2, [1, 1, 0, 0], [0, 4]),  # all GPUs in use on one node: its CPUs alone would be too few
        (2, [-1, -1], [0, 4]),
        (1, [1], [None]),
        (3, [], [None, None, None]),
    ],
)
def test_trainers_are_spread_evenly_and_next_to_their_gpus(trainers, of_gpus, firsts):
    given = [share(trainer, trainers, TWO, of_gpus) for trainer in range(trainers)]
    assert [cpus and min(cpus) for cpus in given] == firsts


def test_one_node_binds_nobody_nor_do_nodes_of_unequal_size():
    assert share(0, 2, {0: {0, 1}}, []) is None
    assert share(0, 2, {0: {0, 1}, 1: {2}}, []) is None


BIND = """
import os, pathlib, sys
from tutorial_lib.trainer.numa import bind
print(bind(pathlib.Path(sys.argv[1])), os.sched_getaffinity(0))
"""


def test_a_trainer_is_bound_for_real(tmp_path):
    allowed = sorted(os.sched_getaffinity(0))
    if len(allowed) < 2:
        pytest.skip("this computer has one CPU")
    for node, cpu in enumerate(allowed[:2]):
        folder = tmp_path / f"sys/devices/system/node/node{node}"
        folder.mkdir(parents=True)
        (folder / "cpulist").write_text(f"{cpu}\n")
    variables = {**os.environ, "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}
    command = [sys.executable, "-c", BIND, str(tmp_path)]
    done = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=60)
    assert done.stdout == f"{{{allowed[1]}}} {{{allowed[1]}}}\n", done.stderr
