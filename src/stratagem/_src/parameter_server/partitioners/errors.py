"""The exceptions of the partitioners.

::

    StratagemError
    └── PartitionError (ValueError)    a shape, axis or result that cannot be partitioned
"""

from __future__ import annotations

from stratagem._src.core.errors import StratagemError, set_public_module


class PartitionError(StratagemError, ValueError):
    """A shape, axis, setting or partitioner result is invalid for partitioning a variable."""


set_public_module(globals())
