"""A run as its coordinator sees it: what it needs, its folder, its result, what the screen shows."""
