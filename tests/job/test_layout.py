"""Options of real machines that are wrong wherever they stand: refused before anything is started."""

import pytest

from tutorial_lib.errors import InputError
from tutorial_lib.job.folder import own_run_folder
from tutorial_lib.job.layout import RealMachines


def test_a_place_that_depends_on_the_working_directory_is_refused():
    for place in ("/scratch/job", "~/job", "~"):
        assert RealMachines(copy_to=place).copy_to == place
    for place in ("./copies", "~other/copies", ""):
        with pytest.raises(InputError, match="absolute path, or one from your home on the machines"):
            RealMachines(copy_to=place)


@pytest.mark.parametrize("command", ["train", "finale"])
def test_the_commands_refuse_it_as_a_wrong_argument(command, tmp_path, run_here):
    done = run_here(command, "--ip_config", "ip_config.txt", "--copy_to", "copies", "--out", "run")
    assert done.returncode == 2
    assert done.stderr.startswith("error: --copy_to copies: give an absolute path")
    assert not (tmp_path / "run").exists()


def test_fetch_says_what_is_no_run_and_what_is_complete(tmp_path, run_here):
    done = run_here("fetch", str(tmp_path))
    assert done.returncode == 2
    assert done.stderr.startswith(f"error: {tmp_path} is not the folder of a run with --copy_to")
    (tmp_path / "events.jsonl").touch()
    done = run_here("fetch", str(tmp_path))
    assert (done.returncode, "nothing is left to fetch" in done.stdout) == (0, True), done.stderr
    (tmp_path / "delivery.json").write_text("not JSON")
    done = run_here("fetch", str(tmp_path))
    assert (done.returncode, "delivery.json is damaged" in done.stderr) == (2, True), done.stderr


def test_fetch_from_under_a_running_job_is_refused(tmp_path, run_here):
    (tmp_path / "delivery.json").touch()
    with own_run_folder(tmp_path):
        done = run_here("fetch", str(tmp_path))
    assert (done.returncode, f"another program is running in {tmp_path}" in done.stderr) == (2, True), done.stderr
