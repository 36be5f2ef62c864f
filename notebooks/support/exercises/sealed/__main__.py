"""Print or pack the source of a program."""

import sys
from pathlib import Path

from support.exercises.sealed import read_source, write_source

if len(sys.argv) > 2:
    write_source(sys.argv[1], Path(sys.argv[2]).read_text())
else:
    print(read_source(sys.argv[1]), end="")
