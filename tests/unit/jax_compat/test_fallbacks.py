"""Without the private names of JAX the public ones do, more slowly or with fewer settings."""

import importlib
import importlib.util
import sys

import jax
import jax.numpy as jnp
import pytest

from stratagem._src.jax_compat import (
    concrete_array,
    cpu_collectives,
    distributed_runtime,
    xla_flags,
)
from stratagem._src.jax_compat.running_backends import running_backends


@pytest.fixture
def without(monkeypatch):
    """Makes the import of modules fail, and returns another copy of a module that imports them."""

    def hide(*private, copy_of=None):
        for name in private:
            monkeypatch.setitem(sys.modules, name, None)
            package, _, last = name.rpartition(".")
            monkeypatch.delattr(importlib.import_module(package), last, raising=False)
        if copy_of is None:
            return None
        spec = importlib.util.find_spec(f"stratagem._src.jax_compat.{copy_of}")
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module

    return hide


def test_arrays_of_an_unknown_type_are_not_taken_for_concrete_ones(without):
    module = without("jax._src.array", copy_of="concrete_array")
    array = jnp.ones(2)
    assert module.ConcreteArray is jax.Array
    assert not module.is_on_one_device(array)
    assert getattr(array, module.committed_attribute(type(array))) is array.committed
    assert getattr(array, module.sharding_attribute(type(array))) == array.sharding


def test_backends_that_cannot_be_listed_are_none(without):
    jnp.ones(2).block_until_ready()
    assert running_backends()
    without("jax._src.xla_bridge")
    assert running_backends() == []


def test_settings_of_backends_are_left_alone(without):
    without("jax._src.xla_bridge")
    xla_flags.raise_collective_timeouts()
    with cpu_collectives.gloo_listens_at("127.0.0.1"):
        pass
    distributed_runtime.check_not_started()  # jax.distributed.initialize checks it too


def test_a_profile_goes_through_files(without):
    module = without("jax._src.profiler", copy_of="profiler_session")
    session = module.begin_session(host_level=1, python_level=0)
    jnp.sin(jnp.ones(4)).block_until_ready()
    recorded = module.end_session(session)
    assert list(jax.profiler.ProfileData.from_serialized_xspace(recorded).planes)
    assert not session.exists()


def test_an_array_is_freed_from_its_device(without):
    there = jax.device_put(jnp.arange(2), jax.devices()[0])
    module = without("jax._src.array", copy_of="concrete_array")
    for uncommitted in (concrete_array.uncommitted, module.uncommitted):
        made = uncommitted(there)
        assert there.committed
        assert not made.committed
        assert made.tolist() == [0, 1]
    assert module.uncommitted(made) is made
