"""Programs that a lesson starts as real trainers: a server or a rank cannot load a function of a notebook cell."""
