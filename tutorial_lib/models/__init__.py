"""GraphSAGE and R-GCN, for blocks of DGL or of our own; nothing here knows of machines or tasks."""
