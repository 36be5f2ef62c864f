"""An existing partition is found without loading the data set."""

import subprocess
import sys
from dataclasses import replace

from tutorial_lib.job.source import DataSource

FIND = """
import sys
from pathlib import Path
from tutorial_lib.job.train import DataSource, run_distributed
found = DataSource("synthetic-products", 0.002, root=Path(sys.argv[1])).find_partition(2, features=True)
print(found.folder, {"torch", "dgl", "pandas"} & sys.modules.keys())
"""


def test_partition_lookup_does_not_import_torch_or_dgl(tmp_path):
    source = DataSource("synthetic-products", 0.002, root=tmp_path)
    assert source.find_partition(2, features=True) is None
    made = source.partition(source.load(), 2, print)
    done = subprocess.run([sys.executable, "-c", FIND, tmp_path], capture_output=True, text=True, check=True)
    assert done.stdout == f"{made.folder} set()\n"
    for other in (replace(source, seed=1), replace(source, scale=0.003), replace(source, method="random")):
        assert other.find_partition(2, features=True) is None
    assert source.find_partition(2, features=False) is None
    assert source.find_partition(3, features=True) is None


def test_changed_file_changes_the_data_set(tmp_path):
    (tmp_path / "graph").mkdir()
    source = DataSource(str(tmp_path / "graph"), root=tmp_path)
    keys = [source._name_file(2)]
    for text in ("src,dst\n0,1\n", "src,dst\n0,2\n1,2\n"):
        (tmp_path / "graph" / "edges.csv").write_text(text)
        keys.append(source._name_file(2))
    assert len(set(keys)) == 3
