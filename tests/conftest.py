"""Eight virtual CPU devices for every test, and checks that tests leave nothing behind."""

import gc
import importlib.util
import logging
import os
import signal
import threading
import time
import warnings
from pathlib import Path

import hypothesis
import jax
import pytest

import stratagem as sg
from belongings import Belongings, left_since
from stratagem._src.mesh.dispatch_queue import LAUNCH_LOCK
from stratagem._src.variables.locking import ACTIVE_CALLS, STORAGE_LOCK

# How long examples take depends on what else the machine does, and on what is compiled meanwhile.
hypothesis.settings.register_profile(
    "steady", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("steady")

# A shell ignores interrupts in what it starts in the background; here, some tests send them.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Compiled programs are shared by the workers of xdist, the processes that tests start, and the next run.
if "PYTEST_XDIST_WORKER" not in os.environ:
    os.environ["XDG_CACHE_HOME"] = str(Path(__file__).parents[1] / ".pytest_cache" / "programs")

# The workers of a cluster have their own.
if "TF_CONFIG" not in os.environ:
    sg.config.set_num_cpu_devices(8)


_make_record = logging.getLogRecordFactory()


def _make_record_of_text(*args, **kwargs):
    """Makes a record that holds no exception: pytest keeps it, and with it all that frames refer to."""
    record = _make_record(*args, **kwargs)
    if isinstance(record.args, tuple):
        record.args = tuple(str(a) if isinstance(a, BaseException) else a for a in record.args)
    return record


logging.setLogRecordFactory(_make_record_of_text)


def pytest_collection_modifyitems(items):
    """Has the longest tests begin first, so that at the end nobody waits for one of them."""
    items.sort(key=lambda item: item.get_closest_marker("long") is None)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item):
    """Leaves out tests with libraries that are not installed, and imports those that are.

    Before fixtures: what they do to the process when they are imported is not the test's doing.
    """
    for mark in item.iter_markers("peer"):
        for library in mark.args:
            if importlib.util.find_spec(library) is None:
                pytest.skip(f"{library} is not installed; make test-peers does so")
            with warnings.catch_warnings(action="ignore"):
                importlib.import_module(library)


@pytest.fixture(scope="session")
def kept_for_the_session():
    """Returns what tests share until the session ends; folders that have such things override it."""
    return Belongings


@pytest.fixture(scope="module", autouse=True)
def _short_collections():
    """Keeps what earlier modules left, compiled programs above all, out of garbage collections.

    A process that has run thousands of tests needs half a second for each ``gc.collect()`` otherwise.
    """
    gc.collect()
    gc.freeze()


def jax_settings():
    """What an interrupt can leave changed; and with it the result of every later computation."""
    return jax.enable_x64.get_local(), jax.default_device.get_local()


@pytest.fixture(autouse=True)
def _leaves_nothing_behind(kept_for_the_session):
    before, environment, settings = Belongings.now(), dict(os.environ), jax_settings()
    yield
    # This thread would not notice: the locks are reentrant. Any other one would wait for ever.
    held = [lock for lock in (STORAGE_LOCK, LAUNCH_LOCK) if lock._is_owned()]
    assert not held, f"locks were left held: {held}"
    assert jax_settings() == settings, "settings of JAX in this thread were left changed"
    changed = {k for k in environment.keys() | os.environ.keys() if k != "PYTEST_CURRENT_TEST"}
    changed = {k for k in changed if environment.get(k) != os.environ.get(k)}
    assert not changed, f"environment variables changed: {changed}"
    assert not sg.distribute.has_strategy(), "a strategy was left current"
    left = left_since(before, kept_for_the_session)
    assert not left, f"left behind: {left}"
    deadline = time.monotonic() + 5
    while ACTIVE_CALLS and time.monotonic() < deadline:  # of threads that may stay
        time.sleep(0.01)
    # A call that is never ended owns its variables for ever.
    active, ACTIVE_CALLS[:] = list(ACTIVE_CALLS), []
    assert not active, f"calls were left active: {active}"


@pytest.fixture
def forgotten_starts():
    """Takes threads off Python's list that were never started.

    An interrupt in ``Thread.start`` before it starts the thread leaves it on that list for ever.
    """
    yield
    deadline = time.monotonic() + 1  # one that was started has a number soon
    while time.monotonic() < deadline and any(t.ident is None for t in threading.enumerate()):
        time.sleep(0.01)
    for thread in threading.enumerate():
        if thread.ident is None:
            del threading._limbo[thread]
