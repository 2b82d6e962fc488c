"""``CsvFile`` and ``JsonLinesFile``: summaries as lines of a text file."""

from __future__ import annotations

import csv
import io
import json
import logging
import os
import threading
import time
from typing import Any, ClassVar

from stratagem._src.process.fork import ProcessOwner
from stratagem._src.telemetry.summary.summaries import Histogram, Scalar, Summary, Text

__all__ = ["CsvFile", "JsonLinesFile"]

_log = logging.getLogger("stratagem")


class _RecordFile:
    """Appends a line for each summary to a file; nothing is buffered, so it can be followed.

    Args:
        path: The file. If it exists it is appended to, so a resumed run continues it.
    """

    closes_itself: ClassVar[bool] = False
    header: ClassVar[str] = ""
    accepts: ClassVar[tuple[type, ...]]

    def __init__(self, path: str) -> None:
        self._path = path
        os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
        self._is_closed = False
        self._lock = threading.RLock()  # reentrant: a signal handler may write, too
        self._dropped: set[str] = set()
        self._owner = ProcessOwner("a summary writer")
        if self.header and os.fstat(self._file).st_size == 0:
            self._append(self.header)

    def write(self, name: str, summary: Summary, step: int) -> None:
        """Appends one summary; warns once about a kind that the file cannot hold."""
        self._owner.check()
        kind = type(summary).__name__
        if isinstance(summary, self.accepts):
            line = self.line({"step": step, "name": name, **_content(summary), "time": time.time()})
            with self._lock:
                if not self._is_closed:
                    self._append(line)
        elif kind not in self._dropped:
            self._dropped.add(kind)
            accepted = ", ".join(accepted.__name__ for accepted in self.accepts)
            _log.warning(
                "%s is not written to %s, which holds %s only. Combine the writer with "
                "sg.summary.create_file_writer to keep the rest.",
                *(kind, self._path, accepted),
            )

    def flush(self) -> None:
        """Does nothing: each summary is written at once."""

    def close(self) -> None:
        """Closes the file; later summaries are dropped."""
        if not self._owner.is_here:
            return
        with self._lock:
            if not self._is_closed:
                self._is_closed = True
                os.close(self._file)

    def _append(self, text: str) -> None:
        data = text.encode()
        while data:  # a full disk or a signal may take a part
            data = data[os.write(self._file, data) :]

    def line(self, record: dict[str, Any]) -> str:
        """Returns the line of a record."""
        raise NotImplementedError


class CsvFile(_RecordFile):
    """Rows of step, name, value and time: scalars and texts."""

    header = "step,name,value,time\n"
    accepts = (Scalar, Text)

    def line(self, record: dict[str, Any]) -> str:
        """Returns the row of a record."""
        row = io.StringIO()
        csv.writer(row, lineterminator="\n").writerow(record.values())
        return row.getvalue()


class JsonLinesFile(_RecordFile):
    """A JSON object per line: scalars, texts and histograms. NaN is written as Python's ``json`` does."""

    accepts = (Scalar, Text, Histogram)

    def line(self, record: dict[str, Any]) -> str:
        """Returns the JSON of a record."""
        return json.dumps(record) + "\n"


def _content(summary: Summary) -> dict[str, Any]:
    if isinstance(summary, Histogram):
        counts, edges = summary.counts_and_edges()
        return {"counts": counts, "edges": edges}
    assert isinstance(summary, Scalar | Text)
    return {"value": summary.value if isinstance(summary, Scalar) else summary.text}
