"""Reports which schedulers are available to this process, and how to use them."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

from stratagem._src.cluster.environment_variables import is_set
from stratagem._src.core.extras import install_command

__all__ = ["scheduler_report"]

_COMMAND_TIMEOUT = 10.0


def scheduler_report() -> Iterator[str]:
    """Yields a line for every available scheduler, with the next step, and one line for the others."""
    found = {
        "Slurm (sbatch)": _slurm(),
        "Kubernetes (KUBECONFIG)": _kubernetes(),
        f"Ray ({install_command('ray')})": _ray(),
        "mpirun": _launcher("mpirun"),
        "torchrun": _launcher("torchrun"),
    }
    missing = []
    for name, lines in found.items():
        reported = list(lines)
        yield from reported
        missing += [] if reported else [name]
    if missing:
        yield f"not found: {', '.join(missing)}"


def _launcher(command: str) -> Iterator[str]:
    path = shutil.which(command)
    if path:
        yield (
            f"{command}: {path}; starts synchronous workers directly, and other roles with "
            f"'{command} ... stratagem run --task by-rank'"
        )


def _slurm() -> Iterator[str]:
    if is_set("SLURM_PROCID", "SLURM_STEP_ID"):
        yield (
            f"Slurm: rank {os.environ['SLURM_PROCID']} of step {os.environ['SLURM_STEP_ID']} in job "
            f"{os.environ.get('SLURM_JOB_ID')}"
        )
    elif is_set("SLURM_JOB_ID"):
        yield (
            f"Slurm: allocation {os.environ['SLURM_JOB_ID']} on "
            f"{os.environ.get('SLURM_JOB_NODELIST')}; 'stratagem run --on slurm' runs in it"
        )
    elif shutil.which("sbatch"):
        status = _last_line_of("scontrol", "ping")
        if "UP" in status:
            yield "Slurm: the controller responds; 'stratagem run --on slurm' submits"
        else:
            yield (
                f"Slurm: installed, but the controller does not respond ({status or 'no output'}); check "
                "that slurmctld is running, and that SLURM_CONF or /etc/slurm points to it"
            )


def _kubernetes() -> Iterator[str]:
    config = os.environ.get("KUBECONFIG") or str(Path.home() / ".kube" / "config")
    if is_set("KUBERNETES_SERVICE_HOST"):
        yield f"Kubernetes: a pod, {os.environ.get('HOSTNAME')}"
    elif Path(config).is_file():
        client = importlib.util.find_spec("kubernetes") is not None
        step = "submits" if client else f"needs {install_command('kubernetes')}"
        yield f"Kubernetes: {config}; 'stratagem run --on kubernetes --image ...' {step}"


def _ray() -> Iterator[str]:
    if importlib.util.find_spec("ray") is not None:
        address = os.environ.get("RAY_ADDRESS")
        where = f"the cluster at {address}" if address else "no RAY_ADDRESS, so one is started"
        yield f"Ray: {where}; 'stratagem run --on ray'"


def _last_line_of(*command: str) -> str:
    """Returns the last line of a command's output."""
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_COMMAND_TIMEOUT, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    lines = (done.stdout + done.stderr).strip().split("\n")
    return lines[-1]
