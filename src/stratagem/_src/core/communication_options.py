"""How collectives are carried out."""

from __future__ import annotations

import enum
from dataclasses import dataclass

__all__ = [
    "CollectiveCommunication",
    "CollectiveHints",
    "CommunicationImplementation",
    "CommunicationOptions",
]


_WIRE_DTYPES = ("bfloat16", "float16")


class CommunicationImplementation(enum.Enum):
    """Which library moves the data between devices.

    * ``AUTO``: what XLA chooses for the platform.
    * ``RING``: ring algorithms over TCP (Gloo, on CPU).
    * ``NCCL``: NVIDIA's library (on GPU).
    """

    AUTO = "AUTO"
    RING = "RING"
    NCCL = "NCCL"


CollectiveCommunication = CommunicationImplementation


@dataclass(frozen=True)
class CommunicationOptions:
    """Options of one collective, or of all those of a strategy.

    Args:
        bytes_per_pack: Arrays are sent in packs of about this many bytes. 0 leaves the choice to the
            cross-device ops.
        timeout_seconds: How long a collective may wait for other processes.
        implementation: Which library moves the data.
        dtype: ``"bfloat16"`` or ``"float16"``: gradients travel in this type, in half the bytes of
            float32 (gradient compression). Only floating types that are wider are converted; results
            have the dtype of what was given. There is no error feedback. A strategy with this option
            converts what ``ReplicaContext.all_reduce`` and optimizers sum, and nothing else: metrics,
            ``Strategy.reduce`` and aggregated variables stay as they are. It refuses Keras ``fit`` and
            trainable fully sharded variables, whose gradients it cannot convert.

    Differs from tf.distribute: ``dtype`` is new.

    >>> CommunicationOptions(bytes_per_pack=50 * 1024 * 1024).bytes_per_pack
    52428800
    """

    bytes_per_pack: int = 0
    timeout_seconds: float | None = None
    implementation: CommunicationImplementation = CommunicationImplementation.AUTO
    dtype: str | None = None

    def __post_init__(self) -> None:
        if self.bytes_per_pack < 0:
            raise ValueError(f"bytes_per_pack must be >= 0, got {self.bytes_per_pack}.")
        if self.timeout_seconds is not None and self.timeout_seconds <= 0:
            raise ValueError(f"timeout_seconds must be > 0, got {self.timeout_seconds}.")
        if self.dtype is not None:
            name = getattr(self.dtype, "__name__", None) or str(self.dtype)
            if name not in _WIRE_DTYPES:
                raise ValueError(
                    f"dtype must be one of {', '.join(map(repr, _WIRE_DTYPES))} or None, got "
                    f"{self.dtype!r}. Leave it out for gradients to travel in their own dtype."
                )
            object.__setattr__(self, "dtype", name)
        chosen = self.implementation
        if isinstance(chosen, str):
            chosen = CommunicationImplementation(chosen.upper())
        object.__setattr__(self, "implementation", CommunicationImplementation(chosen))


class CollectiveHints:
    """The older name of ``CommunicationOptions``: making one gives those.

    Args:
        bytes_per_pack: As of ``CommunicationOptions``.
        timeout_seconds: Likewise.

    >>> CollectiveHints(bytes_per_pack=1024) == CommunicationOptions(bytes_per_pack=1024)
    True
    """

    def __new__(  # type: ignore[misc]
        cls, bytes_per_pack: int = 0, timeout_seconds: float | None = None
    ) -> CommunicationOptions:
        """Returns the options."""
        return CommunicationOptions(bytes_per_pack, timeout_seconds)
