"""``CommunicationOptions``: options of collectives."""

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
    """The library that communicates between devices.

    * ``AUTO``: XLA's choice for the platform.
    * ``RING``: ring algorithms over TCP (Gloo, on CPU).
    * ``NCCL``: NVIDIA's library (on GPU).
    """

    AUTO = "AUTO"
    RING = "RING"
    NCCL = "NCCL"


CollectiveCommunication = CommunicationImplementation


@dataclass(frozen=True)
class CommunicationOptions:
    """Options of one collective, or of all collectives of a strategy.

    Args:
        bytes_per_pack: Arrays are sent in packs (buckets) of about this many bytes. 0 leaves the choice to
            the cross-device ops.
        timeout_seconds: How long a collective may wait for other processes.
        implementation: The communication library.
        dtype: ``"bfloat16"`` or ``"float16"``: the wire dtype of gradients, half the bytes of float32
            (gradient compression). Only wider floating types are converted; results have the dtype of the
            inputs. Rounding errors are lost, unless ``Optimizer(error_feedback=True)`` keeps them. A
            strategy with this option converts only the sums of ``ReplicaContext.all_reduce`` and of
            optimizers, not metrics, ``Strategy.reduce`` and aggregated variables. It rejects Keras ``fit``
            and trainable fully sharded variables, whose gradients it cannot convert.

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
                    f"{self.dtype!r}. Leave it out to send gradients in their own dtype."
                )
            object.__setattr__(self, "dtype", name)
        chosen = self.implementation
        if isinstance(chosen, str):
            chosen = CommunicationImplementation(chosen.upper())
        object.__setattr__(self, "implementation", CommunicationImplementation(chosen))


class CollectiveHints:
    """Deprecated name of ``CommunicationOptions``: the constructor returns a ``CommunicationOptions``.

    Args:
        bytes_per_pack: As for ``CommunicationOptions``.
        timeout_seconds: As for ``CommunicationOptions``.

    >>> CollectiveHints(bytes_per_pack=1024) == CommunicationOptions(bytes_per_pack=1024)
    True
    """

    def __new__(  # type: ignore[misc]
        cls, bytes_per_pack: int = 0, timeout_seconds: float | None = None
    ) -> CommunicationOptions:
        """Returns the options."""
        return CommunicationOptions(bytes_per_pack, timeout_seconds)
