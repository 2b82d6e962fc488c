"""Which of a machine's GPUs the process of a task sees."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

__all__ = ["narrow_to"]

_VARIABLE = "CUDA_VISIBLE_DEVICES"


def narrow_to(
    device_ids: Sequence[int] | None, environment: Mapping[str, str]
) -> Mapping[str, str]:
    """Returns an environment in which only these of the visible GPUs are seen; ``None`` for all.

    >>> from stratagem._src.launcher.visible_devices import narrow_to
    >>> narrow_to([1], {"CUDA_VISIBLE_DEVICES": "4,5"})
    {'CUDA_VISIBLE_DEVICES': '5'}
    >>> narrow_to([1], {})
    {'CUDA_VISIBLE_DEVICES': '1'}
    """
    if device_ids is None:
        return environment
    visible = environment.get(_VARIABLE, "")
    names = visible.split(",") if visible else []
    if names and max(device_ids, default=0) >= len(names):  # somebody has narrowed it already
        return environment
    chosen = [names[device] if names else str(device) for device in device_ids]
    return {**environment, _VARIABLE: ",".join(chosen)}
