"""``NcclAllReduce``: the platform's own all-reduce."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

from stratagem._src.collectives.all_reduce import PLAIN_ALL_REDUCE, all_reduce_each
from stratagem._src.collectives.collective_tokens import CollectiveTokens
from stratagem._src.collectives.cross_device_ops import find_group
from stratagem._src.collectives.packed_ops import PackedOps
from stratagem._src.collectives.packing import Packing, apply_in_packs, in_packs, packed, unpacked
from stratagem._src.collectives.replica_programs import run_on_replicas
from stratagem._src.collectives.xla_all_reduce import xla_all_reduce
from stratagem._src.core.communication_options import CommunicationOptions
from stratagem._src.core.reduce_op import ReduceOp
from stratagem._src.core.types import Tensor
from stratagem._src.values.per_replica import PerReplica, SpmdPerReplica
from stratagem._src.variables import frames

__all__ = ["NcclAllReduce"]


def _described(packing: Packing) -> str:
    packs = "" if packing.num_packs is None else f" in {packing.num_packs} packs"
    return f" in packs of {packing.bytes_per_pack} bytes" if packing.bytes_per_pack else packs


class NcclAllReduce(PackedOps):
    """Reduces with XLA's all-reduce: NCCL on GPU, the interconnect on TPU, shared memory on CPU.

    The default of ``MirroredStrategy``.

    Args:
        num_packs: Arrays of one dtype are concatenated into this many packs before they are sent; 0 sends
            each alone. Default: packs of a tuned size in bytes.

    Differs from tf.distribute: the default there is one pack of any size.

    JAX equivalent: ``jax.lax.psum``.

    >>> import stratagem as sg
    >>> strategy = sg.distribute.MirroredStrategy(
    ...     ["CPU:0", "CPU:1"], cross_device_ops=sg.distribute.NcclAllReduce(num_packs=2))
    """

    def batch_reduce_implementation(
        self,
        reduce_op: ReduceOp,
        value_destination_pairs: Sequence[tuple[PerReplica, Any]],
        options: CommunicationOptions,
    ) -> list[Any]:
        """Returns the all-reduced values."""
        values = [value for value, _ in value_destination_pairs]
        packing = self._packing.with_options(options)
        inside = [value.local for value in values if isinstance(value, SpmdPerReplica)]
        group = find_group(values)
        frame = frames.current_frame()
        if inside and frame is not None and frame.fuses_collectives:
            return [in_packs(packing, PLAIN_ALL_REDUCE[reduce_op], part) for part in inside]
        if inside:
            reduce = functools.partial(xla_all_reduce, reduce_op)
            return apply_in_packs(reduce, inside, packing.plan(inside, group))

        def reduce_parts(*parts: Tensor) -> list[Any]:
            tokens = CollectiveTokens(group)
            packs = packing.plan(parts, group, shares_memory=tokens.shares_memory)
            reduced = all_reduce_each(reduce_op, packed(parts, packs), group, tokens)
            return unpacked(reduced, parts, packs)

        name = f"all-reduce {reduce_op.name}{_described(packing)}"
        key = (packing, reduce_op, len(values))
        reduced: list[Any] = run_on_replicas(name, key, lambda: reduce_parts, values, group)
        return reduced
