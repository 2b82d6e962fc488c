"""``CheckpointOptions``: how a checkpoint is written."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["CheckpointOptions"]


@dataclass(frozen=True)
class CheckpointOptions:
    """Options of ``Checkpoint.save`` and ``write``.

    Args:
        enable_async: Whether the program goes on while the checkpoint is written, and waits only until
            the values are safe from its next steps. ``False``: it waits for the disk, too.

    Differs from TensorFlow: saving is asynchronous if nothing else is said.

    >>> import stratagem as sg
    >>> sg.train.CheckpointOptions()
    CheckpointOptions(enable_async=True)
    """

    enable_async: bool = True
