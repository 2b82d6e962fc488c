"""The environment variables of a task's process."""

from __future__ import annotations

from collections.abc import Mapping

from stratagem._src.transport.secret import FILE_VARIABLE, SECRET_VARIABLE

__all__ = ["task_environment"]


def task_environment(
    inherited: Mapping[str, str], tf_config: str, secret: str, num_devices: int | None
) -> dict[str, str]:
    """Returns the environment of a task's process.

    >>> from stratagem._src.launcher.task_environment import task_environment
    >>> environment = task_environment({"HOME": "/root"}, "{}", "secret", num_devices=2)
    >>> sorted(environment)  # doctest: +NORMALIZE_WHITESPACE
    ['GLIBC_TUNABLES', 'HOME', 'JAX_NUM_CPU_DEVICES', 'PYTHONUNBUFFERED', 'STRATAGEM_CLUSTER_SECRET',
     'TF_CONFIG']

    Args:
        inherited: The launcher's own.
        tf_config: What ``TF_CONFIG`` should hold.
        secret: The secret of this run of the job.
        num_devices: Into how many virtual devices the CPU is split; ``None`` leaves it to JAX.
    """
    environment = {name: value for name, value in inherited.items() if name != FILE_VARIABLE}
    environment["TF_CONFIG"] = tf_config
    environment[SECRET_VARIABLE] = secret
    # Else lines come late, and the last ones of a killed process never.
    environment.setdefault("PYTHONUNBUFFERED", "1")
    # Large arrays get huge pages where the system allows it: the memory of each result of 100 MB is new,
    # and to be given it in small pages takes longer than to send it to another process.
    environment.setdefault("GLIBC_TUNABLES", "glibc.malloc.hugetlb=1")
    if num_devices is not None:
        environment["JAX_NUM_CPU_DEVICES"] = str(num_devices)
    return environment
