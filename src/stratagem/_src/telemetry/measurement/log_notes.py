"""``LogNotes``: what the library warns of, for whoever observes the job."""

from __future__ import annotations

import logging

from stratagem._src.telemetry.measurement.recorder import Recorder

__all__ = ["LogNotes"]


class LogNotes(logging.Handler):
    """Notes the warnings and errors of a logger, as a handler of it.

    >>> import logging
    >>> from stratagem._src.telemetry.measurement.log_notes import LogNotes
    >>> from stratagem._src.telemetry.measurement.recorder import Recorder
    >>> recorder, log = Recorder(), logging.getLogger("stratagem")
    >>> notes = LogNotes(recorder)
    >>> log.addHandler(notes)
    >>> log.warning("Lost a worker.")
    >>> log.removeHandler(notes)
    >>> recorder.take_notes()[0]["text"]
    'Lost a worker.'
    """

    def __init__(self, recorder: Recorder) -> None:
        super().__init__(logging.WARNING)
        self._recorder = recorder

    def emit(self, record: logging.LogRecord) -> None:
        """Notes one of them."""
        kind = "error" if record.levelno >= logging.ERROR else "warning"
        self._recorder.note(kind, record.getMessage())
