"""Eight virtual CPU devices for every test, and checks that tests leave nothing behind."""

import os
import threading

import hypothesis
import pytest

import stratagem as sg

# How long examples take depends on what else the machine does, and on what is compiled meanwhile.
hypothesis.settings.register_profile(
    "steady", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("steady")

# The workers of a cluster have their own.
if "TF_CONFIG" not in os.environ:
    sg.config.set_num_cpu_devices(8)


@pytest.fixture(autouse=True)
def _leaves_nothing_behind():
    threads, environment = set(threading.enumerate()), dict(os.environ)
    yield
    left = [t for t in threading.enumerate() if t not in threads and t.name.startswith("replica-")]
    assert not left, f"threads left behind: {left}"
    changed = {k for k in environment.keys() | os.environ.keys() if k != "PYTEST_CURRENT_TEST"}
    changed = {k for k in changed if environment.get(k) != os.environ.get(k)}
    assert not changed, f"environment variables changed: {changed}"
    assert not sg.distribute.has_strategy(), "a strategy was left current"
