"""Run a command and print its peak memory. Usage: peak.py COMMAND..."""

import resource
import subprocess
import sys

code = subprocess.run(sys.argv[1:], check=False).returncode
peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024
print(f"peak {peak / 1e6:.0f} MB, exit code {code}")
sys.exit(code)
