"""Divides the accelerators of a host between the tasks that run there.

JAX takes all visible devices in each process: two workers would both use, and fill, the same GPUs.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from stratagem._src.cluster.errors import LaunchError

__all__ = ["VisibleDevices", "computes", "divide_devices", "find_devices", "find_share"]

# The variables that restrict the devices of a process, by the plugin that reads them. The first is set.
_VARIABLES = {
    "cuda": ("CUDA_VISIBLE_DEVICES",),
    "rocm": ("HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"),
}
_DEVICE_FILES = {"cuda": r"nvidia\d+", "rocm": r"renderD\d+"}
_TPU_FILES = r"accel\d+"
_TPU_VARIABLES = ("TPU_VISIBLE_CHIPS", "TPU_VISIBLE_DEVICES", "TPU_PROCESS_BOUNDS")


@dataclass(frozen=True)
class VisibleDevices:
    """The GPUs that JAX finds on this host, or chips of a TPU.

    Attributes:
        kind: ``"cuda"``, ``"rocm"`` or ``"tpu"``.
        variable: The environment variable that restricts them; empty for a TPU.
        names: What that variable lists for all of them.
    """

    kind: str
    variable: str
    names: tuple[str, ...]


def find_devices(
    environment: Mapping[str, str],
    folder: Path = Path("/dev"),
    plugins: Iterable[str] | None = None,
) -> VisibleDevices | None:
    """Returns the accelerators that processes with this environment would use; ``None`` without any.

    Args:
        environment: The environment.
        folder: The folder of device files.
        plugins: The names of JAX's installed plugins; default: those of this interpreter.
    """
    platforms = environment.get("JAX_PLATFORMS", "")
    if plugins is None:
        found = importlib.metadata.entry_points(group="jax_plugins")
        plugins = [entry.name for entry in found]
        if importlib.util.find_spec("libtpu"):
            plugins.append("tpu")
    installed = ",".join(plugins)
    for kind, variables in _VARIABLES.items():
        if kind not in installed or not _is_wanted(kind, platforms):
            continue
        given = next((name for name in variables if name in environment), None)
        if given is not None:
            names = tuple(name for name in environment[given].split(",") if name.strip())
        else:
            names = tuple(str(n) for n in range(_count(folder, _DEVICE_FILES[kind])))
        if names:
            return VisibleDevices(kind, given or variables[0], names)
    if "tpu" in installed and _is_wanted("tpu", platforms):
        chips = _count(folder, _TPU_FILES)
        if chips and not any(name in environment for name in _TPU_VARIABLES):
            return VisibleDevices("tpu", "", tuple(str(n) for n in range(chips)))
    return None


def divide_devices(devices: VisibleDevices | None, jobs: Sequence[str]) -> list[dict[str, str]]:
    """Returns the variables that give each task of a host its own devices.

    Tasks that do not compute, such as parameter servers, get none.

    Args:
        devices: The devices of the host.
        jobs: The job of each task of the host.

    Raises:
        LaunchError: If the devices cannot be divided evenly.

    >>> gpus = VisibleDevices("cuda", "CUDA_VISIBLE_DEVICES", ("0", "1", "2", "3"))
    >>> divide_devices(gpus, ["worker", "worker"])
    [{'CUDA_VISIBLE_DEVICES': '0,1'}, {'CUDA_VISIBLE_DEVICES': '2,3'}]
    """
    if devices is None or len(jobs) == 1:
        return [{} for _ in jobs]
    computing = [computes(job, jobs) for job in jobs]
    count, total = sum(computing), len(devices.names)
    if devices.kind == "tpu":
        if count <= 1:
            return [{} if takes else {"JAX_PLATFORMS": "cpu"} for takes in computing]
        raise LaunchError(
            f"The chips of a TPU host belong to one process, got {count} tasks that compute and {total} "
            "chips. Start one worker (--workers 1), with all chips as its replicas, or set "
            "JAX_PLATFORMS=cpu."
        )
    if count and total % count:
        raise LaunchError(
            "The GPUs of a host must be divisible by the number of its tasks that compute, got "
            f"{total} GPUs ({devices.variable}={','.join(devices.names)}) and {count} tasks. Start "
            f"another number, or set {devices.variable} or JAX_PLATFORMS=cpu."
        )
    each = total // count if count else 0
    divided, first = [], 0
    for takes in computing:
        last = first + each * takes
        divided.append({devices.variable: ",".join(devices.names[first:last])})
        first = last
    return divided


def find_share(
    environment: Mapping[str, str], jobs: Sequence[str], position: int
) -> tuple[int, ...] | None:
    """Returns the numbers of the GPUs that one task of a host may use; ``None`` for all that it sees.

    Variables such as ``CUDA_VISIBLE_DEVICES`` say what the task uses: the starter of the task set them.

    Args:
        environment: The environment of the task.
        jobs: The job of each task of the host.
        position: The position of the task among them.

    Raises:
        LaunchError: If the devices cannot be divided evenly.
    """
    devices = find_devices(environment)
    if devices is None or len(jobs) == 1 or not computes(jobs[position], jobs):
        return None
    if any(name in environment for name in _VARIABLES.get(devices.kind, ())):
        return None
    share = divide_devices(devices, jobs)[position].get(devices.variable)
    return tuple(map(int, share.split(","))) if share else None


def computes(job: str, jobs: Sequence[str]) -> bool:
    """Returns whether a task trains or evaluates: not a server, nor a chief that has servers."""
    return job in ("worker", "evaluator") or (job == "chief" and "ps" not in jobs)


def _is_wanted(kind: str, platforms: str) -> bool:
    wanted = platforms.split(",") if platforms else [kind]
    return kind in wanted or ("gpu" in wanted and kind in _VARIABLES)


def _count(folder: Path, pattern: str) -> int:
    try:
        return sum(bool(re.fullmatch(pattern, path.name)) for path in folder.iterdir())
    except OSError:
        return 0
