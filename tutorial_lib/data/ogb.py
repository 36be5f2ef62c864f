"""ogbn-products and ogbn-arxiv, read with the package ogb.

``DglNodePropPredDataset`` calls ``input()`` if a folder has no RELEASE file, and uses the network if the edges are
missing. A batch job would hang, so ``load_ogb`` checks these files first.
"""

import contextlib
import sys
import zipfile
from pathlib import Path

from tutorial_lib.data.base import MASKS, Dataset
from tutorial_lib.data.cache import fetch_zip, temporary_beside
from tutorial_lib.errors import InputError
from tutorial_lib.files import alone_in

# Nodes, directed edges, size of the download, license. ogbn-arxiv has 8,444 pairs of papers that cite each other.
SPECS = {
    "ogbn-products": (2_449_029, 123_718_280, "about 1.4 GB", "Amazon license, as OGB states it"),
    "ogbn-arxiv": (169_343, 2_315_598, "about 80 MB", "ODC-BY"),
}


def load_ogb(name: str, *, root: Path, features: bool = True, download: bool = False) -> Dataset:
    """Load a data set from ``root/ogbn_products`` or ``root/products.zip``, with OGB's split and both directions."""
    import dgl
    import pandas as pd
    import torch
    from ogb.nodeproppred import DglNodePropPredDataset

    nodes, edges, size, license = SPECS[name]
    folder, stem = root / name.replace("-", "_"), name.removeprefix("ogbn-")
    url, archive = f"http://snap.stanford.edu/ogb/data/nodeproppred/{stem}.zip", root / f"{stem}.zip"
    if not folder.is_dir():
        fetch_zip(name, url, archive, f"{size}, license: {license}", download=download)
    cache, file = folder / "processed/dgl_data_processed", archive
    had_cache = cache.exists()
    try:
        if not folder.is_dir():
            with temporary_beside(folder) as temporary, zipfile.ZipFile(archive) as zipped:
                if not folder.is_dir():  # otherwise another process extracted the files first
                    zipped.extractall(temporary)
                    (temporary / stem).rename(folder)
        file = cache if had_cache else folder / "raw"
        for needed in (folder / "RELEASE_v1.txt", cache if had_cache else file / "edge.csv.gz"):
            needed.stat()
        with alone_in(folder), contextlib.redirect_stdout(sys.stderr):
            source = DglNodePropPredDataset(name, root=str(root))
        about, (graph, labels) = source.meta_info, source[0]
        data = {mask: torch.zeros(nodes, dtype=torch.bool) for mask in MASKS}
        for mask, part in zip(MASKS, ("train", "valid", "test"), strict=True):
            file = folder / f"split/{about['split']}/{part}.csv.gz"  # ogb itself would unpickle split_dict.pt
            data[mask][torch.from_numpy(pd.read_csv(file, header=None).to_numpy()[:, 0])] = True
        file, feat = cache if had_cache else folder, graph.ndata.get("feat")
        if features and feat is None:
            raise ValueError("it has no node features. Load the graph alone with features=False or --graph-only")
        if min(int(end.min()) for end in graph.edges()) < 0:  # DGL checks only the highest ID
            raise ValueError("an edge has a negative node ID")
        graph = dgl.graph(graph.edges(order="eid"), num_nodes=graph.num_nodes())
        graph = graph if about["add_inverse_edge"] == "True" else dgl.to_bidirected(graph)
        expected = (nodes, edges, nodes, torch.int64)
        if (found := (graph.num_nodes(), graph.num_edges(), labels.numel(), labels.dtype)) != expected:
            raise ValueError(f"nodes, directed edges and labels are {found}, published: {expected}")
    except Exception as error:  # ogb, pandas, DGL and zlib raise different types of errors
        if not had_cache:
            cache.unlink(missing_ok=True)
        reason = f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"
        text = f"{name}: {file} is incomplete or damaged, or {root} is read-only or full: {reason}"
        raise InputError(text, f"Copy it again, or move {file} away and run the same command again.") from error
    graph.ndata.update({**data, "label": labels.reshape(-1), **({"feat": feat.float()} if features else {})})
    info = {"source": url, "licence": license, "folder": str(folder), "split": about["split"]}
    return Dataset(name, graph, source.num_classes, info)
