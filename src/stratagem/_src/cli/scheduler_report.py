"""What schedulers there are around this process, and what to do with them next."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

from stratagem._src.cluster.environment_variables import is_set

__all__ = ["scheduler_report"]

_SECONDS_FOR_A_COMMAND = 10.0


def scheduler_report() -> Iterator[str]:
    """Yields a line for every scheduler that was found, with the next step, and one for the others."""
    found = {
        "Slurm (sbatch)": _slurm(),
        "Kubernetes (KUBECONFIG)": _kubernetes(),
        "Ray (pip install 'stratagem[ray]')": _ray(),
        "mpirun": _launcher("mpirun"),
        "torchrun": _launcher("torchrun"),
    }
    missing = []
    for name, lines in found.items():
        told = list(lines)
        yield from told
        missing += [] if told else [name]
    if missing:
        yield f"not found: {', '.join(missing)}"


def _launcher(command: str) -> Iterator[str]:
    place = shutil.which(command)
    if place:
        yield (
            f"{command}: {place}; start workers in step as they are, and roles with "
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
        said = _said_by("scontrol", "ping")
        if "UP" in said:
            yield "Slurm: the controller answers; 'stratagem run --on slurm' submits"
        else:
            yield (
                f"Slurm: installed, but the controller does not answer ({said or 'no word'}); see "
                "that slurmctld runs, and that SLURM_CONF or /etc/slurm names it"
            )


def _kubernetes() -> Iterator[str]:
    config = os.environ.get("KUBECONFIG") or str(Path.home() / ".kube" / "config")
    if is_set("KUBERNETES_SERVICE_HOST"):
        yield f"Kubernetes: a pod, {os.environ.get('HOSTNAME')}"
    elif Path(config).is_file():
        client = importlib.util.find_spec("kubernetes") is not None
        step = "submits" if client else "needs pip install 'stratagem[kubernetes]'"
        yield f"Kubernetes: {config}; 'stratagem run --on kubernetes --image ...' {step}"


def _ray() -> Iterator[str]:
    if importlib.util.find_spec("ray") is not None:
        address = os.environ.get("RAY_ADDRESS")
        where = f"the cluster at {address}" if address else "no RAY_ADDRESS, so one is started"
        yield f"Ray: {where}; 'stratagem run --on ray'"


def _said_by(*command: str) -> str:
    """Returns the last line that a command printed."""
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_SECONDS_FOR_A_COMMAND, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    lines = (done.stdout + done.stderr).strip().split("\n")
    return lines[-1]
