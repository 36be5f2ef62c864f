"""Options of real machines that are wrong on every host are errors before a process is started."""

import pytest

from tutorial_lib.job.layout import Layout, SshMachines


@pytest.mark.parametrize("place", ["copies", "./copies", "~other/copies", ""])
def test_copy_to_must_be_an_absolute_path(place, tmp_path, run_here):
    done = run_here("train", "--ip_config", "ip_config.txt", "--copy_to", place, "--out", "run")
    assert done.returncode == 2
    assert done.stderr.startswith(f"error: --copy_to {place}: expected an absolute path")
    assert not (tmp_path / "run").exists()


def test_no_machine_of_an_address_file_is_dropped(tmp_path):
    (path := tmp_path / "ip_config.txt").write_text("10.0.0.1\n10.0.0.2\n10.0.0.3\n10.0.0.4\n")
    assert len(Layout(ssh_machines=SshMachines(path)).make_backend().machines) == 4


def test_fetch_reports_a_wrong_folder(tmp_path, run_here):
    done = run_here("fetch", str(tmp_path))
    assert done.returncode == 2
    assert done.stderr.startswith(f"error: {tmp_path} is not the folder of a run with --copy_to")
