"""``RunOptions``: options of one ``run``."""

from __future__ import annotations

from dataclasses import dataclass

from stratagem._src.core import structures
from stratagem._src.core.types import PyTree
from stratagem._src.strategies.xla_options import XLAOptions
from stratagem._src.values.per_replica import PerReplica

__all__ = ["RunOptions"]


@dataclass(frozen=True)
class RunOptions:
    """Options of ``Strategy.run``.

    Args:
        experimental_enable_dynamic_batch_size: Whether replicas may get arrays of different shapes; such a
            call runs eagerly. ``False`` makes it an error.
        experimental_bucketizing_dynamic_shape: Not supported; pad batches in the input pipeline.
        experimental_xla_options: A ``tpu.XLAOptions``, or ``None``.

    >>> RunOptions(experimental_enable_dynamic_batch_size=False)
    RunOptions(experimental_enable_dynamic_batch_size=False, \
experimental_bucketizing_dynamic_shape=False, experimental_xla_options=None)
    """

    experimental_enable_dynamic_batch_size: bool = True
    experimental_bucketizing_dynamic_shape: bool = False
    experimental_xla_options: XLAOptions | None = None

    def __post_init__(self) -> None:
        if self.experimental_bucketizing_dynamic_shape:
            raise ValueError(
                "experimental_bucketizing_dynamic_shape is not supported. Pad the batches in the input "
                "pipeline."
            )
        options = self.experimental_xla_options
        if options is not None and not isinstance(options, XLAOptions):
            raise ValueError(
                f"experimental_xla_options must be a tpu.XLAOptions, got {options!r}. For flags of XLA "
                "set the XLA_FLAGS environment variable."
            )
        if options is not None and not options.use_spmd_for_xla_partitioning:
            raise ValueError(
                "use_spmd_for_xla_partitioning=False is not supported: the logical devices of a replica "
                "always run one partitioned program. Leave it out."
            )

    def check(self, arguments: PyTree) -> None:
        """Checks the arguments of a ``run``.

        Raises:
            ValueError: If replicas' shapes differ and that is not enabled.
        """
        if self.experimental_enable_dynamic_batch_size:
            return
        for leaf in structures.leaves_of(arguments, is_leaf=lambda x: isinstance(x, PerReplica)):
            group = leaf._group if isinstance(leaf, PerReplica) else None
            if group is not None and leaf.global_array(group) is None:
                raise ValueError(
                    "experimental_enable_dynamic_batch_size=False needs equal shapes in all replicas, "
                    f"got {[getattr(v, 'shape', None) for v in leaf.values]}. Use drop_remainder=True "
                    "in batch()."
                )
