"""Every contract test runs over every strategy, eagerly and compiled."""

import functools
import os

import jax
import pytest
from replicas import IN_WORKERS, components

import stratagem as sg

# Virtual CPU devices stand in for TPU cores, unless the tests run on a TPU and are told so.
TPU_PLATFORM = os.environ.get("STRATAGEM_TEST_TPU_PLATFORM", "cpu")


def _cpus(count):
    return [f"CPU:{i}" for i in range(count)]


def _tpu(num_replicas, num_cores):
    tpu = sg.tpu.experimental
    assignment = tpu.DeviceAssignment.build(
        tpu.Topology(jax.devices(TPU_PLATFORM)),
        computation_shape=[1, 1, 1, num_cores],
        num_replicas=num_replicas,
    )
    return sg.distribute.TPUStrategy(experimental_device_assignment=assignment)


@functools.cache
def _parameter_servers():
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


def _parameter_server_strategy(num_devices):
    servers = [server.target.removeprefix("grpc://") for server in _parameter_servers()]
    cluster = sg.train.ClusterSpec({"ps": servers, "worker": ["127.0.0.1:1"]})
    split = sg.distribute.experimental.partitioners.FixedShardsPartitioner(2)
    return sg.distribute.ParameterServerStrategy(_Resolver(cluster, num_devices), split)


@pytest.fixture(scope="session", autouse=True)
def _shut_servers_down():
    yield
    if _parameter_servers.cache_info().currsize:
        _parameter_server_strategy(1).client.close()
        for server in _parameter_servers():
            server.shutdown()


STRATEGIES = {
    "default": sg.distribute.get_strategy,
    "one_device": lambda: sg.distribute.OneDeviceStrategy("CPU:1"),
    "mirrored1": lambda: sg.distribute.MirroredStrategy(_cpus(1)),
    "mirrored2": lambda: sg.distribute.MirroredStrategy(_cpus(2)),
    "mirrored4": lambda: sg.distribute.MirroredStrategy(_cpus(4)),
    "mirrored2_one_device": lambda: sg.distribute.MirroredStrategy(
        _cpus(2), cross_device_ops=sg.distribute.ReductionToOneDevice("CPU:1")
    ),
    "mirrored4_hierarchical": lambda: sg.distribute.MirroredStrategy(
        _cpus(4), cross_device_ops=sg.distribute.HierarchicalCopyAllReduce(num_packs=2)
    ),
    "central1": lambda: sg.distribute.CentralStorageStrategy(_cpus(1)),
    "central2": lambda: sg.distribute.CentralStorageStrategy(_cpus(2)),
    "tpu2x2": lambda: _tpu(2, 2),
    "central4_apart": lambda: sg.distribute.CentralStorageStrategy(_cpus(4), "CPU:5"),
    "parameter_server2": lambda: _parameter_server_strategy(2),
}


@functools.cache
def _workers():
    options = sg.distribute.experimental.CommunicationOptions(timeout_seconds=30)
    return sg.distribute.MultiWorkerMirroredStrategy(communication_options=options)


if IN_WORKERS:
    # Every worker of a cluster runs these tests, in step; see test_contract_of_workers.
    STRATEGIES = {"workers": _workers}


# What a parameter server strategy does otherwise, and the tests of it.
ON_SERVERS = {
    "a server does not take updates back": [
        "test_a_failure_around_a_run_takes_back_what_the_run_did",
        "test_a_replica_that_returns_early",
        "test_an_eagerly_run_function_is_rolled_back",
        "test_an_exception_in_a_merge_call",
        "test_an_exception_in_one_replica",
        "test_results_that_cannot_be_merged_take_back_what_was_done",
    ],
    "variables are not created inside of compiled functions": [
        "test_a_lazily_created_variable_survives_a_failed_first_call",
        "test_effects_of_a_creating_call_happen_once",
        "test_lazily_created_variables_are_used_by_run_in_the_same_call",
        "test_variables_created_inside_replicas",
        "test_variables_created_inside_replicas_with_names_of_their_own",
        "test_variables_created_on_a_functions_first_call",
        "test_variables_created_on_every_call_raise",
    ],
    "an ON_READ variable has one value, on the server": [
        "test_collectives_inside_update",
        "test_copies_inside_a_function_are_the_current_ones",
        "test_sync_on_read_assigned_from_outside",
        "test_sync_on_read_updates_stay_in_their_replica",
        "test_update_of_a_sync_on_read_variable",
        "test_update_of_a_sync_on_read_variable_inside_a_replica",
    ],
}
# Of other strategies these test the same code: it does not matter where variables are.
WITHOUT_VARIABLES = {"test_collectives", "test_input", "test_reduce_gather"}


# Strategies that differ from another in how values travel, and the tests of that.
OTHER_COLLECTIVES = ("[mirrored2_one_device", "[mirrored4_hierarchical")
WITH_COLLECTIVES = {
    "test_collectives",
    "test_extended",
    "test_gradients",
    "test_reduce_gather",
    "test_variables",
}


def pytest_collection_modifyitems(config, items):
    otherwise = {test for tests in ON_SERVERS.values() for test in tests}
    left_out = [
        item
        for item in items
        if isinstance(item, pytest.Function)
        and (
            (
                "[parameter_server" in item.name
                and (item.originalname in otherwise or item.module.__name__ in WITHOUT_VARIABLES)
            )
            or (
                any(name in item.name for name in OTHER_COLLECTIVES)
                and item.module.__name__ not in WITH_COLLECTIVES
            )
        )
    ]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in left_out]


@pytest.fixture(params=STRATEGIES)
def strategy(request):
    return STRATEGIES[request.param]()


@pytest.fixture(params=[name for name in STRATEGIES if name not in ("default",)])
def placed_strategy(request):
    """Every strategy that places variables itself."""
    return STRATEGIES[request.param]()


@pytest.fixture(
    params=[
        name for name in STRATEGIES if name[-1] != "1" and name not in ("default", "one_device")
    ]
)
def many(request):
    """Every strategy with several replicas."""
    return STRATEGIES[request.param]()


@pytest.fixture(params=["eager", "compiled"])
def execute(request):
    """Calls a function as it is, or as a compiled function."""
    if request.param == "eager":
        return lambda fn, *args: fn(*args)
    return lambda fn, *args: sg.function(fn)(*args)


@pytest.fixture
def execute_ragged(request, execute):
    """Like ``execute``, with values whose shapes the user lets differ between replicas."""
    if IN_WORKERS and request.node.callspec.params["execute"] == "compiled":
        pytest.skip("a function of one worker cannot see the shapes of the others")
    return execute


@pytest.fixture
def local(strategy):
    """Returns every replica's component of a value as a list."""
    return functools.partial(components, strategy)
