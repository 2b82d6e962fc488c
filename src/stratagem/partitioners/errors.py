"""Every exception of the partitioners room.

::

    StratagemError
    └── PartitionError (ValueError)    a shape, axis or result that cannot be partitioned
"""

from __future__ import annotations

from stratagem.core.errors import StratagemError


class PartitionError(StratagemError, ValueError):
    """A shape, axis, setting or result with which a variable cannot be partitioned."""
