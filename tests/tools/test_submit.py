"""``submit`` checks its arguments, the data set and paths before it writes a script. tests/launcher run the scripts."""

import pytest

from tutorial_lib.errors import InputError
from tutorial_lib.files import parse_time_limit

KUBERNETES = ["--kubernetes", "--image", "x"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--kubernetes", "train"], "--kubernetes needs --image"),
        ([*KUBERNETES, "--time", "soon", "train"], "--time soon: write a time such as 30"),
        ([*KUBERNETES, "partition"], "submit partition: only train, finale or launch can run"),
        (["train", "--out", "x"], "--out is not for submit"),
        (["train", "--dataset", "ogbn-prodcts"], "unknown data set 'ogbn-prodcts'"),
        ([*KUBERNETES, "train", "--dataset", "ogbn-prodcts"], "Did you mean ogbn-products?"),
        (
            [*KUBERNETES, "train", "--dataset", "/home/me/graph"],
            "--dataset /home/me/graph: the pods cannot read files of",
        ),
        ([*KUBERNETES, "train", "--dataset", "../graph"], "--dataset ../graph: the pods cannot read files of"),
        ([*KUBERNETES, "launch", "--part_config", "/my/g.json", "true"], "--part_config /my/g.json: the pods cannot"),
        (["train", "--epochs", "many"], "Invalid value for --epochs"),
    ],
)
def test_mistake_in_submit_writes_no_file(words, message, run_here, tmp_path):
    done = run_here("submit", *words)
    assert done.returncode == 2, done.stdout
    assert message in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_volume_paths_and_slurm_names_are_accepted(tmp_path, run_here):
    (tmp_path / "my_graph").mkdir()
    for number, words in enumerate((["--dataset", "my_graph"], ["--dataset", "graphs/mine", "--root", "/data/cache"])):
        done = run_here("submit", *KUBERNETES, "--script", f"{number}.yaml", "train", *words)
        assert (done.returncode, done.stderr) == (0, "")
    done = run_here("submit", "--mem", "32GB", "train", "--dataset", "my_graph")
    assert (done.returncode, done.stderr) == (0, "")
    assert "#SBATCH --mem=32G\n" in (tmp_path / "job.sh").read_text()


def test_slurm_time_syntax():
    assert [parse_time_limit(time) for time in ("30", "4:00:00", "1-12")] == [1800, 14400, 129600]
    with pytest.raises(InputError):
        parse_time_limit("1-")
