"""ogbn-products and ogbn-arxiv, read with the package ogb.

``DglNodePropPredDataset`` calls ``input()`` if a folder has no RELEASE file, and uses the network if the edges are
missing. A batch job would hang, so ``load_ogb`` checks these files first.
"""

import contextlib
import sys
import zipfile
from pathlib import Path

from tutorial_lib.data.base import MASKS, Dataset
from tutorial_lib.data.cache import fetch_zip
from tutorial_lib.files import lock_folder, sibling_folder

# Size of the download, and license.
OGB_DATASETS = {"ogbn-products": ("about 1.4 GB", "Amazon, as OGB states it"), "ogbn-arxiv": ("about 80 MB", "ODC-BY")}


def load_ogb(name: str, *, root: Path, features: bool = True, download: bool = False) -> Dataset:
    """Load a data set from ``root/ogbn_products`` or ``root/products.zip``, with OGB's split and both directions."""
    import dgl
    import pandas as pd
    import torch
    from ogb.nodeproppred import DglNodePropPredDataset

    from tutorial_lib.data.tables import input_error

    size, license = OGB_DATASETS[name]
    stem = name.removeprefix("ogbn-")
    folder, archive = root / name.replace("-", "_"), root / f"{stem}.zip"
    url = f"http://snap.stanford.edu/ogb/data/nodeproppred/{stem}.zip"
    remedy = f"Copy it again, or move {folder}/processed away, and run the same command again."
    if not folder.is_dir():
        fetch_zip(name, url, archive, f"{size}, license: {license}", download=download)
        with input_error(archive, "Copy it again.", "is damaged, or the folder is full"), sibling_folder(folder) as tmp:
            if not folder.is_dir():  # otherwise another process extracted the files first
                with zipfile.ZipFile(archive) as zipped:
                    zipped.extractall(tmp)
                (tmp / stem).rename(folder)
    with input_error(folder, remedy, "is incomplete or damaged, or read-only or full"):
        (folder / "RELEASE_v1.txt").stat()
        if not (folder / "processed/dgl_data_processed").exists():
            for file in ("edge.csv.gz", *(["node-feat.csv.gz"] if features else [])):
                (folder / "raw" / file).stat()
        with lock_folder(folder), contextlib.redirect_stdout(sys.stderr):
            source = DglNodePropPredDataset(name, root=str(root))
        meta, (graph, labels) = source.meta_info, source[0]
        if features and "feat" not in graph.ndata:
            raise ValueError("the saved graph was loaded without features")
        data = {"label": labels.reshape(-1)} | ({"feat": graph.ndata["feat"].float()} if features else {})
        for mask, part in zip(MASKS, ("train", "valid", "test"), strict=True):
            data[mask] = torch.zeros(graph.num_nodes(), dtype=torch.bool)
            ids = pd.read_csv(folder / f"split/{meta['split']}/{part}.csv.gz", header=None)
            data[mask][torch.from_numpy(ids.to_numpy()[:, 0])] = True  # ogb itself would unpickle split_dict.pt
        graph = dgl.graph(graph.edges(order="eid"), num_nodes=graph.num_nodes())
        graph = graph if meta["add_inverse_edge"] == "True" else dgl.to_bidirected(graph)
        graph.ndata.update(data)
    info = {"source": url, "license": license, "folder": str(folder), "split": meta["split"]}
    return Dataset(name, graph, source.num_classes, info)
