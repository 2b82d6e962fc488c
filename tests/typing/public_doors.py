"""What type checkers make of code that uses the public doors.

``make types`` checks this file; nothing runs it. An ``ignore`` that is not needed is an error too, so
each of them says what a type checker must refuse.
"""
# pyright: reportUnnecessaryTypeIgnoreComment=true

from typing import assert_type

import numpy as np

import stratagem as sg
from stratagem.distribute import MultiWorkerMirroredStrategy, ParameterServerStrategy, partitioners
from stratagem.distribute.cluster_resolver import ClusterResolver
from stratagem.distribute.experimental import rpc
from stratagem.tpu.experimental import Topology

# Names that are loaded when they are first asked for have their types.
assert_type(sg.float32, np.dtype[np.float32])
assert_type(sg.bool, np.dtype[np.bool_])
assert_type(sg.distribute.MultiWorkerMirroredStrategy(), MultiWorkerMirroredStrategy)
assert_type(sg.distribute.experimental.ParameterServerStrategy, type[ParameterServerStrategy])
assert_type(sg.distribute.experimental.rpc.Client, type[rpc.Client])
assert_type(sg.distribute.partitioners.MinSizePartitioner, type[partitioners.MinSizePartitioner])
assert_type(sg.tpu.experimental.Topology, type[Topology])

# Names that the doors do not have are refused.
print(sg.variable)  # pyright: ignore[reportAttributeAccessIssue]
print(sg.config.num_threads)  # pyright: ignore[reportAttributeAccessIssue]
print(sg.distribute.MirorredStrategy)  # pyright: ignore[reportAttributeAccessIssue]
print(sg.distribute.experimental.Rows)  # pyright: ignore[reportAttributeAccessIssue]
print(sg.distribute.cluster_resolver.Resolver)  # pyright: ignore[reportAttributeAccessIssue]
print(sg.tpu.experiments)  # pyright: ignore[reportAttributeAccessIssue]


@sg.function
def step(x: float) -> float:
    """A compiled function keeps the methods of one."""
    return 2 * x


assert_type(step.experimental_get_tracing_count(), int)


def strategies_are_known(replica: sg.distribute.ReplicaContext) -> None:
    """A strategy that was not made here has the methods of one."""
    assert_type(replica.strategy, sg.distribute.Strategy)
    assert_type(replica.strategy.cluster_resolver, ClusterResolver | None)


def per_replica_values_are_no_arrays(value: sg.distribute.PerReplica) -> None:
    """What raises an error when it runs is refused before."""
    print(value + 1)  # pyright: ignore[reportOperatorIssue]
    print(value[0])  # pyright: ignore[reportIndexIssue]
    print(len(value))  # pyright: ignore[reportArgumentType]


def variables_are_not_replaced(variable: sg.Variable) -> None:
    """``+=`` would make an array of the name."""
    variable += 1  # pyright: ignore[reportOperatorIssue]
