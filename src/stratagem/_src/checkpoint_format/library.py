"""TensorStore, which is loaded when the first checkpoint is written or read."""

from __future__ import annotations

from typing import Any

from stratagem._src.core.errors import MissingExtraError

__all__ = ["tensorstore"]


def tensorstore() -> Any:
    """Returns the module ``tensorstore``.

    Raises:
        MissingExtraError: If it is not installed.
    """
    try:
        import tensorstore
    except ModuleNotFoundError as error:
        if error.name != "tensorstore":
            raise
        raise MissingExtraError(
            "Checkpoints are written and read by TensorStore, which is not installed here. Install it "
            "with `pip install stratagem[checkpoint]`, also where parameter servers run."
        ) from error
    return tensorstore
