"""``ProfilerOptions``: how much a profile records."""

from __future__ import annotations

from dataclasses import dataclass

from stratagem._src.core.errors import InvalidArgumentError

__all__ = ["ProfilerOptions"]


@dataclass(frozen=True)
class ProfilerOptions:
    """How much a profile records, as ``tf.profiler.experimental.ProfilerOptions``.

    >>> import stratagem as sg
    >>> sg.profiler.ProfilerOptions(python_tracer_level=1).host_tracer_level
    2

    Args:
        host_tracer_level: 1 for the spans of Stratagem and ``Trace``, 2 to add the operations of XLA on
            CPU, 3 to add more of its internals.
        python_tracer_level: 1 for every call of a Python function, which makes a program much slower.

    Raises:
        InvalidArgumentError: If a level is out of range.

    Differs from tf.distribute: there is no ``device_tracer_level``, because devices are always recorded;
    and no ``delay_ms``, because a profile begins with ``start``.
    """

    host_tracer_level: int = 2
    python_tracer_level: int = 0

    def __post_init__(self) -> None:
        for name, maximum in (("host_tracer_level", 3), ("python_tracer_level", 1)):
            level = getattr(self, name)
            minimum = 1 if name == "host_tracer_level" else 0
            if level not in range(minimum, maximum + 1):
                raise InvalidArgumentError(
                    f"{name} must be from {minimum} to {maximum}, got {level!r}."
                )
