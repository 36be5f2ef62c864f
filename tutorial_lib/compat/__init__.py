"""Other versions of torch and DGL, and settings of DGL and of the C library."""
