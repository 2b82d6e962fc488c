"""``StatusOrResult``: the outcome of a call, once it is there."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any

__all__ = ["StatusOrResult"]


class StatusOrResult:
    """What became of a call. Every question waits for the answer, at most until the call's timeout.

    Differs from tf.distribute: ``get_error`` gives the exception itself.
    """

    def __init__(self, outcome: Future[Any]) -> None:
        self._outcome = outcome

    def is_ok(self) -> bool:
        """Returns whether the call returned."""
        return self._outcome.exception() is None

    def get_error(self) -> BaseException | None:
        """Returns what the call raised, or ``None``."""
        return self._outcome.exception()

    def get_value(self) -> Any:
        """Returns what the call returned, or raises what it raised."""
        return self._outcome.result()
