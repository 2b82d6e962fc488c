"""Every contract test runs over every strategy, eagerly and compiled."""

import functools

import pytest
from replicas import IN_WORKERS, components

import stratagem as sg


def _cpus(count):
    return [f"CPU:{i}" for i in range(count)]


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
    "central4_apart": lambda: sg.distribute.CentralStorageStrategy(_cpus(4), "CPU:5"),
}


@functools.cache
def _workers():
    options = sg.distribute.experimental.CommunicationOptions(timeout_seconds=30)
    return sg.distribute.MultiWorkerMirroredStrategy(communication_options=options)


if IN_WORKERS:
    # Every worker of a cluster runs these tests, in step; see test_contract_of_workers.
    STRATEGIES = {"workers": _workers}


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
