"""GraphSAGE and R-GCN on message-flow graphs. The models do not depend on machines or tasks."""
