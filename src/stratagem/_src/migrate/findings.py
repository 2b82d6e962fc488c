"""What ``stratagem migrate`` says about a program in addition to its new text."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

__all__ = ["Finding", "Kind", "Migration"]


class Kind(StrEnum):
    """How much a finding asks of the reader."""

    LEFT = "left"
    """It does not run as it is: it needs work by hand."""
    CHECK = "check"
    """It runs, but may behave differently than in TensorFlow."""


@dataclass(frozen=True, order=True)
class Finding:
    """One line of the report."""

    line: int
    kind: Kind
    message: str


@dataclass(frozen=True)
class Migration:
    """A migrated program: its text, and what a reader should know about it."""

    before: str
    after: str
    encoding: str
    findings: tuple[Finding, ...]

    @property
    def changed(self) -> bool:
        """Whether the text is another one."""
        return self.before != self.after
