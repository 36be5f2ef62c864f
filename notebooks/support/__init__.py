"""What only the lessons need: pictures, checkers of exercises, small programs. ``tutorial_lib`` never imports it."""
