"""The strategies that the contract is tested with, and what each of them is there to test."""

import contextlib
import dataclasses
import functools
import os
import zlib
from collections.abc import Callable

import jax
from replicas import IN_WORKERS

import stratagem as sg

TOPICS = frozenset({"calls", "collectives", "input", "variables"})
"""What a test of the contract can be about."""

# Virtual CPU devices stand in for TPU cores, unless the tests run on a TPU and are told so.
TPU_PLATFORM = os.environ.get("STRATAGEM_TEST_TPU_PLATFORM", "cpu")


@dataclasses.dataclass(frozen=True)
class Subject:
    """A strategy under test.

    Args:
        make: Returns the strategy.
        topics: In what it differs from the strategies before it. Tests about something else run
            with it too, but as breadth, in ``make test-all`` only.
        replicas: Whether it has several replicas.
        places: Whether it places variables itself.
        placement: Returns the block in which tests create variables.
    """

    make: Callable[[], sg.distribute.Strategy]
    topics: frozenset[str]
    replicas: bool = True
    places: bool = True
    placement: Callable[[], contextlib.AbstractContextManager] = contextlib.nullcontext


def _cpus(count):
    return [f"CPU:{i}" for i in range(count)]


def _mirrored(count, cross_device_ops=None):
    return sg.distribute.MirroredStrategy(_cpus(count), cross_device_ops=cross_device_ops)


def _tpu(num_replicas, num_cores):
    tpu = sg.tpu.experimental
    assignment = tpu.DeviceAssignment.build(
        tpu.Topology(jax.devices(TPU_PLATFORM)),
        computation_shape=[1, 1, 1, num_cores],
        num_replicas=num_replicas,
    )
    return sg.distribute.TPUStrategy(experimental_device_assignment=assignment)


@functools.cache
def parameter_servers():
    """Returns two parameter servers in this process, which all tests share."""
    return [sg.distribute.Server({"ps": {i: "127.0.0.1:0"}}, "ps", i) for i in range(2)]


class _Resolver(sg.distribute.cluster_resolver.SimpleClusterResolver):
    """A cluster of which this process uses some devices."""

    def __init__(self, cluster_spec, num_devices):
        super().__init__(cluster_spec)
        self._num_devices = num_devices

    @property
    def local_device_ids(self):
        return tuple(range(self._num_devices))


def parameter_server_strategy(num_devices):
    servers = [server.target.removeprefix("grpc://") for server in parameter_servers()]
    cluster = sg.train.ClusterSpec({"ps": servers, "worker": ["127.0.0.1:1"]})
    split = sg.distribute.experimental.partitioners.FixedShardsPartitioner(2)
    return sg.distribute.ParameterServerStrategy(_Resolver(cluster, num_devices), split)


@functools.cache
def _workers():
    options = sg.distribute.experimental.CommunicationOptions(timeout_seconds=30)
    return sg.distribute.MultiWorkerMirroredStrategy(communication_options=options)


def _subject(make, *topics, **traits):
    return Subject(make, frozenset(topics), **traits)


def _all_sharded():
    return sg.distribute.experimental.FullySharded(min_size=1)


class _AnyDim(sg.distribute.experimental.ShardingRules):
    """Shards every variable along its first dim that two devices divide."""

    def __init__(self):
        super().__init__({}, axes={"tensor": 2})

    def rule_of(self, path):
        return "any"

    def layout_of(self, path, rule, shape):
        dim = next((dim for dim, size in enumerate(shape) if size % 2 == 0), None)
        return () if dim is None else ((),) * dim + (("tensor",),)


@functools.cache
def _any_dim():
    return _AnyDim()


def _laid_out():
    return sg.distribute.MirroredStrategy(_cpus(4), sharding_rules=_any_dim())


SUBJECTS = {
    "default": _subject(sg.distribute.get_strategy, *TOPICS, replicas=False, places=False),
    "mirrored2": _subject(lambda: _mirrored(2), *TOPICS),
    # Each replica has a part of every variable that has any dims.
    "mirrored2_sharded": _subject(lambda: _mirrored(2), placement=_all_sharded),
    # Hardly anything in the tests divides by four.
    "mirrored4_sharded": _subject(lambda: _mirrored(4), placement=_all_sharded),
    # Logical devices: a replica has several cores.
    "tpu2x2": _subject(lambda: _tpu(2, 2), "collectives", "variables"),
    # Variables and batches are on a device that is not the default one.
    "one_device": _subject(
        lambda: sg.distribute.OneDeviceStrategy("CPU:1"), "input", "variables", replicas=False
    ),
    # Collectives with nobody else.
    "mirrored1": _subject(lambda: _mirrored(1), "collectives", replicas=False),
    # More than one other: the same programs over more devices, as those of the hierarchical copy are.
    "mirrored4": _subject(lambda: _mirrored(4)),
    # Values travel in another way.
    "mirrored2_one_device": _subject(
        lambda: _mirrored(2, sg.distribute.ReductionToOneDevice("CPU:1")), "collectives"
    ),
    "mirrored4_hierarchical": _subject(
        lambda: _mirrored(4, sg.distribute.HierarchicalCopyAllReduce(num_packs=2)), "collectives"
    ),
    # Variables are in one place: with none of the replicas, with the first, with the only one.
    "central4_apart": _subject(
        lambda: sg.distribute.CentralStorageStrategy(_cpus(4), "CPU:5"), "variables"
    ),
    "central2": _subject(lambda: sg.distribute.CentralStorageStrategy(_cpus(2))),
    "central1": _subject(lambda: sg.distribute.CentralStorageStrategy(_cpus(1)), replicas=False),
    # Variables are in other processes, and functions talk to those.
    "parameter_server2": _subject(lambda: parameter_server_strategy(2), "calls", "variables"),
    # Each replica has two devices, over which variables are sharded.
    "mirrored2_laid_out": _subject(_laid_out),
}

NAMES = frozenset(SUBJECTS)
"""What ``pytest.mark.not_on`` may name."""

if IN_WORKERS:
    # Every worker of a cluster runs these tests, in step; see test_contract_of_workers. What
    # concerns calls alone, and no other replica, happens in each as it does with one process.
    SUBJECTS = {
        "workers": _subject(_workers, "collectives", "input", "variables"),
        "workers_sharded": _subject(_workers, placement=_all_sharded),
    }

_EVERY = {"mirrored2_laid_out": 8}
"""Strategies that differ little from another: the share of the tests that they run in ``make test``."""

RUNS_EVERY_COMBINATION = "mirrored2"
"""Runs all combinations of parameters that are spread over the strategies, and both ways to execute."""


def runs_combination(name, indices):
    """Returns whether a strategy has this combination of ``pytest.mark.spread`` in ``make test``.

    The first with several replicas has all of them, and each other one some, so that each
    combination runs with several strategies.

    Args:
        name: Of the strategy.
        indices: Where the values of the parameters stand among their values.
    """
    turn = list(SUBJECTS).index(name) + sum(indices)
    return name == RUNS_EVERY_COMBINATION or turn % 3 == 0


def runs_way(name, test, combination, way):
    """Returns whether a strategy has this way to execute a test, eagerly or compiled, in ``make test``.

    The first with several replicas has both. Each other one has one of them, which changes from
    test to test, from combination to combination of parameters and from strategy to strategy.

    Args:
        name: Of the strategy.
        test: The name of the test's function.
        combination: The sum of where the values of its other parameters stand among their values.
        way: Where the way stands among the ways.
    """
    turn = list(SUBJECTS).index(name) + combination + zlib.crc32(test.encode())
    return name == RUNS_EVERY_COMBINATION or turn % 2 == way


def runs_test(name, test):
    """Returns whether a strategy has this test in ``make test``.

    The first with several replicas has all tests. Each other one has every second test that is about what
    it differs in, so that each test runs with several strategies.

    Args:
        name: Of the strategy.
        test: The name of the test's function.
    """
    turn = list(SUBJECTS).index(name) + zlib.crc32(test.encode()) // 2
    return IN_WORKERS or name == RUNS_EVERY_COMBINATION or turn % _EVERY.get(name, 2) == 0
