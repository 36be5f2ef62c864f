"""Other versions of torch and DGL, a DGL without GraphBolt, and what the C library does with memory."""
