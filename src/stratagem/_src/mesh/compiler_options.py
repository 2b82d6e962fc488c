"""What XLA is asked for where its own choice makes steps slower."""

from __future__ import annotations

from typing import Any

__all__ = ["options_to_overwrite"]


def options_to_overwrite(*, on_cpu: bool) -> dict[str, Any]:
    """Returns compiler options for a program that overwrites arrays it is given.

    For CPUs XLA makes a copy of nearly every such array first, because it does not look for the last
    place where the old value is read. Asked to look, as it does for GPUs and TPUs, it makes none, and is
    not longer at it.
    """
    return {"xla_cpu_copy_insertion_use_region_analysis": True} if on_cpu else {}
