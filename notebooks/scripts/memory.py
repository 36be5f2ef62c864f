"""Print the bytes of this node's /dev/shm, and of the memory of the processes of the job by role.

"private" counts the pages of one process only. "peak" is the largest memory so far, with shared pages.
"""

import contextlib
import json
import os
import re
from pathlib import Path

import psutil

found = {"shared": sum(file.stat().st_size for file in Path("/dev/shm").iterdir() if file.is_file())}
for process in psutil.process_iter():
    with contextlib.suppress(psutil.NoSuchProcess):  # the process has ended meanwhile
        environment = process.environ()
        if "SLURM_JOB_ID" in environment and process.pid != os.getpid():
            role = environment.get("DGL_ROLE", "others")
            rows = found.setdefault(role, {"private": [], "peak": [], "network": []})
            rows["private"].append(process.memory_full_info().uss)
            status = Path(f"/proc/{process.pid}/status").read_text()
            rows["peak"].append(1024 * int(re.search(r"VmHWM:\s+(\d+)", status)[1]))
            rows["network"] = {key: value for key, value in environment.items() if key.endswith("SOCKET_IFNAME")}
print(json.dumps(found))
