"""``CheckpointOptions``: how a checkpoint is written."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["CheckpointOptions"]


@dataclass(frozen=True)
class CheckpointOptions:
    """Options of ``Checkpoint.save`` and ``write``.

    Args:
        enable_async: Whether the program continues while the checkpoint is written, and waits only for
            the snapshot of the values. If ``False``, it waits until the checkpoint is on disk.

    Differs from TensorFlow: saving is asynchronous by default.

    >>> import stratagem as sg
    >>> sg.train.CheckpointOptions()
    CheckpointOptions(enable_async=True)
    """

    enable_async: bool = True
