"""The environment of the processes of a job."""

import contextlib
import hashlib
import json
import os
import sys
from pathlib import Path

from tutorial_lib.launcher.jobspec import JobSpec, Role

CHECKOUT = Path(__file__).resolve().parents[2]


def run_module(name: str) -> list[str]:
    """Return the command that calls ``main`` of a module. Unlike ``python -m``, it finds this package in any folder."""
    # The folder of the package comes last in sys.path, so its files hide no standard module.
    return [sys.executable, "-c", f"import sys; sys.path.append({str(CHECKOUT)!r}); from {name} import main; main()"]


def package_digest() -> str:
    paths = sorted(path for path in Path(__file__).parents[1].rglob("*.py") if path.is_file())
    return hashlib.sha256(b"".join(path.read_bytes() for path in paths)).hexdigest()


def count_cpus() -> int:
    """Return the number of CPUs that this process may use, at most the share of its container (control groups v2)."""
    allowed = len(os.sched_getaffinity(0))
    with contextlib.suppress(OSError, ValueError):  # "max" means no limit
        quota, period = map(int, Path("/sys/fs/cgroup/cpu.max").read_text().split())
        return max(1, min(allowed, -(-quota // period)))
    return allowed


def job_environment(spec: JobSpec, machine_index: int, interface: str) -> dict[str, str]:
    """Return the variables that a job adds to the environment of every process on a machine."""
    user = {name: os.path.expandvars(value) for name, value in spec.user_env.items()}
    python_path = user.get("PYTHONPATH", os.environ.get("PYTHONPATH", ""))
    return {
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")]),  # our python3 first
        # Gloo and torch.distributed.rpc would bind the address of the host name, which is often 127.0.1.1.
        **dict.fromkeys(["GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "TP_SOCKET_IFNAME"], interface),
        "OMP_WAIT_POLICY": os.environ.get("OMP_WAIT_POLICY", "PASSIVE"),  # as in the command itself, see __main__
        "PYTHONUNBUFFERED": "1",
        "TUTORIAL_MACHINE": spec.machines[machine_index].name,
        "TUTORIAL_LOG_DIR": str(spec.log_folder(machine_index)),
        "TUTORIAL_STARTUP_FILES": os.pathsep.join(spec.startup_files),
        "TUTORIAL_WORKER_ROLES": json.dumps(spec.worker_roles),
        **({"TUTORIAL_SHELL": "1"} if spec.shell else {}),
        **spec.env,
        **user,
        "PYTHONPATH": os.pathsep.join(filter(None, [str(Path(__file__).with_name("hook")), python_path])),
    }


def role_environment(spec: JobSpec, machine_index: int, role: Role, local_index: int, cpus: int) -> dict[str, str]:
    """Return the variables of a process of a role on a machine that has ``cpus`` CPUs."""
    rank = machine_index * role.count + local_index
    threads = role.threads or max(1, int(cpus * role.cpu_share) // role.count)
    env = {name: value.format(global_index=rank) for name, value in role.env.items()}
    env.update(TUTORIAL_ROLE=role.name, TUTORIAL_INDEX=str(local_index), TUTORIAL_RANKED=str(int(role.ranked)))
    env.update(OMP_NUM_THREADS=str(threads))
    if role.ranked:
        env.update(RANK=str(rank), WORLD_SIZE=str(len(spec.machines) * role.count), GROUP_RANK=str(machine_index))
        env.update(LOCAL_RANK=str(local_index), LOCAL_WORLD_SIZE=str(role.count))
        env.update(MASTER_ADDR=spec.machines[0].address, MASTER_PORT=str(spec.master_port))
    return env


def describe_environment(spec: JobSpec) -> str:
    """Return a text with the variables that a job adds to its processes, with machine 0 as the example."""
    title = f"added to the environment of each process on {spec.machines[0].name} (docs/patches.md describes the hook)"
    added = {title: job_environment(spec, 0, f"(that of {spec.machines[0].address})")}
    added.update({f"of {role.name} 0": role_environment(spec, 0, role, 0, count_cpus()) for role in spec.roles})
    return "\n".join("\n  ".join([f"{whose}:", *map("=".join, env.items())]) for whose, env in added.items())
