"""``Scalar``, ``Images``, ``Histogram``, ``Text``: what a writer writes. ``Tracker``: what stores it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, TypeAlias

import numpy as np

__all__ = ["Histogram", "Images", "Scalar", "Summary", "Text", "Tracker"]


@dataclass(frozen=True, slots=True)
class Scalar:
    """One number."""

    value: float


@dataclass(frozen=True, slots=True, eq=False)
class Images:
    """Images of dtype ``uint8`` and shape ``[height, width, 3 or 4]``."""

    images: list[np.ndarray[Any, Any]]


@dataclass(frozen=True, slots=True, eq=False)
class Histogram:
    """Numbers of any shape, to be counted in buckets."""

    values: np.ndarray[Any, Any]
    num_buckets: int

    def counts_and_edges(self) -> tuple[list[int], list[float]]:
        """Returns how many finite numbers there are in each bucket, and the edges of the buckets."""
        finite = self.values[np.isfinite(self.values)]
        counts, edges = np.histogram(finite, self.num_buckets)
        return counts.tolist(), edges.tolist()


@dataclass(frozen=True, slots=True)
class Text:
    """A text."""

    text: str


Summary: TypeAlias = Scalar | Images | Histogram | Text


class Tracker(Protocol):
    """Where a ``SummaryWriter`` writes to: files, or the run of an experiment tracker; thread-safe.

    Attributes:
        closes_itself: Whether it need not be closed when its writer is garbage.
    """

    closes_itself: ClassVar[bool]

    def write(self, name: str, summary: Summary, step: int) -> None:
        """Stores one summary, or drops it after ``close``."""

    def flush(self) -> None:
        """Returns when everything written is stored."""

    def close(self) -> None:
        """Flushes and ends. Idempotent."""
