from __future__ import annotations
import numpy as np, torch, dgl, sys
from pathlib import Path
from tutorial_lib.datasets.base import Dataset
from tutorial_lib.datasets import synthetic_graph as sg
COUNTS=np.array([
[11332, 12290, 10941, 13153, 60630, 3932, 15305, 16615, 10926, 6266, 4311, 3348, 2755, 10757, 287, 2515, 461, 4245, 662, 1237, 2047, 1313, 64, 526, 200, 93, 75, 4, 84, 152, 9, 25, 33, 3, 2, 8, 2, 3, 1, 1, 1, 1, 0, 0, 0, 0, 0],
[2292, 2306, 2232, 2653, 12125, 798, 3110, 3382, 2191, 1240, 869, 656, 499, 2090, 58, 525, 114, 865, 129, 244, 438, 246, 13, 80, 59, 19, 6, 1, 20, 36, 11, 5, 10, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0],
[100670, 95236, 102870, 135255, 596195, 35985, 140356, 152202, 97679, 59852, 47165, 28933, 128632, 88694, 2734, 23871, 83019, 37227, 48228, 15957, 20090, 79236, 802, 3047, 45147, 2912, 472, 254, 1865, 1373, 257, 388, 470, 25, 152, 36, 628, 511, 90, 36, 5, 60, 32500, 1399, 566, 9, 1]])
def generate(scale,seed=0,progress=print):
    n=round(2449029*scale); per=sg.scaled_counts(COUNTS.sum(1),n)
    c=np.stack([sg.scaled_counts(COUNTS[k],int(per[k])) for k in range(3)])
    rng=np.random.Generator(np.random.PCG64(seed))
    nodes=sg.draw_nodes(rng,c)
    u,v=sg.draw_edges(rng,nodes,round(61859140*scale),progress)
    feat=sg.draw_features(rng,nodes,47)
    E=len(u)
    src=np.empty(2*E,np.int64);src[:E]=u;src[E:]=v
    dst=np.empty(2*E,np.int64);dst[:E]=v;dst[E:]=u
    g=dgl.graph((torch.from_numpy(src),torch.from_numpy(dst)),num_nodes=n)
    g.ndata['feat']=torch.from_numpy(feat);g.ndata['label']=torch.from_numpy(nodes.label.astype(np.int64))
    for k,m in enumerate(("train_mask","val_mask","test_mask")): g.ndata[m]=torch.from_numpy(nodes.split==k)
    return Dataset("synthetic-products",g,47,{}),nodes
