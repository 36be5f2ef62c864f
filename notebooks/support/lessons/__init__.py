"""Programs that a lesson starts as trainers, because a server or a rank cannot load a function of a notebook cell."""
