"""Every exception that reading and transforming data raises on purpose.

::

    StratagemError
    ├── InvalidArgumentError (ValueError)      an argument or an element that breaks a rule
    ├── DataLossError (RuntimeError)           a truncated or corrupt file, or an unparsable record
    ├── NotFoundError (FileNotFoundError)      a file or pattern that names nothing
    ├── OutOfRangeError (IndexError)           a read past the end of the data
    └── CardinalityError (TypeError)           the length of a dataset that has none
"""

from __future__ import annotations

from stratagem.core.errors import StratagemError

__all__ = [
    "CardinalityError",
    "DataLossError",
    "InvalidArgumentError",
    "NotFoundError",
    "OutOfRangeError",
]


class InvalidArgumentError(StratagemError, ValueError):
    """An argument, or an element of a dataset, that breaks a rule."""


class DataLossError(StratagemError, RuntimeError):
    """A file that is truncated or corrupt, or holds a record that does not parse."""


class NotFoundError(StratagemError, FileNotFoundError):
    """A file, or a pattern of files, that does not exist."""


class OutOfRangeError(StratagemError, IndexError):
    """A read past the end of the data."""


class CardinalityError(StratagemError, TypeError):
    """The length of a dataset that is infinite or not known."""
