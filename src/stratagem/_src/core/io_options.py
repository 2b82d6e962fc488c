"""``SaveOptions`` and ``LoadOptions``: options of saving and loading models."""

from __future__ import annotations

from dataclasses import dataclass

from stratagem._src.core.errors import InvalidArgumentError

__all__ = ["LoadOptions", "SaveOptions"]

_LOCAL = "/job:localhost"


@dataclass(frozen=True)
class _IoOptions:
    experimental_io_device: str | None = None

    def __post_init__(self) -> None:
        device = self.experimental_io_device
        if device is not None and device != _LOCAL and not device.startswith(f"{_LOCAL}/"):
            raise InvalidArgumentError(
                f"The calling process reads and writes a model's files, so experimental_io_device must be "
                f"None or {_LOCAL!r}, got {device!r}. Leave it out."
            )


@dataclass(frozen=True)
class SaveOptions(_IoOptions):
    """Options of ``sg.saved_model.save``.

    Args:
        experimental_io_device: ``None`` or ``"/job:localhost"``: this process writes.

    >>> import stratagem as sg
    >>> sg.saved_model.SaveOptions(experimental_io_device="/job:localhost")
    SaveOptions(experimental_io_device='/job:localhost')
    """


@dataclass(frozen=True)
class LoadOptions(_IoOptions):
    """Options of ``sg.saved_model.load``.

    Args:
        experimental_io_device: ``None`` or ``"/job:localhost"``: this process reads.

    >>> import stratagem as sg
    >>> sg.saved_model.LoadOptions()
    LoadOptions(experimental_io_device=None)
    """
