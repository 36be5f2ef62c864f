"""GraphSAGE and R-GCN on message-flow graphs. The models know neither machines nor tasks."""
