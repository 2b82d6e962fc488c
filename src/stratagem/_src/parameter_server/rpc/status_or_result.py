"""``StatusOrResult``: the future of a remote call."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any

__all__ = ["StatusOrResult"]


class StatusOrResult:
    """The outcome of a call. Every method waits for it, at most until the call's timeout.

    Differs from tf.distribute: ``get_error`` returns the exception itself.
    """

    def __init__(self, outcome: Future[Any]) -> None:
        self._outcome = outcome

    def is_ok(self) -> bool:
        """Returns whether the call succeeded."""
        return self._outcome.exception() is None

    def get_error(self) -> BaseException | None:
        """Returns the exception of the call, or ``None``."""
        return self._outcome.exception()

    def get_value(self) -> Any:
        """Returns the call's result, or raises its exception."""
        return self._outcome.result()
