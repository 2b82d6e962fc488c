"""Every contract test runs over every strategy, eagerly and compiled.

Which of these runs are breadth, for ``make test-all``, follows from what a test is about
(``pytest.mark.about``), what a strategy is there to test (``SUBJECTS``), whether it is the strategy's
turn (``runs_test``), which combinations of a test's parameters are spread over the strategies
(``pytest.mark.spread``), and which of the two ways to execute it is the strategy's.
"""

import functools
import hashlib
import json
import os
import shutil
import tempfile
from pathlib import Path

import jax.numpy as jnp
import pytest
from replicas import IN_WORKERS, components
from strategies_under_test import (
    NAMES,
    SUBJECTS,
    TOPICS,
    parameter_server_strategy,
    parameter_servers,
    runs_combination,
    runs_test,
    runs_way,
)

import stratagem as sg
from belongings import Belongings

_FIXTURES = ("strategy", "placed_strategy", "many")


@pytest.fixture(scope="session")
def folder_of_all_workers():
    """Returns a folder that every worker of this cluster knows by the same name."""
    cluster = json.dumps(json.loads(os.environ["TF_CONFIG"])["cluster"], sort_keys=True)
    name = hashlib.sha256(cluster.encode()).hexdigest()[:16]
    folder = Path(tempfile.gettempdir()) / f"contract-of-workers-{name}"
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def tmp_path(request, tmp_path):
    """Returns a folder for the test: one for all workers, who save and restore together."""
    if not IN_WORKERS:
        return tmp_path
    folder = request.getfixturevalue("folder_of_all_workers") / request.node.name
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@pytest.fixture(scope="session", autouse=True)
def _shut_servers_down():
    yield
    if parameter_servers.cache_info().currsize:
        parameter_server_strategy(1).client.close()
        for server in parameter_servers():
            server.shutdown()


@pytest.fixture(scope="session")
def kept_for_the_session():
    """Returns what the strategies that tests share have: threads, processes and sockets.

    Workers have one strategy for all tests, which has met the others, and compiled and run a
    program with them, before the first test: what there is then may stay, and nothing else.
    """
    if IN_WORKERS:
        _add_up(SUBJECTS["workers"].make())
        of_strategy = Belongings.now()
        return lambda: of_strategy
    return _of_parameter_servers


def _of_parameter_servers():
    if not parameter_servers.cache_info().currsize:
        return Belongings()
    now = Belongings.now()
    ports = {int(server.target.rpartition(":")[2]) for server in parameter_servers()}
    return Belongings(
        threads=frozenset(
            t for t in now.threads if t.name.startswith(("listener-", "parameter-client"))
        ),
        listening=frozenset(socket for socket in now.listening if socket[2] in ports),
    )


def _add_up(strategy):
    """Lets all replicas talk to each other, eagerly and compiled."""
    for call in (strategy.run, sg.function(strategy.run)):
        call(lambda: sg.distribute.get_replica_context().all_reduce("SUM", jnp.ones(())))


def pytest_itemcollected(item):
    parameters = item.callspec.params if hasattr(item, "callspec") else {}
    for name in (parameters[fixture] for fixture in _FIXTURES if fixture in parameters):
        for mark in item.iter_markers("not_on"):
            if not mark.args or set(mark.args) - NAMES:
                raise pytest.UsageError(f"{item.nodeid} is marked as not on {mark.args}, unknown.")
            if name in mark.args:
                item.add_marker(pytest.mark.skip(reason=mark.kwargs["reason"]))
        # A test may choose strategies itself, also such as workers do not have.
        if name in SUBJECTS and _is_breadth(item, name):
            item.add_marker(pytest.mark.slow)


def _is_breadth(item, name):
    of_workers = IN_WORKERS and item.get_closest_marker("layout")
    if not of_workers and SUBJECTS[name].topics.isdisjoint(_topics(item)):
        return True
    if not runs_test(name, item.originalname):
        return True
    spread = [parameter for mark in item.iter_markers("spread") for parameter in mark.args]
    if unknown := set(spread) - item.callspec.indices.keys():
        raise pytest.UsageError(f"{item.nodeid} is spread over {unknown}, which it does not have.")
    indices = [item.callspec.indices[parameter] for parameter in spread]
    if indices and not runs_combination(name, indices):
        return True
    where = dict(item.callspec.indices)
    way = where.pop("execute", None)
    others = sum(index for key, index in where.items() if key not in _FIXTURES)
    return way is not None and not runs_way(name, item.originalname, others, way)


def _topics(item):
    topics = {topic for mark in item.iter_markers("about") for topic in mark.args}
    if not topics or topics - TOPICS:
        raise pytest.UsageError(
            f"{item.nodeid} must be marked as about some of {sorted(TOPICS)}, got {sorted(topics)}. "
            "Set `pytestmark = pytest.mark.about(...)` in its module."
        )
    return topics


def _made(name):
    with SUBJECTS[name].placement():
        yield SUBJECTS[name].make()


@pytest.fixture(params=SUBJECTS)
def strategy(request):
    yield from _made(request.param)


@pytest.fixture(params=[name for name, subject in SUBJECTS.items() if subject.places])
def placed_strategy(request):
    """Every strategy that places variables itself."""
    yield from _made(request.param)


@pytest.fixture(params=[name for name, subject in SUBJECTS.items() if subject.replicas])
def many(request):
    """Every strategy with several replicas."""
    yield from _made(request.param)


@pytest.fixture(params=["eager", "compiled"])
def execute(request):
    """Calls a function as it is, or as a compiled function."""
    if request.param == "eager":
        return lambda fn, *args: fn(*args)
    return lambda fn, *args: sg.function(fn)(*args)


@pytest.fixture
def prepare(request, execute):
    """Returns a function as it is, or compiled: for tests that call it several times."""
    return sg.function if request.node.callspec.params["execute"] == "compiled" else lambda fn: fn


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
