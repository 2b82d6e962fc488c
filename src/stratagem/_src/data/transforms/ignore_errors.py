"""``ignore_errors``: skips elements that raise an error."""

from __future__ import annotations

import logging
from typing import Any

from stratagem._src.data.dataset_spec import any_size, spec_of
from stratagem._src.data.options import UNKNOWN_CARDINALITY
from stratagem._src.data.plan.node import Epoch, Node
from stratagem._src.data.plan.peek import first_element
from stratagem._src.data.plan.run import Run
from stratagem._src.data.plan.stream import Stream, UnaryStream
from stratagem._src.data.structure import map_structure
from stratagem._src.process.signal_handlers import is_raised_by_signal_handler

__all__ = ["IgnoreErrors"]

_logger = logging.getLogger("stratagem")


class IgnoreErrors(Node):
    """The elements that do not raise an error.

    Args:
        source: The plan whose errors are ignored.
        log_warning: Whether each of them is logged.
    """

    def __init__(self, source: Node, log_warning: bool) -> None:
        self.inputs = (source,)
        self._log_warning = bool(log_warning)

    def _compute_spec(self) -> Any:
        try:
            return super()._compute_spec()
        except Exception:
            # The input may infer its spec from its first element, and that element may fail.
            element = first_element(self, "ignore_errors")
            return map_structure(lambda leaf: any_size(spec_of(leaf)), element)

    def cardinality(self) -> int:
        """Returns unknown, unless the input is empty."""
        return 0 if self.inputs[0].cardinality() == 0 else UNKNOWN_CARDINALITY

    def open(self, run: Run, epoch: Epoch) -> Stream:
        """Starts a pass."""
        return _IgnoreErrorsStream(self.inputs[0].open(run, epoch), self._log_warning)


class _IgnoreErrorsStream(UnaryStream):
    def __init__(self, source: Stream, log_warning: bool) -> None:
        super().__init__(source)
        self._log_warning = log_warning

    @property
    def uniform(self) -> bool:
        return False

    def __next__(self) -> Any:
        failed_at: Any = None
        while True:
            try:
                return next(self._source)
            except StopIteration:
                raise
            except Exception as error:
                if is_raised_by_signal_handler(error):
                    raise
                self._source.skip_past_error()
                place = self._source.get_state()
                if place == failed_at:
                    # The input makes no progress, so ignoring the error would loop forever.
                    raise
                failed_at = place
                if self._log_warning:
                    _logger.warning("Skipped an element: %s: %s", type(error).__name__, error)
