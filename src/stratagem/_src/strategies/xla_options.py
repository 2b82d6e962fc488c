"""``XLAOptions``: how XLA compiles for TPUs."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["XLAOptions"]


class XLAOptions(NamedTuple):
    """Options for ``RunOptions(experimental_xla_options=...)``.

    Both describe the only supported behaviour: the logical devices of a replica run one partitioned
    program, and shapes are never padded, because replicas with different shapes run eagerly.

    Args:
        use_spmd_for_xla_partitioning: Must be ``True``.
        enable_xla_dynamic_padder: Has no effect.

    >>> XLAOptions()
    XLAOptions(use_spmd_for_xla_partitioning=True, enable_xla_dynamic_padder=True)
    """

    use_spmd_for_xla_partitioning: bool = True
    enable_xla_dynamic_padder: bool = True
