"""Print the bytes of this node's /dev/shm, and the private bytes of the processes of the job by role."""

import contextlib
import json
import os
from pathlib import Path

import psutil

found = {"shared": sum(file.stat().st_size for file in Path("/dev/shm").iterdir() if file.is_file())}
for process in psutil.process_iter():
    with contextlib.suppress(psutil.NoSuchProcess):  # the process has ended meanwhile
        environment = process.environ()
        if "SLURM_JOB_ID" in environment and process.pid != os.getpid():
            role = environment.get("DGL_ROLE", "others")
            info = process.memory_full_info()
            found.setdefault(role, []).append(info.uss)
            found.setdefault(f"{role} names", []).append(process.name())
print(json.dumps(found))
